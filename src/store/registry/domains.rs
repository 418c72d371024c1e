//! The life of each host that no file gives a certificate: one row for a host and a tenant.
//!
//! A node takes rows that are due under a lease, by the clock of the registry, and writes what became of them. Each
//! lease has the next fence, and a write has to name the fence of its lease: a node that was stopped for longer than its
//! lease writes nothing. `turns` says which rows are next.

mod state;

use std::time::Duration;

use jiff::Timestamp;

use super::Registry;
use super::certificates::{Of, drop_certificate};
use super::events::{DomainEvent, append};
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::{Row, Sql, sql};
pub use state::{DomainProof, DomainState};

/// A host of a tenant, and where it is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainRecord {
    /// The host.
    pub host: String,
    /// The tenant that has it, or claims it without having proved it.
    pub slug: String,
    /// Whether it was added as a domain, so that its owner has to prove it. The operator vouches for hosts of a table.
    pub is_added: bool,
    /// What a TXT record has to be.
    pub proof: String,
    /// Of the owner: when it was proved. Of others: since when each check has found a proof.
    pub proved_since: Option<Timestamp>,
    /// The proof that the last check found, if it found one.
    pub proved_by: Option<DomainProof>,
    /// The state.
    pub state: DomainState,
    /// Whether its row says that it is live, although its certificate has expired since.
    pub has_lapsed: bool,
    /// What is wrong: a JSON object, `{}` if nothing is.
    pub reason: String,
    /// When the state began.
    pub since: Timestamp,
    /// When the row was made.
    pub created_at: Timestamp,
    /// When DNS was asked last.
    pub checked_at: Option<Timestamp>,
    /// When a node looks at it next.
    pub next_at: Timestamp,
    /// How many orders have failed in a row.
    pub failures: i64,
    /// When the certificate is renewed.
    pub renew_at: Option<Timestamp>,
    /// Whether the event for a late renewal was written.
    pub is_late: bool,
    /// The order under way: a JSON object whose key is sealed.
    pub pending: Option<String>,
    /// The number of its last lease.
    pub fence: i64,
    /// Until when its certificate is valid, if it has one.
    pub not_after: Option<Timestamp>,
    /// Whether an alias to the tenant's own label proves that the domain is the tenant's. If not, another account had the
    /// slug before, and the alias may be one for it.
    pub label_proves: bool,
    /// Whether it is known which database the tenant has.
    pub is_identified: bool,
    /// Until when a node works on it, if one does.
    pub leased_until: Option<Timestamp>,
}

impl DomainRecord {
    /// How long a lease lasts unless it is kept.
    ///
    /// Larger: the work of a node that died goes on later. Smaller: a slow registry costs leases.
    pub const LEASE: Duration = Duration::from_secs(60);

    /// The longest time until a row is looked at next: eight days, which an authority may ask for, and one more by which the
    /// clocks of the nodes may differ. No budget is full later. A later instant is from before the clock was set back.
    ///
    /// Larger: after a step of the clock, rows wait for longer. Smaller: an authority is asked before it allows that.
    pub const LONGEST_PAUSE: Duration = Duration::from_hours(9 * 24);

    /// What [`Self::read_all`] reads.
    pub(super) fn columns() -> Sql {
        sql!(
            "host, slug, is_added, proof, proved_since, state, reason, since, created_at, checked_at, next_at, failures,
             renew_at, is_late, pending, fence, proved_by,
             (SELECT c.not_after FROM registry_certificates c
              WHERE c.host = registry_domains.host AND c.slug = registry_domains.slug AND c.chain IS NOT NULL),
             coalesce((SELECT t.label_proves FROM registry_tenants t WHERE t.slug = registry_domains.slug), TRUE),
             EXISTS (SELECT 1 FROM registry_tenants t WHERE t.slug = registry_domains.slug AND t.identity IS NOT NULL),
             leased_until"
        )
    }

