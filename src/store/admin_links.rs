//! One-time links into the administration area. Only the digest of the secret in a link is stored.
//!
//! Reading a link leaves it valid: mail scanners and link previews open links too. Redeeming it deletes it with one
//! statement, so it works once, on whichever node that is.

use jiff::Timestamp;
use serde_json::json;

use super::audit::{self, Actor, AuditEntry, Identity};
use super::engine::{Transaction, retry};
use super::statement::{Row, Sql, sql};
use super::{Store, StoreError};
use crate::instant::Rfc3339Micros;

/// What an administrator may do in the administration area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminRole {
    /// See and change everything.
    Admin,
    /// See everything.
    Viewer,
}

impl AdminRole {
    /// As it is stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Viewer => "viewer",
        }
    }

    /// The role with a stored name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Admin, Self::Viewer].into_iter().find(|role| role.as_str() == text)
    }

    pub(super) fn read(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
        let text: String = row.get(column)?;
        Self::parse(&text).ok_or_else(|| sqlx::Error::Decode(format!("`{text}` is not a role").into()))
    }
}

/// A link that was not used yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminLink {
    /// The e-mail address of the person that it signs in.
    pub email: String,
    /// Their name.
    pub name: Option<String>,
    /// What they may do.
    pub role: AdminRole,
    /// Who that is at an OpenID provider, if one identified them.
    pub identity: Option<Identity>,
    /// From this instant on, the link is refused.
    pub expires_at: Timestamp,
}

const COLUMNS: &str = "email, name, role, issuer, subject, expires_at";

impl AdminLink {
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            email: row.get(0)?,
            name: row.get(1)?,
            role: AdminRole::read(row, 2)?,
            identity: Identity::read(row, 3)?,
            expires_at: row.get(5)?,
        })
    }
}

impl Store {
    /// Stores a link that an administrator asked for, and deletes expired links.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn create_admin_link(
        &self,
        digest: &[u8; 32],
        link: &AdminLink,
        now: Timestamp,
        by: &Actor,
    ) -> Result<(), StoreError> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            insert(&mut transaction, digest, link, now).await?;
            let details = json!({ "role": link.role.as_str(), "expires_at": Rfc3339Micros(link.expires_at) });
            let entry = AuditEntry { action: "admin.link", subject: link.email.clone(), details };
            audit::append(&mut transaction, by, entry, now).await?;
            Ok(transaction.commit().await?)
        })
        .await
    }

    /// Stores a link for a person that a provider has just identified, and deletes expired links. The audit log has the session that it becomes.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn offer_admin_session(
        &self,
        digest: &[u8; 32],
        link: &AdminLink,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            insert(&mut transaction, digest, link, now).await?;
            Ok(transaction.commit().await?)
        })
        .await
    }

    /// The link with a digest, unless it has expired or was used.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_admin_link(&self, digest: &[u8; 32], now: Timestamp) -> Result<Option<AdminLink>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM admin_links WHERE digest = {digest} AND expires_at > {now}",
            columns = Sql::text(COLUMNS),
            digest,
            now,
        );
        let row = reader.fetch_optional(sql).await?;
        Ok(row.as_ref().map(AdminLink::read).transpose()?)
    }

    /// Uses the link with a digest, and deletes it. None if it has expired or was used.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn redeem_admin_link(&self, digest: &[u8; 32], now: Timestamp) -> Result<Option<AdminLink>, StoreError> {
        let mut transaction = self.database.begin().await?;
        let link = redeem(&mut transaction, digest, now).await?;
        transaction.commit().await?;
        Ok(link)
    }
}

async fn insert(
    transaction: &mut Transaction,
    digest: &[u8; 32],
    link: &AdminLink,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let expired = sql!(
        "DELETE FROM admin_links WHERE expires_at <= {now} {scans: only links that can still be used are kept}",
        now,
    );
    transaction.execute(expired).await?;
    let insert = sql!(
        "INSERT INTO admin_links (digest, email, name, role, issuer, subject, created_at, expires_at)
         VALUES ({digest}, {email}, {name}, {role}, {issuer}, {subject}, {now}, {expires_at})",
        digest,
        email = &link.email,
        name = link.name.as_deref(),
        role = link.role.as_str(),
        issuer = link.identity.as_ref().map(|identity| &*identity.issuer),
        subject = link.identity.as_ref().map(|identity| &*identity.subject),
        now,
        expires_at = link.expires_at,
    );
    transaction.execute(insert).await?;
    Ok(())
}

/// Uses the link with a digest within a transaction, and deletes it. None if it has expired or was used.
pub(super) async fn redeem(
    transaction: &mut Transaction,
    digest: &[u8; 32],
    now: Timestamp,
) -> Result<Option<AdminLink>, sqlx::Error> {
    let sql = sql!(
        "DELETE FROM admin_links WHERE digest = {digest} AND expires_at > {now} RETURNING {+columns}",
        digest,
        now,
        columns = Sql::text(COLUMNS),
    );
    let row = transaction.connection().fetch_optional(sql).await?;
    row.as_ref().map(AdminLink::read).transpose()
}
