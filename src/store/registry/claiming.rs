//! Adds domains to tenants, removes them, and gives each to the tenant that proves it.
//!
//! A claim without a proof excludes nobody: any number of tenants may have a row of a host, and the first of them that
//! proves it gets the host. Only then it is in `registry_claims` and among the domains of the tenant, which nodes serve.

use jiff::Timestamp;

use super::Registry;
use super::certificates::{Of, drop_certificate};
use super::domains::{DomainRecord, Lease, lock_head, next_revision, write};
use super::writing::WriteRefused;
use crate::store::StoreError;
use crate::store::engine::{Transaction, retry};
use crate::store::statement::{Row, Sql, sql};

/// How many names that are not proved the administrators of an account may have added.
///
/// Larger: an account has name servers queried for more names that it does not own. Smaller: an administrator who adds many
/// domains has to prove some before adding others.
const MAX_UNPROVED: i64 = 20;

/// Who asks for something about a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// The operator.
    Operator,
    /// An administrator of the account, who may add only so many names before some of them are proved.
    Account,
}

/// What became of adding a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainAdded {
    /// It is new, and has to be proved. The tenant is at this revision.
    Added(i64),
    /// The tenant had it already.
    Same,
    /// Another tenant has proved it. A row records that this tenant contests it.
    Contested {
        /// Whose it is.
        owner: String,
    },
    /// Another tenant has it in its table, where no proof moves it.
    Taken {
        /// Whose it is.
        owner: String,
    },
    /// There is no such tenant in the registry.
    UnknownTenant,
}

/// The tenant of the registry that has a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOwner {
    /// The tenant.
    pub slug: String,
    /// Whether the host is in its table, where no proof moves it. If not, the tenant has proved it.
    pub is_of_table: bool,
}

/// A tenant's row as far as it matters here.
struct Found {
    revision: i64,
    domains: Vec<String>,
}

