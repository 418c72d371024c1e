//! The delivery of webhooks, from a change in a database to the receiver.

mod delivery;
mod failover;
mod hostile;
mod order;
mod scene;
