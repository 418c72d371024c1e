//! Every statement of the program: both databases take it, and none reads a table whole that grows, unless it says why.
//!
//! The statements are read from the source, where `sql!` takes each as one text. A statement with parts is prepared with an
//! example of each; which parts a search is made of is tried in `api::submission::plan`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use formgate::store::registry::Registry;
use formgate::store::{DatabaseLocation, statement_texts};
use serde_json::Value;

use super::restored::run;
use crate::api::submission::plan;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::folder;
use crate::support::postgres::Postgres;
use crate::support::process::formgate_with_environment;

/// The tables that stay short, whatever an account does, and why.
const SHORT: &[&str] = &[
    // One row.
    "registry_acme_account",
    "registry_counts",
    "change_state",
    "audit_state",
    "database_identity",
    "registry_head",
    "_sqlx_migrations",
    // What writers note until it is settled, which is within moments.
    "intake",
    "form_notes",
    "stale_counts",
    // At most 100 (`MAX_SUBSCRIPTIONS`).
    "subscriptions",
    // One a day for 400 days, a node, and a crash.
    "read_days",
    "read_nodes",
    "read_gaps",
    // One a node, and some that an operator made.
    "registry_nodes",
    "registry_holds",
    "operator_tokens",
];

/// An example of each part, by its name, behind its file if it is not the same everywhere. Read when the test runs.
const PARTS: &str = "tests/it/databases/parts.tsv";

/// A statement in the source.
struct Statement {
    /// The file, below `src/store`.
    file: String,
    /// The file and the line.
    place: String,
    text: String,
}

impl Statement {
    fn is_of_registry(&self) -> bool {
        self.file.starts_with("registry")
    }

    /// Whether it is a whole one, not a part of others.
    fn is_whole(&self) -> bool {
        let text = self.text.trim_start_matches("{pg: ").trim_start_matches("{lite: ").trim_start();
        if text.starts_with("UPDATE SET") {
            return false;
        }
        let verb = text.split(|letter: char| !letter.is_ascii_alphabetic()).next().unwrap_or_default();
        ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"].contains(&verb)
    }

    /// Whether it, or the example of a part, says why it may read a whole table.
    fn says_why(&self, parts: &Parts) -> bool {
        let of_part = |(at, _): (usize, &str)| {
            let name = self.text[at + 2..].split('}').next().unwrap_or_default();
            parts.of(&self.file, name).contains("{scans: ")
        };
        self.text.contains("{scans: ") || self.text.match_indices("{+").any(of_part)
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            files(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
}

/// The text of a literal of Rust that begins here, after its quotation mark.
fn literal(source: &str) -> String {
    let (mut text, mut letters) = (String::new(), source.chars().peekable());
    while let Some(letter) = letters.next() {
        match letter {
            '"' => return text,
            '\\' => match letters.next() {
                Some('\n') => while letters.next_if(|letter| letter.is_whitespace()).is_some() {},
                Some('n') => text.push('\n'),
                Some(escaped @ ('"' | '\\' | '\'')) => text.push(escaped),
                other => panic!("a statement has the escape {other:?}"),
            },
            _ => text.push(letter),
        }
    }
    panic!("a literal without an end: {text}")
}

/// All statements of the source but those of unit tests.
fn statements() -> Vec<Statement> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
    let (mut found, mut paths) = (Vec::new(), Vec::new());
    files(&root, &mut paths);
    let is_code = |path: &&PathBuf| !path.ends_with("tests.rs") && !path.starts_with(root.join("statement"));
    for path in paths.iter().filter(is_code) {
        let source = fs::read_to_string(path).unwrap();
        let code = source.split("#[cfg(test)]\nmod tests").next().unwrap();
        for (at, _) in code.match_indices("sql!(") {
            let line = code[..at].lines().count();
            let rest = code[at + "sql!(".len()..].trim_start();
            if let Some(begun) = rest.strip_prefix('"') {
                let file = path.strip_prefix(&root).unwrap().display().to_string();
                found.push(Statement { place: format!("{file}:{line}"), file, text: literal(begun) });
            }
        }
    }
    found
}

/// Examples of parts.
struct Parts(Vec<[String; 2]>);

impl Parts {
    fn read() -> Self {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PARTS)).unwrap();
        let line = |line: &str| line.split_once('\t').map(|(name, text)| [name.to_owned(), text.to_owned()]).unwrap();
        Self(text.lines().map(line).collect())
    }

    /// An example of a part in a file. A condition may be any.
    fn of(&self, file: &str, name: &str) -> String {
        let in_file = format!("{file} {name}");
        let named = |wanted: &str| self.0.iter().find(|[name, _]| *name == wanted);
        match named(&in_file).or_else(|| named(name)) {
            Some([_, text]) => text.clone(),
            None if ["is_", "has_", "are_", "may_"].iter().any(|verb| name.starts_with(verb)) => "true".to_owned(),
            None => panic!("{PARTS} has no example of the part `{name}` in {file}"),
        }
    }
}