impl Registry {
    /// Adds a domain to a tenant, with the text that proves it. The tenant has it once [`Self::take_domain`] gives it to it.
    ///
    /// # Errors
    /// [`WriteRefused::TooManyUnproved`], [`WriteRefused::Store`].
    pub async fn add_domain(
        &self,
        slug: &str,
        host: &str,
        proof: &str,
        now: Timestamp,
        by: Requester,
    ) -> Result<DomainAdded, WriteRefused> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            lock_head(&mut transaction).await?;
            let Some(found) = find(&mut transaction, slug).await? else { return Ok(DomainAdded::UnknownTenant) };
            let owner = match owner(&mut transaction, host).await? {
                Some(owner) if owner.slug == slug => return Ok(DomainAdded::Same),
                Some(owner) if owner.is_of_table => return Ok(DomainAdded::Taken { owner: owner.slug }),
                owner => owner.map(|owner| owner.slug),
            };
            let is_new = !is_claimed(&mut transaction, slug, host).await?;
            if is_new && by == Requester::Account && count_unproved(&mut transaction, slug).await? >= MAX_UNPROVED {
                return Err(WriteRefused::TooManyUnproved);
            }
            insert(&mut transaction, slug, host, proof, now, by).await?;
            transaction.commit().await?;
            Ok(match owner {
                Some(owner) => DomainAdded::Contested { owner },
                None if is_new => DomainAdded::Added(found.revision),
                None => DomainAdded::Same,
            })
        })
        .await
    }

    /// Removes a domain that was added to a tenant. Returns the revision of the tenant, or none if it did not have it. A
    /// tenant that has not proved the domain no longer claims it.
    ///
    /// # Errors
    /// [`WriteRefused::Store`].
    pub async fn remove_domain(
        &self,
        slug: &str,
        host: &str,
        now: Timestamp,
        by: &str,
    ) -> Result<Option<i64>, WriteRefused> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let revision = next_revision(&mut transaction).await?;
            let Some(mut found) = find(&mut transaction, slug).await? else { return Ok(None) };
            let had = found.domains.len();
            found.domains.retain(|domain| domain != host);
            if found.domains.len() == had {
                // The row of one that was removed is kept for a day.
                let sql = sql!(
                    "DELETE FROM registry_domains
                     WHERE is_added AND state <> 'removed' AND host = {host} AND slug = {slug}",
                    host,
                    slug,
                );
                let was_claimed = transaction.execute(sql).await? > 0;
                transaction.commit().await?;
                return Ok(was_claimed.then_some(found.revision));
            }
            free(&mut transaction, slug, host).await?;
            let sql = sql!(
                "UPDATE registry_domains SET state = 'removed', reason = '{{}}', since = {now}, next_at = {now},
                   pending = NULL, proved_since = NULL, proved_by = NULL, fence = fence + 1
                 WHERE host = {host} AND slug = {slug}",
                now,
                host,
                slug,
            );
            transaction.execute(sql).await?;
            put_domains(&mut transaction, slug, &found.domains, revision, now, by).await?;
            transaction.commit().await?;
            Ok(Some(revision))
        })
        .await
    }

    /// Gives a domain to the tenant of a row that proves it, writes the row, and ends its lease. `from` is the tenant that
    /// had proved it until now. Its row, and those of all tenants that have no proof, are `gone` for the reason `lost`.
    /// Returns whether the lease of the row was still its own and `from` still had the domain.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn take_domain(
        &self,
        to: &DomainRecord,
        from: Option<&str>,
        lost: &str,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.database.begin().await?;
        let revision = next_revision(&mut transaction).await?;
        let is_own = write(&mut transaction, to, Lease::End).await?;
        let owner = owner(&mut transaction, &to.host).await?;
        let is_unchanged = owner.as_ref().map(|owner| &*owner.slug) == from && owner.is_none_or(|it| !it.is_of_table);
        let into = find(&mut transaction, &to.slug).await?;
        let Some(mut into) = into.filter(|_| is_own && is_unchanged) else {
            transaction.roll_back().await?;
            return Ok(false);
        };
        let by = "proof of the domain";
        if let Some(slug) = from {
            let mut loser = find(&mut transaction, slug).await?.ok_or(sqlx::Error::RowNotFound)?;
            loser.domains.retain(|domain| *domain != to.host);
            free(&mut transaction, slug, &to.host).await?;
            put_domains(&mut transaction, slug, &loser.domains, revision, now, by).await?;
        }
        let revision = if from.is_some() { next_revision(&mut transaction).await? } else { revision };
        into.domains.push(to.host.clone());
        put_domains(&mut transaction, &to.slug, &into.domains, revision, now, by).await?;
        let (host, slug) = (&to.host, &to.slug);
        let claim = sql!("INSERT INTO registry_claims (kind, value, slug) VALUES ('host', {host}, {slug})", host, slug);
        transaction.execute(claim).await?;
        let losers = sql!(
            "UPDATE registry_domains SET state = 'gone', reason = {lost}, since = {now}, next_at = {now}, pending = NULL,
               proved_since = NULL, proved_by = NULL, renew_at = NULL, is_late = FALSE, leased_until = NULL,
               fence = fence + 1
             WHERE is_added AND state NOT IN ('gone', 'removed') AND host = {host} AND slug <> {slug}
               AND (proved_since IS NULL OR slug = {from})",
            lost,
            now,
            host,
            slug,
            from = from.unwrap_or_default(),
        );
        transaction.execute(losers).await?;
        // The tenant's own one is served again at once.
        drop_certificate(&mut transaction, &to.host, Of::Others(&to.slug)).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Whose a host is: of the tenant that has it in its table or has proved it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn owner_of(&self, host: &str) -> Result<Option<HostOwner>, StoreError> {
        let mut reader = self.database.reader().await?;
        Ok(reader
            .fetch_optional(select_owner(host))
            .await?
            .as_ref()
            .map(|row| HostOwner::read(row, host))
            .transpose()?)
    }

    /// Whether the registry has a tenant.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn has_tenant(&self, slug: &str) -> Result<bool, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT 1 FROM registry_tenants WHERE toml IS NOT NULL AND slug = {slug}", slug);
        Ok(reader.fetch_optional(sql).await?.is_some())
    }
}

fn select_owner(host: &str) -> Sql {
    sql!(
        "SELECT c.slug, t.domains FROM registry_claims c JOIN registry_tenants t ON t.slug = c.slug
         WHERE c.kind = 'host' AND c.value = {host}",
        host,
    )
}

impl HostOwner {
    fn read(row: &Row, host: &str) -> Result<Self, sqlx::Error> {
        let domains: Vec<String> = serde_json::from_str(&row.get::<String>(1)?).unwrap_or_default();
        Ok(Self { slug: row.get(0)?, is_of_table: domains.iter().all(|domain| domain != host) })
    }
}

