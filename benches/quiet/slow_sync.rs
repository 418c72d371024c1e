//! Readers of accounts whose files are closed, while those that make room for them were written to and each sync takes
//! 100 ms.

use std::process::Command;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::caller::Caller;
use crate::calls::Call;
use crate::node::Node;
use crate::process::checked;
use crate::world::World;

/// As many files as stay open.
const OPEN: usize = 60;

/// Rounds of as many writers, and then as many readers who take their places.
const ROUNDS: usize = 4;

/// The pause between two readers: fifteen files a second are closed.
const PAUSE: Duration = Duration::from_millis(66);

pub(crate) async fn measure(world: &World) -> anyhow::Result<()> {
    let library = world.folder().join("slow_sync.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/quiet/slow_sync.c");
    checked(Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).args([source, "-ldl"]))?;
    world.configure(OPEN)?;
    let mut medians = Vec::new();
    for (what, environment) in [("a fast sync", &[][..]), ("a sync of 100 ms", &[("LD_PRELOAD", library.as_path())])] {
        let mut node = Node::start(world, environment)?;
        let mut times = readers(&mut node, world).await?;
        times.sort_by(f64::total_cmp);
        let [p50, p99] = [times[times.len() / 2], times[times.len() * 99 / 100]];
        println!("  readers with {what}: p50 {p50:.2} ms, p99 {p99:.2} ms, at most {:.2} ms", times[times.len() - 1]);
        medians.push(p50);
    }
    println!("  a slow sync delays a reader by {:.2} ms", medians[1] - medians[0]);
    Ok(())
}

/// The times of all readers, in milliseconds.
async fn readers(node: &mut Node, world: &World) -> anyhow::Result<Vec<f64>> {
    let (mut caller, mut random) = (Caller::connect(node.address).await?, SmallRng::seed_from_u64(41));
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let writers = (0..OPEN).map(|n| n % world.accounts);
        for account in writers {
            caller.call(&Call::WriteGroup.request(&world.token, account, &mut random)).await?;
        }
        for n in 0..OPEN {
            let account = (OPEN * (1 + round) + n) % world.accounts;
            let request = Call::Forms.request(&world.token, account, &mut random);
            tokio::time::sleep(PAUSE).await;
            let began = Instant::now();
            anyhow::ensure!(caller.call(&request).await? == 200, "a reader is refused");
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(times)
}
