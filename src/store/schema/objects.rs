//! What a database at the newest schema has, and the statements that restore each part.
//!
//! Of Postgres, `postgres.tsv` has what its catalog says of a database that was just migrated, in the order in which parts are
//! restored. Versions 15 to 18 say the same, also of a restored dump, so definitions are compared as texts, and are the
//! statements that restore them. A test writes the file again after the script was edited: `tests/it/databases/catalog.rs`.
//! Of SQLite, the catalog has the statements of the script.
//!
//! Reads only the SQL that the scripts are written in: statements begin at the start of a line, the last line of a table
//! with its closing parenthesis, and types are one word. A second migration has to be taught here what it alters or drops.

use std::sync::LazyLock;

use super::PLAIN_TABLES;
use crate::store::schema::MIGRATIONS;
use crate::store::statement::Dialect;

/// What the catalog of Postgres says of a migrated database: kind, table, name and state of each part.
const CATALOG: &str = include_str!("postgres.tsv");

/// The kinds of what is compared, in the order in which they are restored. Columns may need functions, and foreign keys
/// need keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ObjectKind {
    /// Its state is empty, or says that a crash empties it.
    Table,
    /// Its table is its name too.
    Function,
    /// A type, and whether it is `not null` or derived.
    Column,
    /// The default of a column.
    Default,
    /// How Postgres gives a column its numbers.
    Identity,
    /// A primary key or a unique constraint.
    Key,
    /// A check or a foreign key.
    Constraint,
    Index,
    /// On Postgres its mode, as the catalog has it, and its definition.
    Trigger,
    /// What logical replication knows rows by. Any will do.
    ReplicaIdentity,
    /// A foreign key that is not checked. Like the following kinds, found only where something is wrong.
    ForeignKey,
    /// A rule that rewrites what is written.
    Rule,
    /// The only row of a table.
    Row,
    /// A publication that makes Postgres refuse to update and to delete rows.
    Publication,
    RowSecurity,
}

impl ObjectKind {
    const ALL: [Self; 15] = [
        Self::Table,
        Self::Function,
        Self::Column,
        Self::Default,
        Self::Identity,
        Self::Key,
        Self::Constraint,
        Self::Index,
        Self::Trigger,
        Self::ReplicaIdentity,
        Self::ForeignKey,
        Self::Rule,
        Self::Row,
        Self::Publication,
        Self::RowSecurity,
    ];

    /// As queries of the catalog name it, and messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Function => "function",
            Self::Column => "column",
            Self::Default => "default",
            Self::Identity => "identity",
            Self::Key => "key",
            Self::Constraint => "constraint",
            Self::Index => "index",
            Self::Trigger => "trigger",
            Self::ReplicaIdentity => "replica identity",
            Self::ForeignKey => "foreign key",
            Self::Rule => "rule",
            Self::Row => "row",
            Self::Publication => "publication",
            Self::RowSecurity => "row level security",
        }
    }

    pub(super) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether the definition says which part it is, whatever its name: `CREATE TABLE … (LIKE … INCLUDING ALL)` gives keys
    /// and indexes other names.
    pub(super) fn is_known_by_its_state(self) -> bool {
        matches!(self, Self::Key | Self::Constraint | Self::Index)
    }
}

/// A part of the schema.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) kind: ObjectKind,
    pub(super) table: &'static str,
    pub(super) name: &'static str,
    /// What the query of the catalog reads, with single blanks.
    pub(super) state: String,
    /// The statement of the script that creates it: a function of Postgres, an index or a trigger of SQLite.
    pub(super) statement: &'static str,
}

static OF_POSTGRES: LazyLock<Vec<Object>> = LazyLock::new(of_postgres);
static OF_SQLITE: LazyLock<Vec<Object>> = LazyLock::new(|| of_sqlite(MIGRATIONS[0].sqlite));

/// Everything that a database has, in the order in which it is restored.
pub(super) fn expected(dialect: Dialect) -> &'static [Object] {
    match dialect {
        Dialect::Postgres => &OF_POSTGRES,
        Dialect::Sqlite => &OF_SQLITE,
    }
}

