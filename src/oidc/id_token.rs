//! The ID token: its verification, and the claims about a person.
//!
//! Owns every check of OpenID Connect Core 1.0, section 3.1.3.7. The library only verifies the signature, so that each
//! refusal has its own reason and the time is a parameter. Only asymmetric algorithms are accepted: with a symmetric
//! one, whoever knows the client's secret could sign.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, Validation};
use serde_json::Value;

use super::keys::KeySet;
use crate::config::OidcConfig;

/// How far the clocks of the provider and of this node may differ, in seconds.
///
/// Larger: expired tokens are accepted for longer. Smaller: sign-ins fail on nodes whose clocks are off.
pub(super) const CLOCK_SKEW: i64 = 60;

/// The longest text that is taken from a token. Larger: pages with absurd names. Smaller: long e-mail addresses are not
/// shown. A subject has at most 255 characters (OpenID Connect Core 1.0, section 2).
const MAX_TEXT: usize = 255;

/// The algorithms that are accepted.
const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// Why an ID token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// Not a signed token.
    #[error("it is not a signed JSON Web Token")]
    Malformed,
    /// Signed by an algorithm that is not accepted.
    #[error("its algorithm is not accepted: only RS, PS and ES with 256 and 384, RS512, PS512 and EdDSA are")]
    Algorithm,
    /// It needs an extension.
    #[error("it requires an extension (`crit`)")]
    Extension,
    /// None of the provider's keys is the one.
    #[error("the provider has no such key")]
    UnknownKey,
    /// The signature is wrong.
    #[error("its signature is wrong")]
    Signature,
    /// It is of another issuer.
    #[error("`iss` is another issuer")]
    Issuer,
    /// It is not for this client.
    #[error("`aud` is not this client, or `azp` is another one")]
    Audience,
    /// It has expired.
    #[error("it has expired; compare the clocks")]
    Expired,
    /// It is of the future.
    #[error("it was issued in the future; compare the clocks")]
    Future,
    /// It belongs to another sign-in.
    #[error("`nonce` is of another sign-in")]
    Nonce,
    /// It names no subject.
    #[error("`sub` is missing, or too long")]
    Subject,
}

/// An accepted token.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    pub(super) subject: String,
    /// What a person is recognized by on pages: the e-mail address, unless the provider calls it unverified.
    pub(super) email: String,
    pub(super) name: Option<String>,
    all: Value,
}

impl Claims {
    /// A claim, if the token has it. `null` is none.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.all.get(name).filter(|value| !value.is_null())
    }
}

/// The head of a token, not yet verified.
#[derive(Clone, Debug)]
pub(super) struct TokenHead {
    pub(super) algorithm: Algorithm,
    /// The name of the algorithm.
    pub(super) algorithm_name: &'static str,
    pub(super) key_id: Option<String>,
}

impl TokenHead {
    pub(super) fn of(token: &str) -> Result<Self, TokenFault> {
        let head = token.split('.').next().unwrap_or_default();
        let head = URL_SAFE_NO_PAD.decode(head).map_err(|_| TokenFault::Malformed)?;
        let head: Value = serde_json::from_slice(&head).map_err(|_| TokenFault::Malformed)?;
        let algorithm = head["alg"].as_str().ok_or(TokenFault::Malformed)?;
        let known = ALGORITHMS.into_iter().find(|(name, _)| *name == algorithm);
        let (algorithm_name, algorithm) = known.ok_or(TokenFault::Algorithm)?;
        if head.get("crit").is_some() {
            return Err(TokenFault::Extension);
        }
        Ok(Self { algorithm, algorithm_name, key_id: head["kid"].as_str().map(ToOwned::to_owned) })
    }
}

