//! How long after its commit a submission arrives at a receiver, with the default `settle_ms`.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::Arguments;
use crate::accounts::{FORMS, On};
use crate::node::Node;
use crate::postgres_server::Postgres;
use crate::receiver::Receiver;
use crate::world::World;

/// The goals, in seconds.
const GOAL_P50: f64 = 1.0;
const GOAL_P99: f64 = 2.0;

pub(crate) async fn measure(server: &Postgres, arguments: &Arguments) -> anyhow::Result<()> {
    println!("\nseconds from a commit to the first byte at the receiver, a commit every {:?}", arguments.pause);
    println!("{:<10} {:>8} {:>8} {:>8} {:>8}", "", "commits", "p50", "p99", "largest");
    for on in [On::Sqlite, On::Postgres(server)] {
        let times = run(on, arguments).await?;
        let at = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize];
        println!(
            "{:<10} {:>8} {:>8.2} {:>8.2} {:>8.2} (goals: at most {GOAL_P50} and {GOAL_P99})",
            on.name(),
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    Ok(())
}

/// The times, sorted.
async fn run(on: On<'_>, arguments: &Arguments) -> anyhow::Result<Vec<f64>> {
    let receiver = Receiver::start(1).await?;
    let world = World::with_forms(on, "latency", &receiver).await?;
    let node = Node::start(&world, &[])?;
    world.subscribe(&node, &receiver, 1).await?;
    let mut database = world.database().await?;
    let (mut committed, began) = (HashMap::new(), Instant::now());
    while began.elapsed() < arguments.length || committed.is_empty() {
        // Of the form with the subscription.
        let id = (committed.len() + 1) * FORMS;
        database.insert(id..id + 1).await?;
        committed.insert(format!("sub_{id}"), Instant::now());
        tokio::time::sleep(arguments.pause).await;
    }
    let mut times = Vec::with_capacity(committed.len());
    for arrival in receiver.take(committed.len()).await? {
        let event: Value = serde_json::from_slice(&arrival.body)?;
        let id = event["data"]["id"].as_str().context("an event is about a submission")?;
        let commit = committed.remove(id).with_context(|| format!("{id} arrives twice"))?;
        times.push(arrival.at.saturating_duration_since(commit).as_secs_f64());
    }
    ensure!(committed.is_empty(), "some submissions did not arrive: {committed:?}");
    times.sort_by(f64::total_cmp);
    Ok(times)
}
