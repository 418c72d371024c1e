//! The resources of the API, a folder each, a file a method.
#![expect(clippy::unwrap_used, reason = "clippy does not know the functions of `on_both_databases!` for tests")]

mod account;
mod form;
mod group;
mod me;
mod submission;
mod subscription;
pub(crate) mod world;
