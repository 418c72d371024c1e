//! The key of the accounts: an ECDSA key on P-256, one for all CAs.
//!
//! Owns what is derived from it: the thumbprint (RFC 7638), with which every node that has the key can respond to HTTP-01
//! without shared state, and the signatures of the requests that register an account.

use std::fmt;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::zeroize::Zeroizing;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::settings::ExternalAccount;

/// The longest token that gets a response. CAs use 43 characters.
///
/// Larger: strangers can request longer responses. Smaller: a CA with long tokens fails.
const MAX_TOKEN: usize = 128;

/// The length of a coordinate of a public key.
const COORDINATE_BYTES: usize = 32;

/// An account key. Never shown.
pub struct AccountKey {
    pkcs8: Zeroizing<Vec<u8>>,
    pair: EcdsaKeyPair,
    thumbprint: String,
}

/// The bytes are not a PKCS #8 key on P-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a P-256 key in PKCS #8")]
pub struct InvalidAccountKey;

impl AccountKey {
    /// A new key.
    ///
    /// # Panics
    /// If the system has no random bytes.
    #[must_use]
    pub fn generate() -> Self {
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        Self::from_pkcs8(key.expect("the system has random bytes").as_ref()).expect("a key that was just generated")
    }

    /// Reads what [`Self::pkcs8`] returned.
    ///
    /// # Errors
    /// [`InvalidAccountKey`].
    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, InvalidAccountKey> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8).map_err(|_| InvalidAccountKey)?;
        let (x, y) = coordinates(&pair);
        // RFC 7638: these members, in this order, without spaces.
        let canonical = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
        let thumbprint = URL_SAFE_NO_PAD.encode(Sha256::digest(canonical));
        Ok(Self { pkcs8: Zeroizing::new(pkcs8.to_vec()), pair, thumbprint })
    }

    /// The private key, as DER.
    #[must_use]
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// The thumbprint.
    #[must_use]
    pub fn thumbprint(&self) -> &str {
        &self.thumbprint
    }

    /// The response to HTTP-01 for a token, whoever requests it; `None` if that is not a token (RFC 8555, section 8.1), so that
    /// no response contains a text that a stranger chose freely.
    #[must_use]
    pub fn key_authorization(&self, token: &str) -> Option<String> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_token = (1..=MAX_TOKEN).contains(&token.len()) && token.bytes().all(fits);
        is_token.then(|| format!("{token}.{}", self.thumbprint))
    }

    /// A signed request that carries the public key, as for a new account.
    pub(super) fn signed(&self, nonce: &str, url: &str, payload: &Value) -> Value {
        let protected = json!({ "alg": "ES256", "jwk": self.jwk(), "nonce": nonce, "url": url });
        jws(&protected, payload, |text| {
            let signature = self.pair.sign(&SystemRandom::new(), text).expect("the system has random bytes");
            URL_SAFE_NO_PAD.encode(signature)
        })
    }

    /// The binding of this key to an external account (RFC 8555, section 7.3.4). `url` is that of the new account.
    pub(super) fn bound_to(&self, account: &ExternalAccount, url: &str) -> Value {
        let protected = json!({ "alg": "HS256", "kid": account.key_id, "url": url });
        let key = hmac::Key::new(hmac::HMAC_SHA256, &account.hmac_key);
        jws(&protected, &self.jwk(), |text| URL_SAFE_NO_PAD.encode(hmac::sign(&key, text)))
    }

    fn jwk(&self) -> Value {
        let (x, y) = coordinates(&self.pair);
        json!({ "crv": "P-256", "kty": "EC", "x": x, "y": y })
    }
}

/// The flattened JSON form (RFC 7515, section 7.2.2).
fn jws(protected: &Value, payload: &Value, sign: impl FnOnce(&[u8]) -> String) -> Value {
    let [protected, payload] = [protected, payload].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let signature = sign(format!("{protected}.{payload}").as_bytes());
    json!({ "protected": protected, "payload": payload, "signature": signature })
}

/// The public key is an uncompressed point: one byte, then both coordinates.
fn coordinates(pair: &EcdsaKeyPair) -> (String, String) {
    let (x, y) = pair.public_key().as_ref()[1..].split_at(COORDINATE_BYTES);
    (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y))
}

impl fmt::Debug for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccountKey({})", self.thumbprint)
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivatePkcs8KeyDer;

    use super::*;

    #[test]
    fn a_key_that_is_read_again_has_the_same_thumbprint_as_for_the_library() {
        let key = AccountKey::generate();
        assert_eq!(AccountKey::from_pkcs8(key.pkcs8()).unwrap().thumbprint(), key.thumbprint());
        assert_eq!(key.thumbprint().len(), 43);
        assert_ne!(AccountKey::generate().thumbprint(), key.thumbprint());
        assert!(instant_acme::Key::from_pkcs8_der(PrivatePkcs8KeyDer::from(key.pkcs8())).is_ok());
        assert_eq!(AccountKey::from_pkcs8(b"key").unwrap_err(), InvalidAccountKey);
    }

    #[test]
    fn only_tokens_are_answered() {
        let key = AccountKey::generate();
        let answer = key.key_authorization("evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr_oA").unwrap();
        assert_eq!(answer, format!("evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr_oA.{}", key.thumbprint()));
        for token in ["", "a/b", "a.b", "a b", "<b>", "ä", "a\n", "a%41", &"a".repeat(MAX_TOKEN + 1)] {
            assert_eq!(key.key_authorization(token), None, "{token:?}");
        }
    }
}