/// A connection whose planner goes by what indexes there are, not by how much is in a table now.
async fn to_be_looked_up(url: &str) -> Database {
    let database = Database::connect(url).await;
    match &database {
        Database::Postgres(_) => {
            database
                .execute(
                    "UPDATE pg_class SET relpages = least(relpages, 1), \
                       reltuples = CASE WHEN relpages > 0 THEN 100000 ELSE -1 END \
                     WHERE relkind = 'r' AND relnamespace = current_schema::regnamespace; \
                     DELETE FROM pg_statistic; SET plan_cache_mode = force_generic_plan; \
                     SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
                )
                .await;
            database
        }
        Database::Sqlite(_) => {
            // Statistics are read when a connection is opened.
            database.execute("ANALYZE; DELETE FROM sqlite_stat1").await;
            database.close().await;
            Database::connect(url).await
        }
    }
}

/// The tables of a database that grow with what is in it.
async fn growing(database: &Database) -> BTreeSet<String> {
    let tables = match database {
        Database::Postgres(_) => {
            "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema::regnamespace"
        }
        Database::Sqlite(_) => "SELECT name FROM sqlite_schema WHERE type = 'table'",
    };
    let grows = |table: &String| !SHORT.contains(&&**table) && !table.starts_with("sqlite_");
    database.texts(tables).await.into_iter().filter(grows).collect()
}

/// The tables that a statement reads whole. An error if the database does not take it.
async fn read_whole(database: &Database, text: &str, growing: &BTreeSet<String>) -> Result<Vec<String>, String> {
    match database {
        Database::Postgres(_) => {
            let mut found = scans(&postgres_plan(database, text).await?);
            found.retain(|table| growing.contains(table) && !is_asked_for_one_row(text, table));
            Ok(found)
        }
        Database::Sqlite(_) => {
            let plan = database.steps(text).await.map_err(|error| error.to_string())?;
            let scanned = plan.iter().filter_map(|step| step.strip_prefix("SCAN "));
            // A scan in the order of an index stops at the limit.
            let is_bounded = ["LIMIT", "EXISTS", "min(", "max("].iter().any(|word| text.contains(word));
            let whole = scanned.filter(|step| !(is_bounded && step.contains(" USING ")));
            let named = whole.map(|step| table_of(text, step.split(' ').next().expect("a name")));
            Ok(named.filter(|table| growing.contains(table) && !is_asked_for_one_row(text, table)).collect())
        }
    }
}

/// Whether a statement only asks whether a table has a row.
fn is_asked_for_one_row(text: &str, table: &str) -> bool {
    text.contains(&format!("EXISTS (SELECT 1 FROM {table})"))
}

/// The table that has a name in a statement.
fn table_of(text: &str, name: &str) -> String {
    // A subquery has it.
    if [") ", ") AS "].iter().any(|before| text.contains(&format!("{before}{name}"))) {
        return String::new();
    }
    let words: Vec<&str> =
        text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty()).collect();
    let after = ["FROM", "JOIN", "INTO", "UPDATE"];
    for (at, word) in words.iter().enumerate().skip(1) {
        let table = if words[at - 1] == "AS" && at > 1 { words[at - 2] } else { words[at - 1] };
        let introduced = words
            .iter()
            .position(|known| *known == table)
            .is_some_and(|first| first > 0 && after.contains(&words[first - 1]));
        if *word == name && introduced {
            return table.to_owned();
        }
    }
    name.to_owned()
}