async fn owner(transaction: &mut Transaction, host: &str) -> Result<Option<HostOwner>, sqlx::Error> {
    transaction.fetch_all(select_owner(host)).await?.pop().map(|row| HostOwner::read(&row, host)).transpose()
}

/// Whether a tenant has a row of a host that is still in its life.
async fn is_claimed(transaction: &mut Transaction, slug: &str, host: &str) -> Result<bool, sqlx::Error> {
    let sql = sql!(
        "SELECT 1 FROM registry_domains WHERE state NOT IN ('gone', 'removed') AND host = {host} AND slug = {slug}",
        host,
        slug,
    );
    Ok(!transaction.fetch_all(sql).await?.is_empty())
}

/// How many names that are not proved the administrators of an account have added.
async fn count_unproved(transaction: &mut Transaction, slug: &str) -> Result<i64, sqlx::Error> {
    let sql = sql!(
        "SELECT count(*) FROM registry_domains
         WHERE is_added AND by_account AND proved_since IS NULL AND state NOT IN ('gone', 'removed') AND slug = {slug}",
        slug,
    );
    transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?.get(0)
}

async fn find(transaction: &mut Transaction, slug: &str) -> Result<Option<Found>, sqlx::Error> {
    let sql = sql!("SELECT revision, domains FROM registry_tenants WHERE toml IS NOT NULL AND slug = {slug}", slug);
    let row = transaction.fetch_all(sql).await?.pop();
    let read = |row: Row| {
        let domains: String = row.get(1)?;
        Ok(Found { revision: row.get(0)?, domains: serde_json::from_str(&domains).unwrap_or_default() })
    };
    row.map(read).transpose()
}

async fn put_domains(
    transaction: &mut Transaction,
    slug: &str,
    domains: &[String],
    revision: i64,
    now: Timestamp,
    by: &str,
) -> Result<(), sqlx::Error> {
    let domains = serde_json::to_string(domains).expect("texts are always JSON");
    let sql = sql!(
        "UPDATE registry_tenants SET domains = {domains}, revision = {revision}, changed_at = {now}, changed_by = {by}
         WHERE slug = {slug}",
        domains,
        revision,
        now,
        by,
        slug,
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// The row of a domain that was added. One that is gone or was removed begins its life again, and a node that still works
/// on it comes too late. One that is there counts as the operator's from now on if the operator adds it.
async fn insert(
    transaction: &mut Transaction,
    slug: &str,
    host: &str,
    proof: &str,
    now: Timestamp,
    by: Requester,
) -> Result<(), sqlx::Error> {
    let by_account = by == Requester::Account;
    // The proof of a row that is there may be in DNS by now.
    let row = sql!(
        "INSERT INTO registry_domains AS known
           (host, slug, is_added, by_account, proof, state, reason, since, created_at, next_at, failures, is_late, fence)
         VALUES ({host}, {slug}, TRUE, {by_account}, {proof}, 'claimed', '{{}}', {now}, {now}, {now}, 0, FALSE, 0)
         ON CONFLICT (host, slug) DO UPDATE SET is_added = TRUE, by_account = excluded.by_account, proved_since = NULL,
           proved_by = NULL, state = excluded.state, reason = excluded.reason, since = excluded.since,
           created_at = excluded.created_at, next_at = excluded.next_at, leased_until = NULL, fence = known.fence + 1
         WHERE known.state IN ('gone', 'removed')",
        host,
        slug,
        by_account,
        proof,
        now,
    );
    transaction.execute(row).await?;
    if by == Requester::Operator {
        let sql = sql!(
            "UPDATE registry_domains SET by_account = FALSE WHERE by_account AND host = {host} AND slug = {slug}",
            host,
            slug,
        );
        transaction.execute(sql).await?;
    }
    Ok(())
}

/// Ends the claim of a tenant to a host.
async fn free(transaction: &mut Transaction, slug: &str, host: &str) -> Result<(), sqlx::Error> {
    let sql = sql!("DELETE FROM registry_claims WHERE kind = 'host' AND value = {host} AND slug = {slug}", host, slug);
    transaction.execute(sql).await?;
    Ok(())
}
