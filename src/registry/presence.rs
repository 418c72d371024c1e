//! What this node writes about itself into the registry, so that callers who wait for a change wait for this node too.
//!
//! A node that can't write, because the registry's disk is full or its role lacks a right, still follows and serves, but
//! callers no longer wait for it. It can't announce that to the others, so it reports it to its own operator: in the log,
//! in `/readyz`, and as a stalled task.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::node_name::NodeName;
use crate::store::registry::{Beat, RegistryMark};
use crate::store::{Registry, with_causes};

/// How often a node without changes writes that it is there.
///
/// Larger: a node that died counts as live for longer, and looks after its tenants in the eyes of the others. Smaller: more
/// writes.
const BEAT_INTERVAL: Duration = Duration::from_secs(2);

/// How often nodes that are gone for long are forgotten, and what is no longer kept.
///
/// Larger: they are listed for longer. Smaller: more writes.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);

/// Whether the registry has what this node last wrote.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The ids of the keys that seal private keys.
    seal_keys: Vec<String>,
    written_at: Option<Instant>,
    forgot_at: Option<Instant>,
    /// Whether what is no longer kept could not be removed.
    keeps_old: bool,
    is_faulty: bool,
}

/// When this process saw each node write, by a clock that does not step.
#[derive(Debug, Default)]
pub(super) struct Sightings(HashMap<String, Sighting>);

#[derive(Debug)]
struct Sighting {
    beat: String,
    /// None until it writes again: it may be the row of a node that died before.
    at: Option<Instant>,
}

impl Sightings {
    /// Notes the last beat of each node.
    pub(super) fn note(&mut self, beats: HashMap<String, String>) {
        let sighting = |(id, beat): (String, String)| {
            let at = match self.0.get(&id) {
                Some(before) if before.beat == beat => before.at,
                Some(_) => Some(Instant::now()),
                None => None,
            };
            (id, Sighting { beat, at })
        };
        self.0 = beats.into_iter().map(sighting).collect();
    }

    /// Whether a node wrote a short while ago.
    pub(super) fn is_running(&self, id: &str) -> bool {
        self.0.get(id).is_some_and(Sighting::is_recent)
    }

    fn running(&self) -> Vec<String> {
        self.0.iter().filter(|(_, sighting)| sighting.is_recent()).map(|(id, _)| id.clone()).collect()
    }
}

impl Sighting {
    fn is_recent(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < Registry::LIVE)
    }
}

impl Presence {
    /// Nothing is written yet. `seal_keys` are the ids of the keys that seal private keys.
    pub(super) fn new(seal_keys: Vec<String>) -> Self {
        Self { seal_keys, ..Self::default() }
    }

    /// Whether it is time to write. After a fault, the next poll tries again.
    pub(super) fn is_due(&self) -> bool {
        self.written_at.is_none_or(|at| at.elapsed() >= BEAT_INTERVAL)
    }

    /// Whether the last beat could not be written.
    pub(super) fn is_faulty(&self) -> bool {
        self.is_faulty
    }

    /// Writes how far this node has got, the first tenants that it can't read, how many there are, and the removed ones whose
    /// databases are still open. Returns the beat, or
    /// `None` if the write may have failed.
    pub(super) async fn write(
        &mut self,
        registry: &Registry,
        node: &NodeName,
        mark: RegistryMark,
        ((refused, reasons), refused_count): ((Vec<String>, Vec<String>), usize),
        closing: &[String],
        sightings: &Mutex<Sightings>,
    ) -> Option<String> {
        let beat = Beat {
            id: node.id().to_owned(),
            name: node.name().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            mark,
            refused,
            reasons,
            refused_count: i64::try_from(refused_count).unwrap_or(i64::MAX),
            beat: format!("{:016x}", rand::random::<u64>()),
            seal_keys: self.seal_keys.clone(),
            started_at: node.started_at(),
            closing: closing.to_vec(),
        };
        let outcome = registry.write_beat(&beat).await;
        if outcome.is_ok() && self.forgot_at.is_none_or(|at| at.elapsed() >= FORGET_INTERVAL) {
            let running = sightings.lock().unwrap_or_else(PoisonError::into_inner).running();
            // In statements of their own, by index: none waits for them. One that fails keeps no other from being tried.
            let forgotten = registry.forget_gone_nodes(&running).await;
            let forgotten = forgotten.and(registry.forget_old_events().await).and(registry.forget_old_stamps().await);
            if let Err(error) = &forgotten
                && !self.keeps_old
            {
                tracing::warn!(cause = with_causes(error), "old rows of the registry can't be removed; it grows");
            }
            self.keeps_old = forgotten.is_err();
            self.forgot_at = Some(Instant::now());
        }
        match &outcome {
            Err(error) if !self.is_faulty => {
                let cause = with_causes(error);
                tracing::error!(cause, "cannot write to the registry; `?wait=` no longer waits for this node");
            }
            Ok(()) if self.is_faulty => tracing::info!("the registry accepts writes of this node again"),
            _ => {}
        }
        self.is_faulty = outcome.is_err();
        self.written_at = outcome.is_ok().then(Instant::now);
        outcome.is_ok().then_some(beat.beat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_runs_if_it_was_seen_to_write_and_not_if_only_its_row_is_there() {
        let mut sightings = Sightings::default();
        let row = |beat: &str| HashMap::from([("node".to_owned(), beat.to_owned())]);
        sightings.note(row("1"));
        assert!(!sightings.is_running("node"), "it may have died long ago");
        sightings.note(row("1"));
        assert!(!sightings.is_running("node"));
        sightings.note(row("2"));
        assert!(sightings.is_running("node"));
        assert_eq!(sightings.running(), ["node"]);
        sightings.note(row("2"));
        assert!(sightings.is_running("node"), "it wrote a short while ago");
        sightings.note(HashMap::new());
        assert!(!sightings.is_running("node"), "it ended");
    }
}
