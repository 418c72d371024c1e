//! Accounts on Postgres: with a database each, whose connection is open or closed, and with a schema each in one
//! database, over 20 connections.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use crate::load;
use crate::node::Node;
use crate::postgres_server::Postgres;
use crate::process::checked;
use crate::world::World;

/// How many connections the accounts share, or may have open in all.
pub(crate) const CONNECTIONS: usize = 20;

/// A database takes 8 MB, so there are few: twice as many as connections, called in turn, so that each is closed.
const DATABASES: usize = 2 * CONNECTIONS;

/// How many schemas at most: each takes the server half a second to make.
const MAX_SCHEMAS: usize = 1000;

/// Calls of each turn.
const CALLS: usize = 1000;

/// How often all take turns, since a shared machine is not steady.
const TURNS: usize = 5;

/// One way to have accounts, and what its calls cost.
struct Layout {
    what: &'static str,
    world: World,
    node: Node,
    /// CPU in milliseconds a call, of node and server together.
    costs: Vec<f64>,
    /// That of the server.
    of_server: Vec<f64>,
}

pub(crate) async fn measure(accounts: usize) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    // If this is root, the server runs as another user, and that one must be able to enter the folder.
    checked(std::process::Command::new("chmod").arg("755").arg(folder.path()))?;
    let server = Postgres::start(folder.path())?;
    let mut layouts = Vec::new();
    for (what, world, open) in [
        ("a database each, open", databases(&server, "open", CONNECTIONS / 2)?, CONNECTIONS),
        ("a database each, closed", databases(&server, "closed", DATABASES)?, CONNECTIONS),
        ("a schema each", schemas(&server, &folder, accounts.min(MAX_SCHEMAS))?, CONNECTIONS),
    ] {
        world.configure(open)?;
        let node = Node::start(&world, &[])?;
        load::call_each(node.address, &world).await?;
        layouts.push(Layout { what, world, node, costs: Vec::new(), of_server: Vec::new() });
    }
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e3 / CALLS as f64;
    let mut connects = Vec::new();
    for _ in 0..TURNS {
        for Layout { world, node, costs, of_server, .. } in &mut layouts {
            let before = (node.measure().await?.cpu, server.process.cpu()?);
            load::forms_in_turn(node.address, world, CALLS).await?;
            let after = (node.measure().await?.cpu, server.process.cpu()?);
            costs.push(each(after.0 - before.0 + after.1 - before.1));
            of_server.push(each(after.1 - before.1));
        }
        let before = server.process.cpu()?;
        for n in 0..CALLS {
            PgConnection::connect(&server.url(&format!("closed_{}", n % DATABASES))).await?.close().await?;
        }
        connects.push(each(server.process.cpu()? - before));
    }
    let medians: Vec<f64> = layouts.iter_mut().map(|layout| median(&mut layout.costs)).collect();
    for (layout, cost) in layouts.iter().zip(&medians) {
        let accounts = layout.world.accounts;
        println!(
            "  postgres, {}, {accounts} accounts: {cost:.2} ms of CPU a call, {:.2} times an open database",
            layout.what,
            cost / medians[0]
        );
    }
    let (request, connect) = (median(&mut layouts[1].of_server), median(&mut connects));
    println!(
        "  postgres, CPU of the server: {request:.2} ms a call on a closed database, {connect:.2} ms for connecting to it and no \
         more: {:.2} times",
        request / connect
    );
    let largest = server.execute("postgres", &[LARGEST_BACKEND])?;
    println!("  the largest process of the server: {largest} MB of its own");
    Ok(())
}

/// Private memory of the largest server process that serves schemas: `smaps_rollup` is readable for its owner. A process
/// may end meanwhile.
const LARGEST_BACKEND: &str = "SELECT max((regexp_match(pg_read_file('/proc/' || pid || '/smaps_rollup', 0, 65536, true), \
    'Private_Dirty: +(\\d+)'))[1]::bigint) / 1024 FROM pg_stat_activity WHERE datname = 'shared'";

/// Accounts with a database each, copied from the first.
pub(crate) fn databases(server: &Postgres, name: &str, accounts: usize) -> anyhow::Result<World> {
    server.execute("postgres", &[&format!("CREATE DATABASE {name}_0")])?;
    let world = World::with_first(accounts, [&server.url(&format!("{name}_")), ""])?;
    copy_first(server, name, accounts)?;
    Ok(world)
}

/// Copies the first database of this name for all other accounts.
pub(crate) fn copy_first(server: &Postgres, name: &str, accounts: usize) -> anyhow::Result<()> {
    for n in 1..accounts {
        let copy = format!("CREATE DATABASE {name}_{n} TEMPLATE {name}_0 STRATEGY file_copy");
        server.execute("postgres", &[&copy])?;
    }
    Ok(())
}

/// Accounts with a schema each, copied from the dump of the first.
fn schemas(server: &Postgres, folder: &TempDir, accounts: usize) -> anyhow::Result<World> {
    server.execute("postgres", &["CREATE DATABASE shared"])?;
    let url = server.url("shared");
    let world = World::with_first(accounts, [&format!("{url}?schema=account_"), ""])?;
    let dump = checked(server.program("pg_dump").args(["--schema=account_0", "--dbname", &url]))?;
    let path = folder.path().join("schema.sql");
    for n in 1..accounts {
        fs::write(&path, dump.replace("account_0", &format!("account_{n}")))?;
        checked(server.psql("shared").arg("--single-transaction").arg("--file").arg(&path).stdout(Stdio::null()))?;
    }
    Ok(world)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
