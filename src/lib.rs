//! formgate: one TLS endpoint in front of many accounts of a forms service.
//!
//! A request passes fixed steps in a fixed order, and each step has one verb:
//!
//! ```text
//! accept → resolve tenant → verify token → admit (quota) → route → handle → respond
//! ```
//!
//! To follow a request, read:
//!
//! 1. [`edge`]: accepts a connection, ends TLS, speaks HTTP/1.1 and HTTP/2, and hands each request to
//! 2. [`request`]: the steps, once, in order, and what every response carries. Passing its
//! 3. [`gate`], which resolves, verifies and admits, yields [`gate::Admitted`], which every handler takes.
//! 4. [`api`]: the table of endpoints on one page, and a file a resource; a handler asks the tenant's
//! 5. [`store`]: one database, Postgres or SQLite, behind one interface.
//!
//! [`administration`] is where the administrators of an account manage its tokens in a browser, past the token check.
//! Tenants come from files and from the [`registry`], a database whose changes every node takes over within a second;
//! [`operator`] is the API that changes it, and [`moving`] moves an account to another database.
//! [`scim`] is where directories provision users and groups.
//! The other way, what changes in a database reaches receivers through [`webhooks`].
//!
//! [`acme`] obtains certificates from authorities.
//!
//! [`gateway`] builds all of these from a [`config`] and starts them; [`tenant`] and [`quota`] are what the gate asks.
//!
//! # Layers
//!
//! Dependencies point one way. A module may use the modules in the lines below its own, and no others;
//! `tests/it/layers.rs` reads this list and every `use crate::…`:
//!
//! ```text
//! cli
//! explain, gateway
//! edge, webhooks
//! request
//! administration, operator, scim
//! api
//! domains, moving
//! gate, import, registry
//! error, tenant
//! quota
//! endpoint, oidc, shared, translation
//! config
//! certificate
//! reply, store
//! acme
//! dns
//! background, memory, outbound
//! deadline, file_stamp, host, instant, json_text, owner_only, rare, rights, seal, shares, shown_text, systemd, telemetry
//! metrics, regular_file
//! ```
//!
//! So `store` and `quota` know no HTTP, `api` knows no sockets, and only `store` names a database.

pub mod acme;
pub mod administration;
pub mod api;
pub mod background;
pub mod certificate;
pub mod cli;
pub mod config;
mod deadline;
pub mod dns;
pub mod domains;
pub mod edge;
pub mod endpoint;
pub mod error;
pub mod explain;
mod file_stamp;
pub mod gate;
pub mod gateway;
pub mod host;
pub mod import;
mod instant;
mod json_text;
pub mod memory;
pub mod metrics;
pub mod moving;
pub mod oidc;
pub mod operator;
pub mod outbound;
mod owner_only;
pub mod quota;
mod rare;
pub mod registry;
mod regular_file;
pub mod reply;
pub mod request;
mod rights;
pub mod scim;
pub mod seal;
pub mod shared;
pub mod shares;
mod shown_text;
pub mod store;
pub mod systemd;
pub mod telemetry;
pub mod tenant;
mod translation;
pub mod webhooks;
