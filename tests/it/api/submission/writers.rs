//! Several writers at once, at random: whatever they do, in whatever order it commits, what is derived is right.
//!
//! Each runs transactions of random statements on the same few rows, with savepoints, rollbacks and, on Postgres, every
//! isolation level, while others search. On SQLite some of them set `recursive_triggers`, and one has no foreign keys. Now and then
//! they pause: then every search must say what a query of the plain tables says, and `reindex` must find nothing wrong. On
//! Postgres, triggers are also disabled for a while, as for a load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::{Barrier, Mutex};

use crate::api::account::{Account, account};
use crate::api::changes::follower::{Follower, all_submissions};
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::rewind::Rewind;

const WRITERS: usize = 5;

/// How long they write in all, and between two pauses.
const LONG: Duration = Duration::from_secs(30);
const ROUND: Duration = Duration::from_secs(3);

const SUBMISSIONS: i64 = 25;
const FORMS: i64 = 4;
const LABELS: i64 = 3;
const WORDS: [&str; 8] = ["Passport", "Berlin", "Łódź", "ΟΔΥΣ", "ΟΔΥΣΣΕΥΣ", "straße", "two\nlines", "lines\nBerlin"];

/// The tables that they write most.
const NOTED: [&str; 3] = ["answers", "submission_labels", "submissions"];

/// How many statements write while triggers are disabled.
const UNNOTICED: usize = 10;

/// What keywords find, in lower case.
const KEYWORDS: [&str; 7] = ["passport", "berlin", "łódź", "οδυσ", "straß", "lines", "be"];

/// Four forms with two elements each; every second one is graduated.
pub(crate) fn beginning(engine: Engine) -> String {
    let graduated = if engine == Engine::Postgres { ["false", "true"] } else { ["0", "1"] };
    let mut text = String::new();
    for form in 1..=FORMS {
        let is_graduated = graduated[usize::from(form % 2 == 0)];
        text += &format!("INSERT INTO forms (id, name, graduated) VALUES ({form}, 'F', {is_graduated}); ");
        for element in [form * 10, form * 10 + 1] {
            text += &format!(
                "INSERT INTO elements (id, form_id, position, gid, name, type) VALUES ({element}, {form}, 1, 'g', 'N', 'text'); "
            );
        }
    }
    for label in 1..=LABELS {
        text += &format!("INSERT INTO labels (id, name) VALUES ({label}, 'L'); ");
    }
    text
}

/// Statements at random.
pub(crate) struct Writer {
    random: StdRng,
    engine: Engine,
}

