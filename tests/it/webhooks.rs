//! The delivery of webhooks, from a change in a database to the receiver.

mod delivery;
mod explain;
mod failover;
mod hostile;
mod metrics;
mod order;
mod scene;
mod sealed;