/// Verifies the signature with the keys that the token may have been signed with, and then what it says.
pub(super) fn verify(
    token: &str,
    keys: &KeySet,
    config: &OidcConfig,
    nonce: &str,
    now: Timestamp,
) -> Result<Claims, TokenFault> {
    let head = TokenHead::of(token)?;
    let mut validation = Validation::new(head.algorithm);
    validation.required_spec_claims.clear();
    (validation.validate_exp, validation.validate_aud) = (false, false);
    let candidates = keys.candidates(&head);
    if candidates.is_empty() {
        return Err(TokenFault::UnknownKey);
    }
    let verified = candidates.iter().find_map(|key| jsonwebtoken::decode::<Value>(token, key, &validation).ok());
    // Without a key id, the key may be one that the provider has added since.
    let fault = if head.key_id.is_some() { TokenFault::Signature } else { TokenFault::UnknownKey };
    check(verified.ok_or(fault)?.claims, config, nonce, now)
}

fn check(claims: Value, config: &OidcConfig, nonce: &str, now: Timestamp) -> Result<Claims, TokenFault> {
    let (now, client) = (now.as_second(), &*config.client_id);
    if claims["iss"].as_str() != Some(&config.issuer) {
        return Err(TokenFault::Issuer);
    }
    // Several audiences need `azp`; one that is there must be this client in any case.
    let is_ours = match &claims["aud"] {
        Value::Array(all) => all.iter().any(|it| it == client) && (all.len() == 1 || claims["azp"] == client),
        one => one == client,
    };
    if !is_ours || claims.get("azp").is_some_and(|azp| azp != client) {
        return Err(TokenFault::Audience);
    }
    if seconds(&claims["exp"]).is_none_or(|end| end.saturating_add(CLOCK_SKEW) <= now) {
        return Err(TokenFault::Expired);
    }
    let is_past = |at: i64| at.saturating_sub(CLOCK_SKEW) <= now;
    let begins = claims.get("nbf").is_none_or(|at| seconds(at).is_some_and(is_past));
    if !begins || !seconds(&claims["iat"]).is_some_and(is_past) {
        return Err(TokenFault::Future);
    }
    if claims["nonce"].as_str() != Some(nonce) {
        return Err(TokenFault::Nonce);
    }
    let subject = text(&claims["sub"]).ok_or(TokenFault::Subject)?;
    let email = text(&claims["email"]).filter(|_| claims["email_verified"] != false);
    let shown = email.or_else(|| text(&claims["preferred_username"])).unwrap_or_else(|| subject.clone());
    Ok(Claims { subject, email: shown, name: text(&claims["name"]), all: claims })
}

/// A `NumericDate`, which may have a fraction.
fn seconds(value: &Value) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "the end of time is far enough away")]
    let rounded = |at: f64| at as i64;
    value.as_i64().or_else(|| value.as_f64().map(rounded))
}

