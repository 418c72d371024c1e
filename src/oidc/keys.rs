//! The public keys of a provider, and the choice of keys that may have signed a token.
//!
//! A set may contain keys of kinds that are not known here, which are skipped rather than make it unusable.

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::Jwk;
use serde_json::Value;

use super::id_token::TokenHead;
use super::{Endpoint, OidcError};

/// How many keys are tried for a token that names none. Larger: more work for each such token. Smaller: providers with
/// many keys and no key ids fail.
const MAX_TRIED: usize = 10;

/// A key set.
#[derive(Debug)]
pub(super) struct KeySet(Vec<Value>);

impl KeySet {
    /// Reads the document.
    pub(super) fn parse(body: &[u8]) -> Result<Self, OidcError> {
        let document: Option<Value> = serde_json::from_slice(body).ok();
        match document.and_then(|mut document| document.get_mut("keys").map(Value::take)) {
            Some(Value::Array(keys)) => Ok(Self(keys)),
            _ => Err(OidcError::Malformed(Endpoint::Keys, "not a JSON Web Key Set")),
        }
    }

    /// The keys that fit a token: those with its key id, or without one all.
    pub(super) fn candidates(&self, head: &TokenHead) -> Vec<DecodingKey> {
        let fits = |key: &&Value| {
            let is_meant = head.key_id.as_ref().is_none_or(|id| key["kid"] == **id);
            let is_for = |what: &str, value: &str| key.get(what).is_none_or(|it| it == value);
            is_meant && is_for("use", "sig") && is_for("alg", head.algorithm_name)
        };
        let read = |key: &Value| DecodingKey::from_jwk(&serde_json::from_value::<Jwk>(key.clone()).ok()?).ok();
        let keys = self.0.iter().filter(fits).filter_map(read);
        // A symmetric key is never one of a public set.
        keys.filter(|key| key.family() == head.algorithm.family()).take(MAX_TRIED).collect()
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    use super::*;

    fn head(json: &Value) -> TokenHead {
        TokenHead::of(&format!("{}.e30.AAAA", URL_SAFE_NO_PAD.encode(json.to_string()))).unwrap()
    }

    #[test]
    fn a_key_fits_by_its_id_its_use_and_its_algorithm() {
        let rsa = |kid: &str, more: &Value| {
            let mut key = json!({ "kty": "RSA", "kid": kid, "n": "AQAB", "e": "AQAB" });
            key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            key
        };
        let ec = json!({ "kty": "EC", "kid": "e", "crv": "P-256", "x": "AQAB", "y": "AQAB" });
        let keys = [
            rsa("a", &json!({ "use": "sig", "alg": "RS256", "x5c": ["…"] })),
            rsa("b", &json!({ "use": "enc" })),
            rsa("c", &json!({ "alg": "PS256" })),
            rsa("d", &json!({})),
            ec,
            json!({ "kty": "oct", "kid": "s", "k": "AQAB" }),
            json!({ "kty": "future", "kid": "f" }),
            json!(7),
        ];
        let set = KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap();
        for (sought, expected) in [
            (json!({ "alg": "RS256", "kid": "a" }), 1),
            (json!({ "alg": "PS256", "kid": "a" }), 0),
            (json!({ "alg": "RS256", "kid": "b" }), 0),
            (json!({ "alg": "PS256", "kid": "c" }), 1),
            (json!({ "alg": "RS256", "kid": "d" }), 1),
            (json!({ "alg": "RS256", "kid": "e" }), 0),
            (json!({ "alg": "ES256", "kid": "e" }), 1),
            (json!({ "alg": "RS256", "kid": "s" }), 0),
            (json!({ "alg": "RS256", "kid": "z" }), 0),
            (json!({ "alg": "RS256" }), 2),
        ] {
            assert_eq!(set.candidates(&head(&sought)).len(), expected, "{sought}");
        }
    }

    #[test]
    fn other_documents_are_no_key_set() {
        for body in ["", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":"#, "<html>"] {
            assert!(KeySet::parse(body.as_bytes()).is_err(), "{body}");
        }
        assert!(KeySet::parse(br#"{"keys":[]}"#).is_ok());
    }
}
