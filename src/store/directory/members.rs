//! Creates, changes and deletes groups of a directory.
//!
//! A change of members is a delta: it names users to add or to remove, and one statement carries it out for all of them,
//! under the lock on groups. Nothing is read and written back, so what another client or a product changes meanwhile is
//! not lost. A user that does not exist is skipped and reported; the others are written all the same. An inactive user is
//! added to and removed from the hidden memberships.
//!
//! The steps of a request are carried out first. If the [guard](super::guard) does not allow what they removed in all, these
//! members are added again in the same transaction, and their removal is held.

use std::collections::BTreeSet;
use std::time::Instant;

use super::DirectoryError;
use super::groups::{DirectoryGroup, GroupManager, count_members, counted};
use super::guard::{HeldKind, Provisioner, Share};
use crate::store::Store;
use crate::store::engine::{Transaction, retry};
use crate::store::groups::{self, ChangedGroup, Durability, SyncedBy, keep_run, read_ids};
use crate::store::statement::{Sql, sql};

/// A step of a change of a group. The users are named by number, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryGroupChange {
    /// Its name.
    Rename(String),
    /// Its identifier in the directory.
    Identify(Option<String>),
    /// These users become members.
    Add(Vec<i64>),
    /// These users stop being members.
    Remove(Vec<i64>),
    /// All members are removed.
    Empty,
    /// These users are the members.
    Replace(Vec<i64>),
}

/// The users that do not exist and were not added.
pub type SkippedMembers = Vec<i64>;

/// How memberships change together, whatever steps lead there.
#[derive(Default)]
struct MemberSync {
    attached: BTreeSet<i64>,
    detached: BTreeSet<i64>,
    skipped: BTreeSet<i64>,
    /// Whether a hidden membership was added.
    has_hidden: bool,
    /// The users whose hidden memberships were removed.
    unhidden: BTreeSet<i64>,
}

impl DirectoryGroupChange {
    /// Whether it can remove members.
    fn can_remove(&self) -> bool {
        match self {
            Self::Remove(_) | Self::Empty | Self::Replace(_) => true,
            Self::Rename(_) | Self::Identify(_) | Self::Add(_) => false,
        }
    }
}

impl MemberSync {
    fn attach(&mut self, users: Vec<i64>) {
        let is_new = |user: &i64| !self.detached.remove(user);
        self.attached.extend(users.into_iter().filter(is_new).collect::<Vec<_>>());
    }

    fn detach(&mut self, users: Vec<i64>) {
        let was_before = |user: &i64| !self.attached.remove(user);
        self.detached.extend(users.into_iter().filter(was_before).collect::<Vec<_>>());
    }

    fn is_empty(&self) -> bool {
        self.attached.is_empty() && self.detached.is_empty() && !self.has_hidden && self.unhidden.is_empty()
    }
}

