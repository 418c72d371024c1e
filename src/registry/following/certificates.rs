//! Takes over certificates, each in the order of its revision: into the snapshot, then into the index of this node.

use std::sync::Arc;

use super::{Followed, Following};
use crate::registry::obtained::ObtainedCertificates;
use crate::registry::snapshot::Snapshot;
use crate::store::{Registry, StoreError};

/// How many certificates are taken over at once.
///
/// Larger: more memory, at some kilobytes each. Smaller: more statements.
const AT_ONCE: u32 = 200;

impl Following {
    /// The certificates that were obtained for domains.
    #[must_use]
    pub fn certificates(&self) -> &Arc<ObtainedCertificates> {
        &self.certificates
    }

    /// Takes over the certificates of the snapshot, and then those of the registry, as far as they can be read. Called
    /// before the first handshake.
    pub async fn begin_with_certificates(&self) {
        let mut followed = self.followed.lock().await;
        let Followed { snapshot, head, certificates, .. } = &mut *followed;
        if let Some(snapshot) = snapshot {
            *certificates =
                snapshot.read_certificates(&head.epoch, AT_ONCE, |rows| self.certificates.take(rows, false)).await;
        }
        drop(followed);
        self.catch_up().await;
    }

    /// Takes over certificates up to a revision. Returns whether there were any.
    pub(super) async fn take_certificates(
        &self,
        registry: &Registry,
        followed: &mut Followed,
        revision: i64,
        is_restored: bool,
    ) -> Result<bool, StoreError> {
        let mut is_whole = is_restored || followed.snapshot.as_ref().is_some_and(Snapshot::lacks_certificates);
        if is_whole {
            followed.certificates = 0;
        }
        if is_restored {
            self.certificates.take(&[], true);
        }
        let mut has_any = false;
        while followed.certificates < revision {
            let rows = registry.certificates_after(followed.certificates, AT_ONCE).await?;
            let Some(last) = rows.last().map(|row| row.revision) else { break };
            if let Some(snapshot) = &mut followed.snapshot {
                snapshot.keep_certificates(&rows, is_whole).await;
            }
            self.certificates.take(&rows, false);
            followed.certificates = last;
            (is_whole, has_any) = (false, true);
        }
        followed.certificates = followed.certificates.max(revision);
        // The head moves with certificates and events too.
        if followed.head.revision < revision {
            followed.head.revision = revision;
            let Followed { snapshot, head, .. } = followed;
            if let Some(snapshot) = snapshot {
                snapshot.keep(head, &[], false).await;
            }
        }
        Ok(has_any)
    }
}
