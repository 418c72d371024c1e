//! Whether this node may get traffic: from its start until it serves what the other nodes serve.
//!
//! A rolling update replaces one node after another as soon as the new one is ready. A new node that lacks a variable can't
//! read the rows that the others serve, so it is not ready, and the update stops. Once it was compared with another node, or
//! serves every row, it stays ready: a row that can't be read later is no better anywhere else. A node that is alone is ready
//! too, because no other node serves the rest, but only until one does.
//!
//! Nodes publish which rows they can't read, up to a number of them, so this compares what is not served here with theirs.

use std::fmt;
use std::sync::Arc;

use super::{Followed, Following};
use crate::store::registry::{Beat, NodeRecord};
use crate::store::{Registry, StoreError};

/// Why a node is not ready yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unready {
    /// It has not compared itself with the others yet.
    Starting,
    /// It serves no tenant, although the registry has some.
    ServesNone(Rows),
    /// Another live node serves rows that this one can't.
    LacksRows(Rows),
}

/// Rows of the registry that this node can't serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// How many.
    pub count: usize,
    /// The first of them that are known.
    pub first: Vec<Arc<str>>,
}

impl Following {
    /// Why this node is not ready. `None` from the moment when it serves what others serve.
    #[must_use]
    pub fn unready(&self) -> Option<Unready> {
        self.state().unready.clone()
    }

    /// Whether this node stays ready, whatever the others serve.
    #[must_use]
    pub fn stays_ready(&self) -> bool {
        self.state().stays_ready
    }

    /// Compares what is served here with the other nodes, until it is known that this node stays ready.
    pub(super) async fn note_readiness(&self, registry: &Registry, followed: &Followed) -> Result<(), StoreError> {
        if self.stays_ready() {
            return Ok(());
        }
        let nodes = if followed.refused.is_empty() { Vec::new() } else { registry.nodes().await? };
        let is_other = |node: &&NodeRecord| node.id != self.node.id() && (node.is_live || self.is_running(&node.id));
        let others: Vec<_> = nodes.iter().filter(is_other).collect();
        let unready = self.serves_none(followed).or_else(|| lacks(followed, &others).map(Unready::LacksRows));
        let mut state = self.state();
        state.stays_ready = unready.is_none() && (followed.refused.is_empty() || !others.is_empty());
        state.unready = unready;
        Ok(())
    }

    /// Notes whether a node that can't ask for the others is ready: it can't be compared.
    pub(super) fn note_ready_alone(&self, followed: &Followed) {
        let unready = self.serves_none(followed);
        let mut state = self.state();
        if state.unready == Some(Unready::Starting) {
            state.unready = unready;
        }
    }

    fn serves_none(&self, followed: &Followed) -> Option<Unready> {
        let is_none = self.directory.load().is_empty() && !followed.refused.is_empty();
        let rows = || Rows::of(followed.refused.keys().map(String::as_str), followed.refused.len());
        is_none.then(|| Unready::ServesNone(rows()))
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first.iter().map(|slug| &**slug).collect::<Vec<_>>().join(", ");
        write!(f, "{}: {first}", self.count)
    }
}

impl Rows {
    fn of<'s>(slugs: impl Iterator<Item = &'s str>, count: usize) -> Self {
        Self { count, first: slugs.take(Beat::NAMED).map(Into::into).collect() }
    }
}

/// The rows that another node serves and this one can't.
fn lacks(followed: &Followed, others: &[&NodeRecord]) -> Option<Rows> {
    let serves =
        |node: &NodeRecord, slug: &str, position: i64| node.revision >= position && node.can_read(slug) == Some(true);
    let lacking = followed.refused.values().map(|refused| &refused.row);
    let lacking: Vec<_> =
        lacking.filter(|row| others.iter().any(|node| serves(node, &row.slug, row.position))).collect();
    // One that can't read fewer rows than this one serves some that this one does not, named or not.
    let most = others.iter().filter(|node| node.revision >= followed.head.revision);
    let more = most.map(|node| followed.refused.len().saturating_sub(usize::try_from(node.refused_count).unwrap_or(0)));
    let count = lacking.len().max(more.max().unwrap_or(0));
    (count > 0).then(|| Rows::of(lacking.into_iter().map(|row| row.slug.as_str()), count))
}
