//! The audit log: every change that an administrator or a command made, each row chained to the one before.
//!
//! Rows are only added: triggers refuse to change or delete one. A change by a role that may drop them is found by
//! [`Store::verify_audit`], by the digests of [`chain`].
//!
//! `audit_state` has the number and the digest of the last row, so that missing rows at the end are noticed too. If it is
//! empty, all of them may be missing, and the log is not intact. Its row is locked from reading it until the end of the
//! transaction, which puts writers on all nodes in one order. It is the last lock that a transaction takes, so waiting for
//! it can't be part of a deadlock.
//!
//! The log proves nothing against an administrator of the database who writes all rows again from the changed one on:
//! to exclude that, keep the digest of a last row elsewhere.

mod chain;
mod verdict;

use jiff::Timestamp;
use serde_json::{Value, json};

use self::chain::SALT;
pub use self::verdict::AuditVerdict;
use super::engine::{Database, Transaction, retry};
use super::statement::{Row, Sql, sql};
use super::{Store, StoreError};
use crate::instant::Rfc3339Micros;

/// Through what a change was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditSource {
    /// A page of the administration area.
    Administration,
    /// The command line.
    Command,
    /// The operator API.
    Operator,
    /// A request that the gateway refused.
    Gateway,
}

impl AuditSource {
    /// As it is stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Administration => "administration",
            Self::Command => "command",
            Self::Operator => "operator",
            Self::Gateway => "gateway",
        }
    }
}

/// Who makes a change.
#[derive(Clone, Debug)]
pub struct Actor {
    /// The e-mail address of an administrator, the name of a system user, or `formgate` itself.
    pub name: String,
    /// Through what.
    pub source: AuditSource,
    /// From which network, if that is known: an IPv4 /24 or an IPv6 /48.
    pub network: Option<String>,
    /// Who that is at an OpenID provider, if one signed the administrator in.
    pub identity: Option<Identity>,
}

/// A person at an OpenID provider. Unlike an e-mail address, it never becomes another person's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The provider's issuer.
    pub issuer: String,
    /// The person's `sub` there.
    pub subject: String,
}

impl Identity {
    /// Reads the columns `issuer` and `subject`, both of which are null without an identity.
    pub(super) fn read(row: &Row, column: usize) -> Result<Option<Self>, sqlx::Error> {
        let (issuer, subject): (Option<String>, Option<String>) = (row.get(column)?, row.get(column + 1)?);
        Ok(issuer.zip(subject).map(|(issuer, subject)| Self { issuer, subject }))
    }
}

impl Actor {
    /// A system user who runs a command.
    #[must_use]
    pub fn command(user: impl Into<String>) -> Self {
        Self { name: user.into(), source: AuditSource::Command, network: None, identity: None }
    }
}

/// What was changed.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    /// The kind of change, such as `token.create`.
    pub action: &'static str,
    /// What was changed, such as `token 3`.
    pub subject: String,
    /// A JSON object. Never a secret.
    pub details: Value,
}

/// A row of the log.
#[derive(Clone, Debug)]
pub struct AuditRecord {
    /// Its number. Numbers have no gaps.
    pub id: i64,
    /// When the change was made.
    pub at: Timestamp,
    /// Who made it.
    pub actor: String,
    /// Through what: `administration`, `command`, `operator`, `gateway`.
    pub source: String,
    /// From which network.
    pub network: Option<String>,
    /// The kind of change.
    pub action: String,
    /// What was changed.
    pub subject: String,
    /// A JSON object, as text.
    pub details: String,
    /// Of the actor, the network, the subject and the details: the salt, or the commitment of a value that was erased.
    salts: [Vec<u8>; 4],
    /// The digest that chains it to the row before.
    pub digest: Vec<u8>,
}

/// Which rows are listed: those that match all that is given.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// By this actor.
    pub actor: Option<String>,
    /// Of this kind.
    pub action: Option<String>,
    /// At this instant or later.
    pub since: Option<Timestamp>,
    /// At this instant or earlier.
    pub until: Option<Timestamp>,
}

const COLUMNS: &str = "id, at, actor, source, network, action, subject, details, digest, \
    actor_salt, network_salt, subject_salt, details_salt";

impl AuditRecord {
    /// The row as it is exported. Details that are no JSON any more, because the row was changed by SQL, become a text.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let details = serde_json::from_str(&self.details).unwrap_or_else(|_| Value::from(self.details.as_str()));
        let digest: String = self.digest.iter().map(|byte| format!("{byte:02x}")).collect();
        json!({
            "id": self.id,
            "at": Rfc3339Micros(self.at),
            "actor": self.actor,
            "source": self.source,
            "network": self.network,
            "action": self.action,
            "subject": self.subject,
            "details": details,
            "digest": digest,
        })
    }

    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            at: row.get(1)?,
            actor: row.get(2)?,
            source: row.get(3)?,
            network: row.get(4)?,
            action: row.get(5)?,
            subject: row.get(6)?,
            details: row.get(7)?,
            digest: row.get(8)?,
            salts: [row.get(9)?, row.get(10)?, row.get(11)?, row.get(12)?],
        })
    }
}

