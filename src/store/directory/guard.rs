//! The guard: how many members a directory may remove from a group in ten minutes, because it removes one by one.
//!
//! The ten minutes of a group begin with its first removal. Its share is of the members that it has and of those that were
//! removed since, which are the members at the beginning and those who were added. A removal beyond the share is *held*: it is
//! recorded, and the member stays. While anything of a group is held, every later removal is held too. All active users are the
//! members of the built-in group, so a user who leaves is removed from that group and from each of its own, and is held as a
//! whole by the first of them whose share does not allow it.
//!
//! All of it is in the database, read and written under the lock on groups in the transaction of the change, by the clock of the
//! database. So several nodes decide as one.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use crate::store::derived::totals::not_negative;
use crate::store::engine::Transaction;
use crate::store::groups::{Guard, SyncedBy, member_count};
use crate::store::statement::{Sql, sql};
use crate::store::{Actor, AuditEntry, AuditSource, audit};

/// The time for which the share is.
///
/// Larger: a directory that is set up in haste is held more often. Smaller: one that empties a group removes more before
/// anyone notices.
const WINDOW: Duration = Duration::from_secs(10 * 60);

/// How many members may be removed from any group in that time.
///
/// Larger: more small groups can be emptied. Smaller: ordinary changes of small groups are held.
const ALWAYS_ALLOWED: u64 = 10;

/// The share if the account has no `group_guard`.
///
/// Larger: less of a group is left when it is held. Smaller: ordinary changes are held more often.
const DEFAULT: Guard = Guard { max_detached_percent: 50 };

/// A condition: the user of a row `x` is a member of its group.
const IS_SHOWN: &str = "(EXISTS (SELECT 1 FROM group_members m WHERE m.group_id = x.group_id AND m.user_id = x.user_id) \
    OR EXISTS (SELECT 1 FROM groups b JOIN users u ON u.id = x.user_id WHERE b.id = x.group_id AND b.built_in AND u.active))";

/// The same condition as a part of a statement.
pub(in crate::store) fn is_shown() -> Sql {
    Sql::text(IS_SHOWN)
}

/// An expression: how many members of a group `g` are held.
pub(in crate::store) fn held_count() -> Sql {
    sql!("(SELECT count(*) FROM directory_held x WHERE x.group_id = g.id AND {+is_shown})", is_shown = is_shown())
}

/// A directory that writes.
#[derive(Clone, Debug)]
pub struct Provisioner {
    /// Its token.
    pub by: SyncedBy,
    /// The limit of the account, if one is set.
    pub guard: Option<Guard>,
}

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldKind {
    /// A member is removed from a group.
    Removed,
    /// A user becomes inactive.
    Deactivated,
    /// A user is deleted.
    Deleted,
}

impl HeldKind {
    /// As it is stored.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Deactivated => "deactivated",
            Self::Deleted => "deleted",
        }
    }

    pub(super) fn parse(text: &str) -> Self {
        match text {
            "deactivated" => Self::Deactivated,
            "deleted" => Self::Deleted,
            _ => Self::Removed,
        }
    }
}

/// What a directory did to a group in the current ten minutes.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub(super) group: i64,
    name: String,
    members: u64,
    removed: u64,
    pub(super) is_held: bool,
}

impl Share {
    /// Whether so many of the members may be missing.
    fn allows(&self, removed: u64, provisioner: &Provisioner) -> bool {
        let percent = provisioner.guard.unwrap_or(DEFAULT).max_detached_percent;
        removed <= ALWAYS_ALLOWED || removed * 100 <= (self.members + self.removed) * u64::from(percent)
    }

    /// That of one group.
    pub(super) async fn of_group(transaction: &mut Transaction, id: i64) -> Result<Option<Self>, sqlx::Error> {
        Ok(read_shares(transaction, sql!("SELECT CAST({id} AS bigint)", id)).await?.pop())
    }

    /// Counts members who were just removed. Returns whether the share allows it.
    pub(super) async fn count(
        &self,
        transaction: &mut Transaction,
        users: &[i64],
        provisioner: &Provisioner,
    ) -> Result<bool, sqlx::Error> {
        note_removed(transaction, &[self.group], users).await?;
        let sql = sql!(
            "SELECT count(*) FROM directory_removals x WHERE x.group_id = {group} AND NOT {+is_shown}",
            group = self.group,
            is_shown = is_shown(),
        );
        let removed = not_negative(transaction.connection().fetch_one(sql).await?.get(0)?);
        Ok(self.allows(removed, provisioner))
    }

