//! The domains of one account, for its administrators: which hosts it has and what serves them, and adding, removing and
//! checking one.
//!
//! An administrator is not the operator: what is added here is never a name of the operator's own, which would need no
//! proof, and the owner of a name is never returned.

use std::collections::BTreeMap;
use std::time::Duration;

use super::claim::await_check;
use super::described::new_proof;
use super::reason::{Reason, own_label, proof_of};
use super::shared::Domains;
use crate::dns::Record;
use crate::host::HostName;
use crate::registry::FollowError;
use crate::store::registry::{DomainAdded, DomainFilter, DomainRecord, DomainState, Requester, WriteRefused};
use crate::store::{Registry, StoreError};

/// How many domains the administrators of an account may add.
///
/// Larger: an account can fill the registry with names that it does not own. Smaller: one with many domains has to ask
/// the operator.
const MAX_ADDED: i64 = 1_000;

/// How many rows one statement reads. Larger: a statement takes longer. Smaller: more statements.
const ROWS: u32 = 1_000;

/// A host of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountHost {
    /// The host.
    pub host: String,
    /// Whether it was added as a domain, so that it can be removed.
    pub is_added: bool,
    /// What serves it.
    pub serving: Serving,
}

/// What an administrator should know of all hosts of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainSummary {
    /// Those that are lost or will be if nothing changes, and those whose owner has to act.
    pub troubled: Vec<AccountHost>,
    /// The number of those that are not served yet, although nobody has to act.
    pub waiting: usize,
}

/// What serves a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Serving {
    /// A certificate of a file.
    OfFile,
    /// A certificate that is obtained for it. `None`: it has no row yet.
    Own(Option<Box<DomainRecord>>),
}

/// The outcome of adding a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAddition {
    /// It is new.
    Added,
    /// The account had it already.
    Same,
    /// Another account has proved it, and a proof moves it.
    Contested,
    /// Another account has it, and no proof moves it.
    Taken,
    /// It is a name of the operator's, or below one.
    OfOperator,
    /// The account is in a file, which lists its hosts.
    InFile,
    /// The account has as many as it may add.
    TooMany,
    /// The account has as many that are not proved as it may add.
    TooManyUnproved,
}

/// The outcome of a check that an administrator asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCheck {
    /// The host was checked.
    Done,
    /// It will be checked later.
    Soon,
    /// The account waits for another check, or has asked too often within the last minute.
    TooOften,
}

/// The domains of one account, and what is needed to change them.
#[derive(Debug)]
pub struct AccountDomains<'d> {
    domains: &'d Domains,
    slug: &'d str,
}

impl Domains {
    /// The domains of an account.
    #[must_use]
    pub fn of_account<'d>(&'d self, slug: &'d str) -> AccountDomains<'d> {
        AccountDomains { domains: self, slug }
    }
}

