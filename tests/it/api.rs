//! The resources of the API, a folder each, a file a method.

mod account;
pub(crate) mod changes;
mod conditional;
mod counts;
mod export;
mod form;
mod group;
mod ignored;
mod inexact;
mod me;
mod openapi;
mod reach;
mod requests;
pub(crate) mod submission;
mod subscription;
pub(crate) mod world;
