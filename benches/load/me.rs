//! `GET /me` of a thousand accounts in turn: what the gate costs, whole.
//!
//! A window is a second here in place of a minute, so that at some ten thousand requests a second the log of an account
//! is as long as that of one who uses most of the default limit in a minute; so it is for the sorted set.

use crate::bench::{Bench, number};
use crate::gateway::{self, Gateway};
use crate::nginx;
use crate::order::{Order, Protocol};
use crate::plain::{self, SortedSet};
use crate::report::{self, Goal};
use crate::site::Site;
use crate::turns;

/// So many that none is asked too often, and few enough that a node has all of their tokens in mind.
const ACCOUNTS: usize = 1000;

/// Above what any of the targets answers.
const LIMIT: u32 = 100_000;

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    let site = Site::make(number("ACCOUNTS", ACCOUNTS)?)?;
    let node = |name, redis| Gateway { name, redis, window_seconds: 1, tenants: site.tenants(LIMIT) };
    let window = SortedSet { redis: site.redis_url(), limit: LIMIT, milliseconds: 1000, remembers_refusals: false };
    let mut targets = vec![
        node("formgate, Redis", Some(site.redis_url())).start(&site.folder)?,
        node("formgate, embedded", None).start(&site.folder)?,
        plain::start(&site, "plain hyper, sorted set", Some(window))?,
        plain::start(&site, "plain hyper, static", None)?,
        nginx::start(&site, "nginx", 60_000_000)?,
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
        report::print(
            bench,
            &format!("GET /me, {} accounts in turn, 32 connections, {name}", site.accounts.len()),
            &figures,
        );
        let [redis, embedded, sorted_set, _, nginx, ..] = &figures[..] else {
            unreachable!("as many as there are targets")
        };
        report::print_goals(&[
            Goal::at_least(
                1.0,
                "requests/s, with Redis : plain hyper with a sorted set",
                redis.rate.ratio_to(&sorted_set.rate),
            ),
            Goal::at_most(
                1.3,
                "own CPU, with Redis : plain hyper with a sorted set",
                redis.own.ratio_to(&sorted_set.own),
            ),
            Goal::at_most(0.75, "CPU of Redis : with a sorted set", redis.redis.ratio_to(&sorted_set.redis)),
            Goal::at_least(0.8, "requests/s, embedded : nginx", embedded.rate.ratio_to(&nginx.rate)),
        ]);
    }
    Ok(())
}
