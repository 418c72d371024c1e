//! The public keys of a provider, and the choice of keys that may have signed a token.
//!
//! Reads JSON Web Keys (RFC 7517, RFC 7518) as providers publish them, which is not always as the RFCs say: a number
//! may have a sign byte or lack its leading zeros, Base64 may be padded or have the other alphabet, and a member may
//! be `null` or empty. Keys of unknown kinds in a set are skipped.

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;

use super::id_token::{IdTokenError, TokenHead, algorithm_of};
use super::{Endpoint, OidcError};
use crate::json_text::without_mark;

/// How many keys are tried for a token that names none.
///
/// Larger: more work for each such token. Smaller: providers with many keys and no key ids fail.
const MAX_TRIED: usize = 50;

/// The sizes of an RSA modulus that signatures are verified with, in bytes. Larger: a signature costs more to verify.
/// Smaller: keys that can be broken are accepted.
const RSA_MODULUS: std::ops::RangeInclusive<usize> = 256..=1024;

/// Base64 of the URL alphabet, padded or not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A key set.
#[derive(Debug)]
pub(super) struct KeySet(Vec<Value>);

/// The keys that may have signed a token, at least one.
#[derive(Debug)]
pub(super) struct Candidates {
    pub(super) keys: Vec<DecodingKey>,
    /// Whether the token and the keys have the same key id, so that there is no other key.
    pub(super) are_named: bool,
}

impl KeySet {
    /// Reads the document.
    pub(super) fn parse(body: &[u8]) -> Result<Self, OidcError> {
        let document: Option<Value> = serde_json::from_slice(without_mark(body)).ok();
        match document.and_then(|mut document| document.get_mut("keys").map(Value::take)) {
            Some(Value::Array(keys)) => Ok(Self(keys)),
            _ => Err(OidcError::Malformed(Endpoint::Keys, "not a JSON Web Key Set")),
        }
    }

    /// The keys that fit a token: the keys with its key id, and keys without one; every key if the token has no key id.
    ///
    /// # Errors
    /// [`IdTokenError::UnknownKey`], [`IdTokenError::UnusableKey`] or [`IdTokenError::TooManyKeys`]: there is no such key, it fits
    /// nothing, or too many do.
    pub(super) fn candidates(&self, head: &TokenHead) -> Result<Candidates, IdTokenError> {
        let named: Vec<_> =
            self.0.iter().filter(|key| head.key_id.as_ref().is_some_and(|id| key["kid"] == **id)).collect();
        let are_named = !named.is_empty();
        let may_be_meant = |key: &&Value| head.key_id.is_none() || says_nothing(&key["kid"]);
        let meant = if are_named { named } else { self.0.iter().filter(may_be_meant).collect() };
        let keys: Vec<_> = meant.into_iter().filter_map(|key| read(key, head.algorithm)).collect();
        match (keys.is_empty(), are_named) {
            (false, _) if keys.len() > MAX_TRIED => Err(IdTokenError::TooManyKeys),
            (false, _) => Ok(Candidates { keys, are_named }),
            (true, true) => Err(IdTokenError::UnusableKey),
            (true, false) => Err(IdTokenError::UnknownKey),
        }
    }
}

/// Whether an optional member might as well be missing.
fn says_nothing(member: &Value) -> bool {
    member.is_null() || member == "" || member.as_array().is_some_and(Vec::is_empty)
}

/// Reads a key for an algorithm; `None` if it is for something else, or malformed.
fn read(key: &Value, algorithm: Algorithm) -> Option<DecodingKey> {
    let (usage, operations, name) = (&key["use"], &key["key_ops"], &key["alg"]);
    let is_for_signatures = says_nothing(usage) || usage == "sig";
    let verifies =
        says_nothing(operations) || operations.as_array().is_some_and(|all| all.iter().any(|it| it == "verify"));
    let is_for_algorithm = says_nothing(name) || name.as_str().and_then(algorithm_of) == Some(algorithm);
    if !is_for_signatures || !verifies || !is_for_algorithm {
        return None;
    }
    match algorithm {
        Algorithm::ES256 => read_ec(key, "P-256", 32),
        Algorithm::ES384 => read_ec(key, "P-384", 48),
        Algorithm::EdDSA => {
            let x = bytes(key, "x").filter(|x| x.len() == 32 && key["kty"] == "OKP" && key["crv"] == "Ed25519")?;
            Some(DecodingKey::from_ed_der(&x))
        }
        // Every other accepted algorithm is one of RSA: a symmetric key is never one of a public set.
        _ => {
            let (n, e) = (number(key, "n")?, number(key, "e")?);
            let is_usable = key["kty"] == "RSA" && RSA_MODULUS.contains(&n.len()) && !e.is_empty();
            is_usable.then(|| DecodingKey::from_rsa_raw_components(&n, &e))
        }
    }
}