/// Whitespace does not matter where statements are compared.
pub(super) fn normalized(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a forms product writes a table.
pub(super) fn is_plain(table: &str) -> bool {
    PLAIN_TABLES.split(", ").any(|plain| plain == table)
}

/// The columns of the tables that only formgate writes.
#[cfg(test)]
pub(super) fn own_columns(dialect: Dialect) -> impl Iterator<Item = &'static Object> {
    expected(dialect).iter().filter(|object| object.kind == ObjectKind::Column && !is_plain(object.table))
}

fn of_postgres() -> Vec<Object> {
    let statements = statements(MIGRATIONS[0].postgres);
    let object = |line: &'static str| {
        let mut fields = line.splitn(4, '\t');
        let [kind, table, name, state] = [(); 4].map(|()| fields.next().expect("a line has four fields"));
        let kind = ObjectKind::of_name(kind).expect("the query names its kinds");
        let is_its = |statement: &&&str| {
            statement.strip_prefix("CREATE FUNCTION ").is_some_and(|rest| rest.split('(').next() == Some(name))
        };
        let statement = statements.iter().find(is_its).filter(|_| kind == ObjectKind::Function);
        Object { kind, table, name, state: normalized(state), statement: statement.copied().unwrap_or_default() }
    };
    CATALOG.lines().map(object).collect()
}

fn of_sqlite(script: &'static str) -> Vec<Object> {
    let mut objects = Vec::new();
    for statement in statements(script) {
        let words: Vec<_> = statement.split_whitespace().collect();
        let mut add = |kind, table, name, statement| {
            objects.push(Object { kind, table, name, state: normalized(statement), statement });
        };
        match words[..] {
            ["CREATE", "TABLE", table, ..] => {
                add(ObjectKind::Table, table, table, "");
                for (name, kind) in columns(statement) {
                    add(ObjectKind::Column, table, name, kind);
                }
            }
            ["CREATE", "VIRTUAL", "TABLE", table, ..] => add(ObjectKind::Table, table, table, ""),
            ["CREATE", "INDEX", name, "ON", table, ..] | ["CREATE", "UNIQUE", "INDEX", name, "ON", table, ..] => {
                add(ObjectKind::Index, table, name, statement);
            }
            ["CREATE", "TRIGGER", name, ..] => {
                let table = words.iter().position(|word| *word == "ON").map(|at| words[at + 1]);
                add(ObjectKind::Trigger, table.expect("a trigger names its table"), name, statement);
            }
            _ => {}
        }
    }
    objects.sort_by_key(|object| object.kind);
    objects
}

/// The columns of a table of SQLite: name and type.
fn columns(statement: &'static str) -> Vec<(&'static str, &'static str)> {
    let (mut columns, mut depth) = (Vec::new(), 0);
    for line in statement.lines().skip(1) {
        let code = line.split_once("--").map_or(line, |(code, _)| code);
        let mut words = code.split([' ', ',']).filter(|word| !word.is_empty());
        if let (0, Some(name), Some(kind)) = (depth, words.next(), words.next())
            && !matches!(name, "CONSTRAINT" | "PRIMARY" | "CHECK" | "UNIQUE" | "FOREIGN")
            && !name.starts_with(')')
        {
            columns.push((name, kind));
        }
        depth += code.matches('(').count();
        depth -= code.matches(')').count().min(depth);
    }
    columns
}

impl Object {
    /// Whether a state of this name is as good as its own.
    pub(super) fn allows(&self, state: &str) -> bool {
        match self.kind {
            ObjectKind::ReplicaIdentity => state != "NOTHING",
            // A trigger that fires always does not fire less.
            ObjectKind::Trigger if state.starts_with("A ") && self.state.starts_with("O ") => {
                state[2..] == self.state[2..]
            }
            _ => state == self.state,
        }
    }

