//! An account moves although the node that moves it, or either database, is killed at any moment: it ends in one place, with all
//! that was written.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::moved::{Account, FIRST, PAUSE, Written, changed, scene};
use super::moving_load::Hooks;
use super::scene::client;
use crate::support::database::Database;
use crate::support::fixture::Engine;
use crate::support::postgres::Postgres;

/// How often something is killed, without the variable `FORMGATE_TEST_KILLS`.
const KILLS: usize = 4;

/// How long a move may take whose databases and node are killed.
const LIMIT: Duration = Duration::from_secs(180);

/// What is killed.
#[derive(Clone, Copy, Debug)]
enum Killed {
    Node,
    Source,
    Target,
}

/// Kills the node and the servers of an account in turn, one after each random moment, until all kills are made: in a few moves,
/// of accounts of their own.
#[expect(clippy::print_stdout, reason = "shown if the test fails")]
async fn moves_although_killed(from: Engine, to: Engine, seed: u64) {
    let kills = std::env::var("FORMGATE_TEST_KILLS").map_or(KILLS, |number| number.parse().expect("a number"));
    let mut random = StdRng::seed_from_u64(seed);
    // The registry is in a file: it is not what is killed.
    let (scene, _dns) = scene(Engine::Sqlite).await;
    let mut servers = [from, to].map(|engine| (engine == Engine::Postgres).then(Postgres::start));
    let mut kinds = vec![Killed::Node];
    kinds.extend(servers[0].is_some().then_some(Killed::Source));
    kinds.extend(servers[1].is_some().then_some(Killed::Target));
    let mut node = scene.start(0);
    let (mut killed, mut accounts) = (0, 0);
    while killed < kills {
        accounts += 1;
        let url = |server: &Option<Postgres>, name: &str| match server {
            Some(server) => server.new_database(),
            None => Engine::Sqlite.empty_database(scene.folder(), &format!("{name}{accounts}")),
        };
        let (source, target) = (url(&servers[0], "from"), url(&servers[1], "to"));
        let account = Account::add(&scene, &format!("acme{accounts}"), &source, &target).await;
        let account = Arc::new(account);
        let hooks = Hooks::subscribe(&node, &account).await;
        let written = Arc::new(Written::default());
        written.last.store(FIRST, Ordering::Release);
        let (product, shared) = (Arc::clone(&account), Arc::clone(&written));
        // Beside what kills, which blocks.
        let writing = tokio::spawn(async move { product.write_until_refused(&shared, PAUSE).await });
        let begun = account.begin_move().await;
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(random.random_range(0..1_500))).await;
            let what = kinds[killed % kinds.len()];
            killed += 1;
            println!("seed {seed}, account {accounts}: {what:?} is killed");
            match what {
                Killed::Node => {
                    node.kill();
                    node = scene.start(0);
                }
                Killed::Source | Killed::Target => {
                    let server = &mut servers[usize::from(matches!(what, Killed::Target))];
                    let server = server.as_mut().expect("it is a server");
                    server.kill();
                    server.recover();
                }
            }
        }
        account.done(&begun, LIMIT).await;
        let refused = writing.await.expect("it ends when it is refused");
        let database = Database::connect(&account.target).await;
        let [last] = database.integers("SELECT max(id) FROM submissions").await;
        database.close().await;
        let known = written.last.load(Ordering::Acquire);
        assert!(last == known || refused.is_unsure && last == known + 1, "{last} of {known}: {refused:?}");
        let api = client(&node, &account.slug, &account.token);
        let since = Instant::now();
        loop {
            let found = api.post("/api/v1/submission").json(&json!({})).send().await;
            if found.status == 200 {
                break;
            }
            // The node has not noticed yet that a server is there again.
            assert!(found.status == 503 && since.elapsed() < LIMIT, "{found:?}");
            tokio::time::sleep(PAUSE).await;
        }
        hooks.received(FIRST + 1, last, changed(last), LIMIT).await;
        account.check(last).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_sqlite_to_postgres_although_killed() {
    moves_although_killed(Engine::Sqlite, Engine::Postgres, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_postgres_to_sqlite_although_killed() {
    moves_although_killed(Engine::Postgres, Engine::Sqlite, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_server_to_server_although_killed() {
    moves_although_killed(Engine::Postgres, Engine::Postgres, 3).await;
}
