//! The parts that the tests are built from: real servers, real certificates, the real binary.
//!
//! Read [`fixture`] first: a [`fixture::Site`] is a configuration with its databases, [`process::Node`] a running
//! gateway of it, and [`client::Client`] the caller, which checks every answer against the rules that hold for all.
//! Nothing here is a stand-in, and a part that is missing fails the test that asks for it. Nothing outlives the test
//! process: [`child`] ties every server to it, [`folder`] removes what they wrote.

pub(crate) mod acme;
pub(crate) mod acme_proxy;
pub(crate) mod answer;
pub(crate) mod browser;
pub(crate) mod busy;
pub(crate) mod certificate;
pub(crate) mod child;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod connection;
pub(crate) mod database;
pub(crate) mod description;
pub(crate) mod dns;
pub(crate) mod document;
pub(crate) mod fixture;
pub(crate) mod folder;
pub(crate) mod hanging;
pub(crate) mod library;
pub(crate) mod litestream;
pub(crate) mod load;
pub(crate) mod pebble;
pub(crate) mod pgbouncer;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod prometheus;
pub(crate) mod receiver;
pub(crate) mod redis;
pub(crate) mod redis_group;
pub(crate) mod registry_backup;
pub(crate) mod revocation;
pub(crate) mod rewind;
pub(crate) mod slow_disk;
pub(crate) mod tls_server;
mod zone_records;
pub(crate) mod zones;
