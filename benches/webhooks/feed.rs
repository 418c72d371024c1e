//! A page of 100 changes, next to five pages of `POST /submission` with as many submissions.

use std::time::Duration;

use anyhow::ensure;

use crate::Arguments;
use crate::accounts::On;
use crate::caller::Caller;
use crate::drain::until_settled;
use crate::node::Node;
use crate::postgres_server::Postgres;
use crate::receiver::Receiver;
use crate::rounds::Rounds;
use crate::world::World;

/// How many submissions the account has.
const SUBMISSIONS: usize = 10_000;

/// Pages of changes in a round. Larger: a round takes longer. Smaller: the kernel counts CPU in steps of 10 ms.
const PAGES: usize = 200;

/// How many rounds at least: they are short.
const ROUNDS: usize = 7;

/// How many times the CPU of the five pages a page of changes may cost.
const GOAL: f64 = 1.3;

pub(crate) async fn measure(server: &Postgres, arguments: &Arguments) -> anyhow::Result<()> {
    println!("\nCPU of 100 submissions in µs: a page of changes / five pages of POST /submission");
    for on in [On::Sqlite, On::Postgres(server)] {
        let receiver = Receiver::start(1).await?;
        let world = World::with_forms(on, "feed", &receiver).await?;
        let mut database = world.database().await?;
        database.insert(1..SUBMISSIONS + 1).await?;
        let node = Node::start(&world, &[])?;
        let mut caller = Caller::connect(node.address).await?;
        let changes = [world.request("GET /api/v1/submission/changes?limit=100", "")];
        let pages: Vec<_> =
            (1..=5).map(|page| world.request("POST /api/v1/submission", &format!(r#"{{"page":{page}}}"#))).collect();
        // The first call numbers what was inserted, which takes longer than a call may; only then are there statistics.
        until_settled(&mut caller, &changes[0]).await?;
        ask(&mut caller, &pages, 1).await?;
        database.analyze().await?;
        let mut figures = [[Rounds::default(), Rounds::default()], [Rounds::default(), Rounds::default()]];
        for _ in 0..arguments.rounds.max(ROUNDS) {
            for (requests, figures) in [&changes[..], &pages].into_iter().zip(&mut figures) {
                let before = cpu(on, &node)?;
                ask(&mut caller, requests, PAGES).await?;
                let after = cpu(on, &node)?;
                for (at, figure) in figures.iter_mut().enumerate() {
                    figure.push((after[at] - before[at]).as_secs_f64() * 1e6 / PAGES as f64);
                }
            }
        }
        let [changes, pages] = &figures;
        let whose = ["own", "Postgres"];
        let shown = if let On::Sqlite = on { 1 } else { 2 };
        for ((whose, changes), pages) in whose.iter().zip(changes).zip(pages).take(shown) {
            println!(
                "{:<10} {whose:<9} {:>7.0} / {:>7.0} = {:.2} (goal: at most {GOAL})",
                on.name(),
                changes.median(),
                pages.median(),
                changes.ratio_to(pages)
            );
        }
    }
    Ok(())
}

/// Of the node, and of the database server.
fn cpu(on: On<'_>, node: &Node) -> anyhow::Result<[Duration; 2]> {
    let server = if let On::Postgres(server) = on { server.process.cpu()? } else { Duration::ZERO };
    Ok([node.process.cpu()?, server])
}

async fn ask(caller: &mut Caller, requests: &[String], times: usize) -> anyhow::Result<()> {
    for request in requests.iter().cycle().take(requests.len() * times) {
        let status = caller.call(request).await?;
        ensure!(status == 200, "{}: {status}", request.lines().next().unwrap_or_default());
    }
    Ok(())
}
