//! The delivery of webhooks, from a change in a database to the receiver.

mod bound;
mod clock;
mod deliveries;
mod delivery;
mod explain;
mod failover;
mod hostile;
mod managing;
mod metrics;
mod once;
mod order;
mod quiet;
mod reach;
mod readers;
mod recipes;
mod replay;
mod scene;
mod sealed;
mod states;
