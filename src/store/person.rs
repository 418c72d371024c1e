//! Erases what formgate itself holds about an e-mail address. Does not change the tables that the forms product writes.
//!
//! An address is looked for in every column in which a person or a program may have left it: as a whole, or within a text. Then
//! rows that are about the person alone are deleted, and within other texts the address is replaced. Rows of the audit log stay:
//! the value becomes empty and its salt what the chain covers ([`super::audit`]), so the log still verifies. On SQLite, the bytes are
//! overwritten. What each column is for stands in the lists below; a test compares them with the schema.

mod address;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;

use self::address::PersonAddress;
use super::audit::{self, Actor, AuditEntry, EraseValues};
use super::engine::{DatabaseLocation, Transaction};
use super::statement::{Dialect, Sql, TextList, sql};
use super::{StoreError, schema};

/// Columns whose rows are about one person: those that have the address are deleted.
const DELETED: [[&str; 2]; 14] = [
    ["admin_links", "email"],
    ["admin_links", "name"],
    ["admin_links", "issuer"],
    ["admin_links", "subject"],
    ["admin_sessions", "email"],
    ["admin_sessions", "name"],
    ["admin_sessions", "issuer"],
    ["admin_sessions", "subject"],
    ["directory_users", "user_name"],
    ["directory_users", "user_name_folded"],
    ["directory_users", "external_id"],
    ["directory_users", "given_name"],
    ["directory_users", "family_name"],
    ["directory_users", "formatted_name"],
];

/// Tables whose rows are about one user, by `user_id`.
const DELETED_BY_USER: [&str; 4] = ["directory_users", "directory_held", "directory_removals", "inactive_members"];

/// Columns with texts in which an address is replaced.
const REPLACED: [[&str; 2]; 12] = [
    ["tokens", "created_by"],
    ["tokens", "name"],
    ["group_syncs", "actor"],
    ["group_syncs", "group_name"],
    ["directory_held", "actor"],
    ["admin_sessions", "user_agent"],
    ["request_log", "agent"],
    ["request_log", "id"],
    ["subscriptions", "reason"],
    ["webhook_events", "body"],
    ["webhook_attempts", "response"],
    ["webhook_attempts", "error"],
];

/// How much was erased, by table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasedPerson {
    /// How many rows of each table were deleted or changed.
    pub erased: BTreeMap<&'static str, u64>,
    /// The numbers of subscriptions whose addresses contain the person's, which stay.
    pub subscriptions: Vec<i64>,
    /// Whether the write-ahead log of a SQLite file still has the erased bytes, since a program reads all the time.
    pub is_in_log: bool,
}

impl ErasedPerson {
    fn note(&mut self, table: &'static str, rows: u64) {
        if rows > 0 {
            *self.erased.entry(table).or_default() += rows;
        }
    }
}

/// Erases what formgate holds about an address, in one transaction with a row of the audit log, which does not have the address.
///
/// # Errors
/// [`StoreError`]: only the owner of the tables may erase values of the audit log on Postgres.
pub async fn erase_person(
    location: &DatabaseLocation,
    email: &str,
    actor: &Actor,
    now: Timestamp,
) -> Result<ErasedPerson, StoreError> {
    let database = location.connect_for_maintenance();
    schema::require_served(&mut database.reader().await?).await?;
    let person = PersonAddress::of(email);
    let mut transaction = database.begin().await?;
    if transaction.dialect() == Dialect::Sqlite {
        transaction.command("PRAGMA secure_delete = ON").await?;
    }
    let mut erased = erase(&mut transaction, &person).await?;
    let details = json!({ "erased": erased.erased });
    let entry = AuditEntry { action: "person.erase", subject: "a person".to_owned(), details };
    audit::append(&mut transaction, actor, entry, now).await?;
    transaction.commit().await?;
    erased.is_in_log = !database.empty_log().await?;
    database.close().await;
    Ok(erased)
}

