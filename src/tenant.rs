//! A tenant: the operator's word for what an API caller knows as the account.
//!
//! Owns its names, its database, its tokens and its part of the budget; knows no sockets, no HTTP and no SQL.

pub mod certificate;
mod database;
mod directory;
pub mod host;
mod last_used;
mod names;
pub mod token;
mod verify;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use jiff::tz::TimeZone;

use crate::config::TenantConfig;
use crate::quota::Account;
use crate::store::Guard;

pub use database::TenantDatabase;
pub use directory::{Directory, TokenChanges};
pub use last_used::LastUsed;
pub use names::{NamedShare, TokenNames};
pub use verify::{Token, TokenVerifier};

/// One tenant as the gateway serves it.
#[derive(Debug)]
pub struct Tenant {
    /// The tenant's short name, which logs and commands use.
    pub slug: Arc<str>,
    /// What callers read.
    pub name: String,
    /// The zone of plain dates and of `time` answers.
    pub timezone: TimeZone,
    /// The tenant's budget.
    pub account: Account,
    /// How much of a group one write may detach.
    pub group_guard: Option<Guard>,
    /// How often its tokens changed, as far as this node heard.
    pub token_changes: AtomicU64,
    /// What its tokens are called.
    pub token_names: TokenNames,
    /// The tenant's database, opened when first needed.
    pub database: TenantDatabase,
}

impl Tenant {
    /// A tenant as it is configured; nothing is opened yet.
    #[must_use]
    pub fn new(config: &TenantConfig) -> Self {
        Self {
            slug: config.slug.as_str().into(),
            name: config.name.clone(),
            timezone: config.timezone.clone(),
            account: Account::new(&config.slug, config.requests_per_minute),
            group_guard: config.group_guard,
            token_changes: AtomicU64::new(0),
            token_names: TokenNames::default(),
            database: TenantDatabase::new(config.slug.clone(), config.database.clone(), config.max_connections),
        }
    }
}
