//! Writes how far this node has got.

use std::time::Instant;

use super::{Followed, Following};
use crate::store::registry::Beat;
use crate::store::{Registry, with_causes};

impl Following {
    /// Writes how far this node has got. A registry that can't be written is still followed.
    pub(super) async fn beat(&self, registry: &Registry, followed: &mut Followed) {
        let beat = Beat {
            id: self.node.id().to_owned(),
            name: self.node.name().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            revision: followed.head.revision,
            refused: followed.refused.keys().cloned().collect(),
            beat: format!("{:016x}", rand::random::<u64>()),
            started_at: self.node.started_at(),
        };
        match registry.write_beat(&beat).await {
            Ok(()) => {
                followed.head.beat = Some(beat.beat);
                followed.beat_at = Some(Instant::now());
            }
            Err(error) => {
                // It may have been written nevertheless.
                followed.head.beat = None;
                tracing::debug!(cause = with_causes(&error), "the registry does not take how far this node has got");
            }
        }
    }
}
