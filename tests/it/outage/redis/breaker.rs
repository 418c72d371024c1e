//! Whatever is wrong with Redis: every answer in time, one line for going and one for coming back, and the shared window
//! is back by itself.

use std::cell::{Cell, RefCell};
use std::thread;
use std::time::{Duration, Instant};

use super::scene::{BACK, Callers, GONE, Scene, TIME_LIMIT, Undisturbed};
use crate::support::redis::Redis;

/// How many call at once.
const CALLERS: usize = 6;

/// The shared window is back so soon after its store is.
const RETURN: Duration = Duration::from_secs(2);

/// Breaks and mends Redis under load. The policy is to deny, so that a status tells what decided.
async fn outlive(break_redis: impl AsyncFnOnce(&mut Redis), mend: impl AsyncFnOnce(&mut Redis)) {
    let mut scene = Scene::new(100_000, "deny").await;
    assert_eq!(scene.call().await.status, 200);
    let undisturbed = Undisturbed::start();
    let callers = Callers::start(CALLERS, &scene.client);
    tokio::time::sleep(Duration::from_millis(100)).await;

    break_redis(&mut scene.redis).await;
    scene.wait_until_redis_is(false).await;
    let during = Callers::start(1, &scene.client);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let during = during.stop().await;
    assert!(during.iter().all(|(status, _)| *status == 503), "{during:?}");

    mend(&mut scene.redis).await;
    let mended = Instant::now();
    while scene.call().await.status != 200 {
        assert!(mended.elapsed() < RETURN, "the shared window is not back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    scene.wait_until_redis_is(true).await;
    tokio::time::sleep(Duration::from_millis(100)).await;

    let answers = callers.stop().await;
    assert!(answers.iter().all(|(status, _)| [200, 503].contains(status)), "{answers:?}");
    undisturbed.explains(Callers::slowest(&answers)).await;
    // The requests that wait when it breaks pay the time limit; those that come later don't. Twice as many, since a
    // machine may be busy.
    let slow = answers.iter().filter(|(_, took)| *took >= TIME_LIMIT).count();
    assert!(slow <= 2 * CALLERS, "{slow} of {} answers took the time limit", answers.len());
    assert_eq!((scene.said(GONE), scene.said(BACK)), (1, 2), "one at the start");
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
    const PAUSE: Duration = Duration::from_millis(2500);
    let began = Cell::new(Instant::now());
    outlive(
        async |redis| {
            redis.run::<()>(&["CLIENT", "PAUSE", &PAUSE.as_millis().to_string(), "ALL"]);
            began.set(Instant::now());
        },
        async |_| tokio::time::sleep(PAUSE.saturating_sub(began.get().elapsed())).await,
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
    let mut scene = Scene::new(1000, "local").await;
    assert_eq!(scene.call().await.status, 200);
    scene.redis.signal("STOP");
    let mut waited = 0;
    for _ in 0..30 {
        let began = Instant::now();
        assert_eq!(scene.call().await.status, 200);
        waited += u32::from(began.elapsed() >= TIME_LIMIT);
    }
    assert!(waited <= 1, "{waited} of 30 waited");
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
