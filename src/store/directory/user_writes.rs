//! Creates, updates and deletes users for a directory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::DirectoryError;
use super::guard::{HeldKind, Provisioner, admit_leaving};
use super::leaving::{self, Leavers};
use super::users::DirectoryUser;
use crate::store::engine::{Transaction, retry};
use crate::store::groups::{self, SyncKind};
use crate::store::mailbox::{key, spellings};
use crate::store::statement::{fold, sql};
use crate::store::{Store, TextList, users};

/// What a directory says about a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryUserValues {
    /// The name with which the user signs in.
    pub user_name: String,
    /// The address, as it is stored.
    pub email: String,
    /// The name that is shown; may be empty.
    pub display_name: String,
    /// The identifier in the directory.
    pub external_id: Option<String>,
    /// The given name.
    pub given_name: Option<String>,
    /// The family name.
    pub family_name: Option<String>,
    /// The whole name.
    pub formatted_name: Option<String>,
    /// Whether it may be a member of groups.
    pub active: bool,
}

/// What becomes of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryUserChange {
    /// The new values.
    pub values: DirectoryUserValues,
    /// Whether the directory says that the user is active, which ends what is held of the user.
    pub activates: bool,
}

impl Store {
    /// Creates a user.
    ///
    /// # Errors
    /// [`DirectoryError::UserNameTaken`], [`DirectoryError::ExternalIdTaken`], [`DirectoryError::Store`].
    pub async fn create_directory_user(&self, values: &DirectoryUserValues) -> Result<DirectoryUser, DirectoryError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let was_tried = &AtomicBool::new(false);
        retry::run(|| async move {
            let mut transaction = groups::begin(&self.database, waiting_since).await?;
            if was_tried.swap(true, Ordering::Relaxed) {
                groups::advance_user_sequence(&mut transaction).await?;
            }
            users::fold_new(&mut transaction).await?;
            check_free(&mut transaction, values, None).await?;
            let sql = sql!(
                "INSERT INTO users (email, name, active{lite: , email_folded})
                 VALUES ({email}, {name}, {active}{lite: , {folded}}) RETURNING id",
                email = &values.email,
                name = &values.display_name,
                active = values.active,
                folded = fold(&values.email),
            );
            let id = transaction.connection().fetch_one(sql).await?.get(0)?;
            keep(&mut transaction, id, values).await?;
            let user = DirectoryUser::find(transaction.connection(), id).await?.ok_or(DirectoryError::NotFound)?;
            transaction.commit().await?;
            Ok(user)
        })
        .await
    }

    /// Changes a user to what `change` makes of it, or returns its error. If the guard does not allow that the user becomes
    /// inactive, that is held, and the user stays active.
    ///
    /// # Errors
    /// [`DirectoryError::NotFound`], [`DirectoryError::UserNameTaken`], [`DirectoryError::ExternalIdTaken`],
    /// [`DirectoryError::Store`], and those of `change`.
    pub async fn update_directory_user(
        &self,
        id: i64,
        change: &(impl Fn(&DirectoryUser) -> Result<DirectoryUserChange, DirectoryError> + Sync),
        provisioner: &Provisioner,
    ) -> Result<DirectoryUser, DirectoryError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let updated = retry::run(|| async move {
            let mut transaction = groups::begin(&self.database, waiting_since).await?;
            users::fold_new(&mut transaction).await?;
            let user = DirectoryUser::find(transaction.connection(), id).await?.ok_or(DirectoryError::NotFound)?;
            let DirectoryUserChange { mut values, activates } = change(&user)?;
            if values != user.values {
                check_free(&mut transaction, &values, Some(&user)).await?;
            }
            if activates {
                let sql = sql!("DELETE FROM directory_held WHERE user_id = {id} AND kind <> 'removed'", id);
                transaction.execute(sql).await?;
            }
            let mut begun = None;
            if user.values.active && !values.active {
                let kind = HeldKind::Deactivated;
                if let Some(share) = admit_leaving(&mut transaction, id, kind, provisioner).await? {
                    values.active = true;
                    begun = Some(share).filter(|share| !share.is_held);
                } else {
                    let leavers = Leavers { deactivated: vec![id], ..Leavers::default() };
                    leaving::carry_out(&mut transaction, &leavers, &provisioner.by, SyncKind::Run).await?;
                }
            }
            if values == user.values {
                if let Some(share) = begun {
                    share.audit(&mut transaction, 1, provisioner).await?;
                }
                transaction.commit().await?;
                return Ok(user);
            }
            let of_user =
                |values: &DirectoryUserValues| (values.email.clone(), values.display_name.clone(), values.active);
            if of_user(&values) != of_user(&user.values) {
                let sql = sql!(
                    "UPDATE users SET email = {email}, name = {name}, active = {active}{lite: , email_folded = {folded}}
                     WHERE id = {id}",
                    email = &values.email,
                    name = &values.display_name,
                    active = values.active,
                    folded = fold(&values.email),
                    id,
                );
                transaction.execute(sql).await?;
            }
            if values.active && !user.values.active {
                leaving::keep_return(&mut transaction, id, &provisioner.by).await?;
            }
            keep(&mut transaction, id, &values).await?;
            let user = DirectoryUser::find(transaction.connection(), id).await?.ok_or(DirectoryError::NotFound)?;
            if let Some(share) = begun {
                share.audit(&mut transaction, 1, provisioner).await?;
            }
            transaction.commit().await?;
            Ok(user)
        });
        let updated = updated.await;
        self.note_group_write();
        updated
    }

    /// Deletes a user that `check` accepts. If a submission needs the user, it becomes inactive instead and loses its
    /// memberships. If the guard does not allow it, it is held, and the user stays as it is.
    ///
    /// # Errors
    /// [`DirectoryError::NotFound`], [`DirectoryError::Store`], and those of `check`.
    pub async fn delete_directory_user(
        &self,
        id: i64,
        check: &(impl Fn(&DirectoryUser) -> Result<(), DirectoryError> + Sync),
        provisioner: &Provisioner,
    ) -> Result<(), DirectoryError> {
        let waiting_since = Instant::now();
        let _lock = self.database.wait_in_queue(waiting_since, self.group_writes.write()).await?;
        let deleted = retry::run(|| async move {
            let mut transaction = groups::begin(&self.database, waiting_since).await?;
            let user = DirectoryUser::find(transaction.connection(), id).await?.ok_or(DirectoryError::NotFound)?;
            check(&user)?;
            if user.values.active
                && let Some(share) = admit_leaving(&mut transaction, id, HeldKind::Deleted, provisioner).await?
            {
                if !share.is_held {
                    share.audit(&mut transaction, 1, provisioner).await?;
                }
                transaction.commit().await?;
                return Ok(());
            }
            let leavers = Leavers { deleted: vec![id], ..Leavers::default() };
            let needed = leaving::carry_out(&mut transaction, &leavers, &provisioner.by, SyncKind::Run).await?;
            if !needed.is_empty() {
                keep(&mut transaction, id, &user.values).await?;
            }
            transaction.commit().await?;
            Ok(())
        });
        let deleted = deleted.await;
        self.note_group_write();
        deleted
    }
}

