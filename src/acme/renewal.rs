//! When to renew a certificate, according to its CA (ARI, RFC 9773).
//!
//! Sends its own GET: the function of instant-acme needs the `time` crate, and fails without `Retry-After`.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::Request;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use x509_parser::extensions::ParsedExtension;

use super::Acme;
use super::error::{AcmeError, Step};
use super::transport::TransportError;
use crate::outbound::retry_after;

/// When to ask again if the CA does not say.
///
/// Larger: a revocation is noticed later. Smaller: more requests.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// The range of intervals that are honored (RFC 9773, section 4.3.2).
///
/// A larger maximum, or minimum: a revocation is noticed later. Smaller: more requests.
const INTERVALS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(24 * 60 * 60));

/// When a CA suggests to renew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewalWindow {
    /// The beginning. In the past: renew now.
    pub start: Timestamp,
    /// The end, which is later.
    pub end: Timestamp,
    /// A page of the CA that explains the suggestion.
    pub explanation: Option<String>,
    /// When to ask again.
    pub retry_after: Duration,
}

/// The name of a certificate in ARI (RFC 9773, section 4.1), for `replaces`; `None` if it does not name its issuer's key.
#[must_use]
pub fn certificate_id(leaf: &CertificateDer<'_>) -> Option<String> {
    let (_, leaf) = x509_parser::parse_x509_certificate(leaf).ok()?;
    let issuer = leaf.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(issuer) => issuer.key_identifier.as_ref(),
        _ => None,
    })?;
    let [issuer, serial] = [issuer.0, leaf.raw_serial()].map(|part| URL_SAFE_NO_PAD.encode(part));
    Some(format!("{issuer}.{serial}"))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RenewalInfo {
    suggested_window: SuggestedWindow,
    #[serde(default, rename = "explanationURL")]
    explanation: Option<String>,
}

#[derive(Deserialize)]
struct SuggestedWindow {
    start: Timestamp,
    end: Timestamp,
}

impl Acme {
    /// Whether the CA supports ARI, so that an order may name the certificate it replaces.
    ///
    /// # Errors
    /// [`AcmeError::Down`] and [`AcmeError::Limited`].
    ///
    /// # Panics
    /// If there is no such CA.
    pub async fn has_renewal_info(&self, authority: usize) -> Result<bool, AcmeError> {
        Ok(self.sessions[authority].directory().await?.renewal_info.is_some())
    }

    /// When the CA suggests to renew a certificate; `None` if it has no ARI, does not know the certificate, or suggests a window
    /// that ends before it starts.
    ///
    /// # Errors
    /// [`AcmeError::Down`] and [`AcmeError::Limited`].
    ///
    /// # Panics
    /// If there is no such CA.
    pub async fn renewal_info(
        &self,
        authority: usize,
        leaf: &CertificateDer<'_>,
    ) -> Result<Option<RenewalWindow>, AcmeError> {
        let sessions = &self.sessions[authority];
        let Some(id) = certificate_id(leaf) else { return Ok(None) };
        let Some(url) = sessions.directory().await?.renewal_info else { return Ok(None) };
        let request = Request::get(format!("{}/{id}", url.trim_end_matches('/'))).body(Bytes::new());
        let request = request.map_err(|_| AcmeError::down(&TransportError::Url))?;
        let response = match sessions.transport.send(request).await {
            Ok(response) => response,
            Err(TransportError::Refused(refusal)) if refusal.is_not_found() => return Ok(None),
            Err(error) => return Err(error.during(Step::Renewal)),
        };
        let info: RenewalInfo = serde_json::from_slice(response.body())
            .map_err(|error| AcmeError::down(&format_args!("sent unusable renewal information: {error}")))?;
        let wait = retry_after(response.headers(), Timestamp::now()).unwrap_or(DEFAULT_INTERVAL);
        let SuggestedWindow { start, end } = info.suggested_window;
        let explanation = info.explanation.as_deref().map(super::error::one_line);
        let retry_after = wait.clamp(INTERVALS.0, INTERVALS.1);
        Ok((start < end).then_some(RenewalWindow { start, end, explanation, retry_after }))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyIdMethod, KeyPair, SerialNumber};

    use super::*;

    #[test]
    fn a_certificate_is_named_by_its_issuers_key_and_its_serial_number() {
        let mut issuer = CertificateParams::default();
        issuer.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        issuer.key_identifier_method = KeyIdMethod::PreSpecified(vec![
            0x69, 0x88, 0x5b, 0x6b, 0x87, 0x46, 0x40, 0x41, 0xe1, 0xb3, 0x7b, 0x84, 0x7b, 0xa0, 0xae, 0x2c, 0xde, 0x01,
            0xc8, 0xd4,
        ]);
        let issuer = CertifiedIssuer::self_signed(issuer, KeyPair::generate().unwrap()).unwrap();
        let mut leaf = CertificateParams::new(["example.com".to_owned()]).unwrap();
        leaf.serial_number = Some(SerialNumber::from_slice(&[0x87, 0x65, 0x43, 0x21]));
        leaf.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        // The example of RFC 9773, section 4.1: the first bit of the number is set, so its encoding begins with a zero.
        let issued = leaf.signed_by(&key, &issuer).unwrap();
        assert_eq!(certificate_id(issued.der()).as_deref(), Some("aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE"));
        leaf.use_authority_key_identifier_extension = false;
        assert_eq!(certificate_id(leaf.signed_by(&key, &issuer).unwrap().der()), None);
        assert_eq!(certificate_id(&CertificateDer::from_slice(b"none")), None);
    }
}
