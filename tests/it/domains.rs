//! Domains: the operator API and the commands that add, show and remove them.

mod api;
mod commands;
