//! A mixed load for half an hour, with a reload each minute: what goes wrong, and what grows.
//!
//! `MINUTES` in the environment makes it shorter or longer. Reads, searches and writes on a Postgres and on SQLite
//! files over both protocols, new connections, callers without a token, and one over its limit; all at a pace that
//! leaves the machine room.

mod parts;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use parts::Part;

use crate::bench::{Bench, number};
use crate::data::{self, Folder};
use crate::gateway::{Gateway, Tenant};
use crate::order::Order;
use crate::postgres::Postgres;
use crate::process::{self, Held};
use crate::report::{self, Goal};
use crate::site::Site;
use crate::turns::Generator;

const MINUTES: u64 = 30;

/// From when on nothing may grow: caches are full and pools open then.
const SETTLED: usize = 5;

/// How many accounts have SQLite files.
const FILES: usize = 20;

/// Above what any account is asked here.
const LIMIT: u32 = 100_000;

const SUBMISSIONS: i64 = 10_000;

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    let minutes = number("MINUTES", MINUTES)?;
    let folder = Folder::open()?;
    let mut site = Site::make(FILES)?;
    let postgres = Postgres::start(folder.path())?;
    let (database, _) = data::databases(&postgres, &site, SUBMISSIONS)?;
    let mut tenants = site.tenants(LIMIT);
    tenants[0].requests = 60;
    let large = site.add("large", &postgres.url(&database))?;
    tenants.push(Tenant { slug: large.slug.clone(), database: postgres.url(&database), requests: LIMIT });
    let mut node = Gateway { name: "formgate", redis: Some(site.redis_url()), window_seconds: 60, tenants };
    let target = node.start(&site.folder)?;
    let listed = data::listed(&postgres, &database)?;
    let order = Order { connections: 8, turn: minutes as f64 * 60.0, ..bench.order(&target, Vec::new()) };
    let parts = parts::all(&order, &site.accounts[..FILES], &large, &listed);
    let mut generators = parts.iter().map(|part| Generator::start(&part.order)).collect::<Result<Vec<_>, _>>()?;
    generators.iter_mut().try_for_each(Generator::begun)?;
    let began = Instant::now();
    println!("\n| minute | MB | open files | CPU s | load |\n| ---: | ---: | ---: | ---: | ---: |");
    let (mut held, mut reloads) = (vec![target.process.held()], 0);
    for minute in 1..=minutes {
        // In the middle of the minute, so that its end shows what a reload leaves behind.
        thread::sleep((Duration::from_secs(60 * minute - 30)).saturating_sub(began.elapsed()));
        node.tenants.rotate_left(1);
        node.tenants[1].requests = if node.tenants[1].requests == 60 { 60 } else { LIMIT - u32::try_from(minute % 2)? };
        node.write(&site.folder)?;
        target.process.signal("HUP")?;
        thread::sleep((Duration::from_secs(60 * minute)).saturating_sub(began.elapsed()));
        let now = target.process.held();
        let cpu = target.process.cpu()?.as_secs_f64();
        println!("| {minute} | {:.1} | {} | {cpu:.0} | {} |", now.bytes / 1e6, now.files, process::load());
        held.push(now);
        let log = fs::read_to_string(target.log.as_ref().expect("a gateway has a log"))?;
        reloads += u64::from(log.contains("the configuration is reloaded"));
        target.empty_log()?;
    }
    ensure!(reloads == minutes, "only {reloads} of {minutes} reloads were done");
    summary(&parts, generators, &held)
}

fn summary(parts: &[Part], generators: Vec<Generator>, held: &[Held]) -> anyhow::Result<()> {
    println!("\n| load | answers | p50 ms | p99 ms | wrong or none |\n| --- | --- | ---: | ---: | ---: |");
    let mut wrong = 0;
    for (part, generator) in parts.iter().zip(generators) {
        let report = generator.finish()?;
        let unexpected =
            report.statuses.iter().filter(|(status, _)| !part.right.contains(status)).map(|(_, count)| count);
        let bad = unexpected.sum::<u64>() + report.failed;
        wrong += bad;
        let answers: Vec<_> = report.statuses.iter().map(|(status, count)| format!("{count} x {status}")).collect();
        let failure = report.failure.unwrap_or_default();
        println!(
            "| {} | {} | {:.1} | {:.1} | {bad} {failure} |",
            part.name,
            answers.join(", "),
            report.p50_ms,
            report.p99_ms
        );
    }
    let mut goals = vec![Goal::at_most(0.0, "answers that are wrong or missing", wrong as f64)];
    if let Some((first, rest)) = held[SETTLED.min(held.len() - 1)..].split_first() {
        let most = |of: fn(&Held) -> f64| rest.iter().map(of).fold(0.0, f64::max) / of(first);
        goals.push(Goal::at_most(1.05, "memory, the most after minute 5 : at minute 5", most(|held| held.bytes)));
        goals.push(Goal::at_most(
            1.1,
            "open files, the most after minute 5 : at minute 5",
            most(|held| held.files as f64),
        ));
    }
    report::print_goals(&goals);
    Ok(())
}
