//! Redis away, in every way in which it can be, and back again.

mod breaker;
mod eviction;
mod failover;
mod policy;
mod scene;
mod shards;
mod strangers;
