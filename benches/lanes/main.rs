//! How a node's requests reach Redis at the least cost: over lanes that all share, where those who wait share a call too,
//! as the gateway does; with a call each; with a connection checked out of a pool each, or with a new connection each.
//!
//! All run the gateway's script. Its window is a millisecond, so that every log holds about one request whatever
//! the speed, and the ways differ in nothing but their connections.

#![expect(clippy::print_stdout, reason = "the table is the result")]

#[path = "../support/redis.rs"]
mod redis_server;
#[path = "../support/rounds.rs"]
mod rounds;
mod way;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use redis_server::Server;
use rounds::Rounds;
use way::Way;

/// How many requests wait for Redis at once: a quiet node, a busy one, one that is flooded.
const CONCURRENCIES: [usize; 3] = [1, 64, 512];

/// How long each way runs in a round. Shorter, and opening connections shows; longer, and the machine changes under it.
const TURN: Duration = Duration::from_millis(800);

/// An odd number, so that a median is a round that was.
const ROUNDS: usize = 7;

/// What one way showed at one concurrency.
#[derive(Default)]
struct Figures {
    rate: Rounds,
    half: Rounds,
    tail: Rounds,
    redis_cpu: Rounds,
    own_cpu: Rounds,
    failed: usize,
}

/// What one turn showed.
struct Turn {
    latencies: Vec<Duration>,
    failed: usize,
    took: Duration,
}

fn main() -> anyhow::Result<()> {
    let server = Server::start(&[])?;
    // As many workers as there are cores, like the gateway.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ways = runtime.block_on(Way::all(server.port(), CONCURRENCIES[2]))?;
    println!(
        "| at once | way | requests/s | x lanes | p50 µs | p99 µs | Redis µs a request | x lanes | own µs a request | x lanes | spread |"
    );
    println!("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for concurrency in CONCURRENCIES {
        let mut figures: Vec<_> = ways.iter().map(|_| Figures::default()).collect();
        // The first round is not counted: it opens connections, and loads the script.
        for round in 0..=ROUNDS {
            for (way, figures) in ways.iter().zip(&mut figures) {
                let (redis_cpu, own_cpu) = (server.cpu()?, own_cpu()?);
                let turn = runtime.block_on(turn(way, concurrency))?;
                if round > 0 {
                    figures.push(&turn, server.cpu()? - redis_cpu, self::own_cpu()? - own_cpu);
                }
            }
        }
        print_rows(concurrency, &ways, &figures);
    }
    Ok(())
}

/// Requests of so many callers, each of which waits for its answer before it asks again.
async fn turn(way: &Arc<Way>, concurrency: usize) -> anyhow::Result<Turn> {
    let over = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let callers: Vec<_> = (0..concurrency)
        .map(|caller| {
            let (way, over) = (Arc::clone(way), Arc::clone(&over));
            tokio::spawn(async move {
                let (mut latencies, mut failed) = (Vec::new(), 0);
                while !over.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    match way.admit(caller).await {
                        Ok(()) => latencies.push(asked.elapsed()),
                        Err(error) => {
                            failed += 1;
                            if failed == 1 {
                                eprintln!("{}: {error:#}", way.name());
                            }
                        }
                    }
                }
                (latencies, failed)
            })
        })
        .collect();
    tokio::time::sleep(TURN).await;
    over.store(true, Ordering::Relaxed);
    let (mut latencies, mut failed) = (Vec::new(), 0);
    for caller in callers {
        let (its, its_failed) = caller.await?;
        latencies.extend(its);
        failed += its_failed;
    }
    latencies.sort_unstable();
    anyhow::ensure!(!latencies.is_empty(), "{} answered nothing", way.name());
    Ok(Turn { latencies, failed, took: began.elapsed() })
}

impl Figures {
    fn push(&mut self, turn: &Turn, redis_cpu: Duration, own_cpu: Duration) {
        let count = turn.latencies.len();
        let requests = count as f64;
        self.rate.push(requests / turn.took.as_secs_f64());
        self.half.push(turn.latencies[count / 2].as_secs_f64() * 1e6);
        self.tail.push(turn.latencies[count * 99 / 100].as_secs_f64() * 1e6);
        self.redis_cpu.push(redis_cpu.as_secs_f64() * 1e6 / requests);
        self.own_cpu.push(own_cpu.as_secs_f64() * 1e6 / requests);
        self.failed += turn.failed;
    }
}

fn print_rows(concurrency: usize, ways: &[Arc<Way>], figures: &[Figures]) {
    let lanes = &figures[0];
    for (way, one) in ways.iter().zip(figures) {
        print!("| {concurrency} | {} | {:.0} | {:.2}", way.name(), one.rate.median(), one.rate.ratio_to(&lanes.rate));
        print!(" | {:.0} | {:.0}", one.half.median(), one.tail.median());
        print!(" | {:.1} | {:.1}", one.redis_cpu.median(), one.redis_cpu.ratio_to(&lanes.redis_cpu));
        print!(" | {:.1} | {:.1}", one.own_cpu.median(), one.own_cpu.ratio_to(&lanes.own_cpu));
        println!(" | {:.0} % |", one.rate.spread());
        if one.failed > 0 {
            println!("\n{} requests over `{}` failed.\n", one.failed, way.name());
        }
    }
}

/// How long all threads of this process have run so far.
fn own_cpu() -> anyhow::Result<Duration> {
    let mut total = Duration::ZERO;
    for task in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let run = text.split(' ').next().context("the first number is the time on a CPU")?;
        total += Duration::from_nanos(run.parse()?);
    }
    Ok(total)
}
