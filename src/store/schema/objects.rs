//! What a database at the newest schema has, read from the script that creates it: tables, columns, indexes, constraints
//! and triggers, and the statements that restore each.
//!
//! Reads only the SQL that the scripts are written in: statements begin at the start of a line, the last line of a table
//! with its closing parenthesis, types are one word, and a check that names other columns than its own has a name. A test of a migrated database
//! finds what this reads wrongly. A second migration has to be taught here what it alters or drops.

use std::sync::LazyLock;

use crate::store::schema::MIGRATIONS;
use crate::store::statement::Dialect;

/// The kinds of what is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ObjectKind {
    Table,
    Column,
    Constraint,
    Index,
    Trigger,
}

impl ObjectKind {
    const ALL: [Self; 5] = [Self::Table, Self::Column, Self::Constraint, Self::Index, Self::Trigger];

    /// As queries of the catalog name it, and messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Column => "column",
            Self::Constraint => "constraint",
            Self::Index => "index",
            Self::Trigger => "trigger",
        }
    }

    pub(super) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A part of the schema.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) kind: ObjectKind,
    pub(super) table: &'static str,
    pub(super) name: String,
    /// What the query of the catalog reads: the type of a column and whether it is `not null`, the mode of a trigger on
    /// Postgres, the statement of a trigger or an index on SQLite.
    pub(super) state: String,
    /// Statements that create it where it is missing. Empty: it can't be created without what it contained.
    pub(super) create: String,
    /// Statements that restore its state; of a table, its replica identity. Empty: none do.
    pub(super) alter: String,
}

static OF_POSTGRES: LazyLock<Vec<Object>> = LazyLock::new(|| objects(MIGRATIONS[0].postgres, Dialect::Postgres));
static OF_SQLITE: LazyLock<Vec<Object>> = LazyLock::new(|| objects(MIGRATIONS[0].sqlite, Dialect::Sqlite));

/// Everything that a database has, tables first.
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

fn objects(script: &'static str, dialect: Dialect) -> Vec<Object> {
    let mut objects = Vec::new();
    for statement in statements(script) {
        let words: Vec<_> = statement.split_whitespace().collect();
        match words[..] {
            ["CREATE", "TABLE", table, ..] => add_table(&mut objects, table, statement, dialect),
            ["CREATE", "VIRTUAL", "TABLE", table, ..] => {
                objects.push(Object::lost(ObjectKind::Table, table, table, ""));
            }
            ["CREATE", "INDEX", name, "ON", table, ..] => {
                objects.push(Object::index(table, name, statement, "valid", dialect));
            }
            ["CREATE", "UNIQUE", "INDEX", name, "ON", table, ..] => {
                objects.push(Object::index(table, name, statement, "unique", dialect));
            }
            ["CREATE", "TRIGGER", name, ..] => {
                let table = words.iter().position(|word| *word == "ON").map(|at| words[at + 1]);
                let table = table.expect("a trigger names its table");
                objects.push(Object::trigger(table, name, statement, dialect));
            }
            ["ALTER", "TABLE", _, "ENABLE", "ALWAYS", ..] => {
                for at in (0..words.len()).filter(|at| words[*at] == "TRIGGER") {
                    let name = words[at + 1].trim_end_matches(',');
                    let trigger = objects.iter_mut().find(|object| object.name == name);
                    trigger.expect("it was created before").fire_always();
                }
            }
            ["ALTER", "TABLE", table, "REPLICA", ..] => {
                let table = objects.iter_mut().find(|object| object.kind == ObjectKind::Table && object.name == table);
                table.expect("it was created before").alter = statement.to_owned();
            }
            _ => {}
        }
    }
    objects.sort_by_key(|object| object.kind);
    objects
}

impl Object {
    /// What can't be restored without what it contained.
    fn lost(kind: ObjectKind, table: &'static str, name: &str, state: &str) -> Self {
        let (name, state) = (name.to_owned(), state.to_owned());
        Self { kind, table, name, state, create: String::new(), alter: String::new() }
    }

    fn column(table: &'static str, name: &str, kind: &str, is_not_null: bool) -> Self {
        let kind = if kind == "timestamptz" { "timestamp with time zone" } else { kind };
        let (state, change) = if is_not_null { (" not null", "SET") } else { ("", "DROP") };
        let alter = format!("ALTER TABLE {table} ALTER COLUMN {name} {change} NOT NULL");
        Self { alter, ..Self::lost(ObjectKind::Column, table, name, &format!("{kind}{state}")) }
    }

    fn constraint(table: &'static str, name: &str, definition: &str) -> Self {
        let create = format!("ALTER TABLE {table} ADD CONSTRAINT {name} {definition}");
        let alter = format!("ALTER TABLE {table} VALIDATE CONSTRAINT {name}");
        Self { create, alter, ..Self::lost(ObjectKind::Constraint, table, name, "valid") }
    }

    fn index(table: &'static str, name: &str, statement: &str, state: &str, dialect: Dialect) -> Self {
        let state = if dialect == Dialect::Sqlite { &normalized(statement) } else { state };
        let (create, alter) = (statement.to_owned(), format!("DROP INDEX {name}; {statement}"));
        Self { create, alter, ..Self::lost(ObjectKind::Index, table, name, state) }
    }

    fn trigger(table: &'static str, name: &str, statement: &str, dialect: Dialect) -> Self {
        let create = statement.to_owned();
        let (state, alter) = match dialect {
            Dialect::Postgres => ("O".to_owned(), format!("ALTER TABLE {table} ENABLE TRIGGER {name}")),
            Dialect::Sqlite => (normalized(statement), format!("DROP TRIGGER {name}; {statement}")),
        };
        Self { create, alter, ..Self::lost(ObjectKind::Trigger, table, name, &state) }
    }