async fn erase(transaction: &mut Transaction, person: &PersonAddress) -> Result<ErasedPerson, StoreError> {
    let mut erased = ErasedPerson::default();
    let spellings: TextList = person.spellings().iter().collect();
    let users = sql!("SELECT id FROM users WHERE email_folded {in spellings}", spellings);
    let users = transaction.fetch_all(users).await?;
    let users: Vec<i64> = users.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    for table in DELETED_BY_USER {
        let sql = sql!(
            "DELETE FROM {+users_table} WHERE user_id {in users} {scans: people are seldom erased}",
            users_table = Sql::text(table),
            users = &users[..],
        );
        erased.note(table, transaction.execute(sql).await?);
    }
    for [table, column] in DELETED {
        for text in texts_with(transaction, table, column, person).await? {
            let sql = sql!(
                "DELETE FROM {+table} WHERE {+column} = {text} {scans: people are seldom erased}",
                table = Sql::text(table),
                column = Sql::text(column),
                text,
            );
            erased.note(table, transaction.execute(sql).await?);
        }
    }
    for user in users {
        erased.note("group_syncs", forget_in_syncs(transaction, user).await?);
    }
    // By this key, an API call may be repeated; without it, it is another call.
    for text in texts_with(transaction, "tokens", "form_key", person).await? {
        let sql = sql!("UPDATE tokens SET form_key = NULL WHERE form_key = {text}", text);
        transaction.execute(sql).await?;
    }
    for [table, column] in REPLACED {
        for text in texts_with(transaction, table, column, person).await? {
            let sql = sql!(
                "UPDATE {+table} SET {+column} = {erased} WHERE {+column} = {text} {scans: people are seldom erased}",
                table = Sql::text(table),
                column = Sql::text(column),
                erased = person.erased_from(&text),
                text,
            );
            erased.note(table, transaction.execute(sql).await?);
        }
    }
    let sql = sql!(
        "SELECT id, target_url FROM subscriptions WHERE {+may_have} ORDER BY id {scans: people are seldom erased}",
        may_have = person.may_be_in("target_url"),
    );
    for row in transaction.fetch_all(sql).await? {
        if person.is_in(&row.get::<String>(1)?) {
            erased.subscriptions.push(row.get(0)?);
        }
    }
    erased.note("audit_log", erase_in_audit(transaction, person).await?);
    Ok(erased)
}

/// The texts of a column that have the address.
async fn texts_with(
    transaction: &mut Transaction,
    table: &'static str,
    column: &'static str,
    person: &PersonAddress,
) -> Result<Vec<String>, sqlx::Error> {
    let sql = sql!(
        "SELECT DISTINCT {+column} FROM {+table} WHERE {+may_have} {scans: people are seldom erased}",
        column = Sql::text(column),
        table = Sql::text(table),
        may_have = person.may_be_in(column),
    );
    let rows = transaction.fetch_all(sql).await?;
    let texts = rows.iter().map(|row| row.get(0)).collect::<Result<Vec<String>, _>>()?;
    Ok(texts.into_iter().filter(|text| person.is_in(text)).collect())
}

/// Takes a user out of the lists of syncs. How many members each changed stays.
async fn forget_in_syncs(transaction: &mut Transaction, user: i64) -> Result<u64, StoreError> {
    let digits = user.to_string();
    let sql = sql!(
        "SELECT id, attached, detached FROM group_syncs
         WHERE {pg: strpos(attached, {digits}) + strpos(detached, {digits})
           | lite: instr(attached, {digits}) + instr(detached, {digits})} > 0
         {scans: people are seldom erased}",
        digits,
    );
    let mut changed = 0;
    for row in transaction.fetch_all(sql).await? {
        let (id, mut has_user): (i64, bool) = (row.get(0)?, false);
        let mut without = |text: String| {
            let mut ids: Vec<i64> = serde_json::from_str(&text).unwrap_or_default();
            has_user |= ids.contains(&user);
            ids.retain(|id| *id != user);
            serde_json::to_string(&ids).expect("numbers are JSON")
        };
        let (attached, detached) = (without(row.get(1)?), without(row.get(2)?));
        if has_user {
            let sql = sql!(
                "UPDATE group_syncs SET attached = {attached}, detached = {detached} WHERE id = {id}",
                attached,
                detached,
                id,
            );
            changed += transaction.execute(sql).await?;
        }
    }
    Ok(changed)
}