    /// The statements that restore it, where something else was `found` by its name. None if it can't be restored without
    /// what it contained.
    pub(super) fn restoring(&self, found: Option<&str>, dialect: Dialect) -> Option<String> {
        let Self { kind, table, name, state, statement } = self;
        let column = format!("ALTER TABLE {table} ALTER COLUMN {name}");
        let after_drop =
            |drop: String, create: String| if found.is_some() { format!("{drop}; {create}") } else { create };
        Some(match (kind, dialect) {
            (ObjectKind::Table | ObjectKind::Column, Dialect::Sqlite) => return None,
            (ObjectKind::Index, Dialect::Sqlite) => after_drop(format!("DROP INDEX {name}"), (*statement).to_owned()),
            (ObjectKind::Trigger, Dialect::Sqlite) => {
                after_drop(format!("DROP TRIGGER {name}"), (*statement).to_owned())
            }
            (ObjectKind::Table, _) => {
                found?;
                format!("ALTER TABLE {table} SET LOGGED")
            }
            (ObjectKind::Function, _) => of_function(statement),
            (ObjectKind::Column, _) if state.contains(" generated always ") => after_drop(
                format!("ALTER TABLE {table} DROP COLUMN {name}"),
                format!("ALTER TABLE {table} ADD COLUMN {name} {state}"),
            ),
            (ObjectKind::Column, _) => {
                if found?.trim_end_matches(" not null") != state.trim_end_matches(" not null") {
                    return None;
                }
                format!("{column} {} NOT NULL", if state.ends_with(" not null") { "SET" } else { "DROP" })
            }
            (ObjectKind::Default, _) => format!("{column} SET DEFAULT {state}"),
            (ObjectKind::Identity, _) if found.is_some() => format!("{column} SET GENERATED {state}"),
            (ObjectKind::Identity, _) => format!(
                "{column} DROP DEFAULT; {column} ADD GENERATED {state} AS IDENTITY; \
                 SELECT setval(pg_get_serial_sequence('{table}', '{name}'), coalesce(max({name}), 0) + 1, false) FROM {table}"
            ),
            // Postgres chooses a name that is free: an index of a table that was replaced may have that of the key.
            (ObjectKind::Key, _) => after_drop(
                format!("ALTER TABLE {table} DROP CONSTRAINT {name}"),
                format!("ALTER TABLE {table} ADD {state}"),
            ),
            (ObjectKind::Constraint, _)
                if found.is_some_and(|found| found.strip_suffix(" NOT VALID") == Some(state)) =>
            {
                format!("ALTER TABLE {table} VALIDATE CONSTRAINT {name}")
            }
            (ObjectKind::Constraint, _) => after_drop(
                format!("ALTER TABLE {table} DROP CONSTRAINT {name}"),
                format!("ALTER TABLE {table} ADD CONSTRAINT {name} {state}"),
            ),
            (ObjectKind::Index, _) => {
                after_drop(format!("DROP INDEX {name}"), state.replacen("INDEX ON ", &format!("INDEX {name} ON "), 1))
            }
            (ObjectKind::Trigger, _) => {
                let (mode, definition) = state.split_at(2);
                let mode = if mode == "A " { "ENABLE ALWAYS" } else { "ENABLE" };
                let enable = format!("ALTER TABLE {table} {mode} TRIGGER {name}");
                if found.is_some_and(|found| found[2..] == *definition) {
                    enable
                } else {
                    after_drop(format!("DROP TRIGGER {name} ON {table}"), format!("{definition}; {enable}"))
                }
            }
            (ObjectKind::ReplicaIdentity, _) => format!("ALTER TABLE {table} REPLICA IDENTITY {state}"),
            (
                ObjectKind::ForeignKey
                | ObjectKind::Rule
                | ObjectKind::Row
                | ObjectKind::Publication
                | ObjectKind::RowSecurity,
                _,
            ) => return None,
        })
    }
}

/// Creates a function again. The last statements of the script give every function its settings, such as the schema of now.
/// What an index computed by another function is wrong: missing keyword indexes are created at the end of a repair.
fn of_function(statement: &str) -> String {
    let create = statement.replacen("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1);
    let settings = statements(MIGRATIONS[0].postgres).into_iter().filter(|statement| statement.starts_with("DO $$"));
    let mut all = vec![create];
    if statement.starts_with("CREATE FUNCTION formgate_pairs(") {
        all.push("DROP INDEX IF EXISTS listed_documents_pairs".to_owned());
    }
    all.extend(settings.map(str::to_owned));
    all.join(";\n")
}

/// The statements of a script, without the comments and the semicolons between them.
fn statements(script: &'static str) -> Vec<&'static str> {
    let (mut statements, mut rest) = (Vec::new(), script);
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return statements;
        }
        if rest.starts_with("--") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
            continue;
        }
        // A trigger of SQLite contains statements.
        let first = end(rest);
        let has_body = rest.starts_with("CREATE TRIGGER") && rest[..first].contains("BEGIN\n");
        let length = if has_body { rest.find("\nEND;").map(|at| at + "\nEND".len()) } else { None };
        let (statement, following) = rest.split_at(length.unwrap_or(first));
        statements.push(statement);
        rest = following.strip_prefix(';').unwrap_or(following);
    }
}

