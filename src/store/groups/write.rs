//! `PUT /group` as one transaction of a fixed number of statements, however many members it lists.
//!
//! The writes of one account's groups take turns, on one node by a lock of its own and between nodes by the database's (an
//! advisory lock in Postgres, the write lock in SQLite): two calls for one group, or one new user in two groups, then can't meet half way, and each answers truthfully. What writers beside
//! formgate do can still collide; the database reports that, and the whole transaction is tried again.
//!
//! A dry run is the same transaction, rolled back: it can't answer anything else than the call would.

use std::time::Duration;

use crate::store::database::Transaction;
use crate::store::filter::fold;
use crate::store::retry::Tries;
use crate::store::sql::{Dialect, Sql};
use crate::store::{Store, StoreError};

use super::{GroupSummary, SUMMARY};

/// A group as it is asked for.
#[derive(Clone, Debug)]
pub struct GroupWrite {
    /// 1 to 255 characters.
    pub name: String,
    /// The caller's identifier, 1 to 255 characters.
    pub external_id: Option<String>,
    /// The full membership, each address once; none leaves it untouched.
    pub members: Option<Vec<NewMember>>,
}

/// A member as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// As the caller wrote it.
    pub email: String,
    /// Folded, for comparison.
    pub folded: String,
    /// For a user who is new.
    pub name: String,
}

/// Whether a write stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It stays.
    Commit,
    /// It is rolled back once its answer is known.
    DryRun,
}

/// Whether a write tells whom it attached, detached and created, beside how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// How many.
    Counts,
    /// Whom, too.
    Members,
}

/// The most members that one write may detach, in percent of those that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// 0 to 100.
    pub max_detached_percent: u32,
}

/// What became of the members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberChange {
    /// How many users became members, new ones included.
    pub attached: u64,
    /// How many stopped being members.
    pub detached: u64,
    /// How many users were created.
    pub created: u64,
    /// Their addresses, ordered as members are, where a report was asked for: attached, detached, created.
    pub report: Option<[Vec<String>; 3]>,
}

/// A group that was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// The group as it is now.
    pub group: GroupSummary,
    /// Whether it is new.
    pub created: bool,
    /// What became of its members.
    pub members: MemberChange,
}

/// Why a group can't be written; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum GroupWriteError {
    /// Two or more groups have the name, and no external id tells which is meant.
    #[error("two groups have this name")]
    AmbiguousName,
    /// The built-in group is nobody's to write.
    #[error("the built-in group can't be written")]
    BuiltIn,
    /// It would detach more members than the tenant's guard allows.
    #[error("{detached} of {members} members would be detached")]
    Guarded {
        /// Members who would be detached.
        detached: u64,
        /// Members whom the group has.
        members: u64,
    },
    /// The database could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for GroupWriteError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// How long one statement of a write may take, the wait for its turn among them. Longer, and a stuck database holds its
/// callers; shorter, and a body of hundreds of thousands of members, or a turn behind one, is cut off.
const STATEMENT_LIMIT: Duration = Duration::from_secs(60);

/// Lets the writes of groups take turns. SQLite's transactions do by themselves.
pub(super) async fn lock_groups(transaction: &mut Transaction) -> Result<(), sqlx::Error> {
    transaction.limit_statements(STATEMENT_LIMIT);
    if transaction.dialect() == Dialect::Postgres {
        let mut sql = transaction.sql();
        sql.push("SELECT set_config('statement_timeout', ").bind(STATEMENT_LIMIT.as_millis().to_string());
        // A turn is a lock.
        sql.push(", true), set_config('lock_timeout', '0', true)");
        transaction.execute(sql).await?;
        let mut sql = transaction.sql();
        // Any number does that nothing else in the account's own database uses.
        sql.push("SELECT pg_advisory_xact_lock(7310577365311121506)");
        transaction.execute(sql).await?;
    }
    Ok(())
}

