//! Adds, changes and removes tenants of the registry: all of a list or nothing.

use std::collections::HashSet;

use jiff::Timestamp;

use super::Registry;
use super::claims::{Claims, claim};
use super::databases::{self, FoundDatabase};
use super::domains::lock_head;
use super::lives::{Found, Life, end_life, find, note_life};
use crate::store::StoreError;
use crate::store::engine::{AsStoreError, Transaction, retry};
use crate::store::statement::{Argument, sql};

/// A change of one tenant.
#[derive(Clone, Debug)]
pub struct RegistryWrite {
    /// The tenant.
    pub slug: String,
    /// What becomes of it.
    pub change: RegistryChange,
    /// What must be so for the change to be made: the revision of its row, or `Some(None)` that it has none.
    pub expected: Option<Option<i64>>,
}

/// What becomes of a tenant.
#[derive(Clone, Debug)]
pub enum RegistryChange {
    /// It has this text and claims from now on.
    Put {
        /// The text of its table.
        text: String,
        /// What no other tenant may have.
        claims: Claims,
        /// The identity that is stored in its database, if it was read.
        identity: Option<String>,
        /// Which database is at its address, if it was opened: see [`FoundDatabase`].
        found: Option<String>,
    },
    /// It is no longer there.
    Remove,
}

/// What became of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is new, at this revision.
    Created(i64),
    /// It was changed, at this revision.
    Changed(i64),
    /// It had this text already, at this revision.
    Same(i64),
    /// It was removed, at this revision.
    Removed(i64),
    /// It was not there.
    Absent,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum WriteRefused {
    /// A host or a database belongs to another tenant.
    #[error("{value} belongs to the tenant `{owner}`")]
    Taken {
        /// Which tenant of the list wants it.
        slug: String,
        /// `host` or `database`.
        kind: &'static str,
        /// The host, or the address of the database.
        value: String,
        /// Whose it is.
        owner: String,
    },
    /// The row is not as expected.
    #[error("the tenant `{slug}` was changed meanwhile")]
    NotAsExpected {
        /// The tenant.
        slug: String,
        /// The revision that it was to have. `None`: it was not to be there.
        expected: Option<i64>,
        /// The revision that it has, if it is there.
        revision: Option<i64>,
    },
    /// What the account had that had the slug before is not erased yet.
    #[error("the tenant `{slug}` is being erased: repeat `formgate tenant remove {slug} --erase` until it is done")]
    BeingErased {
        /// The tenant.
        slug: String,
    },
    /// The administrators of an account have added as many domains as they may that are not proved.
    #[error("the account has as many domains that are not proved as it may add")]
    TooManyUnproved,
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for WriteRefused {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

impl AsStoreError for WriteRefused {
    fn as_store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl Registry {
    /// Makes all changes, or none of them. Returns what became of each, in the order of the list, which names no tenant
    /// twice.
    ///
    /// # Errors
    /// [`WriteRefused`].
    pub async fn write(
        &self,
        writes: &[RegistryWrite],
        now: Timestamp,
        by: &str,
    ) -> Result<Vec<Written>, WriteRefused> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let head = lock_head(&mut transaction).await?;
            let mut revision = head;
            let mut written = Vec::with_capacity(writes.len());
            let mut lives = Vec::with_capacity(writes.len());
            // Before any is added: a host may move from one tenant of the list to another.
            for write in writes {
                let found = find(&mut transaction, &write.slug).await?;
                let life = Life::of(&write.change, found.as_ref());
                written.push(Self::plan(write, found.as_ref(), life, &mut revision)?);
                if matches!(written.last(), Some(Written::Changed(_) | Written::Removed(_))) {
                    let slug = &write.slug;
                    transaction.execute(sql!("DELETE FROM registry_claims WHERE slug = {slug}", slug)).await?;
                }
                let domains = if life == Life::Same { found.map(|found| found.domains) } else { None };
                lives.push((life, domains.unwrap_or_default()));
            }
            for ((write, written), (life, domains)) in writes.iter().zip(&written).zip(&mut lives) {
                match (&write.change, written) {
                    (_, Written::Same(_) | Written::Absent) => {}
                    (
                        RegistryChange::Put { text, claims, identity, .. },
                        Written::Created(at) | Written::Changed(at),
                    ) => {
                        domains.retain(|domain| !claims.hosts.contains(domain));
                        if matches!(written, Written::Created(_)) {
                            // Others may have proved some of them since it was removed.
                            keep_free(&mut transaction, &write.slug, domains).await?;
                            restore_domains(&mut transaction, &write.slug, domains, now).await?;
                        }
                        put(&mut transaction, &write.slug, Some(text), domains, *at, now, by).await?;
                        note_life(&mut transaction, &write.slug, *life, identity.as_deref()).await?;
                        let hosts = claims.hosts.iter().chain(&*domains).cloned().collect();
                        let claims = Claims { hosts, database: claims.database.clone() };
                        claim(&mut transaction, &write.slug, &claims).await?;
                    }
                    (_, Written::Created(at) | Written::Changed(at) | Written::Removed(at)) => {
                        put(&mut transaction, &write.slug, None, domains, *at, now, by).await?;
                        remove_domains(&mut transaction, &write.slug, now).await?;
                    }
                }
            }
            if revision > head {
                transaction.execute(sql!("UPDATE registry_head SET revision = {revision}", revision)).await?;
            }
            for (write, (life, _)) in writes.iter().zip(&lives) {
                if let (RegistryChange::Put { claims, .. }, Life::Next) = (&write.change, life) {
                    end_life(&mut transaction, &write.slug, &claims.hosts).await?;
                }
            }
            settle_databases(&mut transaction, writes).await?;
            transaction.commit().await?;
            Ok(written)
        })
        .await
    }

    /// What is to become of a tenant. Takes the next revision if it changes.
    fn plan(
        write: &RegistryWrite,
        found: Option<&Found>,
        life: Life,
        revision: &mut i64,
    ) -> Result<Written, WriteRefused> {
        if found.is_some_and(|found| found.is_being_erased) && matches!(write.change, RegistryChange::Put { .. }) {
            return Err(WriteRefused::BeingErased { slug: write.slug.clone() });
        }
        let there = found.filter(|found| found.text.is_some());
        let current = there.map(|found| found.revision);
        if let Some(expected) = write.expected.filter(|expected| *expected != current) {
            return Err(WriteRefused::NotAsExpected { slug: write.slug.clone(), expected, revision: current });
        }
        let mut next = || {
            *revision += 1;
            *revision
        };
        Ok(match (&write.change, there) {
            (RegistryChange::Put { text, .. }, Some(found))
                if found.text.as_ref() == Some(text) && life == Life::Same =>
            {
                Written::Same(found.revision)
            }
            (RegistryChange::Put { .. }, Some(_)) => Written::Changed(next()),
            (RegistryChange::Put { .. }, None) => Written::Created(next()),
            (RegistryChange::Remove, Some(_)) => Written::Removed(next()),
            (RegistryChange::Remove, None) => Written::Absent,
        })
    }
}

