//! What the nodes of a gateway share through one Redis: connections that many requests use at once, and announcements
//! of changed tokens.
//!
//! Knows neither windows nor tenants: `quota` runs its script through [`Lanes`], and `tenant` receives token changes
//! through [`announce`]. The circuit breaker is in `connections`: when Redis hangs, only the requests already waiting pay
//! the time limit.

pub mod announce;
mod client;
mod connections;
pub mod diagnosis;
mod eviction;
mod shards;

pub use client::{Connection, Link, LinkError};
pub use connections::{CallError, Lanes};
