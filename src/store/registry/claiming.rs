//! Adds domains to tenants, removes them, and moves one to the tenant that has proved it.

use jiff::Timestamp;

use super::Registry;
use super::certificates::{Of, drop_certificate};
use super::domains::{DomainRecord, next_revision};
use super::writing::WriteRefused;
use crate::store::StoreError;
use crate::store::engine::{Retry, Transaction};

/// What became of adding a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainAdded {
    /// It is new, at this revision of the tenant.
    Added(i64),
    /// The tenant had it already.
    Same,
    /// Another tenant has it. A row records that this tenant contests it.
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

/// A tenant's row as far as it matters here.
struct Found {
    revision: i64,
    domains: Vec<String>,
}

impl Registry {
    /// Adds a domain to a tenant, with the proof that its owner has to publish.
    ///
    /// # Errors
    /// [`WriteRefused::Store`].
    pub async fn add_domain(
        &self,
        slug: &str,
        host: &str,
        proof: &str,
        now: Timestamp,
        by: &str,
    ) -> Result<DomainAdded, WriteRefused> {
        let mut retry = Retry::default();
        loop {
            match self.try_to_add_domain(slug, host, proof, now, by).await {
                Err(error) if retry.wait_if_retryable(&error).await => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    async fn try_to_add_domain(
        &self,
        slug: &str,
        host: &str,
        proof: &str,
        now: Timestamp,
        by: &str,
    ) -> Result<DomainAdded, StoreError> {
        let mut transaction = self.database.begin().await?;
        let revision = next_revision(&mut transaction).await?;
        let Some(mut found) = find(&mut transaction, slug).await? else { return Ok(DomainAdded::UnknownTenant) };
        let mut claim = transaction.sql();
        claim.push("INSERT INTO registry_claims (kind, value, slug) VALUES ('host', ").bind(host).push(", ");
        claim.bind(slug).push(") ON CONFLICT DO NOTHING");
        if transaction.execute(claim).await? == 0 {
            let owner = owner(&mut transaction, host).await?;
            if owner == slug {
                return Ok(DomainAdded::Same);
            }
            let of_owner = find(&mut transaction, &owner).await?;
            if !of_owner.is_some_and(|owner| owner.domains.iter().any(|domain| domain == host)) {
                return Ok(DomainAdded::Taken { owner });
            }
            insert(&mut transaction, slug, host, proof, now).await?;
            transaction.commit().await?;
            return Ok(DomainAdded::Contested { owner });
        }
        found.domains.push(host.to_owned());
        put_domains(&mut transaction, slug, &found.domains, revision, now, by).await?;
        insert(&mut transaction, slug, host, proof, now).await?;
        // The tenant's own one is served again at once.
        drop_certificate(&mut transaction, host, Of::Others(slug)).await?;
        transaction.commit().await?;
        Ok(DomainAdded::Added(revision))
    }

    /// Removes a domain that was added to a tenant. Returns the revision of the tenant, or none if it did not have it. A
    /// tenant that contests the domain no longer does.
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
        let mut retry = Retry::default();
        loop {
            match self.try_to_remove_domain(slug, host, now, by).await {
                Err(error) if retry.wait_if_retryable(&error).await => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    async fn try_to_remove_domain(
        &self,
        slug: &str,
        host: &str,
        now: Timestamp,
        by: &str,
    ) -> Result<Option<i64>, StoreError> {
        let mut transaction = self.database.begin().await?;
        let revision = next_revision(&mut transaction).await?;
        let Some(mut found) = find(&mut transaction, slug).await? else { return Ok(None) };
        let had = found.domains.len();
        found.domains.retain(|domain| domain != host);
        if found.domains.len() == had {
            let mut sql = transaction.sql();
            // The row of one that was removed is kept for a day.
            sql.push("DELETE FROM registry_domains WHERE is_added AND state <> 'removed' AND host = ").bind(host);
            sql.push(" AND slug = ").bind(slug);
            let contested = transaction.execute(sql).await? > 0;
            transaction.commit().await?;
            return Ok(contested.then_some(found.revision));
        }
        give_up(&mut transaction, slug, host, now).await?;
        put_domains(&mut transaction, slug, &found.domains, revision, now, by).await?;
        transaction.commit().await?;
        Ok(Some(revision))
    }

    /// Moves a domain from its owner to the tenant of a row that contests it. Returns whether the lease of the row was
    /// still its own and the owner still had the domain.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn move_domain(&self, to: &DomainRecord, now: Timestamp) -> Result<bool, StoreError> {
        let mut transaction = self.database.begin().await?;
        let revision = next_revision(&mut transaction).await?;
        let mut sql = transaction.sql();
        sql.push("UPDATE registry_domains SET leased_until = NULL, next_at = ").bind(now);
        sql.push(" WHERE host = ").bind(to.host.as_str()).push(" AND slug = ").bind(to.slug.as_str());
        sql.push(" AND fence = ").bind(to.fence).push(" AND leased_until IS NOT NULL");
        let is_own = transaction.execute(sql).await? > 0;
        let owner = owner(&mut transaction, &to.host).await?;
        let (from, into) = (find(&mut transaction, &owner).await?, find(&mut transaction, &to.slug).await?);
        let Some((mut from, mut into)) = from.zip(into).filter(|_| is_own && owner != to.slug) else {
            return Ok(false);
        };
        from.domains.retain(|domain| *domain != to.host);
        give_up(&mut transaction, &owner, &to.host, now).await?;
        let by = "proof of the domain";
        put_domains(&mut transaction, &owner, &from.domains, revision, now, by).await?;
        let revision = next_revision(&mut transaction).await?;
        into.domains.push(to.host.clone());
        put_domains(&mut transaction, &to.slug, &into.domains, revision, now, by).await?;
        let mut claim = transaction.sql();
        claim.push("INSERT INTO registry_claims (kind, value, slug) VALUES ('host', ").bind(to.host.as_str());
        claim.push(", ").bind(to.slug.as_str()).push(")");
        transaction.execute(claim).await?;
        drop_certificate(&mut transaction, &to.host, Of::Others(&to.slug)).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Whose a host is, if it is claimed.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn owner_of(&self, host: &str) -> Result<Option<String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT slug FROM registry_claims WHERE kind = 'host' AND value = ").bind(host);
        Ok(reader.fetch_optional(sql).await?.map(|row| row.get(0)).transpose()?)
    }
}

async fn owner(transaction: &mut Transaction, host: &str) -> Result<String, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("SELECT slug FROM registry_claims WHERE kind = 'host' AND value = ").bind(host);
    transaction.fetch_all(sql).await?.pop().map_or(Ok(String::new()), |row| row.get(0))
}

async fn find(transaction: &mut Transaction, slug: &str) -> Result<Option<Found>, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("SELECT revision, domains FROM registry_tenants WHERE toml IS NOT NULL AND slug = ").bind(slug);
    let row = transaction.fetch_all(sql).await?.pop();
    let read = |row: crate::store::statement::Row| {
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
    let mut sql = transaction.sql();
    sql.push("UPDATE registry_tenants SET domains = ").bind(domains).push(", revision = ").bind(revision);
    sql.push(", changed_at = ").bind(now).push(", changed_by = ").bind(by).push(" WHERE slug = ").bind(slug);
    transaction.execute(sql).await?;
    Ok(())
}

/// The row of a domain that was added. One that is there begins its life again, and a node that still works on its removal
/// comes too late.
async fn insert(
    transaction: &mut Transaction,
    slug: &str,
    host: &str,
    proof: &str,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("INSERT INTO registry_domains (host, slug, is_added, proof, state, reason, since, created_at, next_at, ");
    sql.push("failures, is_late, fence) VALUES (").bind(host).push(", ").bind(slug).push(", TRUE, ").bind(proof);
    sql.push(", 'claimed', '{}', ").bind(now).push(", ").bind(now).push(", ").bind(now).push(", 0, FALSE, 0) ");
    // The proof of a row that is there may be in DNS by now.
    sql.push("ON CONFLICT (host, slug) DO UPDATE SET is_added = TRUE, state = excluded.state, ");
    sql.push("reason = excluded.reason, since = excluded.since, next_at = excluded.next_at, leased_until = NULL, ");
    sql.push("fence = registry_domains.fence + 1 WHERE registry_domains.state = 'removed'");
    transaction.execute(sql).await?;
    Ok(())
}

/// Ends what a tenant has of a domain: its claim, and its life.
async fn give_up(transaction: &mut Transaction, slug: &str, host: &str, now: Timestamp) -> Result<(), sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("DELETE FROM registry_claims WHERE kind = 'host' AND value = ").bind(host).push(" AND slug = ").bind(slug);
    transaction.execute(sql).await?;
    let mut sql = transaction.sql();
    sql.push("UPDATE registry_domains SET state = 'removed', reason = '{}', since = ").bind(now).push(", next_at = ");
    sql.bind(now).push(", pending = NULL, proved_since = NULL, fence = fence + 1 WHERE host = ").bind(host);
    sql.push(" AND slug = ").bind(slug);
    transaction.execute(sql).await?;
    Ok(())
}
