//! The charts of the overview, and the requests of each token: what they say is what callers were answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use formgate::store::{CommitMark, DatabaseLocation, Store};
use futures_util::future::join_all;
use rand::RngExt;
use rand::rngs::StdRng;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::scene::{Administrator, Scene, text};
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::process::Node;
use crate::support::redis::Redis;

/// Until a node has published, or a write has ended, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// How many tokens: more than a chart names.
const TOKENS: usize = 8;

/// How callers were answered, by the name of their token.
type Log = BTreeMap<String, (i64, i64)>;

/// The sums of a chart's table, by column; nothing if there is no chart.
async fn table(own: &Administrator, chart: &str) -> BTreeMap<String, i64> {
    let page = text(&own.get("/admin").await);
    let Some((_, table)) = page.split_once(&format!("<table data-chart=\"{chart}\">")) else { return BTreeMap::new() };
    let table = table.split_once("</table>").expect("it ends").0;
    let cells = |text: &str, tag: &str| -> Vec<String> {
        let cells = text.split(tag).skip(1).map(|rest| rest.split_once('<').expect("it ends").0.to_owned());
        cells.collect()
    };
    let (head, body) = table.split_once("<tbody>").expect("it has a body");
    let names = cells(head, "<th scope=\"col\">");
    let mut sums = BTreeMap::new();
    for row in body.split("<tr>").skip(1) {
        let numbers = cells(row, "<td>");
        assert_eq!(numbers.len() + 1, names.len(), "{row}");
        for (name, number) in names[1..].iter().zip(numbers) {
            *sums.entry(name.clone()).or_default() += number.replace(',', "").parse::<i64>().expect("a number");
        }
    }
    sums
}

/// What a table has to say about a log: those with the most requests by name.
fn expected(log: &Log) -> BTreeMap<String, i64> {
    let mut tokens: Vec<_> = log.iter().filter(|(_, (admitted, refused))| admitted + refused > 0).collect();
    // Numbers of tokens grow with their names.
    tokens.sort_by_key(|(name, (admitted, refused))| (-(admitted + refused), (*name).clone()));
    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    for (place, (name, (admitted, refused))) in tokens.into_iter().enumerate() {
        let column = if place < 6 { name.clone() } else { "Other tokens".to_owned() };
        *sums.entry(column).or_default() += admitted;
        *sums.entry("Refused".to_owned()).or_default() += refused;
    }
    sums
}

