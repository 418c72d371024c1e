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
    // One a node.
    "registry_nodes",
];

/// An example of each part, by its name, in a file if it is not the same everywhere.
const PARTS: &[(&str, &str)] = &[
    ("epoch", "'e'"),
    ("stamp_of_last", "0"),
    ("stamp_of_seen", "0"),
    ("is_settled", "NOT EXISTS (SELECT 1 FROM intake)"),
    ("with_sub_forms", "(SELECT 1 AS id)"),
    ("was_within", "= 1"),
    ("is_within", "= 1"),
    ("was_within_later", "= 1"),
    ("within", "= 1"),
    ("counted", "'forms'"),
    ("counted_rows", "FROM forms WHERE NOT disabled AND parent_id IS NULL"),
    ("count_of_block", "0"),
    ("stale_blocks", "(SELECT 1 AS key) AS n"),
    ("left_out", "(SELECT 1 AS key) AS n"),
    ("all_are_stale", "false"),
    ("statement", "SELECT 1"),
    ("total", "0"),
    ("stale", "0"),
    ("columns", "1"),
    ("engine/bulk.rs columns", "submission_id, shown_in, term"),
    ("submissions.rs columns", "m.id, m.child_of, m.form_id, m.status, m.created_at, m.updated_at"),
    ("submissions/parts.rs columns", "m.id, m.child_of, m.form_id, m.status, m.created_at, m.updated_at"),
    (
        "shown",
        "SELECT id, parent_id AS child_of, form_id, status, created_at, updated_at FROM submissions WHERE id = 1",
    ),
    ("among", "= 1"),
    ("found", "SELECT 0, true"),
    ("page", "SELECT 1 AS id, 2 AS at"),
    ("page_rows", "SELECT 1 AS id"),
    ("order_of_page", "ORDER BY at, id"),
    ("order_of_index", "ORDER BY s.updated_at, s.id"),
    ("order_of_label", "updated_at, submission_id"),
    ("order_of_days", "key"),
    ("column", "updated_at"),
    ("conditions", "s.form_id = 1"),
    ("of_counts", "counted = 'form'"),
    ("has_status", "true"),
    ("groups", "(SELECT 1 AS form) AS f"),
    ("span", "s.created_at > NULL"),
    ("span_of_near", "s.created_at > NULL"),
    ("counts", "0"),
    ("count", "SELECT 0"),
    ("matched", "matched (id, at) AS (SELECT 1, 2)"),
    ("hits", "SELECT 1 AS id"),
    ("forms", "(SELECT 1 AS id)"),
    ("children", "LATERAL (SELECT 1 AS id)"),
    ("climbed_from", "(SELECT id FROM forms WHERE id = 1)"),
    ("last", "max(key)"),
    ("shared", "true"),
    ("action", "NOTHING"),
    ("after", "u.email_folded > NULL"),
    ("arrays", "'{}'::text[], '{}'::text[], '{}'::text[]"),
    ("asked", ", asked = fence + 1"),
    ("assignments", "failures = 0"),
    ("batch", "(SELECT submission_id, shown_in, document FROM listed_documents WHERE submission_id = 1) AS batch"),
    ("behind_skipped", ""),
    ("branch", "true"),
    ("condition", "true"),
    ("days", "SELECT 0"),
    ("derived", "1, 2"),
    ("differs", "false"),
    ("every_id", "SELECT id FROM submissions"),
    ("expires_soon", "false"),
    ("fields", "1"),
    ("filter", ""),
    ("first", ""),
    ("form", "form_id"),
    ("further", ""),
    ("given", ""),
    ("head_stamp", "0"),
    ("id", "id"),
    ("ids", "detached_ids"),
    ("insert", "INSERT INTO webhook_attempts SELECT * FROM webhook_attempts WHERE id = 1"),
    ("insertion", "INSERT INTO listed_terms (submission_id, shown_in, term) SELECT 1, 2, 3"),
    ("it", "true"),
    ("kept", "submission_id"),
    ("key", "submission_id"),
    ("latest", "SELECT host, slug, next_at FROM registry_domains WHERE host = NULL"),
    ("misdated", "SELECT host, slug, next_at FROM registry_domains WHERE host = NULL"),
    ("oldest", "SELECT host, slug, next_at FROM registry_domains WHERE host = NULL"),
    ("leased_until", "NULL"),
    ("limit", " LIMIT 1"),
    ("looked_up", "true"),
    ("looked_up_beyond", "true"),
    ("max_bytes", "1"),
    ("max_text", "1"),
    ("member_count", "0"),
    ("members", "0"),
    ("name", "listed_terms"),
    ("next_attempt", "NULL"),
    ("noted", "'forms'"),
    ("number", "1"),
    ("of_others", "true"),
    ("order", "next_at"),
    ("others", ""),
    ("owner", "submission_id"),
    ("previous", "previous_secret = secret"),
    ("recounted", "SELECT 'form', 1, '', 1"),
    ("referenced", "submissions"),
    ("released", "0"),
    ("rest", ""),
    ("revision", "1"),
    ("rows", ""),
    ("scanned", "true"),
    ("search", "SELECT 1"),
    ("select", "SELECT 1 FROM group_syncs s"),
    ("selected", "1, 2, 3"),
    ("side", "SELECT 1"),
    ("source", "users u WHERE true"),
    ("stamp", "0"),
    ("stamp_now", "0"),
    ("status", "s.status"),
    ("steps", "WHEN true THEN true"),
    ("stored", "0"),
    ("sum", "term"),
    ("table", "listed_terms"),
    ("tables", "forms"),
    ("update", "UPDATE subscriptions SET failures = 0 WHERE id = 1 RETURNING state"),
    ("user_count", "0"),
    ("wanted", "(SELECT NULL AS folded, NULL AS email, NULL AS name) AS w"),
    ("wrong", ""),
    ("known", "SELECT 1"),
];

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
        let verb = text.split(|letter: char| !letter.is_ascii_alphabetic()).next().unwrap_or_default();
        ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"].contains(&verb)
    }

    fn says_why(&self) -> bool {
        self.text.contains("{scans: ")
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
    for path in paths.iter().filter(|path| !path.ends_with("tests.rs")) {
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

/// An example of a part in a file. A condition may be any.
fn part(file: &str, name: &str) -> &'static str {
    let in_file = format!("{file} {name}");
    match PARTS.iter().find(|(known, _)| *known == in_file).or_else(|| PARTS.iter().find(|(known, _)| *known == name)) {
        Some((_, text)) => text,
        None if ["is_", "has_", "are_", "may_"].iter().any(|verb| name.starts_with(verb)) => "true",
        None => panic!("there is no example of the part `{name}`"),
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
    database.texts(tables).await.into_iter().filter(|table| !SHORT.contains(&&**table)).collect()
}

/// The tables that a statement reads whole. An error if the database does not take it.
async fn read_whole(database: &Database, text: &str, growing: &BTreeSet<String>) -> Result<Vec<String>, String> {
    match database {
        Database::Postgres(_) => {
            let plan: Value = serde_json::from_str(&postgres_plan(database, text).await?).expect("it is JSON");
            let mut found = Vec::new();
            scans(&plan[0]["Plan"], false, &mut found);
            found.retain(|table| growing.contains(table));
            Ok(found)
        }
        Database::Sqlite(_) => {
            let plan = database.steps(text).await.map_err(|error| error.to_string())?;
            let scanned = plan.iter().filter_map(|step| step.strip_prefix("SCAN "));
            // What is read in the order of an index is read as far as it is wanted.
            let is_bounded = ["LIMIT", "EXISTS", "min(", "max("].iter().any(|word| text.contains(word));
            let whole = scanned.filter(|step| !(is_bounded && step.contains(" USING ")));
            let named = whole.map(|step| table_of(text, step.split(' ').next().expect("a name")));
            Ok(named.filter(|table| growing.contains(table)).collect())
        }
    }
}

/// The table that has a name in a statement.
fn table_of(text: &str, name: &str) -> String {
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
fn scans(node: &Value, is_limited: bool, found: &mut Vec<String>) {
    let kind = node["Node Type"].as_str().unwrap_or_default();
    let is_whole = match kind {
        "Seq Scan" => true,
        "Index Scan" | "Index Only Scan" | "Bitmap Index Scan" => node["Index Cond"].is_null() && !is_limited,
        _ => false,
    };
    if let Some(table) = node["Relation Name"].as_str().filter(|_| is_whole) {
        found.push(table.to_owned());
    }
    for child in node["Plans"].as_array().into_iter().flatten() {
        scans(child, is_limited || kind == "Limit", found);
    }
}

/// The plan for any values, where reading a table whole costs more than any other way.
async fn postgres_plan(database: &Database, text: &str) -> Result<String, String> {
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
    let plan = database.text(&format!("EXPLAIN (FORMAT JSON) EXECUTE listed {values}")).await;
    database.execute("DEALLOCATE listed").await;
    Ok(plan)
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
        let tenant = Database::connect(&plan::filled_database(engine).await).await;
        let registry_url = match engine {
            Engine::Sqlite => format!("sqlite:{}", folder::of_this_run().join("statements-registry.db").display()),
            Engine::Postgres | Engine::PostgresOn(_) => Postgres::database(),
        };
        Registry::open(&DatabaseLocation::parse(&registry_url, Path::new("/")).unwrap()).await.unwrap().close().await;
        let registry = Database::connect(&registry_url).await;
        let mut faults = Vec::new();
        let mut growing_tables = Vec::new();
        for database in [&tenant, &registry] {
            if engine != Engine::Sqlite {
                database.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off").await;
            }
            growing_tables.push(growing(database).await);
        }
        for statement in statements().iter().filter(|statement| statement.is_whole()) {
            let (database, growing) = match statement.is_of_registry() {
                true => (&registry, &growing_tables[1]),
                false => (&tenant, &growing_tables[0]),
            };
            let [postgres, sqlite] = statement_texts(&statement.text, &|name| part(&statement.file, name));
            let text = if engine == Engine::Sqlite { sqlite } else { postgres };
            // A statement for the other database alone.
            if text.is_empty() {
                continue;
            }
            match read_whole(database, &text, growing).await {
                Err(error) => faults.push(format!("{}: {error}\n    {text}", statement.place)),
                Ok(tables) if !tables.is_empty() && !statement.says_why() => {
                    faults.push(format!("{} reads whole: {}\n    {text}", statement.place, tables.join(", ")));
                }
                Ok(_) => {}
            }
        }
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
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
                    None => run("psql", &["--quiet", "--set=ON_ERROR_STOP=1", "--command", &statement, &url]),
                }
                count += 1;
            }
        }
        assert!(count >= 8, "{count}");
    }
}
