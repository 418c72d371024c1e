//! A tenant: the operator's word for what an API caller knows as the account.
//!
//! Owns its names, its database, its tokens and its part of the budget; knows no sockets, no HTTP and no SQL.

pub mod certificate;
mod database;
mod directory;
pub mod host;
mod in_flight;
mod last_used;
mod names;
pub mod token;
mod tokens;
mod verify;

use std::hint::black_box;
use std::sync::Arc;

use jiff::tz::TimeZone;

use crate::config::TenantConfig;
use crate::metrics::TenantMeter;
use crate::quota::Account;
use crate::store::{Connections, Guard};

pub use database::TenantDatabase;
pub use directory::{Directory, TokenChanges};
pub use in_flight::{InFlight, Turn};
pub use last_used::{Due, LastUsed};
pub use names::{NamedShare, TokenNames};
pub use tokens::Tokens;
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
    pub account: Arc<Account>,
    /// How much of a group one write may detach.
    pub group_guard: Option<Guard>,
    /// Its requests, for the metrics.
    pub meter: Arc<TenantMeter>,
    /// What is known of its tokens.
    pub tokens: Arc<Tokens>,
    /// Its requests that are being served.
    pub in_flight: Arc<InFlight>,
    /// The tenant's database, opened when first needed.
    pub database: Arc<TenantDatabase>,
}

impl Tenant {
    /// A tenant as it is configured; nothing is opened yet.
    #[must_use]
    pub fn new(config: &TenantConfig, connections: &Arc<Connections>) -> Self {
        let slug = Arc::clone(&config.slug);
        let database =
            TenantDatabase::new(Arc::clone(&slug), config.database.clone(), config.max_connections, connections);
        Self {
            slug,
            name: config.name.to_string(),
            timezone: config.timezone.clone(),
            account: Arc::new(Account::new(&config.slug, config.requests_per_minute)),
            group_guard: config.group_guard,
            meter: Arc::new(TenantMeter::new(&config.slug)),
            tokens: Arc::default(),
            in_flight: Arc::new(InFlight::new(config.max_in_flight)),
            database: Arc::new(database),
        }
    }

    /// Looks once at each part that a request will look at, so that they come from memory together. Of thousands of tenants
    /// most are in no cache, and one part after another would be waited for.
    pub fn prefetch(&self) {
        black_box((
            self.tokens.in_use.is_sound(),
            self.account.is_sound(),
            self.in_flight.most(),
            self.meter.is_quiet(),
            self.name.as_bytes().first(),
        ));
    }

    /// This tenant as it is configured now: what the change does not touch goes on as it is, its connections and the
    /// requests in its window above all.
    #[must_use]
    pub fn renewed(&self, config: &TenantConfig, connections: &Arc<Connections>) -> Self {
        let mut tenant = Self::new(config, connections);
        tenant.meter = Arc::clone(&self.meter);
        tenant.account = Arc::clone(&self.account);
        tenant.account.set_limit(config.requests_per_minute);
        if self.in_flight.most() == config.max_in_flight {
            tenant.in_flight = Arc::clone(&self.in_flight);
        }
        if self.database.is(&config.database, config.max_connections) {
            tenant.tokens = Arc::clone(&self.tokens);
            tenant.database = Arc::clone(&self.database);
        } else {
            tenant.tokens = Arc::new(self.tokens.of_another_database());
        }
        tenant
    }
}