/// Erases the values of the audit log that have the address, and of what the person did also from where and as whom.
async fn erase_in_audit(transaction: &mut Transaction, person: &PersonAddress) -> Result<u64, StoreError> {
    let in_any = Sql::joined(["actor", "subject", "details"].map(|column| person.may_be_in(column)), " OR ");
    let mut rows = Vec::new();
    for record in audit::matching(transaction, in_any).await? {
        let is_actor = person.is_in(&record.actor);
        let values = EraseValues {
            actor: is_actor,
            network: is_actor && record.network.is_some(),
            subject: person.is_in(&record.subject),
            details: person.is_in(&record.details) || is_actor && record.has_identity(),
        };
        if values.has_any() {
            rows.push((record, values));
        }
    }
    let count = rows.len() as u64;
    audit::erase_values(transaction, rows).await?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Columns with text that is dealt with in another way, or stays.
    const OTHERS: [&str; 48] = [
        // By [`erase_in_audit`], by [`forget_in_syncs`], and in place of others.
        "audit_log.actor",
        "audit_log.details",
        "audit_log.network",
        "audit_log.subject",
        "group_syncs.attached",
        "group_syncs.detached",
        "tokens.form_key",
        // The operator is told: without it, nothing is sent any more.
        "subscriptions.target_url",
        // What follows the tables of the product.
        "listed_documents.document",
        "listed_counts.counted",
        "listed_counts.status",
        "listed_submissions.status",
        "stale_counts.counted",
        // Numbers, names of formgate's own, secrets, machines and networks of programs.
        "admin_links.role",
        "admin_sessions.export",
        "admin_sessions.network",
        "admin_sessions.role",
        "audit_log.action",
        "audit_log.source",
        "change_state.epoch",
        "database_identity.id",
        "directory_held.kind",
        "read_gaps.node",
        "read_nodes.host",
        "read_nodes.node",
        "read_nodes.process",
        "request_log.method",
        "request_log.network",
        "request_log.prefix",
        "request_log.reason",
        "request_log.route",
        "submission_reads.forms",
        "subscriptions.done_beyond",
        "subscriptions.event",
        "subscriptions.leased_by",
        "subscriptions.previous_secret",
        "subscriptions.secret",
        "subscriptions.state",
        "token_hours.counts",
        "tokens.forms",
        "tokens.last_used_network",
        "tokens.last_used_route",
        "tokens.networks",
        "tokens.prefix",
        "tokens.scopes",
        "webhook_attempts.event",
        "webhook_attempts.event_id",
        "webhook_events.event_id",
    ];

    /// Whoever adds a column decides what becomes of it here.
    #[test]
    fn every_column_of_the_schema_is_in_one_list() {
        for dialect in [Dialect::Postgres, Dialect::Sqlite] {
            let columns: BTreeSet<String> =
                schema::own_text_columns(dialect).map(|(table, column)| format!("{table}.{column}")).collect();
            let listed = DELETED.iter().chain(&REPLACED).map(|[table, column]| format!("{table}.{column}"));
            let listed: Vec<String> = listed.chain(OTHERS.iter().map(ToString::to_string)).collect();
            let distinct: BTreeSet<String> = listed.iter().cloned().collect();
            assert_eq!(listed.len(), distinct.len(), "each is in one list");
            assert_eq!(distinct, columns, "{dialect:?}");
            let of_users: BTreeSet<&str> = schema::own_columns(dialect, "user_id").collect();
            assert_eq!(of_users, BTreeSet::from(DELETED_BY_USER), "{dialect:?}");
        }
    }
}