/// Reads a key of an elliptic curve whose coordinates have this many bytes.
fn read_ec(key: &Value, curve: &str, length: usize) -> Option<DecodingKey> {
    if key["kty"] != "EC" || key["crv"] != curve {
        return None;
    }
    // Uncompressed (SEC 1, section 2.3.3).
    let mut point = vec![4];
    for coordinate in [number(key, "x")?, number(key, "y")?] {
        point.resize(point.len() + length.checked_sub(coordinate.len())?, 0);
        point.extend(coordinate);
    }
    Some(DecodingKey::from_ec_der(&point))
}

/// A positive number, most significant byte first, without leading zeros.
fn number(key: &Value, member: &str) -> Option<Vec<u8>> {
    let bytes = bytes(key, member)?;
    Some(bytes.into_iter().skip_while(|byte| *byte == 0).collect())
}

fn bytes(key: &Value, member: &str) -> Option<Vec<u8>> {
    BASE64.decode(key[member].as_str()?.replace('+', "-").replace('/', "_")).ok()
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use serde_json::json;

    use super::*;

    fn head(json: &Value) -> TokenHead {
        TokenHead::of(&format!("{}.e30.AAAA", URL_SAFE_NO_PAD.encode(json.to_string()))).unwrap()
    }

    fn set(keys: &[Value]) -> KeySet {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
    }

    fn rsa(kid: &str, more: &Value) -> Value {
        let n = URL_SAFE_NO_PAD.encode([251; 256]);
        let mut key = json!({ "kty": "RSA", "kid": kid, "n": n, "e": "AQAB" });
        key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        key
    }

    #[test]
    fn a_key_fits_by_its_id_its_use_and_its_algorithm() {
        let ec = json!({ "kty": "EC", "kid": "e", "crv": "P-256", "x": "AQAB", "y": "AQAB" });
        let ed = json!({ "kty": "OKP", "kid": "o", "crv": "Ed25519", "alg": "EdDSA", "x": STANDARD.encode([251; 32]) });
        let set = set(&[
            rsa("a", &json!({ "use": "sig", "alg": "RS256", "x5c": ["…"] })),
            rsa("b", &json!({ "use": "enc" })),
            rsa("c", &json!({ "alg": "PS256" })),
            rsa("d", &json!({ "use": null, "alg": null, "key_ops": null })),
            rsa("h", &json!({ "use": "", "alg": "", "key_ops": [] })),
            rsa("i", &json!({ "key_ops": ["verify"] })),
            rsa("j", &json!({ "key_ops": ["encrypt", "wrapKey"] })),
            rsa("k", &json!({ "key_ops": "verify" })),
            rsa("l", &json!({ "use": "sig", "key_ops": ["sign"] })),
            rsa("g", &json!({ "n": URL_SAFE_NO_PAD.encode([251; 128]) })),
            ec,
            ed,
            json!({ "kty": "oct", "kid": "s", "k": "AQAB" }),
            json!({ "kty": "future", "kid": "f" }),
            json!(7),
        ]);
        for (sought, expected) in [
            (json!({ "alg": "RS256", "kid": "a" }), Ok((1, true))),
            (json!({ "alg": "PS256", "kid": "a" }), Err(IdTokenError::UnusableKey)),
            (json!({ "alg": "RS256", "kid": "b" }), Err(IdTokenError::UnusableKey)),
            (json!({ "alg": "PS256", "kid": "c" }), Ok((1, true))),
            (json!({ "alg": "RS256", "kid": "d" }), Ok((1, true))),
            (json!({ "alg": "RS256", "kid": "h" }), Ok((1, true))),
            (json!({ "alg": "RS256", "kid": "i" }), Ok((1, true))),
            (json!({ "alg": "RS256", "kid": "j" }), Err(IdTokenError::UnusableKey)),
            (json!({ "alg": "RS256", "kid": "k" }), Err(IdTokenError::UnusableKey)),
            (json!({ "alg": "RS256", "kid": "l" }), Err(IdTokenError::UnusableKey)),
            (json!({ "alg": "RS256", "kid": "g" }), Err(IdTokenError::UnusableKey)),
            (json!({ "alg": "RS256", "kid": "e" }), Err(IdTokenError::UnusableKey)),
            (json!({ "alg": "ES256", "kid": "e" }), Ok((1, true))),
            (json!({ "alg": "ES384", "kid": "e" }), Err(IdTokenError::UnusableKey)),
            (json!({ "alg": "Ed25519", "kid": "o" }), Ok((1, true))),
            (json!({ "alg": "EdDSA", "kid": "o" }), Ok((1, true))),
            (json!({ "alg": "RS256", "kid": "s" }), Err(IdTokenError::UnusableKey)),
            (json!({ "alg": "RS256", "kid": "z" }), Err(IdTokenError::UnknownKey)),
            (json!({ "alg": "RS256" }), Ok((4, false))),
            (json!({ "alg": "RS256", "kid": null }), Ok((4, false))),
            (json!({ "alg": "RS256", "kid": "" }), Ok((4, false))),
        ] {
            let found = set.candidates(&head(&sought)).map(|found| (found.keys.len(), found.are_named));
            assert_eq!(found, expected, "{sought}");
        }
    }

    #[test]
    fn keys_without_an_id_fit_a_token_whose_id_no_key_has() {
        let mut nameless = rsa("", &json!({}));
        nameless.as_object_mut().unwrap().remove("kid");
        let set = set(&[rsa("a", &json!({})), nameless, rsa("", &json!({ "kid": null })), rsa("", &json!({}))]);
        for (kid, expected) in [("a", (1, true)), ("z", (3, false))] {
            let found = set.candidates(&head(&json!({ "alg": "RS256", "kid": kid }))).unwrap();
            assert_eq!((found.keys.len(), found.are_named), expected, "{kid}");
        }
    }

    #[test]
    fn a_token_that_names_no_key_is_tried_with_all_that_fit_or_refused_for_their_number() {
        for (fitting, others, expected) in
            [(11, 0, Ok(11)), (MAX_TRIED, 200, Ok(MAX_TRIED)), (MAX_TRIED + 1, 0, Err(IdTokenError::TooManyKeys))]
        {
            let others = (0..others).map(|_| rsa("", &json!({ "kid": null, "use": "enc" })));
            let keys: Vec<_> = others.chain((0..fitting).map(|_| rsa("", &json!({ "kid": null })))).collect();
            let found = set(&keys).candidates(&head(&json!({ "alg": "RS256", "kid": "z" })));
            assert_eq!(found.map(|found| found.keys.len()), expected, "{fitting}");
        }
    }

    #[test]
    fn numbers_are_read_as_providers_write_them() {
        let digits = [[251_u8; 255].as_slice(), &[239]].concat();
        let signed = [&[0], &*digits].concat();
        for text in [
            URL_SAFE_NO_PAD.encode(&digits),
            URL_SAFE_NO_PAD.encode(&signed),
            STANDARD.encode(&digits),
            STANDARD.encode(&signed),
            STANDARD.encode(&digits).trim_end_matches('=').to_owned(),
            base64::engine::general_purpose::URL_SAFE.encode(&digits),
        ] {
            assert_eq!(number(&json!({ "n": text }), "n").as_ref(), Some(&digits), "{text}");
        }
        for wrong in [json!("a b"), json!("%"), json!(7), Value::Null] {
            assert_eq!(number(&json!({ "n": wrong }), "n"), None, "{wrong}");
        }
    }

    #[test]
    fn other_documents_are_no_key_set() {
        for body in ["", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":"#, "<html>"] {
            assert!(KeySet::parse(body.as_bytes()).is_err(), "{body}");
        }
        for body in [r#"{"keys":[]}"#, "\u{FEFF}{\"keys\":[]}"] {
            assert!(KeySet::parse(body.as_bytes()).is_ok(), "{body}");
        }
    }
}
