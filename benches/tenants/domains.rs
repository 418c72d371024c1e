//! Domains in a registry, each with a certificate that was obtained: a start, memory, handshakes, the queue and a budget.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use formgate::seal::{SealKey, Seals};
use formgate::store::registry::{Budget, CertificateRecord, DomainState, Lease, Requester, StoredPair};
use formgate::store::{DatabaseLocation, Registry};
use jiff::{SignedDuration, Timestamp};

use crate::caller::{Caller, handshakes_a_second};
use crate::certified::{Certified, SEAL_KEY};
use crate::node::Node;
use crate::registry::RegistryKind;

/// How long a node without work is looked at, and handshakes are counted.
const TURN: Duration = Duration::from_secs(10);

/// How many rows a node works on at once.
const AT_ONCE: u32 = 16;

pub(crate) async fn measure(domains: usize, kind: RegistryKind) -> anyhow::Result<()> {
    let (_server, url) = kind.open()?;
    let world = Arc::new(Certified::with_domains(domains, &url)?);
    println!("\n{domains} domains in a registry on {}", kind.name());
    world.import()?;
    fill(&world).await?;
    let caller = Arc::new(Caller::new(&world)?);
    for what in ["with no snapshot", "again"] {
        let began = Instant::now();
        let node = Node::start(&world)?;
        while caller.ask(&world.host(domains / 2)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("  start, {what:<17}{:>9.1?}, resident {:.1} MB", began.elapsed(), node.memory("VmRSS:")?);
    }
    let node = Node::start(&world)?;
    while caller.ask(&world.host(domains / 2)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    node.settle().await?;
    println!("  resident                {:>6.1} MB, at most {:.1} MB", node.memory("VmRSS:")?, node.memory("VmHWM:")?);
    let (before, began) = (node.processor()?, Instant::now());
    tokio::time::sleep(TURN).await;
    let idle = (node.processor()? - before).as_secs_f64() / began.elapsed().as_secs_f64();
    println!("  without work            {:>9.2} % of a core", idle * 100.0);
    let few = handshakes_a_second(&caller, &world, 10.min(domains), TURN).await?;
    let all = handshakes_a_second(&caller, &world, domains, TURN).await?;
    println!("  handshakes              {all:>9.0} a second to every host, {few:.0} to ten of them: {:.2}", all / few);
    println!("  resident, all asked     {:>6.1} MB", node.memory("VmRSS:")?);
    drop(node);
    queue(&world).await
}

/// Rows that are live, with certificates.
async fn fill(world: &Certified) -> anyhow::Result<()> {
    let registry = open(world).await?;
    let hosts: Vec<_> = (0..world.tenants).map(|n| (world.host(n), format!("t{n}"), "proof".to_owned())).collect();
    for some in hosts.chunks(500) {
        registry.need_domains(some).await?;
    }
    let seals = Seals::new(Some(SealKey::parse(SEAL_KEY)?), []);
    let now = Timestamp::now();
    let not_after = now + SignedDuration::from_hours(80 * 24);
    let mut certificates = Vec::with_capacity(hosts.len());
    for (n, (host, slug, _)) in hosts.iter().enumerate() {
        let (chain, key) = world.pair(host)?;
        certificates.push(CertificateRecord {
            host: host.clone(),
            slug: slug.clone(),
            revision: i64::try_from(n)? + 1,
            pair: Some(StoredPair { chain, key: seals.seal(&key, host) }),
            authority: "none".to_owned(),
            not_before: now,
            not_after,
        });
    }
    for some in certificates.chunks(500) {
        registry.copy_certificates(some).await?;
    }
    // In steps, as a node takes them.
    loop {
        let (_, due) = registry.due_domains(500).await?;
        let leased = registry.lease_domains("bench", &due).await?;
        if leased.is_empty() {
            break;
        }
        for mut domain in leased {
            domain.state = DomainState::Live;
            domain.next_at = now + SignedDuration::from_hours(24);
            domain.renew_at = Some(not_after);
            registry.write_domain(&domain, Lease::End, &[]).await?;
        }
    }
    registry.close().await;
    Ok(())
}

/// How fast rows that are due are taken and given back, and how fast a budget is.
async fn queue(world: &Certified) -> anyhow::Result<()> {
    let registry = open(world).await?;
    for n in 0..world.tenants {
        registry.ask_for_check(&world.host(n), &format!("t{n}"), Requester::Operator).await?;
    }
    let (mut rows, mut writing, began) = (0_u32, Duration::ZERO, Instant::now());
    let mut last = None;
    while began.elapsed() < TURN {
        let (now, due) = registry.due_domains(AT_ONCE).await?;
        let leased = registry.lease_domains("bench", &due).await?;
        if leased.is_empty() {
            break;
        }
        for mut domain in leased {
            domain.next_at = now + SignedDuration::from_hours(24);
            let wrote = Instant::now();
            registry.write_domain(&domain, Lease::End, &[]).await?;
            writing += wrote.elapsed();
            rows += 1;
            last = Some(domain);
        }
    }
    let each = began.elapsed() / rows.max(1);
    println!("  the queue               {each:>9.1?} a row, of which {:.1?} is writing it back", writing / rows.max(1));
    let budget = Budget { name: "bench".to_owned(), capacity: 1_000_000, period: TURN, reserve: 0, account: None };
    let domain = last.ok_or_else(|| anyhow::anyhow!("no row was due"))?;
    let began = Instant::now();
    for _ in 0..100 {
        registry.take_budgets(std::slice::from_ref(&budget), &domain).await?;
    }
    println!("  a budget                {:>9.1?}", began.elapsed() / 100);
    registry.close().await;
    Ok(())
}

async fn open(world: &Certified) -> anyhow::Result<Registry> {
    let url = world.registry.as_deref().ok_or_else(|| anyhow::anyhow!("the world has no registry"))?;
    let location = DatabaseLocation::parse(url, Path::new(world.folder()))?;
    Ok(Registry::open(&location).await?)
}
