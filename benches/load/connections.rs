//! TLS connections: what one costs while nobody asks on it, what a new one costs, and whether very many certificates
//! change that.

use std::thread;
use std::time::Duration;

use anyhow::ensure;

use crate::bench::{Bench, number};
use crate::certified::Certified;
use crate::gateway::{self, Gateway};
use crate::nginx;
use crate::order::{Order, Pace, Request};
use crate::plain;
use crate::report::{self, Goal};
use crate::site::Site;
use crate::target::Target;
use crate::turns::{self, Generator};

/// Connections that are held at once.
const HELD: usize = 10_000;

/// Certificates that are loaded at once.
const CERTIFICATES: usize = 10_000;

/// Handshakes at once, enough to keep both sides busy.
const AT_ONCE: usize = 8;

/// How long held connections are left alone, to see what they cost then.
const IDLE: Duration = Duration::from_secs(5);

/// Above what any of the targets answers.
const LIMIT: u32 = 100_000;

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    let site = Site::make(1)?;
    let node = Gateway { name: "formgate", redis: None, window_seconds: 1, tenants: site.tenants(LIMIT) };
    let targets = [
        node.start(&site.folder)?,
        plain::start(&site, "plain hyper", None)?,
        nginx::start(&site, "nginx", 60_000_000)?,
    ];
    hold(bench, &site, &targets)?;
    open(bench, &site, &targets)?;
    choose(bench)
}

fn hold(bench: &Bench, site: &Site, targets: &[Target]) -> anyhow::Result<()> {
    let connections = number("HELD", HELD)?;
    println!("\n{connections} idle connections after one GET /me each\n");
    println!("| target | MB before | MB with them | KB a connection | CPU s in {} s |", IDLE.as_secs());
    println!("| --- | ---: | ---: | ---: | ---: |");
    let mut goals = Vec::new();
    for target in targets {
        let order = Order { connections, pace: Pace::Held, ..bench.order(target, site.me()) };
        let before = target.process.held().bytes;
        let mut generator = Generator::start(&order)?;
        generator.begun()?;
        thread::sleep(Duration::from_secs(1));
        let cpu = target.process.cpu()?;
        thread::sleep(IDLE);
        let (with, cpu) = (target.process.held().bytes, target.process.cpu()? - cpu);
        let report = generator.finish()?;
        ensure!(report.statuses.get(&200) == Some(&(connections as u64)), "{}: {:?}", target.name, report.statuses);
        let each = (with - before) / connections as f64 / 1e3;
        println!(
            "| {} | {:.1} | {:.1} | {each:.1} | {:.2} |",
            target.name,
            before / 1e6,
            with / 1e6,
            cpu.as_secs_f64()
        );
        if goals.is_empty() {
            goals.push(Goal::at_most(30.0, "KB an idle connection", each));
        }
    }
    report::print_goals(&goals);
    Ok(())
}

fn open(bench: &Bench, site: &Site, targets: &[Target]) -> anyhow::Result<()> {
    let order = |target| connecting(bench, target, site.me());
    let contenders: Vec<_> = targets.iter().map(|target| turns::against(target, None, None, order(target))).collect();
    let figures = turns::rounds(&contenders, bench.rounds)?;
    report::print(bench, "A new connection for each GET /me: TLS 1.3, P-256, whole handshakes", &figures);
    let [formgate, plain, nginx] = &figures[..] else { unreachable!("as many as there are targets") };
    report::print_goals(&[
        Goal::at_least(1.0, "connections/s, formgate : nginx", formgate.rate.ratio_to(&nginx.rate)),
        Goal::at_most(1.0, "own CPU, formgate : nginx", formgate.own.ratio_to(&nginx.own)),
        Goal::at_least(0.9, "connections/s, formgate : plain hyper", formgate.rate.ratio_to(&plain.rate)),
    ]);
    Ok(())
}

/// With a certificate for each of very many hosts, all of them asked in turn. Their tenants' databases don't exist, and
/// nobody looks: no request has a token, so it is refused with 401, and with 429 when that becomes too many.
fn choose(bench: &Bench) -> anyhow::Result<()> {
    let certificates = number("CERTIFICATES", CERTIFICATES)?;
    let worlds = [Certified::new(1)?, Certified::new(certificates)?];
    let nodes =
        [gateway::start("one certificate", &worlds[0].config())?, gateway::start("all of them", &worlds[1].config())?];
    let requests = |world: &Certified| -> Vec<Request> {
        (0..world.tenants).map(|n| Request::new("GET", &world.host(n), "", "/me").unauthenticated()).collect()
    };
    load(bench, &nodes[1], requests(&worlds[1]))?;
    let contenders: Vec<_> = nodes
        .iter()
        .zip(&worlds)
        .map(|(node, world)| turns::against(node, None, None, connecting(bench, node, requests(world))))
        .collect();
    let figures = turns::rounds(&contenders, bench.rounds)?;
    report::print(
        bench,
        &format!("A new connection each, {certificates} hosts with a certificate each in turn"),
        &figures,
    );
    let ratio = figures[1].rate.ratio_to(&figures[0].rate);
    report::print_goals(&[Goal::at_least(0.9, format!("connections/s, {certificates} certificates : one"), ratio)]);
    Ok(())
}

/// Asks every host once, so that every certificate is in memory.
fn load(bench: &Bench, node: &Target, mut requests: Vec<Request>) -> anyhow::Result<()> {
    let (hosts, mut asked) = (requests.len(), 0);
    while asked < hosts {
        let order = Order { warm_up: 0.0, ..connecting(bench, node, requests.clone()) };
        let done = usize::try_from(turns::ask(&order, &mut || Ok(()))?.requests)?;
        ensure!(done > 0, "nobody answers");
        requests.rotate_left(done % hosts);
        asked += done;
    }
    Ok(())
}

/// A turn of a new connection for each request.
fn connecting(bench: &Bench, target: &Target, requests: Vec<Request>) -> Order {
    Order { connections: AT_ONCE, fresh: true, ..bench.order(target, requests) }
}
