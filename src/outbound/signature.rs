//! Signatures of webhooks, by Standard Webhooks 1.0 (<https://www.standardwebhooks.com>).
//!
//! Owns the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`. The signed text is
//! `{id}.{timestamp}.{body}`, and the algorithm HMAC-SHA256. While a secret is being rotated, the new and the previous
//! one both sign, and a receiver accepts the request if any of the signatures is by the secret that it knows. The crate
//! `standardwebhooks` had one release, on an older line of the same hash crates, and would replace 15 lines.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretSlice};
use sha2::Sha256;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The prefix of a secret's text.
const PREFIX: &str = "whsec_";

/// A subscription's secret: the key of its signatures.
#[derive(Clone, Debug)]
pub struct SigningSecret(SecretSlice<u8>);

/// The text is not `whsec_` followed by Base64. Does not quote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a secret for webhooks")]
pub struct InvalidSecret;

/// The id of an event: the same in each attempt to deliver it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventId(HeaderValue);

/// The text contains anything but ASCII letters, digits, `_` and `-`. A period would make the signed text ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of an event")]
pub struct InvalidEventId;

impl SigningSecret {
    /// Reads a secret as a subscription shows it.
    ///
    /// # Errors
    /// [`InvalidSecret`].
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let key = text.strip_prefix(PREFIX).ok_or(InvalidSecret)?;
        let key = STANDARD.decode(key).ok().filter(|key| !key.is_empty()).ok_or(InvalidSecret)?;
        Ok(Self(key.into()))
    }

    fn sign(&self, id: &EventId, timestamp: i64, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose_secret()).expect("HMAC takes keys of any length");
        mac.update(id.0.as_bytes());
        mac.update(format!(".{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl EventId {
    /// Checks an id.
    ///
    /// # Errors
    /// [`InvalidEventId`].
    pub fn parse(text: &str) -> Result<Self, InvalidEventId> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if text.is_empty() || !text.bytes().all(fits) {
            return Err(InvalidEventId);
        }
        HeaderValue::from_str(text).map(Self).map_err(|_| InvalidEventId)
    }
}

/// Adds the three headers. The signatures are in the order of the secrets.
pub(super) fn sign(headers: &mut HeaderMap, id: &EventId, at: Timestamp, body: &[u8], secrets: &[SigningSecret]) {
    let timestamp = at.as_second();
    let signatures: Vec<_> = secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect();
    let signatures = HeaderValue::try_from(signatures.join(" ")).expect("Base64 is ASCII");
    headers.insert(ID, id.0.clone());
    headers.insert(TIMESTAMP, HeaderValue::from(timestamp));
    headers.insert(SIGNATURE, signatures);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn signed(secrets: &[&str]) -> HeaderMap {
        let secrets: Vec<_> = secrets.iter().map(|secret| SigningSecret::parse(secret).unwrap()).collect();
        let mut headers = HeaderMap::new();
        let id = EventId::parse("msg_p5jXN8AQM9LWM0D4loKWxJek").unwrap();
        let at = Timestamp::from_second(1_614_265_330).unwrap();
        sign(&mut headers, &id, at, br#"{"test": 2432232314}"#, &secrets);
        headers
    }

    #[test]
    fn the_example_of_the_specification_is_reproduced() {
        let headers = signed(&[SECRET]);
        assert_eq!(headers["webhook-id"], "msg_p5jXN8AQM9LWM0D4loKWxJek");
        assert_eq!(headers["webhook-timestamp"], "1614265330");
        assert_eq!(headers["webhook-signature"], "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_secret_signs() {
        let other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
        let alone = [signed(&[SECRET]), signed(&[other])].map(|headers| headers["webhook-signature"].clone());
        let [first, second] = alone.each_ref().map(|value| value.to_str().unwrap());
        assert_eq!(signed(&[SECRET, other])["webhook-signature"], format!("{first} {second}"));
        assert_ne!(first, second);
    }

    #[test]
    fn a_secret_is_base64_after_its_prefix_and_does_not_print() {
        for text in ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_a b", "whsec_%%%%", "WHSEC_AAAA"] {
            assert!(SigningSecret::parse(text).is_err(), "{text}");
        }
        let shown = format!("{:?}", SigningSecret::parse(SECRET).unwrap());
        assert!(shown.contains("REDACTED"), "{shown}");
    }

    #[test]
    fn an_id_has_no_character_that_separates() {
        for text in ["", "a.b", "a b", "a\n", "ä", "a,b"] {
            assert_eq!(EventId::parse(text), Err(InvalidEventId), "{text}");
        }
        assert!(EventId::parse("evt_0197-A9").is_ok());
    }
}
