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
use super::budgets::{Budget, lock, now, take};
use super::claiming::Requester;
use super::domains::DomainRecord;
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::{Row, Sql, sql};

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
        let sql = sql!(
            "SELECT * FROM (
               SELECT host, slug, TRUE FROM registry_domains
               WHERE asked > fence AND {passed leased_until, lease}
               ORDER BY asked_at LIMIT {limit}
             ) AS asked
             UNION ALL
             SELECT * FROM (
               SELECT host, slug, FALSE
               FROM (
                 SELECT host, slug, row_number() OVER (PARTITION BY slug ORDER BY next_at) AS turn
                 FROM (
                   SELECT * FROM ({+oldest}) AS oldest
                   UNION
                   SELECT * FROM ({+latest}) AS latest
                   UNION
                   SELECT * FROM ({+misdated}) AS misdated
                 ) AS due
               ) AS turns
               ORDER BY turn, random() LIMIT {limit}
             ) AS due",
            lease = DomainRecord::LEASE,
            limit,
            oldest = due_by(is_due(), Sql::text("next_at")),
            latest = due_by(is_due(), Sql::text("next_at DESC")),
            misdated = due_by(is_misdated(), Sql::text("next_at")),
        );
        let rows = reader.fetch_all(sql).await?;
        let read = |row: &Row| Ok(DueDomain { host: row.get(0)?, slug: row.get(1)?, is_asked: row.get(2)? });
        let due = rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?;
        // Last, so that it is not old.
        Ok((now(&mut reader).await?, due))
    }

    /// Takes those of these rows that are still due, for [`DomainRecord::LEASE`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn lease_domains(&self, node: &str, domains: &[DueDomain]) -> Result<Vec<DomainRecord>, StoreError> {
        if domains.is_empty() {
            return Ok(Vec::new());
        }
        let listed: Vec<_> = domains.iter().map(|DueDomain { host, slug, .. }| (host, slug)).collect();
        let listed = serde_json::to_string(&listed).expect("texts are always JSON");
        let mut transaction = self.database.begin().await?;
        let sql = sql!(
            "UPDATE registry_domains SET leased_by = {node}, leased_until = {clock + lease}, fence = fence + 1
             WHERE (host, slug) IN (
               SELECT known.host, known.slug
               FROM registry_domains AS known
               JOIN {rows listed: host text, slug text} AS listed
                 ON known.host = listed.host AND known.slug = listed.slug
               WHERE (asked > fence OR {passed next_at, pause}) AND {passed leased_until, lease}
               {pg: FOR UPDATE OF known SKIP LOCKED})
             RETURNING {+columns}",
            node,
            lease = DomainRecord::LEASE,
            listed,
            pause = DomainRecord::LONGEST_PAUSE,
            columns = DomainRecord::columns(),
        );
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
        let sql = sql!(
            "SELECT EXISTS (SELECT 1 FROM registry_domains WHERE slug < {slug} AND state NOT IN ('gone', 'removed'))
               OR EXISTS (SELECT 1 FROM registry_domains WHERE slug > {slug} AND state NOT IN ('gone', 'removed'))",
            slug,
        );
        Ok(reader.fetch_one(sql).await?.get(0)?)
    }

    /// Keeps the lease of a row. Returns whether it was still its own.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn keep_lease(&self, domain: &DomainRecord) -> Result<bool, StoreError> {
        let sql = sql!(
            "UPDATE registry_domains SET leased_until = {clock + lease} WHERE {+has_lease}",
            lease = DomainRecord::LEASE,
            has_lease = domain.has_lease(),
        );
        Ok(self.database.execute(sql).await? > 0)
    }

    /// Puts a row first. A tenant has one such row at a time, and six a minute. `None`: there is no such row.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn ask_for_check(&self, host: &str, slug: &str, by: Requester) -> Result<Option<AskedCheck>, StoreError> {
        let mut transaction = self.database.begin().await?;
        let sql = sql!(
            "SELECT fence, checked_at, asked, {clock} FROM registry_domains
             WHERE host = {host} AND slug = {slug}",
            host,
            slug,
        );
        let Some(row) = transaction.connection().fetch_optional(sql).await? else { return Ok(None) };
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
            let asked = if is_first { sql!(", asked = fence + 1, asked_at = {now}", now) } else { Sql::default() };
            let sql = sql!(
                "UPDATE registry_domains SET next_at = CASE WHEN next_at < {now} THEN next_at ELSE {now} END {+asked}
                 WHERE host = {host} AND slug = {slug}
                 RETURNING fence + 1",
                now,
                asked,
                host,
                slug,
            );
            let Some(row) = transaction.connection().fetch_optional(sql).await? else { return Ok(None) };
            let fence = row.get(0)?;
            transaction.commit().await?;
            return Ok(Some(AskedCheck { fence, checked_at, is_first }));
        }
        transaction.roll_back().await?;
        Ok(Some(AskedCheck { fence: fence + 1, checked_at, is_first }))
    }
}

/// The rows of a range, except those that a person waits for or a node works on.
fn due_by(is_in_range: Sql, order: Sql) -> Sql {
    sql!(
        "SELECT host, slug, next_at FROM registry_domains
         WHERE {+is_in_range} AND asked <= fence AND {passed leased_until, lease}
         ORDER BY {+order} LIMIT {considered}",
        is_in_range,
        lease = DomainRecord::LEASE,
        order,
        considered = CONSIDERED,
    )
}

/// A row is due. The clock is a subquery, which Postgres evaluates once and can look up in the index.
fn is_due() -> Sql {
    sql!("next_at <= (SELECT {clock})")
}

/// A row is due later than any can be: the clock was set back.
fn is_misdated() -> Sql {
    sql!("next_at > (SELECT {clock + pause})", pause = DomainRecord::LONGEST_PAUSE)
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
    let sql = sql!(
        "SELECT 1 FROM registry_domains
         WHERE slug = {slug} AND host <> {host}
           AND (asked > fence OR asked = fence AND asked > 0 AND pending IS NULL AND NOT {passed leased_until, lease})
         LIMIT 1",
        slug,
        host,
        lease = DomainRecord::LEASE,
    );
    Ok(is_left && transaction.fetch_all(sql).await?.is_empty())
}