/// Refuses a user name, an address and an identifier that another user has.
async fn check_free(
    transaction: &mut Transaction,
    values: &DirectoryUserValues,
    present: Option<&DirectoryUser>,
) -> Result<(), DirectoryError> {
    let own = present.map_or(0, |user| user.id);
    let (name, before) = (fold(&values.user_name), present.map(|user| fold(&user.values.user_name)));
    if before.as_ref() != Some(&name) {
        let sql = sql!(
            "SELECT user_id FROM directory_users WHERE user_name_folded = {name} AND user_id <> {own}
             UNION ALL
             SELECT e.id FROM users e WHERE e.email_folded = {name} AND e.id <> {own}
               AND NOT EXISTS (SELECT 1 FROM directory_users o WHERE o.user_id = e.id)",
            name,
            own,
        );
        if !transaction.fetch_all(sql).await?.is_empty() {
            return Err(DirectoryError::UserNameTaken);
        }
    }
    let (mailbox, before) = (key(&values.email), present.map(|user| key(&user.values.email)));
    if before.as_ref() != Some(&mailbox) {
        let mut known: TextList = spellings(&mailbox).into_iter().collect();
        known.push(&fold(&values.email));
        let sql = sql!("SELECT id FROM users WHERE email_folded {in known} AND id <> {own}", known, own);
        if !transaction.fetch_all(sql.with_custom_plan()).await?.is_empty() {
            return Err(DirectoryError::UserNameTaken);
        }
    }
    if let Some(external_id) = &values.external_id {
        let sql = sql!(
            "SELECT user_id FROM directory_users WHERE external_id = {external_id} AND user_id <> {own}",
            external_id,
            own,
        );
        if !transaction.fetch_all(sql).await?.is_empty() {
            return Err(DirectoryError::ExternalIdTaken);
        }
    }
    Ok(())
}

/// Keeps what the plain tables have no columns for.
async fn keep(transaction: &mut Transaction, id: i64, values: &DirectoryUserValues) -> Result<(), sqlx::Error> {
    let sql = sql!(
        "INSERT INTO directory_users (user_id, user_name, user_name_folded, external_id, given_name, family_name,
           formatted_name, created_at, updated_at)
         VALUES ({id}, {user_name}, {folded}, {external_id}, {given_name}, {family_name}, {formatted_name}, {clock}, {clock})
         ON CONFLICT (user_id) DO UPDATE SET user_name = excluded.user_name,
           user_name_folded = excluded.user_name_folded, external_id = excluded.external_id,
           given_name = excluded.given_name, family_name = excluded.family_name,
           formatted_name = excluded.formatted_name, updated_at = excluded.updated_at",
        id,
        user_name = &values.user_name,
        folded = fold(&values.user_name),
        external_id = values.external_id.clone(),
        given_name = values.given_name.clone(),
        family_name = values.family_name.clone(),
        formatted_name = values.formatted_name.clone(),
    );
    transaction.execute(sql).await?;
    Ok(())
}
