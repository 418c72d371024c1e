//! The delivery of webhooks, from a change in a database to the receiver.

mod deliveries;
mod delivery;
mod explain;
mod failover;
mod hostile;
mod managing;
mod metrics;
mod order;
mod replay;
mod scene;
mod sealed;
