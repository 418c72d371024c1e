//! Plants a text of its own into every column of a database that can hold text, so that it can be searched for later.
//!
//! The columns are those of the database, so whatever a new version of the schema adds is planted too.

use super::database::Database;

/// Tables whose only texts are names and numbers of formgate's own.
const LEFT_OUT: [&str; 7] = [
    "_sqlx_migrations",
    "audit_state",
    "change_state",
    "database_identity",
    "listed_counts",
    "listed_submissions",
    "stale_counts",
];

/// Columns that take some texts only.
const FIXED: [(&str, &str); 9] = [
    ("admin_links.role", "admin"),
    ("admin_sessions.role", "admin"),
    ("answers.files", r#"["planted.answers.files"]"#),
    ("directory_held.kind", "removed"),
    ("submissions.status", "pending"),
    ("subscriptions.done_beyond", "[]"),
    ("subscriptions.event", "submission.created"),
    // So that nothing is sent.
    ("subscriptions.state", "paused"),
    ("token_hours.counts", "[]"),
];

/// The number of everything that is planted.
const NUMBER: i64 = 77;

struct Column {
    table: String,
    name: String,
    kind: String,
    /// A row needs a value of it.
    is_required: bool,
}

impl Column {
    /// The value that is planted, as SQL; `None` if there need be none.
    fn value(&self) -> Option<String> {
        let place = format!("{}.{}", self.table, self.name);
        let fixed = FIXED.iter().find(|(known, _)| *known == place).map(|(_, text)| (*text).to_owned());
        let value = match self.kind.to_lowercase().as_str() {
            "text" | "jsonb" => return Some(format!("'{}'", fixed.unwrap_or_else(|| planted(&place)))),
            "bigint" | "integer" => NUMBER.to_string(),
            "boolean" => "false".to_owned(),
            "bytea" => format!("'\\x{}'", "77".repeat(32)),
            "blob" => format!("X'{}'", "77".repeat(32)),
            "timestamp with time zone" => "now()".to_owned(),
            other => panic!("{place} is of a type that this does not know: {other}"),
        };
        self.is_required.then_some(value)
    }
}

fn planted(place: &str) -> String {
    format!("planted.{place}")
}

/// The columns that a statement may write, in the order of the tables.
async fn columns(database: &Database) -> Vec<Column> {
    let sql = match database {
        Database::Postgres(_) => {
            "SELECT concat_ws('|', relname, attname, format_type(atttypid, atttypmod),
               (attnotnull AND NOT atthasdef)::int)
             FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
             WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
               AND attgenerated = '' ORDER BY c.oid, attnum"
        }
        Database::Sqlite(_) => {
            "SELECT m.name || '|' || c.name || '|' || c.type || '|' || ((c.\"notnull\" OR c.pk) AND c.dflt_value IS NULL)
             FROM sqlite_schema m JOIN pragma_table_xinfo(m.name) c
             WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' AND m.name NOT LIKE 'listed_trigrams%' AND c.hidden = 0
             ORDER BY m.rowid, c.cid"
        }
    };
    let rows = database.texts(sql).await;
    rows.iter()
        .map(|row| {
            let [table, name, kind, is_required] = *row.split('|').collect::<Vec<_>>() else { panic!("{row}") };
            let (table, name, kind) = (table.to_owned(), name.to_owned(), kind.to_owned());
            Column { table, name, kind, is_required: is_required == "1" }
        })
        .filter(|column| !LEFT_OUT.contains(&column.table.as_str()))
        .collect()
}

/// Adds a row to every table that has columns with text, whatever it would refer to. Returns the texts.
pub(crate) async fn plant_in_every_column(database: &Database) -> Vec<String> {
    let columns = columns(database).await;
    let (unchecked, overriding) = match database {
        Database::Postgres(_) => ("SET session_replication_role = replica", "OVERRIDING SYSTEM VALUE"),
        Database::Sqlite(_) => ("PRAGMA foreign_keys = OFF", ""),
    };
    let mut statements = vec![unchecked.to_owned()];
    let mut texts = Vec::new();
    for table in columns.chunk_by(|one, next| one.table == next.table) {
        let is_text = |column: &Column| matches!(column.kind.to_lowercase().as_str(), "text" | "jsonb");
        if !table.iter().any(is_text) {
            continue;
        }
        let (names, values): (Vec<_>, Vec<_>) =
            table.iter().filter_map(|column| Some((format!("\"{}\"", column.name), column.value()?))).unzip();
        statements.push(format!(
            "INSERT INTO {} ({}) {overriding} VALUES ({})",
            table[0].table,
            names.join(", "),
            values.join(", ")
        ));
        texts.extend(values.iter().filter_map(|value| {
            let from = value.find("planted.")?;
            let end = value[from..].find(['\'', '"'])?;
            Some(value[from..from + end].to_owned())
        }));
    }
    database.execute(&statements.join("; ")).await;
    assert!(texts.len() > 40, "{texts:?}");
    texts
}
