//! Sessions of administrators in the account's database, which stores digests of cookies and never the cookies.
//!
//! A session ends when its row is deleted, when it was not used for a while, and at its absolute end. Every request
//! reads the row, so each end is felt by the next request on every node.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::audit::{self, Actor, AuditEntry, AuditSource, Identity};
use super::engine::Retry;
use super::statement::Row;
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
        let mut retry = Retry::default();
        loop {
            match self.try_to_sign_in(link, session, idle, now).await {
                Err(error) if retry.wait_if_retryable(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn try_to_sign_in(
        &self,
        link: &[u8; 32],
        session: &NewAdminSession,
        idle: Duration,
        now: Timestamp,
    ) -> Result<Option<AdminSession>, StoreError> {
        let mut transaction = self.database.begin().await?;
        let Some(link) = admin_links::redeem(&mut transaction, link, now).await? else { return Ok(None) };
        let mut ended = transaction.sql();
        ended.push("DELETE FROM admin_sessions WHERE expires_at <= ").bind(now);
        ended.push(" OR last_seen_at <= ").bind(now - idle);
        transaction.execute(ended).await?;
        let mut insert = transaction.sql();
        let by = if link.identity.is_some() { "oidc" } else { "link" };
        let (issuer, subject) = link.identity.map(|identity| (identity.issuer, identity.subject)).unzip();
        insert.push("INSERT INTO admin_sessions (digest, email, name, role, issuer, subject, created_at, ");
        insert.push("last_seen_at, expires_at, network, user_agent) VALUES (").bind(session.digest.to_vec());
        insert.push(", ").bind(link.email).push(", ").bind(link.name).push(", ").bind(link.role.as_str());
        insert.push(", ").bind(issuer).push(", ").bind(subject);
        insert.push(", ").bind(now).push(", ").bind(now).push(", ").bind(session.expires_at);
        insert.push(", ").bind(session.network.as_str()).push(", ").bind(session.user_agent.as_str());
        insert.push(") RETURNING ").push(COLUMNS);
        let rows = transaction.fetch_all(insert).await?;
        let session = rows.first().map(AdminSession::read).ok_or(sqlx::Error::RowNotFound)??;
        let details = json!({ "role": session.role.as_str(), "by": by });
        let entry = AuditEntry { action: "session.start", subject: session.email.clone(), details };
        let actor = session.actor(Some(session.network.clone()));
        audit::append(&mut transaction, &actor, entry, now).await?;
        transaction.commit().await?;
        Ok(Some(session))
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
        let mut sql = reader.sql();
        sql.push("SELECT ").push(COLUMNS).push(" FROM admin_sessions WHERE digest = ").bind(digest.to_vec());
        sql.push(" AND expires_at > ").bind(now).push(" AND last_seen_at > ").bind(now - idle);
        let row = reader.fetch_optional(sql).await?;
        Ok(row.as_ref().map(AdminSession::read).transpose()?)
    }

    /// Writes when a session was last used. A time older than the stored one changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn touch_admin_session(&self, id: i64, now: Timestamp) -> Result<(), StoreError> {
        let mut sql = self.database.sql();
        sql.push("UPDATE admin_sessions SET last_seen_at = ").bind(now).push(" WHERE id = ").bind(id);
        sql.push(" AND last_seen_at < ").bind(now);
        self.database.execute(sql).await?;
        Ok(())
    }

    /// The sessions that have not ended, those used last first; of very many, only some.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_admin_sessions(&self, idle: Duration, now: Timestamp) -> Result<Vec<AdminSession>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT ").push(COLUMNS).push(" FROM admin_sessions WHERE expires_at > ").bind(now);
        sql.push(" AND last_seen_at > ").bind(now - idle).push(" ORDER BY last_seen_at DESC, id DESC LIMIT ");
        sql.bind(MAX_LISTED);
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
        let mut retry = Retry::default();
        loop {
            match self.try_to_end_sessions(which, now, by).await {
                Err(error) if retry.wait_if_retryable(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn try_to_end_sessions(&self, which: EndedSessions, now: Timestamp, by: &Actor) -> Result<usize, StoreError> {
        let mut transaction = self.database.begin().await?;
        let mut sql = transaction.sql();
        sql.push("DELETE FROM admin_sessions");
        if let EndedSessions::One(id) = which {
            sql.push(" WHERE id = ").bind(id);
        }
        sql.push(" RETURNING email");
        let ended = transaction.fetch_all(sql).await?;
        for row in &ended {
            let entry = AuditEntry { action: "session.end", subject: row.get(0)?, details: json!({}) };
            audit::append(&mut transaction, by, entry, now).await?;
        }
        transaction.commit().await?;
        Ok(ended.len())
    }
}
