//! Erases values of the audit log, without breaking its chain: a value becomes empty, and its salt the commitment.
//!
//! The triggers that refuse any change are out of the way within the transaction, which only the owner of the table may do on
//! Postgres.

use super::chain::commitment;
use super::{AuditRecord, COLUMNS};
use crate::store::engine::Transaction;
use crate::store::schema;
use crate::store::statement::{Dialect, Sql, sql};

/// The trigger that refuses updates.
const TRIGGER: [&str; 2] = ["audit_log_is_append_only", "audit_log_is_not_updated"];

/// Which values of a row are erased.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct EraseValues {
    pub(in crate::store) actor: bool,
    pub(in crate::store) network: bool,
    pub(in crate::store) subject: bool,
    pub(in crate::store) details: bool,
}

impl EraseValues {
    pub(in crate::store) fn has_any(self) -> bool {
        self.actor || self.network || self.subject || self.details
    }
}

impl AuditRecord {
    /// Whether the details say who the actor is at an OpenID provider.
    pub(in crate::store) fn has_identity(&self) -> bool {
        let details = serde_json::from_str::<serde_json::Value>(&self.details).unwrap_or_default();
        details.get("sub").is_some()
    }

    /// Erases values. A salt that is none stays, so that the row is still noticed.
    fn erase(&mut self, values: EraseValues) {
        let EraseValues { actor, network, subject, details } = values;
        let erase = |salt: &mut Vec<u8>, value: &mut String| {
            if let Some(commitment) = commitment(salt, Some(value)) {
                *salt = commitment.to_vec();
                value.clear();
            }
        };
        let [actor_salt, network_salt, subject_salt, details_salt] = &mut self.salts;
        if actor {
            erase(actor_salt, &mut self.actor);
        }
        if let Some(value) = self.network.as_mut().filter(|_| network) {
            erase(network_salt, value);
        }
        if subject {
            erase(subject_salt, &mut self.subject);
        }
        if details {
            erase(details_salt, &mut self.details);
        }
    }
}

/// The rows that fulfill a condition.
pub(in crate::store) async fn matching(
    transaction: &mut Transaction,
    condition: Sql,
) -> Result<Vec<AuditRecord>, sqlx::Error> {
    let sql = sql!(
        "SELECT {+columns} FROM audit_log WHERE {+condition} ORDER BY id {scans: people are seldom erased}",
        columns = Sql::text(COLUMNS),
        condition,
    );
    transaction.fetch_all(sql).await?.iter().map(AuditRecord::read).collect()
}

/// Erases values of rows.
pub(in crate::store) async fn erase_values(
    transaction: &mut Transaction,
    rows: Vec<(AuditRecord, EraseValues)>,
) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let [on_postgres, on_sqlite] = TRIGGER;
    match transaction.dialect() {
        Dialect::Postgres => {
            let disable = format!("ALTER TABLE audit_log DISABLE TRIGGER {on_postgres}");
            transaction.command(sqlx::AssertSqlSafe(disable)).await?;
        }
        Dialect::Sqlite => transaction.command(sqlx::AssertSqlSafe(format!("DROP TRIGGER {on_sqlite}"))).await?,
    }
    for (mut record, values) in rows {
        record.erase(values);
        let AuditRecord { id, actor, network, subject, details, salts, .. } = record;
        let [actor_salt, network_salt, subject_salt, details_salt] = salts;
        let sql = sql!(
            "UPDATE audit_log SET actor = {actor}, network = {network}, subject = {subject}, details = {details},
               actor_salt = {actor_salt}, network_salt = {network_salt}, subject_salt = {subject_salt},
               details_salt = {details_salt}
             WHERE id = {id}",
            actor,
            network,
            subject,
            details,
            actor_salt,
            network_salt,
            subject_salt,
            details_salt,
            id,
        );
        transaction.execute(sql).await?;
    }
    let restore = match transaction.dialect() {
        Dialect::Postgres => format!("ALTER TABLE audit_log ENABLE ALWAYS TRIGGER {on_postgres}"),
        Dialect::Sqlite => schema::sqlite_trigger(on_sqlite).expect("the schema has it"),
    };
    transaction.command(sqlx::AssertSqlSafe(restore)).await
}
