//! A key of a provider that is no real one, and the tokens that it signs.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::KeyPair;
use serde_json::{Value, json};

/// A key for ES256.
pub(super) struct Key {
    id: String,
    pair: KeyPair,
}

impl Key {
    pub(super) fn new(id: &str) -> Self {
        Self { id: id.to_owned(), pair: KeyPair::generate().expect("keys can be made") }
    }

    /// The public part, as a JSON Web Key.
    pub(super) fn public(&self) -> Value {
        let (x, y) = self.pair.public_key_raw()[1..].split_at(32);
        let [x, y] = [x, y].map(|part| URL_SAFE_NO_PAD.encode(part));
        json!({ "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id, "x": x, "y": y })
    }

    /// A token with claims.
    pub(super) fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.clone()), ..Header::new(Algorithm::ES256) };
        let key = EncodingKey::from_ec_der(&self.pair.serialize_der());
        jsonwebtoken::encode(&header, claims, &key).expect("a valid key")
    }
}

/// A token that the secret of the client signs, which anyone with the secret could.
pub(super) fn sign_with_secret(claims: &Value, secret: &str) -> String {
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(secret.as_bytes()))
        .expect("any secret will do")
}

/// A token without a signature.
pub(super) fn unsigned(claims: &Value) -> String {
    let [head, body] = [json!({ "alg": "none" }), claims.clone()].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    format!("{head}.{body}.")
}
