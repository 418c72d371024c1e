//! The registry and the operator API: tenants come and go, on every node.

mod api;
mod commands;
mod description;
mod documented;
mod following;
mod outage;
mod ownership;
mod scene;