/// The tables that a plan of Postgres reads whole: without a condition that an index takes, and not only as far as a limit.
fn scans(plan: &[String]) -> Vec<String> {
    let depth = |line: &str| line.find(|letter: char| letter.is_alphanumeric()).unwrap_or_default();
    let mut found = Vec::new();
    for (at, line) in plan.iter().enumerate() {
        let Some((node, table)) = line.trim_start_matches([' ', '-', '>']).split_once(" on ") else { continue };
        let details = plan[at + 1..].iter().take_while(|next| !next.contains("->") && depth(next) > depth(line));
        let is_looked_up = details.into_iter().any(|next| next.trim_start().starts_with("Index Cond:"));
        let mut above = depth(line);
        let is_limited = plan[..at].iter().rev().any(|line| {
            let is_parent = depth(line) < above && line.contains("cost=");
            above = above.min(if is_parent { depth(line) } else { above });
            is_parent && line.contains("Limit ")
        });
        let is_index = node.starts_with("Index Scan") || node.starts_with("Index Only Scan");
        if node.starts_with("Seq Scan") || is_index && !is_looked_up && !is_limited {
            found.push(table.split(' ').next().expect("a name").to_owned());
        }
    }
    found
}

/// The plan for any values, where reading a table whole costs more than any other way.
async fn postgres_plan(database: &Database, text: &str) -> Result<Vec<String>, String> {
    let count = (1..).take_while(|number| text.contains(&format!("${number}"))).count();
    let mut kinds = vec!["unknown"; count];
    loop {
        let of_kinds = if kinds.is_empty() { String::new() } else { format!("({})", kinds.join(", ")) };
        let Err(error) = database.try_execute(&format!("PREPARE listed {of_kinds} AS {text}")).await else { break };
        // A value that could be of any type, such as one that is only selected.
        let message = error.to_string();
        let number = message
            .split("data type of parameter $")
            .nth(1)
            .map(|rest| rest.trim_end_matches(|letter: char| !letter.is_ascii_digit()));
        match number.and_then(|number| number.parse::<usize>().ok()) {
            Some(number) if kinds[number - 1] == "unknown" => kinds[number - 1] = "text",
            _ => return Err(message),
        }
    }
    let values = if count == 0 { String::new() } else { format!("({})", vec!["NULL"; count].join(", ")) };
    let lines = database.texts(&format!("EXPLAIN EXECUTE listed {values}")).await;
    database.execute("DEALLOCATE listed").await;
    Ok(lines)
}

#[test]
fn statements_are_found_in_the_source() {
    let found = statements();
    assert!(found.len() > 200, "{}", found.len());
    assert!(found.iter().any(|statement| statement.is_of_registry() && statement.text.contains("registry_domains")));
    assert_eq!(
        literal(
            r#"a \"b\" \
        c" d"#
        ),
        "a \"b\" c"
    );
    assert_eq!(table_of("SELECT 1 FROM submissions s JOIN forms AS f", "s"), "submissions");
    assert_eq!(table_of("SELECT 1 FROM submissions s JOIN forms AS f", "f"), "forms");
}

