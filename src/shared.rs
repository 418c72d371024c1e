//! What the nodes of a gateway share through one Redis: connections that many requests use at once, and announcements
//! of changed tokens.
//!
//! Knows neither windows nor tenants: `quota` runs its script through [`Lanes`], and `tenant` receives token changes
//! through [`announce`]. The circuit breaker is in `lanes`: when Redis hangs, only the requests already waiting pay
//! the time limit.

pub mod announce;
mod eviction;
mod lanes;
mod link;
mod shards;
pub mod trial;

pub use lanes::{CallError, Lanes};
pub use link::{Connection, Link, LinkError};