async fn wait_for(own: &Administrator, chart: &str, log: &Log, seed: u64) {
    let (began, expected) = (Instant::now(), expected(log));
    loop {
        let shown = table(own, chart).await;
        if shown == expected {
            return;
        }
        assert!(began.elapsed() < SOON, "{chart}: {shown:?} and not {expected:?}, with the seed {seed}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Sends random requests with random tokens to random nodes, several at a time, and logs the answers.
async fn call_at_random(
    random: &mut StdRng,
    requests: usize,
    tokens: &[(String, String)],
    nodes: &[Client],
    log: &mut Log,
) {
    let mut sent = 0;
    while sent < requests {
        let together = random.random_range(1..=12);
        let calls = (0..together).map(|_| {
            // Some tokens make most of the requests.
            let (name, value) = &tokens[random.random_range(0..TOKENS).min(random.random_range(0..TOKENS))];
            let client = nodes[random.random_range(0..nodes.len())].with(value);
            let path = ["/api/v1/me", "/api/v1/form", "/api/v1/nothing"][random.random_range(0..3)];
            async move { (name.clone(), client.get(path).send().await.status.as_u16()) }
        });
        for (name, status) in join_all(calls).await {
            let counts = log.entry(name).or_default();
            match status {
                429 => counts.1 += 1,
                200 | 404 => counts.0 += 1,
                other => panic!("an answer with {other}"),
            }
        }
        sent += together;
        tokio::time::sleep(Duration::from_millis(random.random_range(0..40))).await;
    }
}

/// The admitted and the refused requests of all tokens that are written.
async fn stored(database: &Database) -> [i64; 2] {
    stored_of(database, "true").await
}

/// Those of the tokens for which a condition on `value`, the counts of a token, holds.
async fn stored_of(database: &Database, condition: &str) -> [i64; 2] {
    let each = match database {
        Database::Postgres(_) => "jsonb_array_elements(counts::jsonb) AS of (value)",
        Database::Sqlite(_) => "json_each(counts)",
    };
    let sum = |at: usize| format!("CAST(coalesce(sum(CAST(value ->> {at} AS bigint)), 0) AS bigint)");
    database.integers(&format!("SELECT {}, {} FROM token_hours, {each} WHERE {condition}", sum(1), sum(2))).await
}

/// The requests in 24 hours of each token, as the list shows them, oldest token first.
async fn listed(own: &Administrator) -> Vec<i64> {
    let page = text(&own.get("/admin/tokens").await);
    let requests = page.split("data-requests=\"").skip(1).map(|rest| rest.split_once('"').expect("it ends").0);
    let mut requests: Vec<i64> = requests.map(|number| number.parse().expect("a number")).collect();
    requests.reverse();
    requests
}

on_both_databases! {
    async fn the_charts_are_true_on_two_nodes_and_after_they_stopped(engine: Engine) {
        let seed = rand::rng().random();
        let mut random: StdRng = rand::SeedableRng::seed_from_u64(seed);
        let redis = Redis::start();
        let site = Scene::site(engine).requests_per_minute(30).window_seconds(1).redis(&redis);
        let mut scene = Scene::of(site.gateway("redis_timeout_ms", 2000));
        let other = scene.site.start();
        let own = scene.sign_in("acme", "viewer").await;
        let tokens: Vec<(String, String)> = (0..TOKENS).map(|at| (format!("token {at}"), scene.site.token("acme", &format!("token {at}")))).collect();
        assert!(text(&own.get("/admin").await).contains("There were none."));

        let clients = [own.caller.clone(), own.at(&other).caller];
        let mut log = Log::new();
        for _ in 0..3 {
            call_at_random(&mut random, 150, &tokens, &clients, &mut log).await;
            for administrator in [&own, &own.at(&other)] {
                wait_for(administrator, "last-hour", &log, seed).await;
            }
        }
        assert!(log.values().any(|(_, refused)| *refused > 0), "{log:?}");

        // A Redis that is away: each page shows what its node counted, and says so.
        drop(redis);
        let page = text(&own.get("/admin").await);
        assert!(page.contains("Redis does not respond: only the requests of this node are shown."), "{page}");

        stop([&mut scene.node, &mut { other }]).await;
        scene.node = scene.site.start();
        let own = own.at(&scene.node);
        wait_for(&own, "last-days", &log, seed).await;
        assert_eq!(table(&own, "last-hour").await, BTreeMap::new(), "this node has counted nothing yet");
        let database = scene.database("acme").await;
        let sum = |of: fn(&(i64, i64)) -> i64| log.values().map(of).sum::<i64>();
        assert_eq!(stored(&database).await, [sum(|counts| counts.0), sum(|counts| counts.1)]);
        let admitted: Vec<i64> = tokens.iter().map(|(name, _)| log.get(name).map_or(0, |counts| counts.0)).collect();
        assert_eq!(listed(&own).await, admitted);
        database.close().await;
    }

    async fn without_redis_a_node_shows_what_it_counted_and_stores_it_when_it_stops(engine: Engine) {
        let mut random: StdRng = rand::SeedableRng::seed_from_u64(7);
        let mut scene = Scene::of(Scene::site(engine).requests_per_minute(20).window_seconds(1));
        let own = scene.sign_in("acme", "viewer").await;
        let tokens: Vec<(String, String)> = (0..TOKENS).map(|at| (format!("token {at}"), scene.site.token("acme", &format!("token {at}")))).collect();
        let mut log = Log::new();
        for round in 0..3 {
            call_at_random(&mut random, 100, &tokens, &[own.at(&scene.node).caller], &mut log).await;
            let own = own.at(&scene.node);
            assert_eq!(table(&own, "last-days").await, expected(&log), "what is not written is there");
            if round == 0 {
                assert_eq!(table(&own, "last-hour").await, expected(&log));
                assert!(text(&own.get("/admin").await).contains("As this node counted them."));
            }
            stop([&mut scene.node]).await;
            scene.node = scene.site.start();
        }
        assert_eq!(table(&own.at(&scene.node), "last-days").await, expected(&log));
    }

    async fn a_killed_node_loses_only_what_it_did_not_write_yet(engine: Engine) {
        let mut scene = Scene::start(engine);
        let token = scene.site.token("acme", "tests");
        let caller = scene.node.client().to(&scene.host("acme")).with(&token);
        assert_eq!(caller.get("/api/v1/form").send().await.status, 200);
        let database = scene.database("acme").await;
        let began = Instant::now();
        // The first use of an hour is written at once, and takes along what was counted.
        while stored(&database).await != [1, 0] {
            assert!(began.elapsed() < SOON);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for _ in 0..5 {
            assert_eq!(caller.get("/api/v1/form").send().await.status, 200);
        }
        scene.node.kill();
        assert_eq!(stored(&database).await, [1, 0]);
        scene.node = scene.site.start();
        let caller = scene.node.client().to(&scene.host("acme")).with(&token);
        assert_eq!(caller.get("/api/v1/form").send().await.status, 200);
        stop([&mut scene.node]).await;
        assert_eq!(stored(&database).await, [2, 0]);
        database.close().await;
    }

    async fn hours_of_unknown_tokens_are_left_out_and_old_ones_forgotten(engine: Engine) {
        let mut scene = Scene::start(engine);
        let tokens = ["kept", "gone"].map(|name| scene.site.token("acme", name));
        let database = scene.database("acme").await;
        let [old, kept] = match engine {
            Engine::Sqlite => [401, 399].map(|days| (jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24 * days)).as_microsecond().to_string()),
            _ => [401, 399].map(|days| format!("now() - interval '{days} days'")),
        };
        database.execute(&format!("INSERT INTO token_hours (hour, counts) VALUES ({old}, '[[1, 5, 0]]'), ({kept}, '[[1, 7, 0]]')")).await;
        for token in &tokens {
            let caller = scene.node.client().to(&scene.host("acme")).with(token);
            assert_eq!(caller.get("/api/v1/form").send().await.status, 200);
            assert_eq!(caller.get("/api/v1/form").send().await.status, 200);
        }
        // The first use of each is written at once, and the second when the node stops.
        let began = Instant::now();
        let gone = async || stored_of(&database, "CAST(value ->> 0 AS bigint) = 2").await;
        while gone().await == [0, 0] {
            assert!(began.elapsed() < SOON);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        database.execute("DELETE FROM tokens WHERE id = 2").await;
        // Both requests may have come before the first write.
        let [gone, _] = gone().await;
        stop([&mut scene.node]).await;
        assert_eq!(stored(&database).await, [7 + 2 + gone, 0]);
        database.close().await;
    }
}

async fn stop<const N: usize>(nodes: [&mut Node; N]) {
    for node in nodes {
        assert_eq!(node.stop(Duration::from_secs(30)).await, 0);
    }
}

#[tokio::test]
async fn whether_a_write_was_committed_is_known_afterwards() {
    let scene = Scene::start(Engine::Postgres);
    let url = scene.site.database_url("acme");
    let location = DatabaseLocation::parse(url, std::path::Path::new("/")).unwrap();
    let store = Store::open(&location, 1).await.unwrap();
    for (end, outcome) in [("COMMIT", Some(true)), ("ROLLBACK", Some(false))] {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql("BEGIN").execute(&mut connection).await.unwrap();
        let id: i64 = sqlx::query_scalar("SELECT txid_current()").fetch_one(&mut connection).await.unwrap();
        let mark = CommitMark::Transaction(id);
        assert_eq!(store.is_committed(mark).await.unwrap(), None);
        sqlx::raw_sql(AssertSqlSafe(end)).execute(&mut connection).await.unwrap();
        assert_eq!(store.is_committed(mark).await.unwrap(), outcome);
    }
    store.close().await;
}