    /// The row has the lease with which this record was read.
    pub(super) fn has_lease(&self) -> Sql {
        sql!(
            "host = {host} AND slug = {slug} AND fence = {fence} AND leased_until IS NOT NULL",
            host = &self.host,
            slug = &self.slug,
            fence = self.fence,
        )
    }

    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        let state: String = row.get(5)?;
        let stored = DomainState::parse(&state)
            .ok_or_else(|| sqlx::Error::Decode("a state that this version does not know".into()))?;
        let not_after = row.get(17)?;
        let state = stored.with_certificate(not_after, Timestamp::now());
        Ok(Self {
            host: row.get(0)?,
            slug: row.get(1)?,
            is_added: row.get(2)?,
            proof: row.get(3)?,
            proved_since: row.get(4)?,
            state,
            has_lapsed: state != stored,
            reason: row.get(6)?,
            since: row.get(7)?,
            created_at: row.get(8)?,
            checked_at: row.get(9)?,
            next_at: row.get(10)?,
            failures: row.get(11)?,
            renew_at: row.get(12)?,
            is_late: row.get(13)?,
            pending: row.get(14)?,
            fence: row.get(15)?,
            proved_by: row.get::<Option<String>>(16)?.as_deref().and_then(DomainProof::parse),
            not_after,
            label_proves: row.get(18)?,
            is_identified: row.get(19)?,
            leased_until: row.get(20)?,
        })
    }

    pub(super) fn read_all(rows: &[Row]) -> Result<Vec<Self>, sqlx::Error> {
        rows.iter().map(Self::read).collect()
    }
}

/// What a write does with the lease of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// It begins again.
    Keep,
    /// It ends.
    End,
}

impl Registry {
    /// Makes rows for hosts that need a certificate: host, tenant, and the proof that a new row gets. A row that is gone or
    /// was removed begins its life again, and a host that the operator's table has by now needs no proof any more.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn need_domains(&self, hosts: &[(String, String, String)]) -> Result<u64, StoreError> {
        if hosts.is_empty() {
            return Ok(0);
        }
        let hosts = serde_json::to_string(hosts).expect("texts are always JSON");
        let sql = sql!(
            "INSERT INTO registry_domains AS known
               (host, slug, is_added, proof, state, reason, since, created_at, next_at, failures, is_late, fence)
             SELECT needed.host, needed.slug, FALSE, needed.proof, 'claimed', '{{}}', {clock}, {clock}, {clock},
               0, FALSE, 0
             FROM {rows hosts: host text, slug text, proof text} AS needed
             WHERE TRUE
             ON CONFLICT (host, slug) DO UPDATE SET is_added = FALSE,
               state = CASE WHEN known.state IN ('gone', 'removed') THEN 'claimed' ELSE known.state END,
               reason = CASE WHEN known.state = 'gone' THEN '{{}}' ELSE known.reason END, next_at = excluded.next_at
             WHERE known.state IN ('gone', 'removed') OR known.is_added",
            hosts,
        );
        self.database.execute(sql).await
    }

    /// Makes the claims to hosts due that other tenants have in their tables: pairs of a host and the tenant that has it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn check_claims_to(&self, hosts: &[(String, String)]) -> Result<(), StoreError> {
        let hosts = serde_json::to_string(hosts).expect("texts are always JSON");
        let sql = sql!(
            "UPDATE registry_domains SET next_at = {clock}
             FROM {rows hosts: host text, slug text} AS listed
             WHERE registry_domains.host = listed.host AND registry_domains.slug <> listed.slug
               AND is_added AND state NOT IN ('gone', 'removed')",
            hosts,
        );
        self.database.execute(sql).await?;
        Ok(())
    }

    /// Makes the domains due that have a reason, such as `ca_account`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn retry_domains(&self, reason: &str) -> Result<(), StoreError> {
        let sql = sql!(
            "UPDATE registry_domains SET next_at = {clock}
             WHERE coalesce(reason{pg: ::json}->>'reason', '') = {reason} AND state NOT IN ('gone', 'removed')
             {scans: it follows a command that is run once in years}",
            reason,
        );
        self.database.execute(sql).await?;
        Ok(())
    }

    /// Writes what became of a row, and events. Returns whether the lease was still its own.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn write_domain(
        &self,
        domain: &DomainRecord,
        lease: Lease,
        events: &[DomainEvent],
    ) -> Result<bool, StoreError> {
        let mut transaction = self.database.begin().await?;
        if !events.is_empty() {
            // Before the row, as every writer that needs both.
            lock_head(&mut transaction).await?;
        }
        let is_own = write(&mut transaction, domain, lease).await?;
        for event in events.iter().filter(|_| is_own) {
            let revision = next_revision(&mut transaction).await?;
            append(&mut transaction, revision, domain, event).await?;
        }
        transaction.commit().await?;
        Ok(is_own)
    }

    /// Forgets a row that is gone or was removed, and its certificate. Returns whether the lease was still its own.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn forget_domain(&self, domain: &DomainRecord) -> Result<bool, StoreError> {
        let mut transaction = self.database.begin().await?;
        let sql = sql!("DELETE FROM registry_domains WHERE {+has_lease}", has_lease = domain.has_lease());
        let is_own = transaction.execute(sql).await? > 0;
        if is_own {
            drop_certificate(&mut transaction, &domain.host, Of::Tenant(&domain.slug)).await?;
        }
        transaction.commit().await?;
        Ok(is_own)
    }

    /// Forgets the certificate of a row, and writes the row. Returns whether the lease was still its own.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn forget_certificate(&self, domain: &DomainRecord) -> Result<bool, StoreError> {
        let mut transaction = self.database.begin().await?;
        lock_head(&mut transaction).await?;
        let is_own = write(&mut transaction, domain, Lease::End).await?;
        if is_own {
            drop_certificate(&mut transaction, &domain.host, Of::Tenant(&domain.slug)).await?;
        }
        transaction.commit().await?;
        Ok(is_own)
    }

    /// The rows of a host: its owner's, and one for each tenant that claims it without having proved it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_domains(&self, host: &str) -> Result<Vec<DomainRecord>, StoreError> {
        let sql = sql!(
            "SELECT {+columns} FROM registry_domains WHERE host = {host} ORDER BY created_at, slug",
            columns = DomainRecord::columns(),
            host,
        );
        let mut reader = self.database.reader().await?;
        Ok(DomainRecord::read_all(&reader.fetch_all(sql).await?)?)
    }
}

