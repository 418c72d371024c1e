//! The registry and the operator API: tenants come and go, on every node.

mod api;
mod clock;
mod commands;
mod databases;
mod description;
mod documented;
mod files;
mod following;
mod full_disk;
mod outage;
mod ownership;
pub(crate) mod scene;
mod shares;
mod snapshot;
mod variables;
