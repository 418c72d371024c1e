//! Certificates from a real authority, Pebble, and from one that fails in every way.
//!
//! The client is the library's own. What the owner of a host has to do, answering a challenge, is done by `scene`.

mod account;
mod errors;
mod faults;
mod orders;
mod renewal;
mod scene;