/// Writes a row if its lease is still its own.
pub(super) async fn write(
    transaction: &mut Transaction,
    domain: &DomainRecord,
    lease: Lease,
) -> Result<bool, sqlx::Error> {
    // It is no longer live when its certificate ends.
    let ends_at = domain.not_after.filter(|ends_at| domain.state == DomainState::Live && *ends_at > Timestamp::now());
    let next_at = ends_at.map_or(domain.next_at, |ends_at| domain.next_at.min(ends_at));
    let leased_until = match lease {
        Lease::Keep => sql!("{clock + lease}", lease = DomainRecord::LEASE),
        Lease::End => Sql::text("NULL"),
    };
    let sql = sql!(
        "UPDATE registry_domains SET proved_since = {proved_since}, proved_by = {proved_by}, state = {state},
           reason = {reason}, since = {since}, checked_at = {checked_at},
           next_at = {pg: least | lite: min}({next_at}, {clock + longest}), failures = {failures},
           renew_at = {renew_at}, is_late = {is_late}, pending = {pending}, leased_until = {+leased_until}
         WHERE {+has_lease}",
        proved_since = domain.proved_since,
        proved_by = domain.proved_by.map(DomainProof::as_str),
        state = domain.state.as_str(),
        reason = &domain.reason,
        since = domain.since,
        checked_at = domain.checked_at,
        next_at,
        longest = DomainRecord::LONGEST_PAUSE,
        failures = domain.failures,
        renew_at = domain.renew_at,
        is_late = domain.is_late,
        pending = domain.pending.as_deref(),
        leased_until,
        has_lease = domain.has_lease(),
    );
    Ok(transaction.execute(sql).await? > 0)
}

/// Keeps other writers waiting until the transaction ends. Returns the revision of the registry: what is read from now on
/// includes their commits.
pub(super) async fn lock_head(transaction: &mut Transaction) -> Result<i64, sqlx::Error> {
    let sql = sql!("UPDATE registry_head SET revision = revision RETURNING revision");
    transaction.connection().fetch_one(sql).await?.get(0)
}

/// The next revision of the registry. Other writers wait until the transaction ends.
pub(super) async fn next_revision(transaction: &mut Transaction) -> Result<i64, sqlx::Error> {
    let sql = sql!("UPDATE registry_head SET revision = revision + 1 RETURNING revision");
    transaction.connection().fetch_one(sql).await?.get(0)
}
