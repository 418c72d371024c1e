//! Exports at random moments beside a writer: each one, with what the feed has from its cursor on, is the state at the end.

use std::collections::BTreeMap;
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::{Exported, bulky, get};
use crate::api::account::{Account, account};
use crate::api::changes::follower::{Follower, all_submissions};
use crate::api::submission::writers::{Writer, beginning};
use crate::support::client::{Client, Unanswered};
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;

/// How many exports there are, unless `FORMGATE_EXPORTS` says otherwise.
const EXPORTS: usize = 9;

/// A writer commits as often as this.
const TICK: Duration = Duration::from_millis(20);

/// How long an export may be refused while a writer holds locks.
const LIMIT: Duration = Duration::from_secs(60);

fn exports() -> usize {
    env::var("FORMGATE_EXPORTS").ok().map_or(EXPORTS, |count| count.parse().expect("a number"))
}

/// What a writer does.
enum Source {
    /// Anything, to 25 submissions of four forms.
    Anything(Box<Writer>),
    /// Inserts, changes and deletes submissions of so many that an export takes several turns.
    Many(Box<StdRng>),
}

const MANY: i64 = 3_000;

impl Source {
    async fn write(&mut self, database: &Database) {
        let random = match self {
            Self::Anything(writer) => return writer.write(database).await,
            Self::Many(random) => random,
        };
        let (id, other) = (random.random_range(1..MANY), random.random_range(1..MANY));
        // What is taken back at once gets no number.
        let statement = match random.random_range(0..6) {
            0 => format!("DELETE FROM answers WHERE submission_id = {id}; DELETE FROM submissions WHERE id = {id}"),
            1 => format!("UPDATE submissions SET draft = NOT draft WHERE id IN ({id}, {other})"),
            2 => format!("UPDATE submissions SET form_id = 3 - form_id WHERE id IN ({id}, {other})"),
            3 => format!("UPDATE submissions SET status = 'back' WHERE id = {id}"),
            4 => format!(
                "UPDATE submissions SET status = CASE status WHEN 'info' THEN 'denied' ELSE 'info' END WHERE id BETWEEN {id} AND {id} + 20"
            ),
            _ => format!("UPDATE answers SET value = '{other}' || value WHERE submission_id = {id}"),
        };
        database.try_execute(&statement).await.ok();
    }
}

/// A writer that writes until it is stopped.
struct Writing {
    is_ended: Arc<AtomicBool>,
    commits: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Writing {
    fn start(database: Database, mut source: Source) -> Self {
        let (is_ended, commits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ended, counted) = (Arc::clone(&is_ended), Arc::clone(&commits));
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !ended.load(Ordering::Relaxed) {
                ticks.tick().await;
                source.write(&database).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { is_ended, commits, task }
    }

    /// How many transactions there were.
    async fn end(self) -> usize {
        self.is_ended.store(true, Ordering::Relaxed);
        self.task.await.expect("it does not panic");
        self.commits.load(Ordering::Relaxed)
    }
}

/// An export, which may be refused or break off while a writer holds locks. `None`: a cursor is lost.
async fn export(client: &Client, parameters: &str) -> Option<Exported> {
    let since = Instant::now();
    loop {
        match get(client, parameters).try_send().await {
            Ok(answer) if answer.status == 410 => return None,
            Ok(answer) if [409, 503].contains(&answer.status.as_u16()) => {
                assert!(since.elapsed() < LIMIT, "{answer:?}");
            }
            Ok(answer) => return Some(Exported::read(&answer)),
            Err(Unanswered::Broken(_)) => {}
            Err(unanswered) => panic!("{unanswered}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A copy that is kept by exports, each of what changed since the one before.
#[derive(Default)]
struct Chain {
    copy: BTreeMap<String, Value>,
    cursor: Option<String>,
    restarts: usize,
}

impl Chain {
    async fn go_on(&mut self, client: &Client, parameters: &str) {
        let since = self.cursor.take().map(|cursor| format!("&since={cursor}"));
        let exported = match since {
            Some(since) => export(client, &format!("{parameters}{since}")).await,
            None => None,
        };
        let exported = match exported {
            Some(exported) => exported,
            None => {
                (self.copy, self.restarts) = (BTreeMap::new(), self.restarts + 1);
                export(client, parameters).await.expect("without a cursor none is lost")
            }
        };
        exported.apply_to(&mut self.copy);
        self.cursor = Some(exported.cursor);
    }
}

/// Exports beside a writer, and checks each at the end. Returns how many of them were of several instants.
async fn assert_joins(account: &Account, source: Source, seed: u64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let writing = Writing::start(account.database().await, source);
    let (mut exported, mut chains) = (Vec::new(), [Chain::default(), Chain::default()]);
    let began = Instant::now();
    for at in 0..exports() {
        tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
        let (parameters, forms) = if at % 3 == 2 { ("&form=1", "limit=500&forms=1") } else { ("", "limit=500") };
        let found = export(&account.client, parameters).await.expect("without a cursor none is lost");
        exported.push((found, forms));
        chains[0].go_on(&account.client, "").await;
        chains[1].go_on(&account.client, "&form=1").await;
    }
    let took = began.elapsed();
    let commits = writing.end().await;
    assert!(commits as f64 > took.as_secs_f64() * 5.0, "only {commits} transactions in {took:?}");
    let state =
        [json!({}), json!({"forms": [1]})].map(|filter| async move { all_submissions(&account.client, &filter).await });
    let [all, of_form] = futures_util::future::join_all(state).await.try_into().expect("two");
    let ranges = exported.iter().filter(|(found, _)| found.snapshot == "range").count();
    for (at, (found, forms)) in exported.into_iter().enumerate() {
        let mut follower = Follower::from(&account.client, forms, found.copy(), &found.cursor);
        follower.catch_up().await;
        let expected = if forms.ends_with("forms=1") { &of_form } else { &all };
        assert!(follower.copy == *expected, "export {at} of {forms} and the feed, seed {seed}");
    }
    for (mut chain, (parameters, expected)) in chains.into_iter().zip([("", &all), ("&form=1", &of_form)]) {
        chain.go_on(&account.client, parameters).await;
        assert!(chain.copy == *expected, "exports since cursors, {parameters}, seed {seed}");
        assert!(chain.restarts <= exports(), "{} restarts", chain.restarts);
    }
    ranges
}

on_both_databases! {
    async fn exports_beside_a_writer_of_anything_join_the_feed(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        database.execute(&beginning(engine)).await;
        let seed = rand::random();
        assert_joins(&account, Source::Anything(Box::new(Writer::new(engine, seed))), seed).await;
    }

    async fn exports_of_several_turns_join_the_feed_beside_a_writer(engine: Engine) {
        let account = account(engine, &bulky(1..MANY, 3_000));
        let seed = rand::random();
        let ranges = assert_joins(&account, Source::Many(Box::new(StdRng::seed_from_u64(seed))), seed).await;
        assert!(ranges > 0, "all exports were of one instant");
    }
}