on_both_databases! {
    async fn every_statement_is_taken_and_reads_no_growing_table_whole_without_saying_why(engine: Engine) {
        let registry_url = match engine {
            Engine::Sqlite => format!("sqlite:{}", folder::of_this_run().join("statements-registry.db").display()),
            Engine::Postgres | Engine::PostgresOn(_) => Postgres::database(),
        };
        Registry::open(&DatabaseLocation::parse(&registry_url, Path::new("/")).unwrap()).await.unwrap().close().await;
        let tenant = to_be_looked_up(&plan::filled_database(engine).await).await;
        let registry = to_be_looked_up(&registry_url).await;
        let growing_tables = [growing(&tenant).await, growing(&registry).await];
        let (mut faults, parts) = (Vec::new(), Parts::read());
        for statement in statements().iter().filter(|statement| statement.is_whole()) {
            let (database, growing) = if statement.is_of_registry() {
                (&registry, &growing_tables[1])
            } else {
                (&tenant, &growing_tables[0])
            };
            let [postgres, sqlite] = statement_texts(&statement.text, &|name| parts.of(&statement.file, name));
            let text = if engine == Engine::Sqlite { sqlite } else { postgres };
            // The statement is only for the other database.
            if text.is_empty() {
                continue;
            }
            match read_whole(database, &text, growing).await {
                Err(error) => faults.push(format!("{}: {error}\n    {text}", statement.place)),
                Ok(tables) if !tables.is_empty() && !statement.says_why(&parts) => {
                    faults.push(format!("{} reads whole: {}\n    {text}", statement.place, tables.join(", ")));
                }
                Ok(_) => {}
            }
        }
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    }
}

/// Otherwise an export of a form would read the whole form for every few hundred submissions.
#[tokio::test]
async fn the_submissions_of_a_form_among_some_are_looked_up_by_id_whatever_statistics_say() {
    let (url, parts) = (plan::filled_database(Engine::Sqlite).await, Parts::read());
    let is_it =
        |statement: &Statement| statement.file == "derived/search/by_id.rs" && statement.text.contains("wanted");
    let statement = statements().into_iter().find(is_it).expect("a statement");
    let [_, text] = statement_texts(&statement.text, &|name| parts.of(&statement.file, name));
    for row in ["'forms', NULL, '1'", "'listed_submissions', 'listed_form_updated', '51 11 1 1'"] {
        let database = Database::connect(&url).await;
        database.execute(&format!("ANALYZE; DELETE FROM sqlite_stat1; INSERT INTO sqlite_stat1 VALUES ({row})")).await;
        database.close().await;
        let database = Database::connect(&url).await;
        let steps = database.steps(&text).await.expect("a plan");
        assert!(steps.iter().any(|step| step.starts_with("SEARCH s USING INTEGER PRIMARY KEY")), "{row}: {steps:?}");
        database.close().await;
    }
}

/// The statements that a command logs.
fn logged(site: &Site, command: &[&str]) -> Vec<String> {
    let config = site.config_path.to_str().expect("the temporary folder has a UTF-8 name");
    let output = formgate_with_environment(
        &[command, &["--config", config]].concat(),
        &[("FORMGATE_LOG", "formgate::store=debug")],
    );
    assert_eq!(output.code, 0, "{output:?}");
    let lines = output.stderr.lines().map(|line| serde_json::from_str::<Value>(line).expect("the log is JSON"));
    lines.filter_map(|line| Some(line["statement"].as_str()?.to_owned())).collect()
}

on_both_databases! {
    async fn a_logged_statement_can_be_pasted(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        site.token("acme", "It's \\ \"quoted\"");
        let url = site.database_url("acme");
        let mut count = 0;
        for command in [
            &["token", "create", "--tenant", "acme", "--name", "It's another", "--expires", "30d"][..],
            &["token", "list", "--tenant", "acme"],
            &["audit", "list", "--tenant", "acme", "--since", "2026-01-01"],
            &["webhook", "list", "--tenant", "acme"],
        ] {
            for statement in logged(&site, command) {
                // A row that is there is not inserted again.
                let statement = if statement.starts_with("SELECT") { statement } else { format!("EXPLAIN {statement}") };
                match url.strip_prefix("sqlite:") {
                    Some(file) => {
                        let pasted = Command::new("sqlite3").args(["-bail", file, &statement]).output();
                        let pasted = pasted.expect("sqlite3 is installed");
                        assert!(pasted.status.success(), "{statement}: {pasted:?}");
                    }
                    None => run("psql", &["--quiet", "--set=ON_ERROR_STOP=1", "--command", &statement, url]),
                }
                count += 1;
            }
        }
        assert!(count >= 8, "{count}");
    }
}
