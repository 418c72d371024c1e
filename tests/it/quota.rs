//! The budget of an account and its tokens, across the nodes that share a Redis.

mod commands;
mod exact;
mod kinds;
mod own;
mod tokens;
mod usage;
mod window;
