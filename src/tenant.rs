//! A tenant: the operator's term for what API documentation calls an account.
//!
//! Owns a tenant's names, database, tokens and its account's budget; knows no sockets, no HTTP and no SQL.

mod database;
mod database_owners;
mod database_servers;
mod directory;
mod in_flight;
pub mod last_used;
mod names;
mod network;
mod noticed_writes;
pub mod prompt;
pub mod reads;
pub mod request_log;
pub mod sign_in_link;
mod subscription_changes;
pub mod token;
mod tokens;
pub mod usage;
mod verify;
pub mod written_behind;

use std::hint::black_box;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::config::{OidcConfig, TenantConfig};
use crate::host::HostName;
use crate::memory::TenantMemory;
use crate::metrics::TenantMeter;
use crate::quota::{Account, Interface, LimitedAccount};
use crate::reply::ReadSubmission;
use crate::store::Guard;

pub use database::{DirectUse, TenantDatabase};
pub use database_owners::DatabaseOwners;
pub use database_servers::DatabaseServers;
pub use directory::{Directory, RemovedDatabase, TenantDatabases, TokenChanges, close_removed};
pub use in_flight::{InFlight, InFlightPermit};
pub use names::TokenNames;
pub use network::shown_network;
pub use noticed_writes::{NoticedWrites, WaitingReader};
pub use subscription_changes::{SubscriptionChanges, SubscriptionLedger};
pub use token::Token;
pub use tokens::{Generation, Tokens};
pub use verify::TokenVerifier;
use written_behind::{Due, WriteBehind};

/// The accounts of a tenant, one for each budget.
#[derive(Clone, Debug)]
struct Accounts {
    api: Arc<Account>,
    scim: Arc<Account>,
}

/// One tenant as the gateway serves it.
#[derive(Debug)]
pub struct Tenant {
    /// The tenant's short name in logs and commands.
    pub slug: Arc<str>,
    /// The name that callers see.
    pub name: String,
    /// The sign-in address.
    pub address: HostName,
    /// The time zone of plain dates and of answers to `time` questions.
    pub timezone: TimeZone,
    /// Requests per window.
    pub requests_per_minute: u32,
    /// SCIM requests per window.
    pub scim_requests_per_minute: u32,
    /// The tenant's accounts of the API and of SCIM, set once its database was opened and returned its identity. That happens before the
    /// first request is admitted, since only the database can confirm a token.
    accounts: OnceLock<Accounts>,
    /// How much of a group one write may detach.
    pub group_guard: Option<Guard>,
    /// The OpenID provider of its administrators, in place of the gateway's.
    pub oidc: Option<Arc<OidcConfig>>,
    /// Its requests, for the metrics.
    pub meter: Arc<TenantMeter>,
    /// The cache of its tokens.
    pub tokens: Arc<Tokens>,
    /// Its requests in flight.
    pub in_flight: Arc<InFlight>,
    /// Memory held by its request bodies and responses.
    pub memory: Arc<TenantMemory>,
    /// The tenant's database, opened when first needed.
    pub database: Arc<TenantDatabase>,
}

impl Tenant {
    /// A tenant as configured; nothing is opened yet.
    #[must_use]
    pub fn new(config: &TenantConfig, databases: &Arc<TenantDatabases>) -> Self {
        let slug = Arc::clone(&config.slug);
        let database =
            TenantDatabase::new(Arc::clone(&slug), config.database.clone(), config.max_connections, databases);
        Self {
            slug,
            name: config.name.to_string(),
            address: config.address.clone(),
            timezone: config.timezone.clone(),
            requests_per_minute: config.requests_per_minute,
            scim_requests_per_minute: config.scim_requests_per_minute,
            accounts: OnceLock::new(),
            group_guard: config.group_guard,
            oidc: config.oidc.clone(),
            meter: Arc::new(TenantMeter::new(&config.slug)),
            tokens: Arc::new(Tokens::new()),
            in_flight: Arc::new(InFlight::new(config.max_in_flight)),
            memory: Arc::default(),
            database: Arc::new(database),
        }
    }

