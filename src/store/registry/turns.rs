//! Which domains are looked at next: first what a person waits for, then by turns of the tenants.
//!
//! A tenant with thousands of rows that are due takes a turn as one with a single row does. Among tenants, chance decides: in
//! the order of their rows' age, one with many old rows would always come before one with a new one.
//!
//! A person who asks for a check puts one row of the tenant first. The row remembers the fence of the lease that serves it, so
//! that a look which began before is none of its answers.

use std::time::Duration;

use jiff::Timestamp;

use super::Registry;
use super::budgets::{Budget, lock, take};
use super::claiming::Requester;
use super::domains::{COLUMNS, DomainRecord, PushLease};
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::{JsonRows, Row};

/// How many rows are considered for the turns of their tenants: of those that are due longest, and of the latest, so that a
/// tenant with more than that keeps no other from being considered.
///
/// Larger: a statement takes longer after an outage, when everything is due. Smaller: turns are less fair then.
const CONSIDERED: i64 = 10_000;

/// How many checks of a tenant come first in a minute.
///
/// Larger: a tenant that asks all the time takes more turns from others. Smaller: who mends several domains at once waits.
const CHECKS: u32 = 6;

const MINUTE: Duration = Duration::from_mins(1);

/// A row that may be leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDomain {
    /// The host.
    pub host: String,
    /// The tenant.
    pub slug: String,
    /// Whether a person waits for it.
    pub is_asked: bool,
}

/// A look at a domain that somebody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedCheck {
    /// The lease with which it is done, or a later one.
    pub fence: i64,
    /// When the domain was looked at before.
    pub checked_at: Option<Timestamp>,
    /// Whether it comes first. If not, the tenant asked too often: for the operator, the domain is looked at in its turn, and
    /// for the tenant nothing changed.
    pub is_first: bool,
}

impl AskedCheck {
    /// The first look at a domain that had none since this instant.
    #[must_use]
    pub fn after(checked_at: Option<Timestamp>) -> Self {
        Self { fence: 0, checked_at, is_first: false }
    }

    /// Whether it is done. An order that is under way goes on without a look.
    #[must_use]
    pub fn is_done(&self, domain: &DomainRecord) -> bool {
        let is_looked_at = domain.fence >= self.fence && domain.leased_until.is_none();
        domain.pending.is_some() || is_looked_at && domain.checked_at != self.checked_at
    }
}

