//! The budget of an account and its tokens, across the nodes that share a Redis.

mod commands;
mod tokens;
mod usage;