/// Leaves the domains that no other tenant has.
async fn keep_free(transaction: &mut Transaction, slug: &str, domains: &mut Vec<String>) -> Result<(), sqlx::Error> {
    if domains.is_empty() {
        return Ok(());
    }
    let sql = sql!(
        "SELECT value FROM registry_claims
         WHERE kind = 'host' AND slug <> {slug} AND value {in domains}",
        slug,
        domains = &domains[..],
    );
    let taken = transaction.fetch_all(sql).await?;
    let taken: HashSet<String> = taken.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    domains.retain(|domain| !taken.contains(domain));
    Ok(())
}

/// The tenant was removed, and its domains with it.
async fn remove_domains(transaction: &mut Transaction, slug: &str, now: Timestamp) -> Result<(), sqlx::Error> {
    let sql = sql!(
        "UPDATE registry_domains SET state = 'removed', reason = '{{}}', since = {now}, next_at = {now}, pending = NULL,
           leased_until = NULL, fence = fence + 1
         WHERE state <> 'removed' AND slug = {slug}",
        now,
        slug,
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// The tenant comes back, and its domains with it.
async fn restore_domains(
    transaction: &mut Transaction,
    slug: &str,
    domains: &[String],
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let sql = sql!(
        "UPDATE registry_domains SET state = 'claimed', since = {now}, next_at = {now}, leased_until = NULL,
           fence = fence + 1
         WHERE state = 'removed' AND slug = {slug} AND host {in domains}",
        now,
        slug,
        domains,
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// Writes a row. A tenant that comes back is a new one, at the end of the order.
async fn put(
    transaction: &mut Transaction,
    slug: &str,
    text: Option<&str>,
    domains: &[String],
    revision: i64,
    now: Timestamp,
    by: &str,
) -> Result<(), sqlx::Error> {
    let sql = sql!(
        "INSERT INTO registry_tenants AS known (slug, position, toml, domains, revision, changed_at, changed_by)
         VALUES ({slug}, {revision}, {text}, {domains}, {revision}, {now}, {by})
         ON CONFLICT (slug) DO UPDATE SET
           position = CASE WHEN known.toml IS NULL THEN excluded.position ELSE known.position END,
           toml = excluded.toml, domains = excluded.domains, revision = excluded.revision,
           changed_at = excluded.changed_at, changed_by = excluded.changed_by, is_erased = FALSE",
        slug,
        revision,
        // It may have passwords.
        text = text.map_or(Argument::OptionalText(None), |text| Argument::Secret(text.to_owned())),
        domains = serde_json::to_string(domains).expect("texts are always JSON"),
        now,
        by,
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// Decides who has the databases of tenants after a change: none that was opened for it may be that of another one.
async fn settle_databases(transaction: &mut Transaction, writes: &[RegistryWrite]) -> Result<(), WriteRefused> {
    databases::lock(transaction).await?;
    let slugs: Vec<_> = writes.iter().map(|write| write.slug.as_str()).collect();
    databases::forget_left(transaction, &slugs).await?;
    for RegistryWrite { slug, change, .. } in writes {
        let RegistryChange::Put { claims, found: Some(database), .. } = change else { continue };
        let (slug, address) = (slug.clone(), claims.database.clone());
        let found = FoundDatabase { slug, address, database: database.clone() };
        if let Some(owner) = databases::note(transaction, &found).await? {
            let FoundDatabase { slug, address: value, .. } = found;
            return Err(WriteRefused::Taken { slug, kind: "database", value, owner });
        }
    }
    Ok(())
}
