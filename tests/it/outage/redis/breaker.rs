//! Whatever is wrong with Redis: every answer in time, one line for going and one for coming back, and the shared window
//! is back by itself.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use super::scene::{BACK, CALLS, Callers, GONE, Scene, Undisturbed};
use crate::support::busy::takes_less_than;
use crate::support::redis::Redis;

/// How many call at once.
const CALLERS: usize = 6;

/// The longest that Redis may hold up an answer. A node that was too busy to read what Redis says waits for it again.
const LONGEST: Duration = Duration::from_millis(6 * 1500);

/// The shared window is back so soon after its store is.
const RETURN: Duration = Duration::from_secs(2);

/// How long Redis stays away at least: so long that the pauses between attempts to connect don't grow any more.
const OUTAGE: Duration = Duration::from_millis(500);

/// Breaks and mends Redis under load. The policy is to deny, so that a status tells what decided.
async fn outlive(break_redis: impl AsyncFn(&mut Redis), mend: impl AsyncFn(&mut Redis)) {
    let mut scene = Scene::new(100_000, "deny").await;
    assert_eq!(scene.call().await.status, 200);
    let undisturbed = Undisturbed::start();
    let callers = Callers::start(CALLERS, &scene.client);
    let mut outages = 0;
    takes_less_than(RETURN, "the return of the shared window", async || {
        outages += 1;
        callers.wait_for_more(5).await;
        let before = scene.timeouts().await;
        break_redis(&mut scene.redis).await;
        scene.wait_until_redis_is(false).await;
        tokio::time::sleep(OUTAGE).await;
        // All are answered before it is mended, those that waited when it broke too.
        callers.wait_for_more(2).await;
        assert_eq!(scene.count(503, 20).await, 20);
        let waited = scene.timeouts().await - before;
        assert!(waited <= CALLS, "{waited} calls took the time limit");

        mend(&mut scene.redis).await;
        let mended = Instant::now();
        while scene.call().await.status != 200 {
            assert!(mended.elapsed() < 20 * RETURN, "the shared window is not back");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let took = mended.elapsed();
        scene.wait_until_redis_is(true).await;
        took
    })
    .await;
    callers.wait_for_more(5).await;

    let answers = callers.stop().await;
    assert!(answers.iter().all(|(status, _)| [200, 503].contains(status)), "{answers:?}");
    undisturbed.explains(Callers::slowest(&answers), LONGEST).await;
    assert_eq!((scene.said(GONE), scene.said(BACK)), (outages, outages + 1), "one at the start");
}

#[tokio::test]
async fn a_redis_that_hangs() {
    outlive(async |redis| redis.signal("STOP"), async |redis| redis.signal("CONT")).await;
}

#[tokio::test]
async fn a_redis_that_dies_and_is_started_again() {
    outlive(async |redis| redis.kill(), async |redis| redis.restart()).await;
}

/// Runs a command on a connection that is kept.
fn run(connection: &mut redis::Connection, command: &[&str]) {
    redis::cmd(command[0]).arg(&command[1..]).exec(connection).unwrap_or_else(|error| panic!("{command:?}: {error}"));
}

#[tokio::test]
async fn a_redis_that_wants_another_password() {
    outlive(
        async |redis| {
            let mut operator = redis.connect();
            run(&mut operator, &["CONFIG", "SET", "requirepass", "secret"]);
            run(&mut operator, &["AUTH", "secret"]);
            run(&mut operator, &["CLIENT", "KILL", "SKIPME", "yes"]);
        },
        async |redis| {
            let url = redis.url().replace("redis://", "redis://:secret@");
            let mut operator = redis::Client::open(url).unwrap().get_connection().unwrap();
            run(&mut operator, &["CONFIG", "SET", "requirepass", ""]);
        },
    )
    .await;
}

#[tokio::test]
async fn a_redis_that_takes_no_more_connections() {
    // The operator's connection is the one that it takes.
    let operator = RefCell::new(None);
    outlive(
        async |redis| {
            let mut connection = redis.connect();
            run(&mut connection, &["CONFIG", "SET", "maxclients", "1"]);
            run(&mut connection, &["CLIENT", "KILL", "SKIPME", "yes"]);
            operator.replace(Some(connection));
        },
        async |_| run(operator.borrow_mut().as_mut().unwrap(), &["CONFIG", "SET", "maxclients", "1000"]),
    )
    .await;
}

#[tokio::test]
async fn a_redis_that_answers_too_late() {
    outlive(
        async |redis| redis.run(&["CLIENT", "PAUSE", "600000", "WRITE"]),
        async |redis| redis.run(&["CLIENT", "UNPAUSE"]),
    )
    .await;
}

#[tokio::test]
async fn a_redis_that_is_busy_with_another_programs_script() {
    outlive(
        async |redis| {
            redis.run::<()>(&["CONFIG", "SET", "busy-reply-threshold", "100"]);
            let mut stranger = redis.connect();
            thread::spawn(move || redis::cmd("EVAL").arg(&["while true do end", "0"]).exec(&mut stranger));
        },
        async |redis| redis.run(&["SCRIPT", "KILL"]),
    )
    .await;
}

#[tokio::test]
async fn a_redis_without_memory() {
    outlive(
        async |redis| redis.run(&["CONFIG", "SET", "maxmemory", "1"]),
        async |redis| redis.run(&["CONFIG", "SET", "maxmemory", "0"]),
    )
    .await;
}

#[tokio::test]
async fn a_redis_that_became_a_replica() {
    outlive(
        async |redis| redis.run(&["REPLICAOF", "127.0.0.1", "1"]),
        async |redis| redis.run(&["REPLICAOF", "NO", "ONE"]),
    )
    .await;
}

/// One caller after the other: the first finds out, and nobody pays again.
#[tokio::test]
async fn a_hang_costs_one_time_limit() {
    let mut scene = Scene::new(100_000, "local").await;
    // A node may find out by itself, one connection after the other, but not each time.
    for _ in 0..5 {
        assert_eq!(scene.call().await.status, 200);
        let before = scene.timeouts().await;
        scene.redis.signal("STOP");
        assert_eq!(scene.count(200, 30).await, 30);
        let waited = scene.timeouts().await - before;
        if waited <= 1 {
            return;
        }
        assert!(waited <= CALLS, "{waited} of 30 waited");
        scene.redis.signal("CONT");
        scene.wait_until_redis_is(true).await;
    }
    panic!("more than one of 30 waited, each time");
}

#[tokio::test]
async fn a_node_starts_without_redis_and_finds_it_later() {
    let mut redis = Redis::start();
    redis.kill();
    let mut scene = Scene::before_redis_answers(redis, 10, "deny");
    assert_eq!(scene.call().await.status, 503);
    scene.redis.restart();
    scene.wait_until_redis_is(true).await;
    assert_eq!(scene.call().await.status, 200);
}
