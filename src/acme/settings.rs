//! What an operator decides about CAs: the part of `[gateway.acme]` that the client needs.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rustls::pki_types::CertificateDer;
use secrecy::zeroize::Zeroizing;

use super::challenge::ChallengeKind;
use crate::outbound::Target;

/// The settings of a [`super::Acme`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The contacts of the account as URIs, such as `mailto:it@example.com`.
    pub contact: Vec<String>,
    /// The challenges to respond to, in order of preference.
    pub challenges: Vec<ChallengeKind>,
    /// The CAs, in order of preference.
    pub authorities: Vec<Authority>,
    /// The DNS servers that resolve the CAs; if empty, the system's.
    pub dns_servers: Vec<SocketAddr>,
    /// How long a request may take.
    ///
    /// Larger: a worker waits for longer at a CA that hangs. Smaller: CAs that sign slowly fail.
    pub timeout: Duration,
}

impl Default for AcmeSettings {
    fn default() -> Self {
        Self {
            contact: Vec::new(),
            challenges: vec![ChallengeKind::Http01, ChallengeKind::TlsAlpn01],
            authorities: Vec::new(),
            dns_servers: Vec::new(),
            timeout: Duration::from_secs(15),
        }
    }
}

/// A CA. Its terms of service are accepted when the account is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// What the operator calls it.
    pub name: String,
    /// The URL of its directory.
    pub directory: Target,
    /// Its name in CAA records, such as `letsencrypt.org`. The client does not use it.
    pub issuer: Option<String>,
    /// The profile to order (draft-ietf-acme-profiles), such as `shortlived`.
    pub profile: Option<String>,
    /// The account at the CA to which the ACME account is bound.
    pub external_account: Option<ExternalAccount>,
    /// CAs that may have issued its own TLS certificate, in addition to the system's.
    pub roots: Vec<CertificateDer<'static>>,
}

/// An external account (RFC 8555, section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    pub(super) key_id: String,
    pub(super) hmac_key: Zeroizing<Vec<u8>>,
}

/// The text is not a Base64 key. Does not quote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not Base64, in the URL-safe alphabet or the standard one")]
pub struct InvalidHmacKey;

/// CAs show the key with and without padding.
const PADDING: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// The alphabets of Base64 in which CAs show it: mostly the first one, which RFC 8555 names.
const ALPHABETS: [GeneralPurpose; 2] =
    [GeneralPurpose::new(&alphabet::URL_SAFE, PADDING), GeneralPurpose::new(&alphabet::STANDARD, PADDING)];

impl ExternalAccount {
    /// Reads the key as CAs show it: in Base64, with `-` and `_` or with `+` and `/`.
    ///
    /// # Errors
    /// [`InvalidHmacKey`], also for an empty key.
    pub fn new(key_id: &str, hmac_key: &str) -> Result<Self, InvalidHmacKey> {
        let decoded = ALPHABETS.iter().find_map(|alphabet| alphabet.decode(hmac_key.trim()).ok());
        let hmac_key = Zeroizing::new(decoded.filter(|key| !key.is_empty()).ok_or(InvalidHmacKey)?);
        Ok(Self { key_id: key_id.to_owned(), hmac_key })
    }
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExternalAccount({})", self.key_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hmac_key_is_read_in_both_alphabets_padded_or_not_and_is_never_shown() {
        for text in ["-_8AAQ", "-_8AAQ==", " -_8AAQ\n", "+/8AAQ", "+/8AAQ=="] {
            let account = ExternalAccount::new("kid-1", text).unwrap();
            assert_eq!(*account.hmac_key, [0xfb, 0xff, 0, 1], "{text:?}");
            assert_eq!(format!("{account:?}"), "ExternalAccount(kid-1)");
        }
        for text in ["", "+_8AAQ==", "-/8AAQ", "a secret", "A"] {
            assert_eq!(ExternalAccount::new("kid-1", text).unwrap_err(), InvalidHmacKey, "{text:?}");
        }
    }
}