impl Store {
    /// Creates or updates one group and replaces its membership: all or nothing.
    ///
    /// # Errors
    /// [`GroupWriteError`]; nothing was changed then.
    pub async fn write_group(
        &self,
        write: &GroupWrite,
        guard: Option<Guard>,
        durability: Durability,
        report: Report,
    ) -> Result<Written, GroupWriteError> {
        let _turn = self.group_writes.lock().await;
        let mut tries = Tries::default();
        loop {
            match self.try_to_write_group(write, guard, durability, report, tries.again()).await {
                Err(error) if tries.another(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn try_to_write_group(
        &self,
        write: &GroupWrite,
        guard: Option<Guard>,
        durability: Durability,
        report: Report,
        again: bool,
    ) -> Result<Written, GroupWriteError> {
        let mut transaction = self.database.begin().await?;
        lock_groups(&mut transaction).await?;
        if again {
            pass_ids_given_by_others(&mut transaction).await?;
        }
        let (id, created) = match find(&mut transaction, write).await? {
            Some(id) => (id, false),
            None => (create(&mut transaction, write, durability).await?, true),
        };
        let members = match &write.members {
            Some(members) => replace_members(&mut transaction, id, members, guard, report).await?,
            None => MemberChange { report: (report == Report::Members).then(Default::default), ..Default::default() },
        };
        let mut sql = transaction.sql();
        sql.push("SELECT ").push(SUMMARY).push(" FROM groups g WHERE g.id = ").bind(id);
        let row = transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?;
        let group = GroupSummary::read(&row)?;
        match durability {
            Durability::Commit => transaction.commit().await?,
            Durability::DryRun => transaction.roll_back().await?,
        }
        Ok(Written { group, created, members })
    }
}

/// Finds the group that is meant, and gives it the name and the identifier that it is to have.
async fn find(transaction: &mut Transaction, write: &GroupWrite) -> Result<Option<i64>, GroupWriteError> {
    let mut sql = transaction.sql();
    sql.push("SELECT g.id, g.built_in, g.external_id IS NOT NULL FROM groups g WHERE g.name = ")
        .bind(write.name.as_str());
    sql.push(" ORDER BY g.id");
    let named = transaction.fetch_all(sql).await?;
    for row in &named {
        if row.get::<bool>(1)? {
            return Err(GroupWriteError::BuiltIn);
        }
    }
    let found = match &write.external_id {
        Some(external_id) => {
            let mut sql = transaction.sql();
            sql.push("SELECT g.id FROM groups g WHERE g.external_id = ").bind(external_id.as_str());
            match transaction.fetch_all(sql).await?.pop() {
                Some(row) => Some(row.get(0)?),
                // A group of the same name without an identifier is adopted; one with another is left alone.
                None => {
                    let mut adopted = None;
                    for row in named.iter().rev() {
                        adopted = if row.get::<bool>(2)? { adopted } else { Some(row.get(0)?) };
                    }
                    adopted
                }
            }
        }
        None if named.len() > 1 => return Err(GroupWriteError::AmbiguousName),
        None => named.first().map(|row| row.get(0)).transpose()?,
    };
    if let Some(id) = found {
        let mut sql = transaction.sql();
        sql.push("UPDATE groups SET managed = ").push_either("true", "1").push(", name = ").bind(write.name.as_str());
        sql.push(", external_id = coalesce(")
            .bind(write.external_id.clone())
            .push(", external_id) WHERE id = ")
            .bind(id);
        // The same again writes nothing.
        sql.push(" AND NOT (managed AND name = ").bind(write.name.as_str());
        sql.push(" AND coalesce(external_id, '') = coalesce(")
            .bind(write.external_id.clone())
            .push(", external_id, ''))");
        transaction.execute(sql).await?;
    }
    Ok(found)
}

/// Above every id that a group has, or ever had.
const NEXT_ON_SQLITE: &str = "SELECT max(last, (SELECT coalesce(max(id), 0) FROM groups WHERE NOT built_in)) + 1 \
    FROM group_ids";

async fn create(
    transaction: &mut Transaction,
    write: &GroupWrite,
    durability: Durability,
) -> Result<i64, GroupWriteError> {
    let mut sql = transaction.sql();
    // Above what other writers gave, too. A dry run can't give back what it takes from a sequence, so it only looks.
    match durability {
        Durability::Commit => sql.push_either(
            "SELECT setval('groups_id_seq', greatest(nextval('groups_id_seq'), \
             (SELECT coalesce(max(id), 0) + 1 FROM groups WHERE NOT built_in)))",
            NEXT_ON_SQLITE,
        ),
        Durability::DryRun => sql.push_either(
            "SELECT greatest((SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END FROM groups_id_seq), \
             (SELECT coalesce(max(id), 0) + 1 FROM groups WHERE NOT built_in))",
            NEXT_ON_SQLITE,
        ),
    };
    let id: i64 = transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    let mut sql = transaction.sql();
    sql.push("INSERT INTO groups (id, name, external_id, managed) VALUES (")
        .bind(id)
        .push(", ")
        .bind(write.name.as_str());
    sql.push(", ").bind(write.external_id.clone()).push(", ").push_either("true", "1").push(")");
    transaction.execute(sql).await?;
    Ok(id)
}

/// The wanted members as a table `w (folded, email, name)`, bound as one value.
fn wanted(sql: &mut Sql, rows: &str) {
    sql.push_rows(rows.to_owned(), &[("folded", "text"), ("email", "text"), ("name", "text")]).push(" AS w");
}

async fn replace_members(
    transaction: &mut Transaction,
    id: i64,
    members: &[NewMember],
    guard: Option<Guard>,
    report: Report,
) -> Result<MemberChange, GroupWriteError> {
    let rows: Vec<_> = members.iter().map(|member| (&member.folded, &member.email, &member.name)).collect();
    let rows = serde_json::to_string(&rows).expect("texts are JSON");
    let report = match report {
        Report::Counts => None,
        Report::Members => Some(list_changes(transaction, id, &rows).await?),
    };

    let before = match guard {
        Some(guard) => Some((guard, count_members(transaction, id).await?)),
        None => None,
    };
    let change = match transaction.dialect() {
        Dialect::Postgres => change_members_at_once(transaction, id, &rows).await?,
        Dialect::Sqlite => change_members(transaction, id, &rows).await?,
    };
    if let Some((guard, members)) = before
        && change.detached * 100 > members * u64::from(guard.max_detached_percent)
    {
        return Err(GroupWriteError::Guarded { detached: change.detached, members });
    }
    Ok(MemberChange { report, ..change })
}

async fn count_members(transaction: &mut Transaction, id: i64) -> Result<u64, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("SELECT count(*) FROM group_members WHERE group_id = ").bind(id);
    let members: i64 = transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    Ok(u64::try_from(members).expect("a count is not negative"))
}

/// On Postgres, one statement reads the wanted members once: for a few dozen, half of what three statements cost.
async fn change_members_at_once(
    transaction: &mut Transaction,
    id: i64,
    rows: &str,
) -> Result<MemberChange, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("WITH wanted AS MATERIALIZED (SELECT w.email, w.name, u.id FROM ");
    wanted(&mut sql, rows);
    sql.push(" LEFT JOIN users u ON u.email_folded = w.folded), ");
    sql.push("detached AS (DELETE FROM group_members WHERE group_id = ").bind(id);
    sql.push(" AND user_id NOT IN (SELECT id FROM wanted WHERE id IS NOT NULL) RETURNING user_id), ");
    sql.push(
        "created AS (INSERT INTO users (email, name) SELECT email, name FROM wanted WHERE id IS NULL RETURNING id), ",
    );
    sql.push("attached AS (INSERT INTO group_members (group_id, user_id) SELECT ").bind(id).push(", id FROM (");
    sql.push("SELECT id FROM wanted WHERE id IS NOT NULL UNION ALL SELECT id FROM created) AS members ");
    sql.push("ON CONFLICT DO NOTHING RETURNING user_id) ");
    sql.push("SELECT (SELECT count(*) FROM attached), (SELECT count(*) FROM detached), (SELECT count(*) FROM created)");
    let row = transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?;
    let count = |column| Ok::<_, sqlx::Error>(u64::try_from(row.get::<i64>(column)?).expect("a count is not negative"));
    Ok(MemberChange { attached: count(0)?, detached: count(1)?, created: count(2)?, report: None })
}

async fn change_members(transaction: &mut Transaction, id: i64, rows: &str) -> Result<MemberChange, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("DELETE FROM group_members WHERE group_id = ").bind(id);
    sql.push(" AND user_id NOT IN (SELECT u.id FROM ");
    wanted(&mut sql, rows);
    sql.push(" JOIN users u ON u.email_folded = w.folded)");
    let detached = transaction.execute(sql).await?;

    let mut sql = transaction.sql();
    sql.push("INSERT INTO users (email, name, email_folded) SELECT w.email, w.name, w.folded FROM ");
    wanted(&mut sql, rows);
    sql.push(" WHERE NOT EXISTS (SELECT 1 FROM users u WHERE u.email_folded = w.folded)");
    let created = transaction.execute(sql).await?;

    let mut sql = transaction.sql();
    sql.push("INSERT INTO group_members (group_id, user_id) SELECT ").bind(id).push(", u.id FROM ");
    wanted(&mut sql, rows);
    sql.push(" JOIN users u ON u.email_folded = w.folded WHERE true ON CONFLICT DO NOTHING");
    let attached = transaction.execute(sql).await?;
    Ok(MemberChange { attached, detached, created, report: None })
}

/// Whom the write will attach, detach and create.
async fn list_changes(transaction: &mut Transaction, id: i64, rows: &str) -> Result<[Vec<String>; 3], sqlx::Error> {
    let mut attached = transaction.sql();
    attached.push("SELECT coalesce(u.email, w.email) FROM ");
    wanted(&mut attached, rows);
    attached.push(" LEFT JOIN users u ON u.email_folded = w.folded WHERE NOT EXISTS (SELECT 1 FROM group_members m");
    attached.push(" WHERE m.user_id = u.id AND m.group_id = ").bind(id).push(")");

    let mut detached = transaction.sql();
    detached.push("SELECT u.email FROM group_members m JOIN users u ON u.id = m.user_id WHERE m.group_id = ").bind(id);
    detached.push(" AND u.email_folded NOT IN (SELECT w.folded FROM ");
    wanted(&mut detached, rows);
    detached.push(")");

    let mut created = transaction.sql();
    created.push("SELECT w.email FROM ");
    wanted(&mut created, rows);
    created.push(" WHERE NOT EXISTS (SELECT 1 FROM users u WHERE u.email_folded = w.folded)");

    let mut lists: [Vec<String>; 3] = Default::default();
    for (list, sql) in lists.iter_mut().zip([attached, detached, created]) {
        let rows = transaction.fetch_all(sql).await?;
        *list = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
        list.sort_by_cached_key(|email| fold(email));
    }
    Ok(lists)
}

/// Moves the sequence of user ids past ids that other writers gave explicitly.
async fn pass_ids_given_by_others(transaction: &mut Transaction) -> Result<(), sqlx::Error> {
    if transaction.dialect() == Dialect::Postgres {
        let mut sql = transaction.sql();
        sql.push("SELECT setval('users_id_seq', greatest((SELECT last_value FROM users_id_seq), (SELECT max(id) FROM users)))");
        transaction.execute(sql).await?;
    }
    Ok(())
}