impl AccountDomains<'_> {
    /// Whether domains can be added to the account and removed: only if it is in the registry.
    #[must_use]
    pub fn can_change(&self) -> bool {
        self.domains.directory.load().config(self.slug).is_some_and(|config| config.origin.is_registered())
    }

    /// The name that proves a domain if it is an alias of that.
    #[must_use]
    pub fn label(&self, domain: &DomainRecord) -> Option<HostName> {
        own_label(domain, &self.domains.config)
    }

    /// What is wrong with a host, as the account may see it. A host without a row was not checked yet.
    #[must_use]
    pub fn reason(&self, host: &str, domain: Option<&DomainRecord>) -> Reason {
        let config = Some(&self.domains.config);
        let label = self.domains.config.label(self.slug);
        let not_begun = || Reason::not_checked_yet(host, label.as_ref(), config);
        domain.map_or_else(not_begun, |domain| Reason::of(domain, config).told())
    }

    /// The record that proves an added domain, to add or to keep, if it needs one.
    #[must_use]
    pub fn proof(&self, domain: &DomainRecord) -> Option<Record> {
        let is_owned = HostName::parse(&domain.host).is_ok_and(|host| self.domains.config.owns(&host));
        proof_of(domain, &self.domains.config).filter(|_| !is_owned)
    }

    /// Every host, in alphabetical order.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list(&self) -> Result<Vec<AccountHost>, StoreError> {
        let registry = self.registry().await?;
        let mut rows = BTreeMap::new();
        let mut last = String::new();
        loop {
            let filter = DomainFilter { slug: Some(self.slug), state: None, after: (&last, self.slug) };
            let some = registry.list_domains(&filter, ROWS).await?;
            let is_last = some.len() < ROWS as usize;
            if let Some(row) = some.last() {
                last.clone_from(&row.host);
            }
            rows.extend(some.into_iter().map(|row| (row.host.clone(), row)));
            if is_last {
                break;
            }
        }
        Ok(self.hosts_of(rows))
    }

    /// What an administrator should know of all hosts.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn summary(&self) -> Result<DomainSummary, StoreError> {
        let mut summary = DomainSummary::default();
        for host in self.list().await? {
            let Serving::Own(domain) = &host.serving else { continue };
            let domain = domain.as_deref();
            let state = domain.map_or(DomainState::Claimed, |domain| domain.state);
            let is_lost = matches!(state, DomainState::Failing | DomainState::Gone);
            if is_lost || domain.is_some() && self.reason(&host.host, domain).needs_owner() {
                summary.troubled.push(host);
            } else {
                summary.waiting += usize::from(self.waits(state));
            }
        }
        Ok(summary)
    }

    /// Whether a host in this state is to be served later.
    fn waits(&self, state: DomainState) -> bool {
        match state {
            DomainState::Claimed | DomainState::Dns => true,
            // Without a CA, others obtain certificates.
            DomainState::Verified | DomainState::Queued | DomainState::Issuing => self.obtain_certificates(),
            DomainState::Live | DomainState::Failing | DomainState::Gone | DomainState::Removed => false,
        }
    }

    /// Whether certificates are obtained for hosts.
    #[must_use]
    pub fn obtain_certificates(&self) -> bool {
        self.domains.acme.is_some()
    }

    /// One host.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find(&self, host: &HostName) -> Result<Option<AccountHost>, StoreError> {
        let row = self.row(self.registry().await?, host.as_str()).await?;
        let rows = row.filter(|row| row.state != DomainState::Removed);
        let hosts = self.hosts_of(rows.into_iter().map(|row| (row.host.clone(), row)).collect());
        Ok(hosts.into_iter().find(|found| found.host == host.as_str()))
    }

    /// The hosts of the configuration, with their rows, and the domains that it does not have yet.
    fn hosts_of(&self, mut rows: BTreeMap<String, DomainRecord>) -> Vec<AccountHost> {
        let directory = self.domains.directory.load();
        let mut hosts = BTreeMap::new();
        if let Some(config) = directory.config(self.slug) {
            let listed = config.table_hosts().count();
            for (at, host) in config.hosts().enumerate() {
                let is_added = at >= listed;
                let row = rows.remove(host.as_str());
                let serving = if self.domains.needs_certificate(&directory, host) {
                    // A domain that was just removed has no row, and may still be in the configuration of this node.
                    if is_added && row.is_none() {
                        continue;
                    }
                    Serving::Own(row.map(Box::new))
                } else {
                    Serving::OfFile
                };
                hosts.insert(host.to_string(), AccountHost { host: host.to_string(), is_added, serving });
            }
        }
        for (host, row) in rows.into_iter().filter(|(_, row)| row.is_added) {
            let serving = Serving::Own(Some(Box::new(row)));
            hosts.insert(host.clone(), AccountHost { host, is_added: true, serving });
        }
        hosts.into_values().collect()
    }

    /// Adds a domain.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn add(&self, host: &HostName) -> Result<HostAddition, StoreError> {
        let domains = self.domains;
        if let Some(refused) = self.refuse(host) {
            return Ok(refused);
        }
        let registry = self.registry().await?;
        if registry.count_added_domains(self.slug).await? >= MAX_ADDED {
            return Ok(HostAddition::TooMany);
        }
        let by = Requester::Account;
        let addition = match registry.add_domain(self.slug, host.as_str(), &new_proof(), domains.now(), by).await {
            Ok(DomainAdded::Added(_)) => HostAddition::Added,
            Ok(DomainAdded::Same) => HostAddition::Same,
            Ok(DomainAdded::Contested { .. }) => HostAddition::Contested,
            Ok(DomainAdded::Taken { .. }) => HostAddition::Taken,
            Ok(DomainAdded::UnknownTenant) => HostAddition::InFile,
            Err(WriteRefused::TooManyUnproved) => HostAddition::TooManyUnproved,
            Err(refused) => return Err(of_write(refused)),
        };
        domains.wake();
        Ok(addition)
    }

    /// Why an administrator may not add a host, as far as the configuration shows.
    fn refuse(&self, host: &HostName) -> Option<HostAddition> {
        let directory = self.domains.directory.load();
        let served = directory.config_at(host);
        if let Some(own) = served.filter(|tenant| *tenant.slug == *self.slug) {
            // The registry knows best which domains were added.
            return own.table_hosts().any(|listed| listed == host).then_some(HostAddition::Same);
        }
        if !self.can_change() {
            return Some(HostAddition::InFile);
        }
        // Without this, a name below the operator's would need no proof.
        if self.domains.config.owns(host) || (self.domains.gateway_covers)(host) {
            return Some(HostAddition::OfOperator);
        }
        served.filter(|tenant| !tenant.origin.is_registered()).map(|_| HostAddition::Taken)
    }

    /// Removes a domain that was added. Returns whether the account had it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn remove(&self, host: &HostName, by: &str) -> Result<bool, StoreError> {
        let domains = self.domains;
        let removed = self.registry().await?.remove_domain(self.slug, host.as_str(), domains.now(), by).await;
        let removed = removed.map_err(of_write)?.is_some();
        domains.following.look_soon();
        domains.wake();
        Ok(removed)
    }

    /// Has a host checked before all others, and waits for the check.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn check(&self, host: &HostName, wait: Duration) -> Result<HostCheck, StoreError> {
        let registry = self.registry().await?;
        let asked = registry.ask_for_check(host.as_str(), self.slug, Requester::Account).await?;
        // A host of a table has no row before a node has seen it.
        let Some(asked) = asked else { return Ok(HostCheck::Soon) };
        if !asked.is_first {
            return Ok(HostCheck::TooOften);
        }
        self.domains.wake();
        let (_, is_looked_at) = await_check(registry, host, self.slug, asked, wait).await?;
        Ok(if is_looked_at { HostCheck::Done } else { HostCheck::Soon })
    }

    async fn row(&self, registry: &Registry, host: &str) -> Result<Option<DomainRecord>, StoreError> {
        Ok(registry.find_domains(host).await?.into_iter().find(|row| row.slug == self.slug))
    }

    async fn registry(&self) -> Result<&Registry, StoreError> {
        self.domains.registry().await.map_err(|error| match error {
            FollowError::Store(error) => error,
            // The task that follows the registry logs it.
            FollowError::OtherRegistry => StoreError::Resting,
        })
    }
}

/// The failure of a write that checks nothing else.
fn of_write(refused: WriteRefused) -> StoreError {
    match refused {
        WriteRefused::Store(error) => error,
        WriteRefused::Taken { .. }
        | WriteRefused::NotAsExpected { .. }
        | WriteRefused::BeingErased { .. }
        | WriteRefused::TooManyUnproved => StoreError::Busy,
    }
}
