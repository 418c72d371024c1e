//! When a certificate is renewed: as its CA suggests, within bounds of its lifetime.

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

use super::error::DomainsError;
use super::schedule;
use super::shared::Domains;
use super::transition::event;
use crate::host::HostName;
use crate::store::registry::{DomainEvent, DomainRecord};

/// Whether the CA is asked when a certificate should be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Ca,
    NotAgain,
}

/// When a certificate is renewed.
pub(super) struct RenewalDates {
    pub(super) renew_at: Timestamp,
    pub(super) late_at: Timestamp,
    /// When the CA is asked again.
    pub(super) ask_again: Timestamp,
}

impl Domains {
    /// When the certificate of a domain is renewed. `None` if it has none.
    pub(super) async fn renewal_dates(
        &self,
        domain: &DomainRecord,
        host: &HostName,
        ask: Ask,
    ) -> Result<Option<RenewalDates>, DomainsError> {
        let found = self.registry().await?.find_certificate(&domain.host).await?;
        let Some((record, pair)) = found.and_then(|record| record.pair.clone().map(|pair| (record, pair))) else {
            return Ok(None);
        };
        let mut window = None;
        let mut ask_again = self.now() + schedule::LIVE_CHECK;
        if ask == Ask::Ca
            && let Some((_, client)) = self.client().await?
            && let Some(at) = client.authorities().iter().position(|ca| ca.name == record.authority)
            && let Ok(leaf) = CertificateDer::from_pem_slice(pair.chain.as_bytes())
        {
            window = client.renewal_info(at, &leaf).await.ok().flatten();
            ask_again = window.as_ref().map_or(ask_again, |window| ask_again.min(self.now() + window.retry_after));
        }
        let (not_before, not_after) = (record.not_before, record.not_after);
        let renew_at = match (&window, domain.renew_at) {
            // The last suggestion of the CA holds until it can be asked again.
            (None, Some(known)) if ask == Ask::NotAgain => known,
            _ => schedule::renew_at(not_before, not_after, window.as_ref(), spread(host, not_after)),
        };
        Ok(Some(RenewalDates { renew_at, late_at: schedule::late_at(not_before, not_after), ask_again }))
    }

    /// Decides when a domain with a certificate is checked next, and when it is renewed. Returns an event the first time that
    /// the renewal is late.
    pub(super) async fn plan_renewal(
        &self,
        domain: &mut DomainRecord,
        host: &HostName,
        ask: Ask,
    ) -> Result<Option<DomainEvent>, DomainsError> {
        let now = self.now();
        let mut next = now + schedule::LIVE_CHECK;
        let mut late = None;
        if let Some(dates) = self.renewal_dates(domain, host, ask).await? {
            domain.renew_at = Some(dates.renew_at);
            next = next.min(dates.renew_at).min(dates.ask_again);
            if now < dates.late_at {
                next = next.min(dates.late_at);
            } else if !domain.is_late {
                domain.is_late = true;
                late = Some(event("certificate.renewal_late", domain));
            }
        }
        // A failed renewal waits for its next try.
        domain.next_at = if domain.failures > 0 { now + schedule::back_off(domain.failures) } else { next };
        Ok(late)
    }
}

/// A number between 0 and 1: always the same for a certificate, and spread evenly over all of them.
pub(super) fn spread(host: &HostName, not_after: Timestamp) -> f64 {
    let digest = Sha256::new().chain_update(host.as_str()).chain_update(not_after.as_second().to_be_bytes()).finalize();
    f64::from(u16::from_be_bytes([digest[0], digest[1]])) / f64::from(u16::MAX)
}