impl Store {
    /// Creates a group that belongs to SCIM.
    ///
    /// # Errors
    /// [`DirectoryError::GroupNameTaken`], [`DirectoryError::ExternalIdTaken`], [`DirectoryError::Store`].
    pub async fn create_directory_group(
        &self,
        name: &str,
        external_id: Option<&str>,
        members: &[i64],
        by: &SyncedBy,
    ) -> Result<(DirectoryGroup, SkippedMembers), DirectoryError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let created = retry::run(|| async move {
            let mut transaction = groups::begin(&self.database, waiting_since).await?;
            check_free(&mut transaction, name, external_id, None).await?;
            let id = groups::next_id(&mut transaction, Durability::Commit).await?;
            let sql = sql!(
                "INSERT INTO groups (id, name, external_id, managed) VALUES ({id}, {name}, {external_id}, TRUE)",
                id,
                name,
                external_id,
            );
            transaction.execute(sql).await?;
            let sql = sql!(
                "INSERT INTO directory_groups (group_id, created_at, updated_at) VALUES ({id}, {clock}, {clock})",
                id,
            );
            transaction.execute(sql).await?;
            let mut sync = MemberSync::default();
            add(&mut transaction, id, members, &mut sync).await?;
            let changed = ChangedGroup { id, name, is_new: true, is_renamed: false };
            let skipped = finish(&mut transaction, changed, by, sync).await?;
            let group = DirectoryGroup::find(transaction.connection(), id).await?.ok_or(DirectoryError::NotFound)?;
            transaction.commit().await?;
            Ok((group, skipped))
        });
        let created = created.await;
        self.note_group_write();
        created
    }

    /// Changes a group of SCIM that `check` accepts, in the order of the steps. Its members are only counted if `check` refuses
    /// the group without their number. The group that is returned does not have the time of the change.
    ///
    /// # Errors
    /// [`DirectoryError::NotFound`], [`DirectoryError::OtherManager`], [`DirectoryError::GroupNameTaken`],
    /// [`DirectoryError::ExternalIdTaken`], [`DirectoryError::Store`], and those of `check`.
    pub async fn change_directory_group(
        &self,
        id: i64,
        check: &(impl Fn(&DirectoryGroup) -> Result<(), DirectoryError> + Sync),
        changes: &[DirectoryGroupChange],
        provisioner: &Provisioner,
    ) -> Result<(DirectoryGroup, SkippedMembers), DirectoryError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let changed = retry::run(|| async move {
            let mut transaction = groups::begin(&self.database, waiting_since).await?;
            let before = find_writable(&mut transaction, id, check).await?;
            let share = match changes.iter().any(DirectoryGroupChange::can_remove) {
                true => Share::of_group(&mut transaction, id).await?,
                false => None,
            };
            let (mut name, mut external_id, mut sync) =
                (before.name.clone(), before.external_id.clone(), MemberSync::default());
            for change in changes {
                match change {
                    DirectoryGroupChange::Rename(new) => name.clone_from(new),
                    DirectoryGroupChange::Identify(new) => external_id.clone_from(new),
                    DirectoryGroupChange::Add(users) => add(&mut transaction, id, users, &mut sync).await?,
                    DirectoryGroupChange::Remove(users) => {
                        remove(&mut transaction, id, sql!("user_id {in users}", users), &mut sync).await?;
                    }
                    DirectoryGroupChange::Empty => {
                        remove(&mut transaction, id, Sql::text("true"), &mut sync).await?;
                    }
                    DirectoryGroupChange::Replace(users) => {
                        begin_whole(&mut transaction, id, users).await?;
                        remove(&mut transaction, id, is_no_longer_listed(users), &mut sync).await?;
                        add(&mut transaction, id, users, &mut sync).await?;
                    }
                }
            }
            let held = match &share {
                Some(share) => hold_beyond(&mut transaction, share, &mut sync, provisioner).await?,
                None => 0,
            };
            let is_renamed = name != before.name;
            let is_described = is_renamed || external_id != before.external_id;
            if is_described {
                check_free(&mut transaction, &name, external_id.as_deref(), Some(id)).await?;
                let sql = sql!(
                    "UPDATE groups SET name = {name}, external_id = {external_id} WHERE id = {id}",
                    name = &name,
                    external_id = external_id.clone(),
                    id,
                );
                transaction.execute(sql).await?;
            }
            if is_described || !sync.is_empty() {
                let sql = sql!("UPDATE directory_groups SET updated_at = {clock} WHERE group_id = {id}", id);
                transaction.execute(sql).await?;
            }
            let changed = ChangedGroup { id, name: &name, is_new: false, is_renamed };
            let members = before.members.map(|members| counted(members, &sync.attached, &sync.detached));
            let skipped = finish(&mut transaction, changed, &provisioner.by, sync).await?;
            if let Some(share) = share.filter(|share| held > 0 && !share.is_held) {
                share.audit(&mut transaction, held, provisioner).await?;
            }
            transaction.commit().await?;
            Ok((DirectoryGroup { name, external_id, members, ..before }, skipped))
        });
        let changed = changed.await;
        self.note_group_write();
        changed
    }

    /// Deletes a group of SCIM that `check` accepts; one that a flow step uses is emptied but not deleted.
    ///
    /// # Errors
    /// [`DirectoryError::NotFound`], [`DirectoryError::OtherManager`], [`DirectoryError::Store`], and those of `check`.
    pub async fn delete_directory_group(
        &self,
        id: i64,
        check: &(impl Fn(&DirectoryGroup) -> Result<(), DirectoryError> + Sync),
        by: &SyncedBy,
    ) -> Result<(), DirectoryError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let deleted = retry::run(|| async move {
            let mut transaction = groups::begin(&self.database, waiting_since).await?;
            let group = find_writable(&mut transaction, id, check).await?;
            let used = sql!("SELECT EXISTS (SELECT 1 FROM flow_step_groups f WHERE f.group_id = {id})", id);
            let is_used = transaction.connection().fetch_one(used).await?.get(0)?;
            let mut sync = MemberSync::default();
            sync.detach(groups::delete_or_empty(&mut transaction, id, is_used).await?);
            let changed = ChangedGroup { id, name: &group.name, is_new: false, is_renamed: false };
            finish(&mut transaction, changed, by, sync).await?;
            transaction.commit().await?;
            Ok(())
        });
        let deleted = deleted.await;
        self.note_group_write();
        deleted
    }
}

