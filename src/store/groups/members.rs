//! A group's members become those that are asked for: who stays is not written, who has no account yet is made.
//!
//! However many they are, they are bound once, as one value.

use super::write::{GroupWriteError, Guard, MemberChange, NewMember, Report};
use crate::store::database::Transaction;
use crate::store::filter::fold;
use crate::store::sql::{Dialect, Sql};

/// The wanted members as each database reads them fastest.
enum Wanted<'m> {
    /// As arrays.
    Postgres(&'m [NewMember]),
    /// As JSON.
    Sqlite(String),
}

impl<'m> Wanted<'m> {
    fn new(dialect: Dialect, members: &'m [NewMember]) -> Self {
        match dialect {
            Dialect::Postgres => Self::Postgres(members),
            Dialect::Sqlite => {
                let rows: Vec<_> = members.iter().map(|one| (&one.folded, &one.email, &one.name)).collect();
                Self::Sqlite(serde_json::to_string(&rows).expect("texts are JSON"))
            }
        }
    }

    /// Adds them to a statement as a table `w (folded, email, name)`.
    fn write(&self, sql: &mut Sql) {
        match self {
            Self::Postgres(members) => {
                let column = |of: fn(&NewMember) -> &String| members.iter().map(of).cloned().collect::<Vec<_>>();
                sql.push("unnest(").bind(column(|one| &one.folded)).push("::text[], ");
                sql.bind(column(|one| &one.email)).push("::text[], ").bind(column(|one| &one.name));
                sql.push("::text[]) AS w (folded, email, name)");
            }
            Self::Sqlite(rows) => {
                sql.push_rows(rows.clone(), &[("folded", "text"), ("email", "text"), ("name", "text")]).push(" AS w");
            }
        }
    }
}

/// Makes the members those that are wanted, unless a guard forbids it.
pub(super) async fn replace_members(
    transaction: &mut Transaction,
    id: i64,
    members: &[NewMember],
    guard: Option<Guard>,
    report: Report,
) -> Result<MemberChange, GroupWriteError> {
    let wanted = Wanted::new(transaction.dialect(), members);
    let report = match report {
        Report::Counts => None,
        Report::Members => Some(list_changes(transaction, id, &wanted).await?),
    };

    // How many there were matters to a guard alone.
    let (before, change) = match transaction.dialect() {
        Dialect::Postgres => change_members_at_once(transaction, id, &wanted).await?,
        Dialect::Sqlite => {
            let before = if guard.is_some() { count_members(transaction, id).await? } else { 0 };
            (before, change_members(transaction, id, &wanted).await?)
        }
    };
    if let Some(guard) = guard
        && change.detached * 100 > before * u64::from(guard.max_detached_percent)
    {
        return Err(GroupWriteError::Guarded { detached: change.detached, members: before });
    }
    Ok(MemberChange { report, ..change })
}

pub(super) async fn count_members(transaction: &mut Transaction, id: i64) -> Result<u64, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("SELECT count(*) FROM group_members WHERE group_id = ").bind(id);
    let members: i64 = transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    Ok(u64::try_from(members).expect("a count is not negative"))
}

