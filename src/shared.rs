//! What the nodes of a gateway share through one Redis: connections that many requests use at once, and announcements
//! of changed tokens.
//!
//! Knows neither windows nor tenants: `quota` runs its script through [`RedisConnections`], and `tenant` receives token
//! changes through [`announce`]. The circuit breaker is in `connections`: when Redis hangs, only the requests already
//! waiting pay the time limit.

pub mod announce;
mod client;
mod connections;
mod deleting;
pub mod diagnosis;
mod eviction;
mod refusals;
mod shards;

pub use client::{RedisClient, RedisClientError, RedisConnection};
pub use connections::{CallError, RedisConnections};
pub use deleting::delete;
pub use refusals::BackgroundCall;