impl Writer {
    pub(crate) fn new(engine: Engine, seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), engine }
    }

    fn submission(&mut self) -> i64 {
        self.random.random_range(1..=SUBMISSIONS)
    }

    fn element(&mut self) -> i64 {
        self.random.random_range(1..=FORMS) * 10 + self.random.random_range(0..2)
    }

    fn instant(&mut self) -> String {
        let seconds = self.random.random_range(1_700_000_000..1_700_400_000_i64);
        match self.engine {
            Engine::Postgres | Engine::PostgresOn(_) => format!("to_timestamp({seconds})"),
            Engine::Sqlite => format!("{seconds}000000"),
        }
    }

    fn parent(&mut self) -> String {
        if self.random.random_bool(0.4) { self.submission().to_string() } else { "NULL".to_owned() }
    }

    fn statement(&mut self) -> String {
        let (id, other, element, at) = (self.submission(), self.submission(), self.element(), self.instant());
        let form = self.random.random_range(1..=FORMS);
        let label = self.random.random_range(1..=LABELS);
        let word = WORDS.choose(&mut self.random).expect("there are some");
        let statements = if self.engine == Engine::Sqlite { 43 } else { 35 };
        match self.random.random_range(0..statements) {
            0..=4 => format!(
                "INSERT INTO submissions (id, form_id, parent_id, status, created_at, updated_at) \
                 VALUES ({id}, {form}, {}, 'pending', {at}, {at}) ON CONFLICT DO NOTHING",
                self.parent()
            ),
            5 | 6 => format!("UPDATE submissions SET status = 'approved', updated_at = {at} WHERE id = {id}"),
            7 => format!("UPDATE submissions SET form_id = {form} WHERE id = {id}"),
            8 | 9 => format!("UPDATE submissions SET parent_id = {} WHERE id = {id}", self.parent()),
            10 => format!("UPDATE submissions SET draft = NOT draft WHERE id IN ({id}, {other})"),
            11 => format!(
                "UPDATE submissions SET id = {other} + 100 WHERE id = {id} AND NOT EXISTS (SELECT 1 FROM submissions WHERE parent_id = {id})"
            ),
            12 | 13 => format!("DELETE FROM submissions WHERE id IN ({id}, {other} + 100)"),
            14..=19 => format!(
                "INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({id}, {element}, '{word}', {at}) \
                 ON CONFLICT (submission_id, element_id) DO UPDATE SET value = excluded.value"
            ),
            20 | 21 => format!("UPDATE answers SET value = '{word}' WHERE submission_id = {id}"),
            22 => format!(
                "UPDATE answers SET submission_id = {other} WHERE submission_id = {id} AND element_id = {element}"
            ),
            23 => format!(
                "UPDATE answers SET element_id = {element} WHERE submission_id = {id} AND element_id < {element}"
            ),
            24 => format!("DELETE FROM answers WHERE submission_id = {id}"),
            25..=27 => format!(
                "INSERT INTO submission_labels (submission_id, label_id) VALUES ({id}, {label}) ON CONFLICT DO NOTHING"
            ),
            28 => format!("UPDATE submission_labels SET label_id = {label} WHERE submission_id = {id}"),
            29 => format!("DELETE FROM submission_labels WHERE submission_id IN ({id}, {other})"),
            30 => format!("UPDATE forms SET graduated = NOT graduated WHERE id = {form}"),
            31 => format!("UPDATE submission_labels SET submission_id = {other} WHERE submission_id = {id}"),
            32 => format!("DELETE FROM submissions WHERE parent_id IS NULL AND id % 7 = {}", id % 7),
            33 => {
                let below = if self.random.random_bool(0.5) { "NULL".to_owned() } else { label.to_string() };
                format!("UPDATE forms SET parent_id = {below} WHERE id = {form}")
            }
            35 | 36 => format!(
                "INSERT OR REPLACE INTO submissions (id, form_id, parent_id, status, created_at, updated_at) \
                 VALUES ({id}, {form}, {}, 'pending', {at}, {at})",
                self.parent()
            ),
            37 => format!("UPDATE OR REPLACE submissions SET id = {other} WHERE id = {id}"),
            38 => format!(
                "INSERT OR REPLACE INTO answers (submission_id, element_id, value, updated_at) VALUES ({id}, {element}, '{word}', {at})"
            ),
            39 => format!(
                "UPDATE OR REPLACE answers SET submission_id = {other}, element_id = {element} WHERE submission_id = {id}"
            ),
            40 => format!(
                "INSERT OR REPLACE INTO submission_labels (submission_id, label_id) VALUES ({id}, {label}), ({other}, {label})"
            ),
            // With foreign keys, its elements are gone with it, unless one was answered: then it is refused.
            41 => format!(
                "INSERT OR REPLACE INTO forms (id, name, graduated) VALUES ({form}, 'F', {}); \
                 INSERT OR IGNORE INTO elements (id, form_id, position, gid, name, type) \
                 VALUES ({form}0, {form}, 1, 'g', 'N', 'text'), ({form}1, {form}, 1, 'g', 'N', 'text')",
                u8::from(self.random.random_bool(0.5))
            ),
            42 => format!("PRAGMA recursive_triggers = {}", u8::from(self.random.random_bool(0.5))),
            // Rarely: else there is nothing to compare.
            _ if !self.random.random_bool(0.1) => {
                format!("UPDATE submissions SET updated_at = {at} WHERE form_id = {form}")
            }
            _ => {
                let what = NOTED.choose(&mut self.random).expect("three");
                match self.engine {
                    // They still fire for these writers afterwards.
                    Engine::Postgres | Engine::PostgresOn(_) if self.random.random_bool(0.5) => {
                        format!("ALTER TABLE {what} DISABLE TRIGGER ALL; ALTER TABLE {what} ENABLE TRIGGER ALL")
                    }
                    Engine::Postgres | Engine::PostgresOn(_) => format!("TRUNCATE {what} CASCADE"),
                    Engine::Sqlite => format!("DELETE FROM {what} WHERE true"),
                }
            }
        }
    }

    fn begin(&mut self) -> &'static str {
        let levels = [
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            "BEGIN ISOLATION LEVEL REPEATABLE READ",
            "BEGIN ISOLATION LEVEL SERIALIZABLE",
        ];
        match self.engine {
            Engine::Postgres | Engine::PostgresOn(_) => levels.choose(&mut self.random).expect("three"),
            Engine::Sqlite => "BEGIN IMMEDIATE",
        }
    }

    /// One transaction, or one statement. What the database refuses is rolled back.
    pub(crate) async fn write(&mut self, database: &Database) {
        if self.random.random_bool(0.3) {
            database.try_execute(&self.statement()).await.ok();
            return;
        }
        let begin = self.begin();
        if database.try_execute(begin).await.is_err() {
            return;
        }
        for _ in 0..self.random.random_range(1..6) {
            let (statement, pause) = (self.statement(), self.random.random_range(0..8));
            let savepoint = self.random.random_bool(0.3);
            let outcome = if savepoint {
                let end = if self.random.random_bool(0.5) { "ROLLBACK TO a" } else { "RELEASE a" };
                database.try_execute(&format!("SAVEPOINT a; {statement}; {end}")).await
            } else {
                database.try_execute(&statement).await
            };
            if outcome.is_err() {
                database.try_execute("ROLLBACK").await.ok();
                return;
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let end = if self.random.random_bool(0.2) { "ROLLBACK" } else { "COMMIT" };
        if database.try_execute(end).await.is_err() {
            database.try_execute("ROLLBACK").await.ok();
        }
    }
}

/// Writes on Postgres while triggers are disabled, and has `reindex` find it. Foreign keys are checked.
async fn write_unnoticed(account: &Account, database: &Database, writer: &mut Writer) {
    let switch = |to: &str| NOTED.map(|table| format!("ALTER TABLE {table} {to} TRIGGER USER")).join("; ");
    database.execute(&switch("DISABLE")).await;
    for _ in 0..UNNOTICED {
        let statement = writer.statement();
        if !statement.contains("TRIGGER") {
            database.try_execute(&statement).await.ok();
        }
    }
    database.execute(&switch("ENABLE")).await;
    account.reindex();
}

/// Every submission that is shown, and the one that shows it.
const SHOWN: &str = "WITH shown AS (
    SELECT s.id, s.form_id, s.status, CASE WHEN f.graduated THEN s.parent_id ELSE s.id END AS root
    FROM submissions s LEFT JOIN submissions p ON p.id = s.parent_id LEFT JOIN forms f ON f.id = p.form_id
    WHERE NOT s.draft
), listed AS (SELECT * FROM shown WHERE root = id) SELECT count(*) FROM listed l WHERE ";