    /// Its account for an interface, if it is known.
    #[must_use]
    pub fn account(&self, interface: Interface) -> Option<LimitedAccount<'_>> {
        self.accounts.get().map(|accounts| self.limited(accounts, interface))
    }

    /// That of the API, to be kept.
    #[must_use]
    pub fn shared_account(&self) -> Option<Arc<Account>> {
        self.accounts.get().map(|accounts| Arc::clone(&accounts.api))
    }

    /// Returns its account for an interface, and stores those that `account` returns if there are none.
    pub fn learn_account(
        &self,
        interface: Interface,
        account: impl Fn(Interface) -> Arc<Account>,
    ) -> LimitedAccount<'_> {
        let learn = || Accounts { api: account(Interface::Api), scim: account(Interface::Scim) };
        self.limited(self.accounts.get_or_init(learn), interface)
    }

    /// How many requests of an interface each window admits.
    #[must_use]
    pub fn requests_per_minute(&self, interface: Interface) -> u32 {
        match interface {
            Interface::Api => self.requests_per_minute,
            Interface::Scim => self.scim_requests_per_minute,
        }
    }

    fn limited<'a>(&self, accounts: &'a Accounts, interface: Interface) -> LimitedAccount<'a> {
        let account = match interface {
            Interface::Api => &accounts.api,
            Interface::Scim => &accounts.scim,
        };
        account.limited(self.requests_per_minute(interface))
    }

    /// The write of what its requests left, if something is due.
    #[must_use]
    pub fn write_behind(&self, due: Due) -> Option<WriteBehind> {
        WriteBehind::find(&self.slug, &self.tokens, &self.database, due)
    }

    /// Writes what is due, in the background, after a request has put its connection back.
    pub fn write_behind_request(&self) {
        let Tokens { last_used, reads, prompt, .. } = &*self.tokens;
        // All are asked: some answer once.
        if (last_used.becomes_due() | reads.becomes_due() | prompt.is_due_after_request())
            && let Some(due) = self.write_behind(Due::AfterRequest)
        {
            tokio::spawn(due.write());
        }
    }

    /// Notes that a token was sent submissions. [`Self::write_behind_request`] writes it.
    pub fn note_reads(&self, token: i64, read: &[ReadSubmission]) {
        if !read.is_empty() {
            self.tokens.reads.note(token, read, &self.timezone, Timestamp::now());
            self.tokens.prompt.begin();
        }
    }

    /// Touches each part that a request will use, so that the cache misses overlap. With thousands of tenants, most
    /// are in no CPU cache, and each part in turn would cost a miss.
    pub fn prefetch(&self) {
        black_box((
            self.tokens.changes(),
            self.accounts.get().is_none_or(|accounts| accounts.api.is_sound()),
            self.in_flight.most(),
            self.meter.is_quiet(),
            self.name.as_bytes().first(),
        ));
    }

    /// This tenant with a changed configuration. Whatever the change doesn't affect is kept, above all its
    /// connections and the requests in its window. A changed database address starts a new, empty [`Generation`], unless
    /// the account was moved there. The account is still the same if the database turns out to be
    /// ([`crate::quota::Quota::account`]).
    #[must_use]
    pub fn renewed(&self, config: &TenantConfig, databases: &Arc<TenantDatabases>) -> Self {
        let mut tenant = Self::new(config, databases);
        tenant.meter = Arc::clone(&self.meter);
        tenant.memory = Arc::clone(&self.memory);
        if self.in_flight.most() == config.max_in_flight {
            tenant.in_flight = Arc::clone(&self.in_flight);
        }
        if self.database.is_at(&config.database) {
            tenant.tokens = Arc::clone(&self.tokens);
            tenant.accounts = self.accounts.clone();
            if self.database.max_connections() == config.max_connections {
                tenant.database = Arc::clone(&self.database);
            }
        } else if self.database.is_expected_at(&config.database_identity()) {
            // The account was moved with its tokens, so what is known of them and not written yet goes along.
            tenant.tokens = Arc::clone(&self.tokens);
            tenant.tokens.changed();
            tenant.accounts = self.accounts.clone();
            self.database.move_to(&tenant.database);
        }
        tenant
    }
}
