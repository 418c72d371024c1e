//! The one test binary: the gateway as its callers and its operator meet it.
//!
//! One binary, so that all tests share one Postgres. `support` holds the parts, the folders mirror the way of a request
//! and the URLs of the API, and a test reads as the sentence that it proves.

#![expect(clippy::unwrap_used, reason = "a failed test says so by panicking")]

mod acme;
mod administration;
mod api;
mod cli;
mod databases;
mod dns;
mod domains;
mod drill;
mod edge;
mod endpoints;
mod gate;
mod harness;
mod isolation;
mod layers;
mod log;
mod metrics;
mod outage;
mod outbound;
mod quota;
mod registry;
mod scim;
mod support;
mod telemetry;
mod webhooks;
