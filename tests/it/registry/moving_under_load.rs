//! An account moves to another database while readers, writers, followers and receivers use it, from each kind of database to
//! each; also on two nodes, and many accounts at once. No request fails, and nothing is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;

use super::moved::{Account, FIRST, PAUSE, Refused, Written, changed, scene};
use super::moving_load::{Calls, Hooks, Load};
use super::scene::LIMIT;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Server};
use crate::support::process::Node;

/// How long requests may wait.
const LONGEST_HOLD: i64 = 2_000;

/// How many accounts move at once, without the variable `FORMGATE_TEST_MOVES`.
const ACCOUNTS: usize = 6;

/// How many submissions the product writes before the move begins.
const AHEAD: i64 = 20;

/// Moves an account while it is called. Returns how long its requests waited.
async fn moves_under_load(nodes: &[Node], account: &Account, calls: Calls, pause: Duration, limit: Duration) -> i64 {
    let hooks = Hooks::subscribe(&nodes[0], account).await;
    let load = Load::on(nodes, account, calls, pause);
    let written = Written::default();
    written.last.store(FIRST, Ordering::Release);
    let moving = async {
        while written.last.load(Ordering::Acquire) < FIRST + AHEAD {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        account.done(&account.begin_move().await, limit).await
    };
    let (refused, moved) = tokio::join!(account.write_until_refused(&written, pause), moving);
    let Refused { text, is_unsure } = refused;
    assert!(text.contains("formgate moved this account: write to ") && !is_unsure, "{text}");
    let held = moved["held_ms"].as_i64().expect("a number");
    let last = written.last.into_inner();
    load.end(account, last).await;
    let again = hooks.received(FIRST + 1, last, changed(last), LIMIT).await;
    assert!(again <= 32, "{again} requests were sent again");
    account.check(last).await;
    // What is written there by SQL is served, and delivered.
    hooks.received(FIRST + 1, last + 1, changed(last), LIMIT).await;
    held
}

async fn one_account_moves(from: Engine, to: Engine, nodes: usize) {
    let (scene, _dns) = scene(from).await;
    let nodes: Vec<_> = (0..nodes).map(|node| scene.start(node)).collect();
    let [source, target] = [(from, "acme"), (to, "moved")].map(|(it, name)| it.empty_database(scene.folder(), name));
    let account = Account::add(&scene, "acme", &source, &target).await;
    let held = moves_under_load(&nodes, &account, Calls::All, PAUSE, LIMIT * 3).await;
    assert!(held <= LONGEST_HOLD, "requests waited {held} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn from_sqlite_to_postgres_under_load() {
    one_account_moves(Engine::Sqlite, Engine::Postgres, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_postgres_to_postgres_under_load_on_two_nodes() {
    one_account_moves(Engine::Postgres, Engine::Postgres, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_postgres_to_sqlite_under_load() {
    one_account_moves(Engine::Postgres, Engine::Sqlite, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_sqlite_to_sqlite_under_load() {
    one_account_moves(Engine::Sqlite, Engine::Sqlite, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_a_schema_to_one_behind_a_pooler_under_load() {
    one_account_moves(Engine::PostgresOn(Server::Schema), Engine::PostgresOn(Server::Pooled), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_behind_a_pooler_to_a_schema_under_load() {
    one_account_moves(Engine::PostgresOn(Server::Pooled), Engine::PostgresOn(Server::Schema), 1).await;
}

/// Half of them move from SQLite to Postgres.
#[expect(clippy::print_stdout, reason = "the figure, with --nocapture")]
#[tokio::test(flavor = "multi_thread")]
async fn many_accounts_move_at_once_under_load() {
    let accounts = std::env::var("FORMGATE_TEST_MOVES").map_or(ACCOUNTS, |number| number.parse().expect("a number"));
    let (scene, _dns) = scene(Engine::Postgres).await;
    let nodes = Arc::new(vec![scene.start(0)]);
    let mut moves = Vec::new();
    for at in 0..accounts {
        let [from, to] = match at % 6 {
            0 | 2 | 4 => [Engine::Sqlite, Engine::Postgres],
            1 => [Engine::Postgres, Engine::Postgres],
            3 => [Engine::Postgres, Engine::Sqlite],
            _ => [Engine::Sqlite, Engine::Sqlite],
        };
        let [source, target] =
            [(from, "from"), (to, "to")].map(|(it, name)| it.empty_database(scene.folder(), &format!("{name}{at}")));
        let account = Account::add(&scene, &format!("acme{at}"), &source, &target).await;
        let (nodes, number) = (Arc::clone(&nodes), u32::try_from(accounts).expect("not so many"));
        // A node moves some at once, and the others wait for their turn.
        let (pause, limit) = (PAUSE * number, LIMIT * (3 + number / 10));
        moves.push(tokio::spawn(async move { moves_under_load(&nodes, &account, Calls::Few, pause, limit).await }));
    }
    let mut held = Vec::new();
    for moving in moves {
        held.push(moving.await.expect("the account moves"));
    }
    let longest = held.iter().max().expect("some accounts");
    println!("{accounts} accounts moved; the longest hold took {longest} ms");
    assert!(*longest <= LONGEST_HOLD, "requests waited {held:?} ms");
    let registry = Database::connect(&scene.registry_url).await;
    let done = "SELECT count(*) FROM registry_moves WHERE state = 'done'";
    assert_eq!(registry.integers(done).await, [i64::try_from(accounts).expect("not so many")]);
    registry.close().await;
    let listed: Value = serde_json::from_str(&scene.succeed(&["tenant", "moves", "--json"])).expect("JSON");
    assert_eq!(listed.as_array().map(Vec::len), Some(accounts));
}