/// The group with an id, if SCIM may write it and `check` accepts it.
async fn find_writable(
    transaction: &mut Transaction,
    id: i64,
    check: &(impl Fn(&DirectoryGroup) -> Result<(), DirectoryError> + Sync),
) -> Result<DirectoryGroup, DirectoryError> {
    let group = DirectoryGroup::find_uncounted(transaction.connection(), id).await?;
    let mut group = group.ok_or(DirectoryError::NotFound)?;
    if check(&group).is_err() {
        count_members(transaction.connection(), std::slice::from_mut(&mut group)).await?;
        check(&group)?;
    }
    if group.manager != GroupManager::Scim {
        return Err(DirectoryError::OtherManager(group.manager));
    }
    Ok(group)
}

/// Refuses an identifier that another group has, and the name of another group if neither has an identifier.
async fn check_free(
    transaction: &mut Transaction,
    name: &str,
    external_id: Option<&str>,
    own: Option<i64>,
) -> Result<(), DirectoryError> {
    if groups::is_built_in_name(name) {
        return Err(DirectoryError::GroupNameTaken);
    }
    let own = own.unwrap_or_default();
    if let Some(external_id) = external_id {
        let sql = sql!("SELECT id FROM groups WHERE external_id = {external_id} AND id <> {own}", external_id, own);
        if !transaction.fetch_all(sql).await?.is_empty() {
            return Err(DirectoryError::ExternalIdTaken);
        }
    }
    let sql = sql!("SELECT external_id, built_in FROM groups WHERE name = {name} AND id <> {own}", name, own);
    for row in transaction.fetch_all(sql).await? {
        let other: Option<String> = row.get(0)?;
        if row.get(1)? || other.is_none() && external_id.is_none() {
            return Err(DirectoryError::GroupNameTaken);
        }
    }
    Ok(())
}

/// Holds what a change removed from a group, if more was removed than its share allows or something is held already. Returns how
/// many removals that are.
async fn hold_beyond(
    transaction: &mut Transaction,
    share: &Share,
    sync: &mut MemberSync,
    provisioner: &Provisioner,
) -> Result<usize, sqlx::Error> {
    let detached: Vec<i64> = sync.detached.iter().copied().collect();
    let unhidden: Vec<i64> = sync.unhidden.iter().copied().collect();
    let removed = [&*detached, &*unhidden].concat();
    if removed.is_empty() || share.count(transaction, &detached, provisioner).await? && !share.is_held {
        return Ok(0);
    }
    for sql in [
        sql!(
            "INSERT INTO group_members (group_id, user_id) SELECT {id}, u.id FROM users u WHERE u.id {in detached}",
            id = share.group,
            detached,
        ),
        sql!(
            "INSERT INTO inactive_members (group_id, user_id) SELECT {id}, u.id FROM users u WHERE u.id {in unhidden}",
            id = share.group,
            unhidden,
        ),
    ] {
        transaction.execute(sql).await?;
    }
    share.hold(transaction, &removed, HeldKind::Removed, provisioner).await?;
    sync.detached.clear();
    sync.unhidden.clear();
    Ok(removed.len())
}

