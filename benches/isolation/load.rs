//! A steady load on every tenant: a request is sent when it is due, whatever became of those before it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;

use crate::support::client::Client;

/// How often each tenant is asked. More, and the machine is what is measured; less, and percentiles are of few answers.
const EVERY: Duration = Duration::from_millis(50);

/// The callers of all tenants.
pub(crate) struct Load {
    clients: Vec<Client>,
    /// So that every group has a name of its own.
    turns: AtomicU32,
}

/// What one tenant answered in one turn.
#[derive(Clone, Default)]
pub(crate) struct Turn(Vec<(u16, Duration)>);

impl Load {
    pub(crate) fn new(clients: Vec<Client>) -> Self {
        Self { clients, turns: AtomicU32::new(0) }
    }

    /// Asks for so long, and waits for every answer.
    pub(crate) async fn turn(&self, length: Duration) -> Vec<Turn> {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let turns = self.clients.iter().enumerate().map(|(at, client)| {
            // Not all in one moment.
            let first = EVERY * u32::try_from(at).expect("some tenants") / 10;
            turn_of(client.clone(), turn, first, length)
        });
        futures_util::future::join_all(turns).await
    }
}

/// The requests of one tenant.
async fn turn_of(client: Client, turn: u32, first: Duration, length: Duration) -> Turn {
    let mut answers = JoinSet::new();
    let begin = Instant::now() + first;
    let count = u32::try_from(length.as_millis() / EVERY.as_millis()).expect("a short turn");
    for number in 0..count {
        let due = begin + EVERY * number;
        tokio::time::sleep_until(due.into()).await;
        let client = client.clone();
        answers.spawn(async move {
            // Searches first: they meet a server that hangs for as long as a statement may run, a group for a minute.
            let call = match number % 10 {
                0..4 => client.post("/api/v1/submission").json(&json!({"search": "holiday"})),
                4 => client.put("/api/v1/group").json(&json!({"name": format!("Group {turn}-{number}")})),
                _ => client.get("/api/v1/form"),
            };
            let answer = call.send().await;
            (answer.status.as_u16(), due.elapsed())
        });
    }
    Turn(answers.join_all().await)
}

impl Turn {
    /// In milliseconds.
    pub(crate) fn percentile(&self, percentile: usize) -> f64 {
        let mut times: Vec<Duration> = self.0.iter().map(|(_, took)| *took).collect();
        times.sort();
        times[(times.len() - 1) * percentile / 100].as_secs_f64() * 1000.0
    }

    /// Adds what another turn showed.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    pub(crate) fn statuses(&self) -> impl Iterator<Item = u16> {
        self.0.iter().map(|(status, _)| *status)
    }
}