    /// Records removals of users who are members again.
    pub(super) async fn hold(
        &self,
        transaction: &mut Transaction,
        users: &[i64],
        kind: HeldKind,
        provisioner: &Provisioner,
    ) -> Result<(), sqlx::Error> {
        let sql = sql!(
            "DELETE FROM directory_removals WHERE group_id = {group} AND user_id {in users}",
            group = self.group,
            users,
        );
        transaction.execute(sql).await?;
        let sql = sql!(
            "INSERT INTO directory_held (group_id, user_id, kind, at, actor, token_id)
             SELECT {group}, u.id, {kind}, {clock}, {actor}, {token} FROM users u WHERE u.id {in users}
             ON CONFLICT (group_id, user_id) DO UPDATE SET kind = excluded.kind
               WHERE excluded.kind = 'deleted' OR directory_held.kind = 'removed'",
            group = self.group,
            kind = kind.as_str(),
            actor = &*provisioner.by.name,
            token = provisioner.by.token,
            users,
        );
        transaction.execute(sql).await?;
        Ok(())
    }

    /// Records in the audit log that the group is held from now on. Call it last.
    pub(super) async fn audit(
        &self,
        transaction: &mut Transaction,
        removals: usize,
        provisioner: &Provisioner,
    ) -> Result<(), sqlx::Error> {
        let actor = Actor { name: "formgate".to_owned(), source: AuditSource::Gateway, network: None, identity: None };
        let entry = AuditEntry {
            action: "group.held",
            subject: format!("group {}", self.group),
            details: json!({ "name": self.name, "removals": removals, "token": &*provisioner.by.name }),
        };
        audit::append(transaction, &actor, entry, Timestamp::now()).await
    }
}

/// Lets a user leave all groups, or holds that. Returns the share that does not allow it.
pub(super) async fn admit_leaving(
    transaction: &mut Transaction,
    user: i64,
    kind: HeldKind,
    provisioner: &Provisioner,
) -> Result<Option<Share>, sqlx::Error> {
    let of_user = sql!(
        "SELECT id FROM groups WHERE built_in
         UNION ALL SELECT group_id FROM group_members WHERE user_id = {user}
         {scans: the index of the built-in group has one row}",
        user,
    );
    let mut shares = read_shares(transaction, of_user).await?;
    let holds = |share: &Share| share.is_held || !share.allows(share.removed + 1, provisioner);
    if let Some(at) = shares.iter().position(holds) {
        let share = shares.swap_remove(at);
        share.hold(transaction, &[user], kind, provisioner).await?;
        return Ok(Some(share));
    }
    let groups: Vec<i64> = shares.iter().map(|share| share.group).collect();
    note_removed(transaction, &groups, &[user]).await?;
    Ok(None)
}

/// The shares of groups whose ids a query selects, the built-in one first.
async fn read_shares(transaction: &mut Transaction, meant_groups: Sql) -> Result<Vec<Share>, sqlx::Error> {
    let sql = sql!(
        "DELETE FROM directory_removals WHERE {passed ends_at, longest}
           AND group_id IN ({+meant_groups})",
        longest = WINDOW,
        meant_groups = meant_groups.clone(),
    );
    transaction.execute(sql).await?;
    let sql = sql!(
        "SELECT g.id, g.name, {+member_count},
           (SELECT count(*) FROM directory_removals x WHERE x.group_id = g.id AND NOT {+is_shown}), {+held_count}
         FROM groups g WHERE g.id IN ({+meant_groups}) ORDER BY g.built_in DESC, g.id",
        member_count = member_count(),
        held_count = held_count(),
        is_shown = is_shown(),
        meant_groups,
    );
    let rows = transaction.fetch_all(sql).await?;
    let read = rows.iter().map(|row| {
        Ok(Share {
            group: row.get(0)?,
            name: row.get(1)?,
            members: not_negative(row.get(2)?),
            removed: not_negative(row.get(3)?),
            is_held: row.get::<i64>(4)? > 0,
        })
    });
    read.collect()
}

/// Counts each of the users as removed from each of the groups.
async fn note_removed(transaction: &mut Transaction, groups: &[i64], users: &[i64]) -> Result<(), sqlx::Error> {
    let sql = sql!(
        "INSERT INTO directory_removals (group_id, user_id, ends_at)
         SELECT g.id, gone.id, coalesce((SELECT min(x.ends_at) FROM directory_removals x WHERE x.group_id = g.id),
           (SELECT {clock + window}))
         FROM groups g CROSS JOIN
           ({pg: SELECT unnest({users}::bigint[]) AS id | lite: SELECT value AS id FROM json_each({users})}) AS gone
         WHERE g.id {in groups}
           AND NOT EXISTS (SELECT 1 FROM directory_removals x WHERE x.group_id = g.id AND x.user_id = gone.id)",
        window = WINDOW,
        users,
        groups,
    );
    transaction.execute(sql).await?;
    Ok(())
}
