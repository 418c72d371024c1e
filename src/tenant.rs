//! A tenant: the operator's word for what an API caller knows as the account.
//!
//! Owns the names that a tenant answers to; knows no sockets and no SQL.

pub mod certificate;
pub mod host;