/// Where a statement ends: at the first semicolon outside of texts, bodies of functions and comments.
fn end(statement: &str) -> usize {
    let mut at = 0;
    while at < statement.len() {
        let rest = &statement[at..];
        let skipped = |closing: &str, opening: usize| {
            rest[opening..].find(closing).map_or(rest.len(), |end| opening + end + closing.len())
        };
        at += match rest.as_bytes()[0] {
            b';' => return at,
            b'\'' => skipped("'", 1),
            b'"' => skipped("\"", 1),
            b'$' if rest.starts_with("$$") => skipped("$$", 2),
            b'-' if rest.starts_with("--") => skipped("\n", 2),
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
    }
    statement.len()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn find(dialect: Dialect, name: &str) -> &'static Object {
        expected(dialect).iter().find(|object| object.name == name).expect(name)
    }

    #[test]
    fn what_restores_a_part_is_its_definition() {
        let written = find(Dialect::Postgres, "submissions_written");
        let enable = "ALTER TABLE submissions ENABLE ALWAYS TRIGGER submissions_written";
        let restoring = |found| written.restoring(found, Dialect::Postgres).expect("a trigger can be restored");
        let disabled = written.state.replacen('A', "D", 1);
        assert_eq!(restoring(Some(&disabled)), enable);
        assert_eq!(restoring(None), format!("{}; {enable}", &written.state[2..]));
        assert!(
            restoring(Some("A CREATE TRIGGER other")).starts_with("DROP TRIGGER submissions_written ON submissions; ")
        );
        let index = find(Dialect::Postgres, "users_email").restoring(None, Dialect::Postgres);
        assert_eq!(index.as_deref(), Some("CREATE UNIQUE INDEX users_email ON users USING btree (email_folded)"));
        let note =
            find(Dialect::Postgres, "formgate_note_part").restoring(None, Dialect::Postgres).expect("a function");
        assert!(note.starts_with("CREATE OR REPLACE FUNCTION formgate_note_part() RETURNS trigger"), "{note}");
        assert!(note.contains("SET search_path"), "{note}");
        let deleted = find(Dialect::Sqlite, "submissions_inserted");
        assert!(deleted.state.starts_with("CREATE TRIGGER submissions_inserted AFTER INSERT ON submissions BEGIN"));
        assert!(deleted.state.ends_with("; END"), "{}", deleted.state);
        assert_eq!(find(Dialect::Sqlite, "audit_log_is_not_updated").table, "audit_log");
    }

    #[test]
    fn every_function_of_the_catalog_is_in_the_script() {
        let functions = expected(Dialect::Postgres).iter().filter(|object| object.kind == ObjectKind::Function);
        let lost: Vec<_> = functions.filter(|object| object.statement.is_empty()).map(|object| object.name).collect();
        assert_eq!(lost, Vec::<&str>::new());
    }

    #[test]
    fn both_databases_have_the_same_tables_and_columns() {
        for kind in [ObjectKind::Table, ObjectKind::Column] {
            let named = |dialect| {
                let objects = expected(dialect).iter().filter(|object| object.kind == kind);
                let named = objects.map(|object| (object.table, object.name));
                // SQLite's keyword index is a table, and what makes a row the only one is a column.
                named.filter(|(table, name)| !table.contains("trigram") && *name != "single").collect::<BTreeSet<_>>()
            };
            assert_eq!(named(Dialect::Postgres), named(Dialect::Sqlite));
            assert!(named(Dialect::Postgres).len() > 25);
        }
    }
}
