//! A sending node that is killed again and again: every event arrives, and few arrive twice.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::Arguments;
use crate::accounts::{FORMS, On};
use crate::node::Node;
use crate::postgres_server::Postgres;
use crate::receiver::{Arrival, Receiver};
use crate::world::World;

/// How many events are added before each kill.
///
/// Larger: a round takes longer. Smaller: all may have arrived before the node is killed.
const EVENTS: usize = 500;

/// How many of them arrive before the kill.
const ARRIVED: usize = 20;

/// How many events of a subscription are in flight at once, by default: as many may arrive twice after a kill.
const PER_SUBSCRIPTION: usize = 4;

pub(crate) async fn measure(server: &Postgres, arguments: &Arguments) -> anyhow::Result<()> {
    println!("\na sending node is killed {} times, and another one goes on", arguments.kills);
    println!("{:<10} {:>8} {:>10} {:>10} {:>8}", "", "events", "lost", "repeated", "seconds");
    for on in [On::Sqlite, On::Postgres(server)] {
        let began = Instant::now();
        let (events, arrivals) = run(on, arguments).await?;
        let mut bodies: HashMap<String, &[u8]> = HashMap::new();
        for arrival in &arrivals {
            let body = bodies.entry(id(arrival)?).or_insert(&arrival.body);
            ensure!(**body == *arrival.body, "an event arrived with another body");
        }
        println!(
            "{:<10} {events:>8} {:>10} {:>10} {:>8.0} (goals: none lost, at most {} repeated)",
            on.name(),
            events - bodies.len(),
            arrivals.len() - bodies.len(),
            began.elapsed().as_secs_f64(),
            arguments.kills * PER_SUBSCRIPTION
        );
    }
    Ok(())
}

/// How many events there were, and what arrived.
async fn run(on: On<'_>, arguments: &Arguments) -> anyhow::Result<(usize, Vec<Arrival>)> {
    let receiver = Receiver::start(1).await?;
    let world = World::with_forms(on, "kills", &receiver).await?;
    let mut nodes = vec![Node::start(&world, &[])?, Node::start(&world, &[])?];
    world.subscribe(&nodes[0], &receiver, 1).await?;
    let (mut database, mut events) = (world.database().await?, 0);
    let (mut arrivals, mut arrived) = (Vec::new(), HashSet::new());
    for _ in 0..arguments.kills {
        let mut before = Vec::with_capacity(nodes.len());
        for node in &nodes {
            before.push(attempts(node).await?);
        }
        // Every id that the number of forms divides is of the form with the subscription.
        database.insert(events * FORMS + 1..(events + EVENTS) * FORMS + 1).await?;
        events += EVENTS;
        take(&receiver, ARRIVED, &mut arrivals, &mut arrived).await?;
        let mut sender = 0;
        for (at, node) in nodes.iter().enumerate() {
            if attempts(node).await? > before[at] {
                sender = at;
            }
        }
        nodes.remove(sender).process.signal("KILL")?;
        nodes.push(Node::start(&world, &[])?);
    }
    while arrived.len() < events {
        take(&receiver, 1, &mut arrivals, &mut arrived).await?;
    }
    Ok((events, arrivals))
}

/// Takes what arrives, at least `count` requests.
async fn take(
    receiver: &Receiver,
    count: usize,
    arrivals: &mut Vec<Arrival>,
    arrived: &mut HashSet<String>,
) -> anyhow::Result<()> {
    let taken = receiver.take(count).await?;
    for arrival in &taken {
        arrived.insert(id(arrival)?);
    }
    arrivals.extend(taken);
    Ok(())
}

fn id(arrival: &Arrival) -> anyhow::Result<String> {
    let event: Value = serde_json::from_slice(&arrival.body)?;
    Ok(event["id"].as_str().context("an event has an id")?.to_owned())
}

/// How many requests a node has sent.
async fn attempts(node: &Node) -> anyhow::Result<f64> {
    let text = node.metrics().await?;
    let series = text.lines().filter(|line| line.starts_with("formgate_webhook_attempts_total{"));
    Ok(series.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
}
