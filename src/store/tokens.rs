//! API tokens in the account's database, which stores their digests and never the tokens.
//!
//! Whether a token has expired is decided by the clock of the node that asks, and not by the database's: answers are
//! cached there, and a cached one can only be compared with the node's clock. With two clocks a node would refuse a
//! token when it looks it up and accept the same token from its cache.

mod carried;
mod changing;
mod hours;
mod last_used;
mod limits;
mod rotating;
mod written_behind;

use jiff::Timestamp;
use serde_json::{Value, json};

pub use self::carried::CarriedTokens;
pub(super) use self::carried::carry_tokens;
pub use self::changing::ChangedToken;
pub use self::hours::{CommitMark, RequestCounts, TokenHour};
pub use self::last_used::TokenUse;
pub use self::limits::{LimitFault, ListFault, Networks, Scope, Scopes, TokenLimits};
pub use self::rotating::RotatedToken;
pub use self::written_behind::{NotWritten, Unwritten};
use super::audit::{self, Actor, AuditEntry};
use super::engine::{Transaction, retry};
use super::statement::{Row, Sql, sql};
use super::{Store, StoreError};
use crate::instant::Rfc3339Micros;

/// A token to store.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What the administrator calls it.
    pub name: String,
    /// The first characters of the token, by which administrators recognize it.
    pub prefix: String,
    /// SHA-256 of the token.
    pub digest: [u8; 32],
    /// From this instant on it is refused. None: never.
    pub expires_at: Option<Timestamp>,
    /// What it is limited to.
    pub limits: TokenLimits,
    /// The token that this one was created to replace. It has that one's limits.
    pub replaces: Option<i64>,
    /// Identifies the form that was sent: a second token with the same key is not created.
    pub form_key: Option<String>,
}

/// The outcome of creating a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreatedToken {
    /// It was created, with this id.
    New(i64),
    /// The same form was sent before, and created the token with this id.
    Existing {
        /// Its id.
        id: i64,
        /// Whether the form had the same name, expiry and limits.
        is_same: bool,
    },
}

/// A stored token.
#[derive(Clone, Debug)]
pub struct TokenRecord {
    /// The number that `token revoke` takes.
    pub id: i64,
    /// What the administrator calls it.
    pub name: String,
    /// The first characters of the token.
    pub prefix: String,
    /// SHA-256 of the token.
    pub digest: Vec<u8>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// From this instant on it is refused. None: never.
    pub expires_at: Option<Timestamp>,
    /// Who created it: the e-mail address of an administrator, or the system user of a command. None: a version of
    /// formgate that did not record it.
    pub created_by: Option<String>,
    /// The token that this one was created to replace.
    pub replaces: Option<i64>,
    /// The route of a request at its last use.
    pub last_used_route: Option<String>,
    /// The network of the caller at its last use: an IPv4 /24 or an IPv6 /48.
    pub last_used_network: Option<String>,
    /// What it is limited to.
    pub limits: TokenLimits,
}

pub(super) const COLUMNS: &str = "id, name, prefix, digest, created_at, last_used_at, revoked_at, expires_at, created_by, \
                       replaces, last_used_route, last_used_network, scopes, forms, networks, requests_per_minute";

impl TokenRecord {
    pub(super) fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            prefix: row.get(2)?,
            digest: row.get(3)?,
            created_at: row.get(4)?,
            last_used_at: row.get(5)?,
            revoked_at: row.get(6)?,
            expires_at: row.get(7)?,
            created_by: row.get(8)?,
            replaces: row.get(9)?,
            last_used_route: row.get(10)?,
            last_used_network: row.get(11)?,
            limits: TokenLimits::read(row, 12)?,
        })
    }

    /// Whether it is `active`, `revoked` or `expired`.
    #[must_use]
    pub fn state(&self, now: Timestamp) -> &'static str {
        match self.revoked_at {
            Some(_) => "revoked",
            None if self.is_expired(now) => "expired",
            None => "active",
        }
    }

    /// Whether it has expired.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }
}

