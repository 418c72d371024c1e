//! The resources of the API, a folder each, a file a method.

mod account;
mod form;
mod me;
mod submission;
pub(crate) mod world;