/// Forgets what the whole list of members replaces: what is held of those who are listed, or are no members any more, and that the
/// group has diverged.
async fn begin_whole(transaction: &mut Transaction, id: i64, users: &[i64]) -> Result<(), sqlx::Error> {
    let sql = sql!(
        "DELETE FROM directory_held WHERE group_id = {id} AND kind = 'removed'
           AND (user_id {in users}
             OR user_id NOT IN (SELECT user_id FROM group_members WHERE group_id = {id}
                                UNION ALL SELECT user_id FROM inactive_members WHERE group_id = {id}))",
        id,
        users,
    );
    transaction.execute(sql).await?;
    transaction
        .execute(sql!("UPDATE directory_groups SET diverged = FALSE WHERE group_id = {id} AND diverged", id))
        .await?;
    Ok(())
}

/// Adds users to a group: active ones as members, the others as hidden ones. Who is added again is no longer held.
async fn add(transaction: &mut Transaction, id: i64, users: &[i64], sync: &mut MemberSync) -> Result<(), sqlx::Error> {
    if users.is_empty() {
        return Ok(());
    }
    let sql =
        sql!("DELETE FROM directory_held WHERE group_id = {id} AND kind = 'removed' AND user_id {in users}", id, users);
    transaction.execute(sql).await?;
    let (mut found, mut attached, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
    let known = sql!("SELECT id FROM users WHERE id {in users}", users);
    read_ids(transaction, known.with_custom_plan(), &mut found).await?;
    let active = sql!(
        "INSERT INTO group_members (group_id, user_id) SELECT {id}, u.id FROM users u
         WHERE u.id {in found} AND u.active
           AND NOT EXISTS (SELECT 1 FROM group_members m WHERE m.group_id = {id} AND m.user_id = u.id)
         RETURNING user_id",
        id,
        found = &found,
    );
    read_ids(transaction, active, &mut attached).await?;
    let inactive = sql!(
        "INSERT INTO inactive_members (group_id, user_id) SELECT {id}, u.id FROM users u
         WHERE u.id {in found} AND NOT u.active
           AND NOT EXISTS (SELECT 1 FROM inactive_members m WHERE m.group_id = {id} AND m.user_id = u.id)
         RETURNING user_id",
        id,
        found = &found,
    );
    read_ids(transaction, inactive, &mut hidden).await?;
    let mut is_new = |user: &i64| !sync.unhidden.remove(user);
    sync.has_hidden |= hidden.iter().filter(|user| is_new(user)).count() > 0;
    sync.attach(attached);
    let found: BTreeSet<i64> = found.into_iter().collect();
    sync.skipped.extend(users.iter().filter(|user| !found.contains(user)));
    Ok(())
}

/// A condition: a member is none of these users. A subquery, because Postgres compares a list of any other form with each
/// member in turn.
fn is_no_longer_listed(users: &[i64]) -> Sql {
    sql!("user_id NOT IN ({pg: SELECT unnest({users}::bigint[]) | lite: SELECT value FROM json_each({users})})", users,)
}

/// Removes the members to which a condition applies.
async fn remove(
    transaction: &mut Transaction,
    id: i64,
    is_gone: Sql,
    sync: &mut MemberSync,
) -> Result<(), sqlx::Error> {
    let (mut detached, mut hidden) = (Vec::new(), Vec::new());
    let members = sql!(
        "DELETE FROM group_members WHERE group_id = {id} AND {+is_gone} RETURNING user_id",
        id,
        is_gone = is_gone.clone(),
    );
    read_ids(transaction, members, &mut detached).await?;
    let inactive =
        sql!("DELETE FROM inactive_members WHERE group_id = {id} AND {+is_gone} RETURNING user_id", id, is_gone);
    read_ids(transaction, inactive, &mut hidden).await?;
    sync.unhidden.extend(hidden);
    sync.detach(detached);
    Ok(())
}

/// Keeps the change in the run of the directory. Returns the users that were skipped.
async fn finish(
    transaction: &mut Transaction,
    group: ChangedGroup<'_>,
    by: &SyncedBy,
    sync: MemberSync,
) -> Result<SkippedMembers, sqlx::Error> {
    let [attached, detached] = [sync.attached, sync.detached].map(|users| users.into_iter().collect::<Vec<_>>());
    keep_run(transaction, group, by, &attached, &detached).await?;
    Ok(sync.skipped.into_iter().collect())
}