/// Writes the end of the log again behind the last row that is left, if `audit_state` was emptied: without it, nothing that
/// adds a row can be done. Whether rows are missing there can no longer be found out, so the caller's own row says what was
/// restored. Returns whether it was.
///
/// # Errors
/// Those of the database, also if the role may not insert into `audit_state`.
pub(super) async fn restore_end(database: &Database) -> Result<bool, StoreError> {
    let mut transaction = database.begin().await?;
    if !transaction.fetch_all(sql!("SELECT last_id FROM audit_state")).await?.is_empty() {
        return Ok(false);
    }
    let last = transaction
        .fetch_all(sql!("SELECT id, digest FROM audit_log ORDER BY id DESC LIMIT 1 {scans: it ends after one row}"))
        .await?;
    let (id, digest) = match last.first() {
        Some(row) => (row.get::<i64>(0)?, row.get::<Vec<u8>>(1)?),
        None => (0, Vec::new()),
    };
    transaction.execute(sql!("INSERT INTO audit_state (last_id, digest) VALUES ({id}, {digest})", id, digest)).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Adds a row within the transaction of the change. Call it last: it locks the end of the log until the commit. The
/// details also say who the actor is at an OpenID provider, as `iss` and `sub`.
///
/// # Errors
/// Those of the database; [`sqlx::Error::RowNotFound`] if `audit_state` was emptied.
pub(super) async fn append(
    transaction: &mut Transaction,
    actor: &Actor,
    mut entry: AuditEntry,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    if let (Some(identity), Value::Object(details)) = (&actor.identity, &mut entry.details) {
        details.insert("iss".to_owned(), identity.issuer.as_str().into());
        details.insert("sub".to_owned(), identity.subject.as_str().into());
    }
    let lock = sql!("SELECT last_id, digest FROM audit_state {pg: FOR UPDATE}");
    let state = transaction.connection().fetch_one(lock).await?;
    let (last, before) = (state.get::<i64>(0)?, state.get::<Vec<u8>>(1)?);
    let mut record = AuditRecord {
        id: last + 1,
        // What is stored has microseconds.
        at: Timestamp::from_microsecond(now.as_microsecond()).map_err(|error| sqlx::Error::Encode(error.into()))?,
        actor: actor.name.clone(),
        source: actor.source.as_str().to_owned(),
        network: actor.network.clone(),
        action: entry.action.to_owned(),
        subject: entry.subject,
        details: entry.details.to_string(),
        salts: [(); 4].map(|()| rand::random::<[u8; SALT]>().to_vec()),
        digest: Vec::new(),
    };
    if record.network.is_none() {
        record.salts[1].clear();
    }
    record.digest = record.digest_after(&before).expect("it has salts").to_vec();

    let AuditRecord { id, at, actor, source, network, action, subject, details, salts, digest } = record;
    let update = sql!("UPDATE audit_state SET last_id = {id}, digest = {digest}", id, digest = digest.clone());
    transaction.execute(update).await?;
    let [actor_salt, network_salt, subject_salt, details_salt] = salts;
    let insert = sql!(
        "INSERT INTO audit_log (id, at, actor, source, network, action, subject, details, digest,
           actor_salt, network_salt, subject_salt, details_salt)
         VALUES ({id}, {at}, {actor}, {source}, {network}, {action}, {subject}, {details}, {digest},
           {actor_salt}, {network_salt}, {subject_salt}, {details_salt})",
        id,
        at,
        actor,
        source,
        network,
        action,
        subject,
        details,
        digest,
        actor_salt,
        network_salt,
        subject_salt,
        details_salt,
    );
    transaction.execute(insert).await?;
    Ok(())
}

impl Store {
    /// Records a change that has no transaction of its own in this database.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn audit(&self, actor: &Actor, entry: AuditEntry, now: Timestamp) -> Result<(), StoreError> {
        let entry = &entry;
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            append(&mut transaction, actor, entry.clone(), now).await?;
            Ok(transaction.commit().await?)
        })
        .await
    }

    /// The rows that match a filter, the newest first, at most `limit`; those before the row `before`, if given.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_audit(
        &self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM audit_log
             WHERE id < {before}{+filter}
             ORDER BY id DESC LIMIT {limit}",
            columns = Sql::text(COLUMNS),
            before = before.unwrap_or(i64::MAX),
            filter = matches(filter),
            limit,
        );
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(AuditRecord::read).collect::<Result<_, _>>()?)
    }
}

/// The conditions of a filter, each after ` AND `.
fn matches(AuditFilter { actor, action, since, until }: &AuditFilter) -> Sql {
    let conditions = [
        actor.as_ref().map(|actor| sql!(" AND actor = {actor}", actor)),
        action.as_ref().map(|action| sql!(" AND action = {action}", action)),
        since.map(|since| sql!(" AND at >= {since}", since)),
        until.map(|until| sql!(" AND at <= {until}", until)),
    ];
    Sql::joined(conditions.into_iter().flatten(), "")
}