/// Filters, and what a listed submission `l` has to meet for each, as the plain tables say it.
fn cases() -> Vec<(Value, String)> {
    let mut cases =
        vec![(json!({}), "true".to_owned()), (json!({"statuses": ["approved"]}), "l.status = 'approved'".to_owned())];
    for form in 1..=FORMS {
        let within = format!(
            "l.form_id IN (WITH RECURSIVE w (id) AS (SELECT id FROM forms WHERE id = {form} \
             UNION SELECT f.id FROM forms f JOIN w ON f.parent_id = w.id) SELECT id FROM w)"
        );
        cases.push((json!({"forms": [form]}), within));
    }
    for label in 1..=LABELS {
        let labelled = format!("l.id IN (SELECT submission_id FROM submission_labels WHERE label_id = {label})");
        cases.push((json!({"labels": [label]}), labelled));
    }
    cases
}

/// The answers of every listed submission and its children.
const ANSWERS: &str = "SELECT l.id || ' ' || a.element_id || ' ' || a.value FROM listed l JOIN shown m ON m.root = l.id \
    JOIN answers a ON a.submission_id = m.id";

/// The answer to a search, which is refused while a writer keeps a TRUNCATE open for longer than a statement waits.
async fn search(node: &Client, filter: &Value, seed: u64) -> Value {
    let until = Instant::now() + LONG;
    loop {
        let answer = node.post("/api/v1/submission").json(filter).send().await;
        if answer.status != 503 {
            assert_eq!(answer.status, 200, "{filter}: {answer:?}, seed {seed}");
            return answer.json();
        }
        assert!(answer.number("retry-after").is_some() && Instant::now() < until, "{filter}: {answer:?}, seed {seed}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn folded(text: &str) -> String {
    text.to_lowercase().replace('ς', "σ")
}

async fn assert_right(account: &Account, database: &Database, seed: u64) {
    let total = |found: &Value| found["meta"]["total"].as_i64().expect("a number");
    for (filter, condition) in cases() {
        let [expected] = database.integers(&format!("{SHOWN}{condition}")).await;
        let found = search(&account.client, &filter, seed).await;
        assert_eq!(total(&found), expected, "{filter}, seed {seed}");
        assert_eq!(
            found["data"].as_array().map(Vec::len),
            usize::try_from(expected.min(20)).ok(),
            "{filter}, seed {seed}"
        );
    }
    let answers = database.texts(&SHOWN.replace("SELECT count(*) FROM listed l WHERE ", ANSWERS)).await;
    let answers: Vec<(&str, &str, String)> = answers
        .iter()
        .map(|line| {
            let mut parts = line.splitn(3, ' ');
            let mut next = || parts.next().expect("three parts");
            (next(), next(), folded(next()))
        })
        .collect();
    let count = |holds: &dyn Fn(&str, &str) -> bool| {
        let mut ids: Vec<&str> =
            answers.iter().filter(|(_, element, text)| holds(element, text)).map(|(id, ..)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        i64::try_from(ids.len()).expect("there are few")
    };
    for keyword in KEYWORDS {
        let found = search(&account.client, &json!({"search": keyword}), seed).await;
        assert_eq!(total(&found), count(&|_, text| text.contains(&folded(keyword))), "{keyword}, seed {seed}");
    }
    for (element, answer) in [("10", "Berlin"), ("21", "lines"), ("20", "ΟΔΥΣ"), ("31", "two\nlines")] {
        let found = search(&account.client, &json!({"terms": {element: [answer]}}), seed).await;
        let wanted = folded(answer);
        let holds =
            |of: &str, text: &str| of == element && (text == wanted || text.split('\n').any(|line| line == wanted));
        assert_eq!(total(&found), count(&holds), "{element} {answer}, seed {seed}");
    }
    assert_eq!(account.reindex(), super::NOTHING_WRONG, "seed {seed}");
}

on_both_databases! {
    async fn writers_at_random_leave_nothing_wrong(engine: Engine) {
        let mut account = account(engine, "");
        let other_node = account.another_node();
        let database = account.database().await;
        database.execute(&beginning(engine)).await;
        let seed: u64 = rand::rng().random();
        // The writers and the one who compares meet before and after each pause.
        let pause = Arc::new(Barrier::new(WRITERS + 1));
        let until = Instant::now() + LONG;
        let rounds = usize::try_from(LONG.as_secs() / ROUND.as_secs()).expect("a few");
        let writers = (0..WRITERS).map(|number| {
            let (connecting, pause) = (account.database(), Arc::clone(&pause));
            let mut writer = Writer::new(engine, seed ^ number as u64);
            async move {
                let database = connecting.await;
                let limit = if engine == Engine::Postgres { "SET lock_timeout = '1s'" } else { "PRAGMA busy_timeout = 5000" };
                database.execute(limit).await;
                if engine == Engine::Sqlite && number == 0 {
                    database.execute("PRAGMA foreign_keys = OFF").await;
                }
                for _ in 0..rounds {
                    let end = Instant::now() + ROUND;
                    while Instant::now() < end {
                        writer.write(&database).await;
                    }
                    pause.wait().await;
                    pause.wait().await;
                }
            }
        });
        // What they follow: every form, or some.
        let followers = [
            (json!({}), Mutex::new(Follower::new(&account.client, "limit=3"))),
            (json!({}), Mutex::new(Follower::new(&other_node, "limit=500"))),
            (json!({"forms": [1, 3]}), Mutex::new(Follower::new(&account.client, "limit=2&forms=1,3"))),
        ];
        let following = followers.iter().map(async |(_, follower)| {
            while Instant::now() < until {
                follower.lock().await.pull().await;
            }
        });
        let searching = async {
            while Instant::now() < until {
                for (filter, _) in cases() {
                    search(&account.client, &filter, seed).await;
                    search(&other_node, &json!({"search": "berlin"}), seed).await;
                }
            }
        };
        let comparing = async {
            let mut kept: Option<Rewind<'_>> = None;
            let mut unnoticed = Writer::new(engine, !seed);
            for _ in 0..rounds {
                pause.wait().await;
                if engine == Engine::Postgres {
                    write_unnoticed(&account, &database, &mut unnoticed).await;
                }
                // In every second pause, what was written since the one before is lost.
                kept = match kept {
                    Some(kept) => {
                        kept.go_back().await;
                        None
                    }
                    None => Some(Rewind::to_now(&database).await),
                };
                assert_right(&account, &database, seed).await;
                for (filter, follower) in &followers {
                    let mut follower = follower.lock().await;
                    follower.catch_up().await;
                    assert_eq!(follower.copy, all_submissions(&account.client, filter).await, "{filter}, seed {seed}");
                    assert_eq!(follower.catch_up().await, [], "{filter}, seed {seed}");
                }
                pause.wait().await;
            }
        };
        tokio::join!(join_all(writers), searching, join_all(following), comparing);
    }
}
