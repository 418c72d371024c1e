//! A backlog that a node delivers, and what that takes.

use std::time::{Duration, Instant};

use crate::accounts::{FORMS, On};
use crate::caller::Caller;
use crate::node::Node;
use crate::postgres_server::Postgres;
use crate::receiver::{Arrival, Receiver, span};
use crate::world::World;

/// How long a node may take to settle what was inserted.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);

/// What a number of deliveries took.
pub(crate) struct Spent {
    pub(crate) deliveries: usize,
    /// From the first request to the last.
    pub(crate) span: Duration,
    /// CPU of the deliverer itself.
    pub(crate) own: Duration,
    /// CPU of Postgres.
    pub(crate) postgres: Duration,
    /// CPU of Redis.
    pub(crate) redis: Duration,
    /// Own CPU for settling the submissions before, which takes as much without webhooks.
    pub(crate) settling: Duration,
}

impl Spent {
    pub(crate) fn per_second(&self) -> f64 {
        self.deliveries as f64 / self.span.as_secs_f64()
    }

    /// Microseconds for each delivery.
    pub(crate) fn each(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / self.deliveries as f64
    }
}

/// An account with a subscription for each form, whose node is stopped while a backlog is inserted.
pub(crate) struct Backlog<'s> {
    on: On<'s>,
    world: World,
    receiver: Receiver,
    /// How many submissions were inserted so far.
    inserted: usize,
}

impl<'s> Backlog<'s> {
    pub(crate) async fn make(on: On<'s>, name: &str) -> anyhow::Result<Self> {
        let receiver = Receiver::start(FORMS).await?;
        let world = World::with_forms(on, name, &receiver).await?;
        let node = Node::start(&world, &[])?;
        world.subscribe(&node, &receiver, FORMS).await?;
        Ok(Self { on, world, receiver, inserted: 0 })
    }

    /// Inserts submissions, has a node that does not deliver settle them, starts one that does, and waits until all are
    /// delivered. Returns one of the requests too.
    pub(crate) async fn deliver(&mut self, events: usize) -> anyhow::Result<(Spent, Arrival)> {
        let mut database = self.world.database().await?;
        database.insert(self.inserted + 1..self.inserted + 1 + events).await?;
        database.analyze().await?;
        drop(database);
        self.inserted += events;
        let settling = self.settle().await?;
        let node = Node::start(&self.world, &[])?;
        let (own, postgres) = (node.process.cpu()?, self.postgres_cpu()?);
        let mut arrivals = self.receiver.take(events).await?;
        let (own, postgres) = (node.process.cpu()? - own, self.postgres_cpu()? - postgres);
        let spent = Spent { deliveries: events, span: span(&arrivals), own, postgres, redis: Duration::ZERO, settling };
        Ok((spent, arrivals.swap_remove(0)))
    }

    /// Returns the CPU that it took.
    async fn settle(&self) -> anyhow::Result<Duration> {
        self.world.configure(1, false, &self.receiver)?;
        let node = Node::start(&self.world, &[])?;
        let before = node.process.cpu()?;
        let mut caller = Caller::connect(node.address).await?;
        until_settled(&mut caller, &self.world.request("GET /api/v1/submission/changes?limit=1", "")).await?;
        self.world.configure(1, true, &self.receiver)?;
        Ok(node.process.cpu()? - before)
    }

    fn postgres_cpu(&self) -> anyhow::Result<Duration> {
        match self.on {
            On::Sqlite => Ok(Duration::ZERO),
            On::Postgres(Postgres { process, .. }) => process.cpu(),
        }
    }
}

/// Repeats a call that is refused while a node settles what was written.
pub(crate) async fn until_settled(caller: &mut Caller, request: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        match caller.call(request).await? {
            200 => return Ok(()),
            503 if began.elapsed() < SETTLE_LIMIT => tokio::time::sleep(Duration::from_secs(1)).await,
            status => anyhow::bail!("the first page of changes: {status}"),
        }
    }
}
