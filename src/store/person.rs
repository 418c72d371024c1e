//! Erases what formgate itself holds about an e-mail address, and leaves the tables that forms products write alone.
//!
//! An address is looked for in every column in which a person or a program may have left it: as a whole, or within a text. Then
//! rows that are about the person alone are deleted, and within other texts the address is replaced. Rows of the audit log stay:
//! the value becomes empty and its salt what the chain covers ([`super::audit`]), so the log still verifies. On SQLite, the bytes are
//! overwritten.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;

use super::audit::{self, Actor, AuditEntry, EraseValues};
use super::engine::{DatabaseLocation, Transaction};
use super::mailbox;
use super::statement::{Dialect, Sql, TextList, sql};
use super::{StoreError, schema};

/// What takes the place of an address within a text.
const ERASED: &str = "(erased)";

/// Columns with texts in which an address is replaced.
const REPLACED: [[&str; 2]; 8] = [
    ["tokens", "created_by"],
    ["tokens", "name"],
    ["group_syncs", "actor"],
    ["request_log", "agent"],
    ["request_log", "id"],
    ["webhook_events", "body"],
    ["webhook_attempts", "response"],
    ["webhook_attempts", "error"],
];

/// The length of the longest escape of JSON that may stand before an address: `\u003c`.
const ESCAPE: usize = 6;

/// How much was erased, by table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasedPerson {
    /// How many rows of each table were deleted or changed.
    pub erased: BTreeMap<&'static str, u64>,
    /// The numbers of subscriptions whose addresses contain the person's, which stay.
    pub subscriptions: Vec<i64>,
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
    let person = Person::of(email);
    let mut transaction = database.begin().await?;
    if transaction.dialect() == Dialect::Sqlite {
        transaction.command("PRAGMA secure_delete = ON").await?;
    }
    let erased = erase(&mut transaction, &person).await?;
    let details = json!({ "erased": erased.erased });
    let entry = AuditEntry { action: "person.erase", subject: "a person".to_owned(), details };
    audit::append(&mut transaction, actor, entry, now).await?;
    transaction.commit().await?;
    if database.dialect() == Dialect::Sqlite {
        database.writer().await?.command("PRAGMA wal_checkpoint(TRUNCATE)").await.ok();
    }
    database.close().await;
    Ok(erased)
}

/// The spellings of an address, in lower case.
struct Person(Vec<String>);

impl Person {
    fn of(email: &str) -> Self {
        let mut spellings = mailbox::spellings(&mailbox::key(email));
        spellings.push(super::fold(email));
        spellings.sort_unstable();
        spellings.dedup();
        Self(spellings)
    }

    fn spellings(&self) -> TextList {
        self.0.iter().collect()
    }

    /// Whether a text has the address, and not only a longer one.
    fn is_in(&self, text: &str) -> bool {
        self.places(&text.to_lowercase()).next().is_some()
    }

    /// Where a text in lower case has the address.
    fn places<'t>(&'t self, lower: &'t str) -> impl Iterator<Item = (usize, usize)> {
        let of_spelling = move |spelling: &'t String| {
            let places = lower.match_indices(spelling.as_str()).map(|(at, found)| (at, at + found.len()));
            places.filter(|(from, until)| begins_address(&lower[..*from]) && ends_address(&lower[*until..]))
        };
        self.0.iter().flat_map(of_spelling)
    }

    /// The text with something else in place of the address.
    fn erased_from(&self, text: &str) -> String {
        let lower = text.to_lowercase();
        if lower.len() != text.len() {
            // Positions differ, in rare letters.
            return ERASED.to_owned();
        }
        let mut places: Vec<_> = self.places(&lower).collect();
        places.sort_unstable();
        let (mut erased, mut at) = (String::with_capacity(text.len()), 0);
        for (from, until) in places.into_iter().filter(|(from, _)| text.is_char_boundary(*from)) {
            if from >= at && text.is_char_boundary(until) {
                erased.push_str(&text[at..from]);
                erased.push_str(ERASED);
                at = until;
            }
        }
        erased.push_str(&text[at..]);
        erased
    }
}

