//! The registry and the operator API: tenants come and go, on every node.

mod accounts;
mod api;
mod clock;
mod commands;
mod connections;
mod databases;
mod description;
pub(crate) mod documented;
mod far_away;
mod files;
mod following;
mod full_disk;
mod moving;
mod moving_under_load;
mod one_database;
mod one_restored;
mod outage;
mod ownership;
mod ready;
mod restored;
mod restoring;
pub(crate) mod scene;
mod served;
mod shares;
mod snapshot;
mod variables;