    /// Makes a trigger one that fires for replicated rows too.
    fn fire_always(&mut self) {
        self.state = "A".to_owned();
        self.alter = format!("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}", self.table, self.name);
        self.create = format!("{}; {}", self.create, self.alter);
    }
}

/// Adds a table, its columns, and on Postgres its constraints, with the names that Postgres gives them.
fn add_table(objects: &mut Vec<Object>, table: &'static str, statement: &'static str, dialect: Dialect) {
    let alter = format!("ALTER TABLE {table} REPLICA IDENTITY DEFAULT");
    objects.push(Object { alter, ..Object::lost(ObjectKind::Table, table, table, "") });
    let body = statement.split_once('(').and_then(|(_, body)| body.rsplit_once("\n)")).expect("a table has columns").0;
    for part in split_outside(&without_comments(body), ',') {
        let words = split_outside(&part, ' ');
        let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
        match (words.as_slice(), dialect) {
            (["CONSTRAINT" | "PRIMARY" | "CHECK" | "UNIQUE" | "FOREIGN", ..], Dialect::Sqlite) => {}
            (["CONSTRAINT", name, definition @ ..], Dialect::Postgres) => {
                objects.push(Object::constraint(table, name, &definition.join(" ")));
            }
            (["PRIMARY", "KEY", ..], Dialect::Postgres) => {
                objects.push(Object::constraint(table, &format!("{table}_pkey"), &words.join(" ")));
            }
            ([name, kind, ..], Dialect::Sqlite) => {
                objects.push(Object::lost(ObjectKind::Column, table, name, kind));
            }
            ([name, kind, clauses @ ..], Dialect::Postgres) => add_column(objects, table, name, kind, clauses),
            _ => unreachable!("a column has a type"),
        }
    }
}

/// Adds a column of Postgres and its constraints.
fn add_column(objects: &mut Vec<Object>, table: &'static str, column: &str, kind: &str, clauses: &[&str]) {
    let has = |clause: [&str; 2]| clauses.windows(2).any(|words| *words == clause);
    let is_key = has(["PRIMARY", "KEY"]);
    objects.push(Object::column(table, column, kind, is_key || has(["NOT", "NULL"])));
    if is_key {
        objects.push(Object::constraint(table, &format!("{table}_pkey"), &format!("PRIMARY KEY ({column})")));
    }
    let mut given = None;
    for (at, clause) in clauses.iter().enumerate() {
        let (suffix, definition) = match *clause {
            "CONSTRAINT" => {
                given = Some(clauses[at + 1].to_owned());
                continue;
            }
            "UNIQUE" => ("key", format!("UNIQUE ({column})")),
            "CHECK" => ("check", format!("CHECK {}", clauses[at + 1])),
            "REFERENCES" => {
                let is_other = |word: &&str| matches!(*word, "CHECK" | "NOT" | "UNIQUE" | "CONSTRAINT" | "DEFAULT");
                let end = clauses[at..].iter().position(is_other).map_or(clauses.len(), |end| at + end);
                ("fkey", format!("FOREIGN KEY ({column}) {}", clauses[at..end].join(" ")))
            }
            _ => continue,
        };
        let name = given.take().unwrap_or_else(|| format!("{table}_{column}_{suffix}"));
        objects.push(Object::constraint(table, &name, &definition));
    }
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

/// Replaces comments and line breaks with blanks.
fn without_comments(statement: &str) -> String {
    let code = |line| str::split_once(line, "--").map_or(line, |(code, _)| code);
    statement.lines().map(code).collect::<Vec<_>>().join(" ")
}

/// The parts between separators that are outside of parentheses and texts.
fn split_outside(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut depth, mut quote) = (vec![String::new()], 0, None);
    for letter in text.trim().chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(letter),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, _) if letter == separator && depth == 0 => {
                parts.push(String::new());
                continue;
            }
            (None, _) => {}
        }
        parts.last_mut().expect("there is one").push(letter);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(dialect: Dialect, name: &str) -> &'static Object {
        expected(dialect).iter().find(|object| object.name == name).expect(name)
    }

    #[test]
    fn a_script_is_read_as_the_database_reads_it() {
        let email = find(Dialect::Postgres, "users_email_check");
        assert_eq!(
            email.create,
            "ALTER TABLE users ADD CONSTRAINT users_email_check CHECK (length(email) BETWEEN 1 AND 320)"
        );
        let member = find(Dialect::Postgres, "group_members_group_id_fkey");
        assert!(
            member.create.ends_with("FOREIGN KEY (group_id) REFERENCES groups ON UPDATE CASCADE ON DELETE CASCADE"),
            "{}",
            member.create
        );
        let written = find(Dialect::Postgres, "submissions_written");
        assert_eq!((written.table, written.state.as_str()), ("submissions", "A"));
        assert!(written.create.ends_with("ALTER TABLE submissions ENABLE ALWAYS TRIGGER submissions_written"));
        let inserted = find(Dialect::Sqlite, "submissions_inserted");
        assert!(inserted.state.starts_with("CREATE TRIGGER submissions_inserted AFTER INSERT ON submissions BEGIN"));
        assert!(inserted.state.ends_with("; END"), "{}", inserted.state);
        assert_eq!(find(Dialect::Sqlite, "audit_log_is_not_updated").table, "audit_log");
    }

    #[test]
    fn both_scripts_have_the_same_tables() {
        let tables = |dialect| {
            let tables = expected(dialect).iter().filter(|object| object.kind == ObjectKind::Table);
            tables.map(|object| object.table).filter(|table| !table.contains("trigram")).collect::<Vec<_>>()
        };
        assert_eq!(tables(Dialect::Postgres), tables(Dialect::Sqlite));
        assert!(tables(Dialect::Postgres).len() > 25);
    }
}
