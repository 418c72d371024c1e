//! Connections to the tenants' databases, and what runs a statement on one of them.
//!
//! Owns where a database is, how a session on it is opened, limited, cancelled and closed, how many there are over all
//! tenants, when callers are refused, and what an error of the driver means. Knows no table but the migrations' own.

mod breaker;
mod bulk;
mod causes;
mod commit_stamp;
mod connections;
mod database;
mod database_file;
mod database_time;
mod error;
mod failure;
mod immutable;
mod limits;
pub mod location;
mod page_cache;
mod pool;
mod pooler;
mod postgres;
#[cfg(test)]
pub(crate) mod raw;
mod remedy;
pub(in crate::store) mod retry;
mod schema_setting;
mod session;
mod session_attributes;
mod session_source;
mod write_access;
mod write_lock;

pub use breaker::{Breaker, BreakerPermit};
pub(crate) use causes::with_causes;
pub use commit_stamp::CommitStamp;
pub use connections::Connections;
pub(super) use database::{Database, Transaction};
pub(super) use database_file::DatabaseFile;
pub(crate) use database_file::{BESIDE, FileId, LOG, SHARED_MEMORY, next_to};
pub use database_time::DatabaseTime;
pub use error::StoreError;
pub(super) use failure::{MOVED, is_denied, is_row_security};
pub use limits::DatabaseLimits;
pub use location::{CountedBy, DatabaseLocation, InvalidLocation};
pub(super) use pool::connection::{HeldRows, PooledConnection};
pub use pooler::Pooler;
pub(crate) use remedy::OWN_DATABASE;
pub use remedy::remedy;
pub(super) use remedy::{PG_TRGM, PUBLICATION, ROW_SECURITY};
pub(super) use retry::AsStoreError;
pub use write_access::ReadOnlyFile;
