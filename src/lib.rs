//! formgate: one TLS endpoint in front of many accounts of a forms service.
//!
//! A request passes a gate in a fixed order, and each step has one verb:
//!
//! ```text
//! accept → resolve tenant → verify token → admit (quota) → route → handle → respond
//! ```
//!
//! Read in this order:
//!
//! 1. [`gate`]: the steps, once, in order; passing them yields [`gate::Admitted`], which every handler asks for.
//! 2. [`api`]: the route table on one page, and a file a resource.
//! 3. [`store`]: one tenant's database, Postgres or SQLite, behind one interface.
//! 4. [`tenant`]: names, tokens and databases of a tenant; [`quota`]: its budget of requests.
//! 5. [`edge`]: sockets, TLS and connections; [`gateway`]: every part built from a [`config`] and started.
//!
//! Dependencies point one way: `edge → gate → {tenant, quota, api} → store`. `store` and `quota` know no HTTP, `api`
//! knows no sockets, and only `store` names a database.

pub mod api;
pub mod cli;
pub mod config;
pub mod edge;
pub mod error;
pub mod explain;
mod file_stamp;
pub mod gate;
pub mod gateway;
pub mod import;
pub mod memory;
pub mod metrics;
mod owner_only;
mod patience;
pub mod quota;
pub mod reply;
mod rights;
pub mod shared;
pub mod store;
pub mod supervisor;
pub mod telemetry;
pub mod tenant;
