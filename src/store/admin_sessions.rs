//! Sessions of administrators in the account's database, which stores digests of cookies and never the cookies.
//!
//! A session ends when its row is deleted, when it was not used for a while, and at its absolute end. Every request
//! reads the row, so each end is felt by the next request on every node.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::audit::{self, Actor, AuditEntry, AuditSource, Identity};
use super::engine::retry;
use super::statement::{Row, Sql, sql};
use super::{AdminRole, Store, StoreError, admin_links};

/// How many sessions a list shows.
///
/// Larger: a page of sessions of a forgotten script is endless. Smaller: a large team does not fit on it.
const MAX_LISTED: i64 = 200;

/// A session to store.
#[derive(Clone, Debug)]
pub struct NewAdminSession {
    /// SHA-256 of the cookie.
    pub digest: [u8; 32],
    /// When it ends however much it is used.
    pub expires_at: Timestamp,
    /// The network of the caller.
    pub network: String,
    /// What the browser says that it is.
    pub user_agent: String,
}

/// A stored session.
#[derive(Clone, Debug)]
pub struct AdminSession {
    /// Its number.
    pub id: i64,
    /// The administrator's e-mail address.
    pub email: String,
    /// The administrator's name, if it is known.
    pub name: Option<String>,
    /// What the administrator may do.
    pub role: AdminRole,
    /// Who that is at an OpenID provider, if one signed them in; else a link did.
    pub identity: Option<Identity>,
    /// When the administrator signed in.
    pub created_at: Timestamp,
    /// When it was last used, to the minute or better.
    pub last_seen_at: Timestamp,
    /// When it ends however much it is used.
    pub expires_at: Timestamp,
    /// The network that the administrator signed in from.
    pub network: String,
    /// What the browser said that it is.
    pub user_agent: String,
}

/// Which sessions to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedSessions {
    /// The one with this number.
    One(i64),
    /// Every one.
    All,
}

const COLUMNS: &str =
    "id, email, name, role, issuer, subject, created_at, last_seen_at, expires_at, network, user_agent";

impl AdminSession {
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            email: row.get(1)?,
            name: row.get(2)?,
            role: AdminRole::read(row, 3)?,
            identity: Identity::read(row, 4)?,
            created_at: row.get(6)?,
            last_seen_at: row.get(7)?,
            expires_at: row.get(8)?,
            network: row.get(9)?,
            user_agent: row.get(10)?,
        })
    }

    /// The administrator as the one who makes a change, from a network.
    #[must_use]
    pub fn actor(&self, network: Option<String>) -> Actor {
        Actor {
            name: self.email.clone(),
            source: AuditSource::Administration,
            network,
            identity: self.identity.clone(),
        }
    }
}

impl Store {
    /// Redeems a link for a session, in one transaction: a link is used up only if the session exists. `None` if there
    /// is no such link, or no longer. Deletes sessions that have ended.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn sign_in_by_link(
        &self,
        link: &[u8; 32],
        session: &NewAdminSession,
        idle: Duration,
        now: Timestamp,
    ) -> Result<Option<AdminSession>, StoreError> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let Some(link) = admin_links::redeem(&mut transaction, link, now).await? else { return Ok(None) };
            let ended = sql!(
                "DELETE FROM admin_sessions
                 WHERE expires_at <= {now} OR last_seen_at <= {unused_since}
                 {scans: only sessions that have not ended are kept}",
                now,
                unused_since = now - idle,
            );
            transaction.execute(ended).await?;
            let by = if link.identity.is_some() { "oidc" } else { "link" };
            let (issuer, subject) = link.identity.map(|identity| (identity.issuer, identity.subject)).unzip();
            let insert = sql!(
                "INSERT INTO admin_sessions (digest, email, name, role, issuer, subject, created_at, last_seen_at,
                   expires_at, network, user_agent)
                 VALUES ({digest}, {email}, {name}, {role}, {issuer}, {subject}, {now}, {now},
                   {expires_at}, {network}, {user_agent})
                 RETURNING {+columns}",
                digest = &session.digest,
                email = link.email,
                name = link.name,
                role = link.role.as_str(),
                issuer,
                subject,
                now,
                expires_at = session.expires_at,
                network = &session.network,
                user_agent = &session.user_agent,
                columns = Sql::text(COLUMNS),
            );
            let rows = transaction.fetch_all(insert).await?;
            let session = rows.first().map(AdminSession::read).ok_or(sqlx::Error::RowNotFound)??;
            let details = json!({ "role": session.role.as_str(), "by": by });
            let entry = AuditEntry { action: "session.start", subject: session.email.clone(), details };
            let actor = session.actor(Some(session.network.clone()));
            audit::append(&mut transaction, &actor, entry, now).await?;
            transaction.commit().await?;
            Ok(Some(session))
        })
        .await
    }

    /// The session with a digest, if it has not ended.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_admin_session(
        &self,
        digest: &[u8; 32],
        idle: Duration,
        now: Timestamp,
    ) -> Result<Option<AdminSession>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM admin_sessions
             WHERE digest = {digest} AND expires_at > {now} AND last_seen_at > {unused_since}",
            columns = Sql::text(COLUMNS),
            digest,
            now,
            unused_since = now - idle,
        );
        let row = reader.fetch_optional(sql).await?;
        Ok(row.as_ref().map(AdminSession::read).transpose()?)
    }

    /// Writes when a session was last used. A time older than the stored one changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn touch_admin_session(&self, id: i64, now: Timestamp) -> Result<(), StoreError> {
        let sql =
            sql!("UPDATE admin_sessions SET last_seen_at = {now} WHERE id = {id} AND last_seen_at < {now}", now, id,);
        self.database.execute(sql).await?;
        Ok(())
    }

    /// The sessions that have not ended, those used last first; of very many, only some.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_admin_sessions(&self, idle: Duration, now: Timestamp) -> Result<Vec<AdminSession>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM admin_sessions
             WHERE expires_at > {now} AND last_seen_at > {unused_since}
             ORDER BY last_seen_at DESC, id DESC LIMIT {most}
             {scans: only sessions that have not ended are kept}",
            columns = Sql::text(COLUMNS),
            now,
            unused_since = now - idle,
            most = MAX_LISTED,
        );
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(AdminSession::read).collect::<Result<_, _>>()?)
    }

    /// Ends sessions, and returns how many.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn end_admin_sessions(
        &self,
        which: EndedSessions,
        now: Timestamp,
        by: &Actor,
    ) -> Result<usize, StoreError> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let end = match which {
                EndedSessions::One(id) => sql!("DELETE FROM admin_sessions WHERE id = {id} RETURNING email", id),
                EndedSessions::All => sql!("DELETE FROM admin_sessions RETURNING email {scans: all of them end}"),
            };
            let ended = transaction.fetch_all(end).await?;
            for row in &ended {
                let entry = AuditEntry { action: "session.end", subject: row.get(0)?, details: json!({}) };
                audit::append(&mut transaction, by, entry, now).await?;
            }
            transaction.commit().await?;
            Ok(ended.len())
        })
        .await
    }
}