/// On Postgres, one statement reads the wanted members once, and those that there were: for a few dozen, half of what
/// three statements cost. Tells how many there were, too.
async fn change_members_at_once(
    transaction: &mut Transaction,
    id: i64,
    wanted: &Wanted<'_>,
) -> Result<(u64, MemberChange), sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("WITH wanted AS MATERIALIZED (SELECT w.email, w.name, u.id FROM ");
    wanted.write(&mut sql);
    sql.push(" LEFT JOIN users u ON u.email_folded = w.folded), ");
    sql.push("before AS MATERIALIZED (SELECT user_id FROM group_members WHERE group_id = ").bind(id).push("), ");
    sql.push("detached AS (DELETE FROM group_members WHERE group_id = ").bind(id);
    sql.push(" AND user_id NOT IN (SELECT id FROM wanted WHERE id IS NOT NULL) RETURNING user_id), ");
    sql.push(
        "created AS (INSERT INTO users (email, name) SELECT email, name FROM wanted WHERE id IS NULL RETURNING id), ",
    );
    sql.push("attached AS (INSERT INTO group_members (group_id, user_id) SELECT ").bind(id).push(", id FROM (");
    sql.push("SELECT id FROM wanted WHERE id IS NOT NULL AND id NOT IN (SELECT user_id FROM before) ");
    sql.push("UNION ALL SELECT id FROM created) AS members ON CONFLICT DO NOTHING RETURNING user_id) ");
    sql.push("SELECT (SELECT count(*) FROM before), (SELECT count(*) FROM attached), ");
    sql.push("(SELECT count(*) FROM detached), (SELECT count(*) FROM created)");
    let row = transaction.fetch_all(sql).await?.pop().ok_or(sqlx::Error::RowNotFound)?;
    let count = |column| Ok::<_, sqlx::Error>(u64::try_from(row.get::<i64>(column)?).expect("a count is not negative"));
    Ok((count(0)?, MemberChange { attached: count(1)?, detached: count(2)?, created: count(3)?, report: None }))
}

async fn change_members(
    transaction: &mut Transaction,
    id: i64,
    wanted: &Wanted<'_>,
) -> Result<MemberChange, sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("DELETE FROM group_members WHERE group_id = ").bind(id);
    sql.push(" AND user_id NOT IN (SELECT u.id FROM ");
    wanted.write(&mut sql);
    sql.push(" JOIN users u ON u.email_folded = w.folded)");
    let detached = transaction.execute(sql).await?;

    let mut sql = transaction.sql();
    sql.push("INSERT INTO users (email, name, email_folded) SELECT w.email, w.name, w.folded FROM ");
    wanted.write(&mut sql);
    sql.push(" WHERE NOT EXISTS (SELECT 1 FROM users u WHERE u.email_folded = w.folded)");
    let created = transaction.execute(sql).await?;

    let mut sql = transaction.sql();
    sql.push("INSERT INTO group_members (group_id, user_id) SELECT ").bind(id).push(", u.id FROM ");
    wanted.write(&mut sql);
    sql.push(" JOIN users u ON u.email_folded = w.folded WHERE true ON CONFLICT DO NOTHING");
    let attached = transaction.execute(sql).await?;
    Ok(MemberChange { attached, detached, created, report: None })
}

/// Whom the write will attach, detach and create.
async fn list_changes(
    transaction: &mut Transaction,
    id: i64,
    wanted: &Wanted<'_>,
) -> Result<[Vec<String>; 3], sqlx::Error> {
    let mut attached = transaction.sql();
    attached.push("SELECT coalesce(u.email, w.email) FROM ");
    wanted.write(&mut attached);
    attached.push(" LEFT JOIN users u ON u.email_folded = w.folded WHERE NOT EXISTS (SELECT 1 FROM group_members m");
    attached.push(" WHERE m.user_id = u.id AND m.group_id = ").bind(id).push(")");

    let mut detached = transaction.sql();
    detached.push("SELECT u.email FROM group_members m JOIN users u ON u.id = m.user_id WHERE m.group_id = ").bind(id);
    detached.push(" AND u.email_folded NOT IN (SELECT w.folded FROM ");
    wanted.write(&mut detached);
    detached.push(")");

    let mut created = transaction.sql();
    created.push("SELECT w.email FROM ");
    wanted.write(&mut created);
    created.push(" WHERE NOT EXISTS (SELECT 1 FROM users u WHERE u.email_folded = w.folded)");

    let mut lists: [Vec<String>; 3] = Default::default();
    for (list, sql) in lists.iter_mut().zip([attached, detached, created]) {
        let rows = transaction.fetch_all(sql).await?;
        *list = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
        list.sort_by_cached_key(|email| fold(email));
    }
    Ok(lists)
}