impl Registry {
    /// The time of the registry's clock, and rows that are due: those that a person waits for, then the first one of each
    /// tenant, then the second ones, and so on; of both as many as the limit.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn due_domains(&self, limit: u32) -> Result<(Timestamp, Vec<DueDomain>), StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT * FROM (SELECT host, slug, TRUE FROM registry_domains WHERE asked > fence AND ");
        sql.push_has_passed("leased_until", DomainRecord::LEASE);
        sql.push(" ORDER BY asked_at LIMIT ").bind(i64::from(limit));
        sql.push(") AS asked UNION ALL SELECT * FROM (SELECT host, slug, FALSE FROM (SELECT host, slug, row_number() ");
        sql.push("OVER (PARTITION BY slug ORDER BY next_at) AS turn FROM (");
        for (order, end) in [("next_at", ") AS oldest UNION "), ("next_at DESC", ") AS latest")] {
            sql.push("SELECT * FROM (SELECT host, slug, next_at FROM registry_domains WHERE ");
            sql.push_has_passed("next_at", DomainRecord::LONGEST_PAUSE).push(" AND asked <= fence AND ");
            sql.push_has_passed("leased_until", DomainRecord::LEASE).push(" ORDER BY ").push(order);
            sql.push(" LIMIT ").bind(CONSIDERED).push(end);
        }
        sql.push(") AS due) AS turns ORDER BY turn, random() LIMIT ").bind(i64::from(limit)).push(") AS due");
        let rows = reader.fetch_all(sql).await?;
        let read = |row: &Row| Ok(DueDomain { host: row.get(0)?, slug: row.get(1)?, is_asked: row.get(2)? });
        let due = rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?;
        // Last, so that it is not old.
        let mut sql = reader.sql();
        sql.push("SELECT ").push_now_plus(Duration::ZERO);
        Ok((reader.fetch_one(sql).await?.get(0)?, due))
    }

    /// Takes those of these rows that are still due, for [`DomainRecord::LEASE`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn lease_domains(&self, node: &str, domains: &[DueDomain]) -> Result<Vec<DomainRecord>, StoreError> {
        if domains.is_empty() {
            return Ok(Vec::new());
        }
        let mut rows = JsonRows::new();
        domains.iter().for_each(|DueDomain { host, slug, .. }| rows.push(&(host, slug)));
        let mut transaction = self.database.begin().await?;
        let mut sql = transaction.sql();
        sql.push("UPDATE registry_domains SET leased_by = ").bind(node).push(", leased_until = ");
        sql.push_now_plus(DomainRecord::LEASE).push(
            ", fence = fence + 1 WHERE (host, slug) IN (SELECT known.host, known.slug FROM registry_domains AS known ",
        );
        sql.push("JOIN ").push_rows(rows.text(), &[("host", "text"), ("slug", "text")]).push(" AS listed ON ");
        sql.push("known.host = listed.host AND known.slug = listed.slug WHERE (asked > fence OR ");
        sql.push_has_passed("next_at", DomainRecord::LONGEST_PAUSE).push(") AND ");
        sql.push_has_passed("leased_until", DomainRecord::LEASE).push_either(" FOR UPDATE OF known SKIP LOCKED", "");
        sql.push(") RETURNING ").push(COLUMNS);
        let leased = DomainRecord::read_all(&transaction.fetch_all(sql).await?)?;
        transaction.commit().await?;
        Ok(leased)
    }

    /// Whether another tenant has domains, other than those that it has lost or given up.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn has_others(&self, slug: &str) -> Result<bool, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        const HAS: &str = "state NOT IN ('gone', 'removed')";
        sql.push("SELECT EXISTS (SELECT 1 FROM registry_domains WHERE slug < ").bind(slug).push(" AND ").push(HAS);
        sql.push(") OR EXISTS (SELECT 1 FROM registry_domains WHERE slug > ").bind(slug).push(" AND ").push(HAS);
        sql.push(")");
        Ok(reader.fetch_one(sql).await?.get(0)?)
    }

    /// Keeps the lease of a row. Returns whether it was still its own.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn keep_lease(&self, domain: &DomainRecord) -> Result<bool, StoreError> {
        let mut sql = self.database.sql();
        sql.push("UPDATE registry_domains SET leased_until = ").push_now_plus(DomainRecord::LEASE);
        sql.push(" WHERE ").push_lease(domain);
        Ok(self.database.execute(sql).await? > 0)
    }

    /// Puts a row first. A tenant has one such row at a time, and six a minute. `None`: there is no such row.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn ask_for_check(&self, host: &str, slug: &str, by: Requester) -> Result<Option<AskedCheck>, StoreError> {
        let mut transaction = self.database.begin().await?;
        let mut sql = transaction.sql();
        sql.push("SELECT fence, checked_at, asked, ").push_now_plus(Duration::ZERO);
        sql.push(" FROM registry_domains WHERE host = ").bind(host).push(" AND slug = ").bind(slug);
        let Some(row) = transaction.fetch_all(sql).await?.pop() else { return Ok(None) };
        let (fence, checked_at, asked, now): (i64, _, i64, Timestamp) =
            (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        if asked > fence {
            return Ok(Some(AskedCheck { fence: asked, checked_at, is_first: true }));
        }
        // The first look at a new domain is none of the six.
        let is_first = may_ask(&mut transaction, host, slug, checked_at.is_none(), now).await?;
        if !is_first {
            transaction.roll_back().await?;
            transaction = self.database.begin().await?;
        }
        if is_first || by == Requester::Operator {
            let mut sql = transaction.sql();
            sql.push("UPDATE registry_domains SET next_at = CASE WHEN next_at < ")
                .bind(now)
                .push(" THEN next_at ELSE ");
            sql.bind(now).push(" END");
            if is_first {
                sql.push(", asked = fence + 1, asked_at = ").bind(now);
            }
            sql.push(" WHERE host = ").bind(host).push(" AND slug = ").bind(slug).push(" RETURNING fence + 1");
            let Some(row) = transaction.fetch_all(sql).await?.pop() else { return Ok(None) };
            let fence = row.get(0)?;
            transaction.commit().await?;
            return Ok(Some(AskedCheck { fence, checked_at, is_first }));
        }
        transaction.roll_back().await?;
        Ok(Some(AskedCheck { fence: fence + 1, checked_at, is_first }))
    }
}

/// Takes one of the checks of a tenant, unless it waits for another one, or has used them up.
async fn may_ask(
    transaction: &mut Transaction,
    host: &str,
    slug: &str,
    is_new: bool,
    now: Timestamp,
) -> Result<bool, sqlx::Error> {
    // A budget for each, so that there are never more in any minute.
    let budget =
        |n: u32| Budget { name: format!("check {n} {slug}"), capacity: 1, period: MINUTE, reserve: 0, account: None };
    // Two clicks at once see each other, also where they take no budget.
    lock(transaction, &budget(0), now).await?;
    let mut is_left = is_new;
    for n in 0..CHECKS {
        if is_left {
            break;
        }
        is_left = take(transaction, &budget(n), now).await?.is_none();
    }
    let mut sql = transaction.sql();
    sql.push("SELECT 1 FROM registry_domains WHERE slug = ").bind(slug).push(" AND host <> ").bind(host);
    sql.push(" AND (asked > fence OR asked = fence AND asked > 0 AND pending IS NULL AND NOT ");
    sql.push_has_passed("leased_until", DomainRecord::LEASE).push(") LIMIT 1");
    Ok(is_left && transaction.fetch_all(sql).await?.is_empty())
}
