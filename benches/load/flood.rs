//! One account over its limit of 60 a minute, which goes on asking: what refusing costs.

use crate::bench::Bench;
use crate::gateway::{self, Gateway};
use crate::nginx;
use crate::order::{Order, Protocol};
use crate::plain::{self, SortedSet};
use crate::report::{self, Goal};
use crate::site::Site;
use crate::turns;

const LIMIT: u32 = 60;

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    let site = Site::make(1)?;
    let node = |name, redis| Gateway { name, redis, window_seconds: 60, tenants: site.tenants(LIMIT) };
    let window = |remembers_refusals| {
        Some(SortedSet { redis: site.redis_url(), limit: LIMIT, milliseconds: 60_000, remembers_refusals })
    };
    let mut targets = vec![
        node("formgate, Redis", Some(site.redis_url())).start(&site.folder)?,
        node("formgate, embedded", None).start(&site.folder)?,
        plain::start(&site, "plain hyper, asks Redis", window(false))?,
        plain::start(&site, "plain hyper, remembers", window(true))?,
        nginx::start(&site, "nginx", LIMIT)?,
    ];
    if let Some(program) = gateway::before() {
        targets.push(node("before, Redis", Some(site.redis_url())).start_from(&program, &site.folder)?);
        targets.push(node("before, embedded", None).start_from(&program, &site.folder)?);
    }
    for (protocol, streams, name) in Protocol::BOTH {
        let order = |target| Order { protocol, streams, ..bench.order(target, site.me()) };
        let contenders: Vec<_> =
            targets.iter().map(|target| turns::against(target, Some(&site.redis), None, order(target))).collect();
        let figures = turns::rounds(&contenders, bench.rounds)?;
        report::print(bench, &format!("GET /me, one account over its limit, 32 connections, {name}"), &figures);
        let [redis, embedded, asking, _, nginx, ..] = &figures[..] else {
            unreachable!("as many as there are targets")
        };
        report::print_goals(&[
            Goal::at_least(1.0, "refusals/s, with Redis : nginx", redis.rate.ratio_to(&nginx.rate)),
            Goal::at_least(1.0, "refusals/s, embedded : nginx", embedded.rate.ratio_to(&nginx.rate)),
            Goal::at_most(0.05, "CPU of Redis : plain hyper that asks it", redis.redis.ratio_to(&asking.redis)),
        ]);
    }
    Ok(())
}
