//! What the nodes of a gateway share through one Redis: connections that many requests use at once, and word of tokens
//! that changed.
//!
//! Knows neither windows nor tenants: `quota` runs its script through [`Lanes`], `tenant` learns of tokens through
//! [`announce`]. A store that fails costs nobody its time limit for long: `lanes` holds the breaker.

pub mod announce;
mod eviction;
mod lanes;
mod link;
mod shards;
pub mod trial;

pub use lanes::{CallError, Lanes};
pub use link::{Connection, Link, LinkError};
