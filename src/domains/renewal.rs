//! When a certificate is renewed, by what its authority suggests and by its life.

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

use super::{Domains, DomainsError, schedule};
use crate::host::HostName;
use crate::store::registry::DomainRecord;

/// Whether the authority is asked when a certificate should be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Authority,
    NotAgain,
}

/// When a certificate is renewed.
pub(super) struct RenewalDates {
    pub(super) renew_at: Timestamp,
    pub(super) late_at: Timestamp,
    /// When the authority is to be asked again.
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
        let mut ask_again = self.now() + schedule::LIVE_LOOK;
        if ask == Ask::Authority
            && let Some((_, client)) = self.client().await?
            && let Some(at) = client.authorities().iter().position(|authority| authority.name == record.authority)
            && let Ok(leaf) = CertificateDer::from_pem_slice(pair.chain.as_bytes())
        {
            window = client.renewal_info(at, &leaf).await.ok().flatten();
            ask_again = window.as_ref().map_or(ask_again, |window| ask_again.min(self.now() + window.retry_after));
        }
        let (not_before, not_after) = (record.not_before, record.not_after);
        let renew_at = match (&window, domain.renew_at) {
            // What the authority suggested before holds until it can be asked again.
            (None, Some(known)) if ask == Ask::NotAgain => known,
            _ => schedule::renew_at(not_before, not_after, window.as_ref(), spread(host, not_after)),
        };
        Ok(Some(RenewalDates { renew_at, late_at: schedule::late_at(not_before, not_after), ask_again }))
    }
}

/// A number between 0 and 1 that is the same for a certificate each time, and another one for each.
pub(super) fn spread(host: &HostName, not_after: Timestamp) -> f64 {
    let digest = Sha256::new().chain_update(host.as_str()).chain_update(not_after.as_second().to_be_bytes()).finalize();
    f64::from(u16::from_be_bytes([digest[0], digest[1]])) / f64::from(u16::MAX)
}
