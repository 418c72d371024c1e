//! Takes over certificates, each in the order of its revision: into the snapshot, then into the index of this node.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{Followed, Following};
use crate::registry::obtained::{ObtainedCertificates, ReadFrom};
use crate::registry::snapshot::{Snapshot, TakenCertificates};
use crate::store::registry::Head;
use crate::store::{Registry, StoreError, with_causes};

/// How many certificates are taken over at once.
///
/// Larger: more memory, at some kilobytes each. Smaller: more statements.
const AT_ONCE: u32 = 200;

/// How often the registry is asked again for the certificates of hosts whose own has expired since.
///
/// Larger: a certificate that becomes valid is served later. Smaller: the index is searched more often.
const EXPIRED_INTERVAL: Duration = Duration::from_mins(1);

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
            let take = |rows| drop(self.certificates.take(rows, ReadFrom::Increment));
            *certificates = snapshot.read_certificates(&head.epoch, AT_ONCE, take).await;
            if let Some(registry) = self.registry.get()
                && let Err(error) = self.forget_all_erased(registry, &mut followed).await
            {
                tracing::debug!(
                    cause = with_causes(&error),
                    "the registry can't be asked for tenants that were erased"
                );
            }
        }
        drop(followed);
        self.catch_up().await;
    }

    /// Takes over certificates up to a head. `has_history`: the registry has that of the certificates which were taken before.
    /// Returns whether there were any.
    pub(super) async fn take_certificates(
        &self,
        registry: &Registry,
        followed: &mut Followed,
        head: &Head,
        has_history: bool,
    ) -> Result<bool, StoreError> {
        let is_whole = !has_history || followed.snapshot.as_ref().is_some_and(Snapshot::lacks_certificates);
        let from = if is_whole { ReadFrom::Whole } else { ReadFrom::Increment };
        if is_whole {
            followed.certificates.until = 0;
            if let Some(snapshot) = &mut followed.snapshot {
                snapshot.begin_with_certificates();
            }
        }
        let (mut listed, mut refused, mut has_any) = (HashSet::new(), 0, false);
        while followed.certificates.until < head.revision {
            let rows = registry.certificates(followed.certificates.until, head.revision, AT_ONCE).await?;
            let Some(last) = rows.last().map(|row| row.revision) else { break };
            let hosts: Vec<_> = rows.iter().filter(|_| is_whole).map(|row| row.host.clone()).collect();
            let taken = self.certificates.take(rows, from);
            refused += hosts.len().saturating_sub(taken.len());
            listed.extend(hosts);
            if let Some(snapshot) = &mut followed.snapshot {
                snapshot.keep_certificates(&taken).await;
            }
            followed.certificates.until = last;
            has_any = true;
        }
        if is_whole {
            self.forget_all_erased(registry, followed).await?;
            let (gone, kept) = self.certificates.keep_valid(&listed);
            let certificates = refused + kept;
            if certificates > 0 {
                tracing::warn!(certificates, "the registry lacks valid certificates; this node still serves them");
            }
            if let Some(snapshot) = &mut followed.snapshot {
                snapshot.remove_certificates(&gone).await;
            }
        }
        followed.certificates = TakenCertificates { until: head.revision, of: head.mark() };
        if (is_whole || has_any)
            && let Some(snapshot) = &mut followed.snapshot
        {
            snapshot.note_certificates(followed.certificates).await;
        }
        self.take_for_expired(registry, followed).await?;
        // The head moves with certificates and events too.
        if followed.head != *head {
            followed.head = head.clone();
            let Followed { snapshot, head, .. } = followed;
            if let Some(snapshot) = snapshot {
                snapshot.keep(head, &[], false).await;
            }
        }
        Ok(has_any)
    }

    /// Drops the certificates of all tenants that were erased, also while this node did not follow.
    async fn forget_all_erased(&self, registry: &Registry, followed: &mut Followed) -> Result<(), StoreError> {
        let erased = registry.erased().await?;
        let has_any = self.certificates.all().iter().any(|(_, known)| erased.iter().any(|slug| **slug == *known.slug));
        if has_any {
            self.forget_erased(followed, &erased).await;
        }
        Ok(())
    }

    /// Takes over the registry's certificates of hosts whose own has expired since: one that was not taken because it was not
    /// valid yet may be valid by now.
    async fn take_for_expired(&self, registry: &Registry, followed: &mut Followed) -> Result<(), StoreError> {
        let now = Timestamp::now();
        let (looked_at, since) = followed.expired_at.unwrap_or_else(|| (Instant::now(), Timestamp::MIN));
        if followed.expired_at.is_some() && looked_at.elapsed() < EXPIRED_INTERVAL {
            return Ok(());
        }
        for hosts in self.certificates.expired(since, now).chunks(AT_ONCE as usize) {
            let rows = registry.certificates_of(hosts).await?.into_iter().filter(|row| row.pair.is_some()).collect();
            let taken = self.certificates.take(rows, ReadFrom::Whole);
            if let Some(snapshot) = &mut followed.snapshot {
                snapshot.keep_certificates(&taken).await;
            }
        }
        followed.expired_at = Some((Instant::now(), now));
        Ok(())
    }
}