/// A text that can be stored and shown.
fn text(value: &Value) -> Option<String> {
    let text = value.as_str()?.trim();
    let is_plain = !text.is_empty() && text.chars().count() <= MAX_TEXT && !text.chars().any(char::is_control);
    is_plain.then(|| text.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use secrecy::SecretString;
    use serde_json::json;

    use super::*;

    pub(in crate::oidc) fn config() -> OidcConfig {
        OidcConfig {
            issuer: "https://login.example.com".into(),
            client_id: "formgate".into(),
            client_secret: SecretString::from("not a secret"),
            scopes: "openid".into(),
            role_claim: "groups".into(),
            admin_values: ["forms-admins".into()].into(),
            viewer_values: ["forms-viewers".into()].into(),
            authorities: Box::default(),
        }
    }

    fn claims(now: Timestamp) -> Value {
        json!({
            "iss": "https://login.example.com", "sub": "42", "aud": "formgate", "nonce": "n",
            "exp": now.as_second() + 300, "iat": now.as_second(), "email": "ana@acme.example", "name": "Ana",
        })
    }

    #[test]
    fn a_token_is_accepted_only_for_this_client_time_and_sign_in() {
        let now = Timestamp::now();
        let at = now.as_second();
        for (key, value, expected) in [
            ("iss", json!("https://login.example.com/"), Err(TokenFault::Issuer)),
            ("iss", Value::Null, Err(TokenFault::Issuer)),
            ("aud", json!("other"), Err(TokenFault::Audience)),
            ("aud", json!(["formgate"]), Ok(())),
            ("aud", json!(["formgate", "other"]), Err(TokenFault::Audience)),
            ("aud", json!([]), Err(TokenFault::Audience)),
            ("aud", Value::Null, Err(TokenFault::Audience)),
            ("azp", json!("other"), Err(TokenFault::Audience)),
            ("azp", json!("formgate"), Ok(())),
            ("exp", json!(at - 59), Ok(())),
            ("exp", json!(at - 60), Err(TokenFault::Expired)),
            ("exp", json!("tomorrow"), Err(TokenFault::Expired)),
            ("exp", Value::Null, Err(TokenFault::Expired)),
            ("iat", json!(at + 60), Ok(())),
            ("iat", json!(at + 61), Err(TokenFault::Future)),
            ("iat", Value::Null, Err(TokenFault::Future)),
            ("iat", json!(1.5), Ok(())),
            ("nbf", json!(at + 61), Err(TokenFault::Future)),
            ("nbf", json!(at), Ok(())),
            ("nonce", json!("m"), Err(TokenFault::Nonce)),
            ("nonce", Value::Null, Err(TokenFault::Nonce)),
            ("sub", json!(""), Err(TokenFault::Subject)),
            ("sub", json!(42), Err(TokenFault::Subject)),
            ("sub", json!("4\u{0}2"), Err(TokenFault::Subject)),
            ("sub", json!("x".repeat(256)), Err(TokenFault::Subject)),
        ] {
            let mut claims = claims(now);
            claims[key] = value.clone();
            assert_eq!(check(claims, &config(), "n", now).map(drop), expected, "{key}: {value}");
        }
        let mut both = claims(now);
        (both["aud"], both["azp"]) = (json!(["other", "formgate"]), json!("formgate"));
        assert!(check(both, &config(), "n", now).is_ok());
        assert_eq!(check(json!([]), &config(), "n", now).map(drop), Err(TokenFault::Issuer));
    }

    #[test]
    fn a_person_is_shown_by_the_best_name_that_the_provider_vouches_for() {
        let now = Timestamp::now();
        for (changes, email, name) in [
            (json!({}), "ana@acme.example", Some("Ana")),
            (json!({ "email_verified": false, "name": "A\nB" }), "42", None),
            (json!({ "email_verified": true }), "ana@acme.example", Some("Ana")),
            (json!({ "email": null, "preferred_username": "ana", "name": " " }), "ana", None),
        ] {
            let mut claims = claims(now);
            for (key, value) in changes.as_object().unwrap() {
                claims[key] = value.clone();
            }
            let read = check(claims, &config(), "n", now).unwrap();
            assert_eq!((&*read.email, read.name.as_deref(), &*read.subject), (email, name, "42"), "{changes}");
        }
    }

    #[test]
    fn only_asymmetric_algorithms_are_accepted() {
        let head = |json: &str| format!("{}.e30.AAAA", URL_SAFE_NO_PAD.encode(json));
        for (json, expected) in [
            (r#"{"alg":"RS256","kid":"k"}"#, Ok(Some("k".to_owned()))),
            (r#"{"alg":"EdDSA"}"#, Ok(None)),
            (r#"{"alg":"HS256"}"#, Err(TokenFault::Algorithm)),
            (r#"{"alg":"none"}"#, Err(TokenFault::Algorithm)),
            (r#"{"alg":"None"}"#, Err(TokenFault::Algorithm)),
            (r#"{"alg":"rs256"}"#, Err(TokenFault::Algorithm)),
            (r#"{"alg":"RS256","crit":["exp"]}"#, Err(TokenFault::Extension)),
            (r#"{"alg":1}"#, Err(TokenFault::Malformed)),
            ("[]", Err(TokenFault::Malformed)),
        ] {
            assert_eq!(TokenHead::of(&head(json)).map(|head| head.key_id), expected, "{json}");
        }
        for token in ["", ".", "..", "a.b.c", "%"] {
            assert!(TokenHead::of(token).is_err(), "{token}");
        }
    }
}