/// Whether an address may begin after this text: not within a longer one. An escape of JSON is no part of it.
fn begins_address(before: &str) -> bool {
    let Some(last) = before.chars().next_back() else { return true };
    if !last.is_alphanumeric() && !matches!(last, '.' | '_' | '-' | '+') {
        return true;
    }
    let start = before.floor_char_boundary(before.len().saturating_sub(ESCAPE));
    let tail = &before[start..];
    let is_escape = |at: usize| {
        let escape = &tail[at + 1..];
        matches!(escape, "n" | "r" | "t" | "b" | "f")
            || escape
                .strip_prefix('u')
                .is_some_and(|digits| digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    tail.rfind('\\').is_some_and(is_escape)
}

/// Whether an address may end before this text.
fn ends_address(after: &str) -> bool {
    let mut next = after.chars();
    match next.next() {
        None => true,
        Some('.') => !next.next().is_some_and(char::is_alphanumeric),
        Some(other) => !other.is_alphanumeric() && other != '-',
    }
}

/// A column has one of the spellings somewhere.
fn has(column: &'static str, person: &Person) -> Sql {
    let each = person.0.iter().map(|spelling| {
        sql!(
            "{pg: strpos(lower({+column}), {spelling}) | lite: instr(lower({+column}), {spelling})} > 0",
            column = Sql::text(column),
            spelling,
        )
    });
    Sql::joined(each, " OR ")
}

async fn erase(transaction: &mut Transaction, person: &Person) -> Result<ErasedPerson, StoreError> {
    let mut erased = ErasedPerson::default();
    let users = sql!("SELECT id FROM users WHERE email_folded {in spellings}", spellings = person.spellings());
    let users = transaction.fetch_all(users).await?;
    let users: Vec<i64> = users.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let spellings = person.spellings();
    for (table, sql) in [
        (
            "admin_links",
            sql!(
                "DELETE FROM admin_links WHERE lower(email) {in spellings} {scans: people are seldom erased}",
                spellings = spellings.clone()
            ),
        ),
        (
            "admin_sessions",
            sql!(
                "DELETE FROM admin_sessions WHERE lower(email) {in spellings} {scans: people are seldom erased}",
                spellings = spellings.clone()
            ),
        ),
        (
            "directory_users",
            sql!(
                "DELETE FROM directory_users WHERE user_name_folded {in spellings} OR user_id {in users} {scans: people are seldom erased}",
                spellings,
                users = &users[..],
            ),
        ),
        ("inactive_members", sql!("DELETE FROM inactive_members WHERE user_id {in users}", users = &users[..])),
    ] {
        erased.note(table, transaction.execute(sql).await?);
    }
    for user in users {
        erased.note("group_syncs", forget_in_syncs(transaction, user).await?);
    }
    // By this key, an API call may be repeated; without it, it is another call.
    let sql = sql!(
        "UPDATE tokens SET form_key = NULL WHERE {+has_address} {scans: people are seldom erased}",
        has_address = has("form_key", person)
    );
    transaction.execute(sql).await?;
    for [table, column] in REPLACED {
        erased.note(table, replace(transaction, table, column, person).await?);
    }
    let sql = sql!(
        "SELECT id, target_url FROM subscriptions WHERE {+has_address} ORDER BY id {scans: people are seldom erased}",
        has_address = has("target_url", person),
    );
    for row in transaction.fetch_all(sql).await? {
        if person.is_in(&row.get::<String>(1)?) {
            erased.subscriptions.push(row.get(0)?);
        }
    }
    erased.note("audit_log", erase_in_audit(transaction, person).await?);
    Ok(erased)
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

/// Replaces the address in a column, by the texts that have it.
async fn replace(
    transaction: &mut Transaction,
    table: &'static str,
    column: &'static str,
    person: &Person,
) -> Result<u64, StoreError> {
    let sql = sql!(
        "SELECT DISTINCT {+column} FROM {+table} WHERE {+has_address} {scans: people are seldom erased}",
        column = Sql::text(column),
        table = Sql::text(table),
        has_address = has(column, person),
    );
    let rows = transaction.fetch_all(sql).await?;
    let mut changed = 0;
    for row in rows {
        let text: String = row.get(0)?;
        if !person.is_in(&text) {
            continue;
        }
        let sql = sql!(
            "UPDATE {+table} SET {+column} = {erased} WHERE {+column} = {text} {scans: people are seldom erased}",
            table = Sql::text(table),
            column = Sql::text(column),
            erased = person.erased_from(&text),
            text,
        );
        changed += transaction.execute(sql).await?;
    }
    Ok(changed)
}

/// Erases the values of the audit log that have the address, and of what the person did also from where and as whom.
async fn erase_in_audit(transaction: &mut Transaction, person: &Person) -> Result<u64, StoreError> {
    let in_any = Sql::joined(["actor", "subject", "details"].map(|column| has(column, person)), " OR ");
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
    use super::*;

    #[test]
    fn an_address_is_found_in_a_text_and_not_within_a_longer_one() {
        let person = Person::of("Ana@Example.com");
        for (text, erased) in [
            ("ana@example.com", "(erased)"),
            ("by ANA@example.COM, again <ana@example.com>.", "by (erased), again <(erased)>."),
            (r#"{"email":"ana@example.com"}"#, r#"{"email":"(erased)"}"#),
            (r"first\nana@example.com\u003cana@example.com\u003e", r"first\n(erased)\u003c(erased)\u003e"),
            ("mailto:ana@example.com?x=ana@example.com", "mailto:(erased)?x=(erased)"),
            ("ana@example.com. ana@example.com.", "(erased). (erased)."),
            ("Grüße an ana@example.com", "Grüße an (erased)"),
        ] {
            assert!(person.is_in(text), "{text}");
            assert_eq!(person.erased_from(text), erased);
        }
        for other in
            ["mariana@example.com", "x.ana@example.com", "ana@example.community", "ana@example.com.au", "ana@example"]
        {
            assert!(!person.is_in(other), "{other}");
            assert_eq!(person.erased_from(other), other);
        }
    }

    #[test]
    fn an_address_has_the_spellings_of_its_domain() {
        let person = Person::of("ana@bücher.example");
        assert!(person.is_in("ana@xn--bcher-kva.example") && person.is_in("Ana@Bücher.example"));
    }
}