impl Store {
    /// The token with a digest, unless it is revoked or has expired.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_token(&self, digest: &[u8; 32], now: Timestamp) -> Result<Option<TokenRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM tokens WHERE digest = {digest} AND {+is_active}",
            columns = Sql::text(COLUMNS),
            digest,
            is_active = is_active(now),
        );
        let row = reader.fetch_optional(sql).await?;
        Ok(row.as_ref().map(TokenRecord::read).transpose()?)
    }

    /// The token with an id, also a revoked or expired one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_token_by_id(&self, id: i64) -> Result<Option<TokenRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT {+columns} FROM tokens WHERE id = {id}", columns = Sql::text(COLUMNS), id);
        let row = reader.fetch_optional(sql).await?;
        Ok(row.as_ref().map(TokenRecord::read).transpose()?)
    }

    /// The newest token that was created to replace the one with an id.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_successor(&self, id: i64) -> Result<Option<TokenRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM tokens WHERE replaces = {id} ORDER BY id DESC LIMIT 1
             {scans: an account has few tokens}",
            columns = Sql::text(COLUMNS),
            id,
        );
        let row = reader.fetch_optional(sql).await?;
        Ok(row.as_ref().map(TokenRecord::read).transpose()?)
    }

    /// Every token, by id, including revoked ones.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_tokens(&self) -> Result<Vec<TokenRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM tokens ORDER BY id {scans: the caller wants every token}",
            columns = Sql::text(COLUMNS),
        );
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(TokenRecord::read).collect::<Result<_, _>>()?)
    }

    /// Stores a token.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn create_token(&self, token: NewToken, now: Timestamp, by: &Actor) -> Result<CreatedToken, StoreError> {
        let token = &token;
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let created = insert(&mut transaction, token, now, by).await?;
            if let CreatedToken::New(id) = created {
                let entry = AuditEntry { action: "token.create", subject: subject(id), details: details(token) };
                audit::append(&mut transaction, by, entry, now).await?;
                transaction.commit().await?;
            } else {
                transaction.roll_back().await?;
            }
            Ok(created)
        })
        .await
    }

    /// Revokes a token. Returns whether it exists. A token that was revoked before keeps its time of revocation.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn revoke_token(&self, id: i64, now: Timestamp, by: &Actor) -> Result<bool, StoreError> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let revoke = sql!(
                "UPDATE tokens SET revoked_at = {now} WHERE revoked_at IS NULL AND id = {id} RETURNING name",
                now,
                id,
            );
            let Some(revoked) = transaction.connection().fetch_optional(revoke).await? else {
                let find = sql!("SELECT id FROM tokens WHERE id = {id}", id);
                let is_known = transaction.connection().fetch_optional(find).await?.is_some();
                transaction.roll_back().await?;
                return Ok(is_known);
            };
            let details = json!({ "name": revoked.get::<String>(0)? });
            let entry = AuditEntry { action: "token.revoke", subject: subject(id), details };
            audit::append(&mut transaction, by, entry, now).await?;
            transaction.commit().await?;
            Ok(true)
        })
        .await
    }
}

/// The condition that a token is neither revoked nor expired.
pub(super) fn is_active(now: Timestamp) -> Sql {
    sql!("revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now})", now)
}

/// What the audit log calls a token.
fn subject(id: i64) -> String {
    format!("token {id}")
}

/// What the audit log says about a new token.
fn details(token: &NewToken) -> Value {
    let mut details = json!({ "name": token.name, "prefix": token.prefix });
    if let Some(expires_at) = token.expires_at {
        details["expires_at"] = Rfc3339Micros(expires_at).to_string().into();
    }
    if let Some(replaces) = token.replaces {
        details["replaces"] = replaces.into();
    }
    let unlimited = TokenLimits::default().to_json();
    for (key, value) in token.limits.to_json().into_iter().filter(|(key, value)| unlimited[key] != *value) {
        details[key] = value;
    }
    details
}

/// Adds the row of a token, unless its form was sent before.
async fn insert(
    transaction: &mut Transaction,
    token: &NewToken,
    now: Timestamp,
    by: &Actor,
) -> Result<CreatedToken, StoreError> {
    // The index of the keys is partial on SQLite, where it has to be named like this.
    let insert = sql!(
        "INSERT INTO tokens (name, prefix, digest, created_at, expires_at, created_by, replaces, form_key, scopes, forms,
           networks, requests_per_minute)
         VALUES ({name}, {prefix}, {digest}, {now}, {expires_at}, {created_by}, {replaces}, {form_key}, {scopes}, {forms},
           {networks}, {requests_per_minute})
         ON CONFLICT (form_key) WHERE form_key IS NOT NULL DO NOTHING
         RETURNING id
         {scans: SQLite looks for references to a new row, if others are missing already}",
        name = &token.name,
        prefix = &token.prefix,
        digest = &token.digest,
        now,
        expires_at = token.expires_at,
        created_by = &by.name,
        replaces = token.replaces,
        form_key = token.form_key.as_deref(),
        scopes = token.limits.scopes.stored(),
        forms = token.limits.forms.stored(),
        networks = token.limits.networks.stored(),
        requests_per_minute = token.limits.stored_budget(),
    );
    if let Some(row) = transaction.connection().fetch_optional(insert).await? {
        return Ok(CreatedToken::New(row.get(0)?));
    }
    // A rotation changes when the token that it replaces expires.
    let find = sql!(
        "SELECT id, name, expires_at, EXISTS (SELECT 1 FROM tokens newer WHERE newer.replaces = tokens.id),
           scopes, forms, networks, requests_per_minute
         FROM tokens
         WHERE form_key = {form_key}
         {scans: a form is rarely sent again, and an account has few tokens}",
        form_key = token.form_key.as_deref(),
    );
    let row = transaction.connection().fetch_one(find).await?;
    let (name, expires_at): (String, Option<Timestamp>) = (row.get(1)?, row.get(2)?);
    // Databases store microseconds.
    let expires = |at: Option<Timestamp>| at.map(Timestamp::as_microsecond);
    let is_same = name == token.name
        && (row.get(3)? || expires(expires_at) == expires(token.expires_at))
        // Limits may have been set later.
        && (token.limits == TokenLimits::default() || TokenLimits::read(&row, 4)? == token.limits);
    Ok(CreatedToken::Existing { id: row.get(0)?, is_same })
}
