//! The verification of an ID token.
//!
//! Owns every check of OpenID Connect Core 1.0, section 3.1.3.7. The library only verifies the signature, so that each
//! refusal has its own reason, the time is a parameter, and keys are read as providers write them. Only asymmetric
//! algorithms are accepted: with a symmetric one, everyone who knows the client's secret could sign.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, crypto};
use serde_json::Value;

use super::claims::Claims;
use super::keys::KeySet;
use crate::config::OidcConfig;

/// How far the clocks of the provider and of this node may differ, in seconds.
///
/// Larger: expired tokens are accepted for longer. Smaller: sign-ins fail on nodes whose clocks are off.
pub(super) const CLOCK_SKEW: i64 = 60;

/// The algorithms that are accepted. `EdDSA` and `Ed25519` (RFC 9864) are one.
const ALGORITHMS: [(&str, Algorithm); 10] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
    ("Ed25519", Algorithm::EdDSA),
];

/// The algorithm with a name, if it is accepted.
pub(super) fn algorithm_of(name: &str) -> Option<Algorithm> {
    ALGORITHMS.into_iter().find(|(known, _)| *known == name).map(|(_, algorithm)| algorithm)
}

/// Why an ID token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdTokenError {
    /// Not a signed token.
    #[error("it is not a signed JSON Web Token")]
    Malformed,
    /// Signed by an algorithm that is not accepted.
    #[error("its algorithm is not accepted: only RS, PS and ES with 256 and 384, RS512, PS512, EdDSA and Ed25519 are")]
    Algorithm,
    /// It needs an extension.
    #[error("it requires an extension (`crit`)")]
    Extension,
    /// No matching key.
    #[error("the provider has no such key")]
    UnknownKey,
    /// The key with its key id can't verify its signature.
    #[error(
        "the provider's key with its `kid` is malformed, too small or too large, or not for signatures by its algorithm"
    )]
    UnusableKey,
    /// More keys of the provider may have signed it than are tried.
    #[error("too many keys of the provider may have signed it")]
    TooManyKeys,
    /// The signature is wrong.
    #[error("its signature is wrong")]
    Signature,
    /// It is of another issuer.
    #[error("`iss` is another issuer, or missing")]
    Issuer,
    /// It is not for this client.
    #[error("`aud` is not this client")]
    Audience,
    /// It is for several clients, and does not say that this one asked for it.
    #[error("`aud` is not this client alone, and `azp` is missing")]
    SharedAudience,
    /// Another client asked for it.
    #[error("`azp` is another one than this client")]
    AuthorizedParty,
    /// A claim with a time is missing, or no number.
    #[error("`{0}` is missing, or not a number")]
    NoTime(&'static str),
    /// It has expired.
    #[error("it has expired; compare the clocks")]
    Expired,
    /// Issued in the future.
    #[error("it was issued in the future; compare the clocks")]
    Future,
    /// It belongs to another sign-in.
    #[error("`nonce` is of another sign-in, or missing")]
    Nonce,
    /// It names no subject that can be shown.
    #[error("`sub` is missing, not a text, too long, or has invisible characters or blanks that can't be told apart")]
    Subject,
}

/// The head of a token, not yet verified.
#[derive(Clone, Debug)]
pub(super) struct TokenHead {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
}

impl TokenHead {
    pub(super) fn of(token: &str) -> Result<Self, IdTokenError> {
        let head = token.split('.').next().unwrap_or_default();
        let head = URL_SAFE_NO_PAD.decode(head).map_err(|_| IdTokenError::Malformed)?;
        let head: Value = serde_json::from_slice(&head).map_err(|_| IdTokenError::Malformed)?;
        let algorithm = head["alg"].as_str().ok_or(IdTokenError::Malformed)?;
        let algorithm = algorithm_of(algorithm).ok_or(IdTokenError::Algorithm)?;
        if head.get("crit").is_some() {
            return Err(IdTokenError::Extension);
        }
        let key_id = head["kid"].as_str().filter(|id| !id.is_empty());
        Ok(Self { algorithm, key_id: key_id.map(ToOwned::to_owned) })
    }
}

/// Verifies the signature with the keys that the token may have been signed with, and then what it says.
pub(super) fn verify(
    token: &str,
    keys: &KeySet,
    config: &OidcConfig,
    nonce: &str,
    now: Timestamp,
) -> Result<Claims, IdTokenError> {
    let head = TokenHead::of(token)?;
    let (signed, signature) = token.rsplit_once('.').ok_or(IdTokenError::Malformed)?;
    let (_, claims) = signed.split_once('.').ok_or(IdTokenError::Malformed)?;
    let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| IdTokenError::Malformed)?;
    let claims = serde_json::from_slice(&claims).map_err(|_| IdTokenError::Malformed)?;
    let candidates = keys.candidates(&head)?;
    let has_signed = |key| crypto::verify(signature, signed.as_bytes(), key, head.algorithm).unwrap_or(false);
    if !candidates.keys.iter().any(has_signed) {
        // If none was named, the key may be one that the provider has added since.
        return Err(if candidates.are_named { IdTokenError::Signature } else { IdTokenError::UnknownKey });
    }
    check(claims, config, nonce, now)
}

fn check(claims: Value, config: &OidcConfig, nonce: &str, now: Timestamp) -> Result<Claims, IdTokenError> {
    let (now, client) = (now.as_second(), &*config.client_id);
    if claims["iss"].as_str() != Some(&config.issuer) {
        return Err(IdTokenError::Issuer);
    }
    let (is_ours, is_shared) = match &claims["aud"] {
        Value::Array(all) => (all.iter().any(|it| it == client), all.len() > 1),
        one => (one == client, false),
    };
    if !is_ours {
        return Err(IdTokenError::Audience);
    }
    match &claims["azp"] {
        Value::Null if is_shared => return Err(IdTokenError::SharedAudience),
        Value::Null => {}
        azp if azp == client => {}
        _ => return Err(IdTokenError::AuthorizedParty),
    }
    if seconds(&claims, "exp")?.saturating_add(CLOCK_SKEW) <= now {
        return Err(IdTokenError::Expired);
    }
    let begins = if claims["nbf"].is_null() { i64::MIN } else { seconds(&claims, "nbf")? };
    if begins.max(seconds(&claims, "iat")?).saturating_sub(CLOCK_SKEW) > now {
        return Err(IdTokenError::Future);
    }
    if claims["nonce"].as_str() != Some(nonce) {
        return Err(IdTokenError::Nonce);
    }
    Claims::of(claims, config).ok_or(IdTokenError::Subject)
}

/// A `NumericDate` in seconds since 1970, which may have a fraction.
fn seconds(claims: &Value, claim: &'static str) -> Result<i64, IdTokenError> {
    #[expect(clippy::cast_possible_truncation, reason = "the end of time is far enough away")]
    let rounded = |at: f64| at as i64;
    let value = &claims[claim];
    value.as_i64().or_else(|| value.as_f64().map(rounded)).ok_or(IdTokenError::NoTime(claim))
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
            emails_are_verified: false,
            authorities: Box::default(),
        }
    }

    fn claims(now: Timestamp) -> Value {
        json!({
            "iss": "https://login.example.com", "sub": "42", "aud": "formgate", "nonce": "n",
            "exp": now.as_second() + 300, "iat": now.as_second(), "email": "ana@acme.example", "email_verified": true,
            "name": "Ana",
        })
    }

    #[test]
    fn a_token_is_accepted_only_for_this_client_time_and_sign_in() {
        let now = Timestamp::now();
        let at = now.as_second();
        for (key, value, expected) in [
            ("iss", json!("https://login.example.com/"), Err(IdTokenError::Issuer)),
            ("iss", Value::Null, Err(IdTokenError::Issuer)),
            ("aud", json!("other"), Err(IdTokenError::Audience)),
            ("aud", json!(["formgate"]), Ok(())),
            ("aud", json!(["formgate", "other"]), Err(IdTokenError::SharedAudience)),
            ("aud", json!(["other", "another"]), Err(IdTokenError::Audience)),
            ("aud", json!([]), Err(IdTokenError::Audience)),
            ("aud", Value::Null, Err(IdTokenError::Audience)),
            ("azp", json!("other"), Err(IdTokenError::AuthorizedParty)),
            ("azp", json!(["formgate"]), Err(IdTokenError::AuthorizedParty)),
            ("azp", Value::Null, Ok(())),
            ("azp", json!("formgate"), Ok(())),
            ("exp", json!(at - 59), Ok(())),
            ("exp", json!(at - 60), Err(IdTokenError::Expired)),
            ("exp", json!("9999999999"), Err(IdTokenError::NoTime("exp"))),
            ("exp", Value::Null, Err(IdTokenError::NoTime("exp"))),
            ("exp", json!(1e300), Ok(())),
            ("iat", json!(at + 60), Ok(())),
            ("iat", json!(at + 61), Err(IdTokenError::Future)),
            ("iat", Value::Null, Err(IdTokenError::NoTime("iat"))),
            ("iat", json!(at.to_string()), Err(IdTokenError::NoTime("iat"))),
            ("iat", json!(true), Err(IdTokenError::NoTime("iat"))),
            ("iat", json!(1.5), Ok(())),
            ("nbf", json!(at + 61), Err(IdTokenError::Future)),
            ("nbf", json!(at), Ok(())),
            ("nbf", Value::Null, Ok(())),
            ("nbf", json!({}), Err(IdTokenError::NoTime("nbf"))),
            ("nonce", json!("m"), Err(IdTokenError::Nonce)),
            ("nonce", Value::Null, Err(IdTokenError::Nonce)),
            ("sub", json!(""), Err(IdTokenError::Subject)),
            ("sub", json!(42), Err(IdTokenError::Subject)),
            ("sub", json!("4\u{0}2"), Err(IdTokenError::Subject)),
            ("sub", json!("4\u{200B}2"), Err(IdTokenError::Subject)),
            ("sub", json!("\u{202E}24"), Err(IdTokenError::Subject)),
            ("sub", json!("4\u{A0}2"), Err(IdTokenError::Subject)),
            ("sub", json!(" 42"), Err(IdTokenError::Subject)),
            ("sub", json!("4\u{E000}2"), Err(IdTokenError::Subject)),
            ("sub", json!("auth0|4 2"), Ok(())),
            ("sub", json!("x".repeat(255)), Ok(())),
            ("sub", json!("x".repeat(256)), Err(IdTokenError::Subject)),
        ] {
            let mut claims = claims(now);
            claims[key] = value.clone();
            assert_eq!(check(claims, &config(), "n", now).map(drop), expected, "{key}: {value}");
        }
        let mut both = claims(now);
        (both["aud"], both["azp"]) = (json!(["other", "formgate"]), json!("formgate"));
        assert!(check(both, &config(), "n", now).is_ok());
        assert_eq!(check(json!([]), &config(), "n", now).map(drop), Err(IdTokenError::Issuer));
    }

    #[test]
    fn a_person_is_shown_by_the_address_that_the_provider_has_verified_or_the_subject() {
        let now = Timestamp::now();
        for unverified in [json!(false), json!("true"), json!("false"), json!(0), json!(1), json!([true]), Value::Null]
        {
            let mut claims = claims(now);
            (claims["email_verified"], claims["preferred_username"]) = (unverified.clone(), json!("ceo@acme.example"));
            let read = check(claims, &config(), "n", now).unwrap();
            assert_eq!(read.get("email"), None, "it gives no role: {unverified}");
            assert_eq!((&*read.email, read.name, &*read.subject), ("42", None, "42"), "{unverified}");
        }
        for (changes, email, name) in [
            (json!({}), "ana@acme.example", Some("Ana")),
            (json!({ "email": null, "preferred_username": "ana" }), "42", None),
            (json!({ "email": "ana@acme.example ceo@acme.example" }), "42", None),
            (json!({ "email": "an\u{200B}a@acme.example" }), "42", None),
            (json!({ "email": "\u{202E}elpmaxe.emca@ana" }), "42", None),
            (json!({ "email": "ana\u{E000}@acme.example" }), "42", None),
            (json!({ "email": format!("ana{}@acme.example", "\u{301}".repeat(200)) }), "42", None),
            (json!({ "name": " " }), "ana@acme.example", None),
            (json!({ "name": "Ana\u{A0}\u{FFFE} B" }), "ana@acme.example", Some("Ana B")),
            (json!({ "name": "A\nn\u{200B}a\u{202E}" }), "ana@acme.example", Some("Ana")),
            (json!({ "name": "ceo@acme.example" }), "ana@acme.example", None),
            (json!({ "name": "ceo\u{FF20}acme.example" }), "ana@acme.example", None),
        ] {
            let mut claims = claims(now);
            for (key, value) in changes.as_object().unwrap() {
                claims[key] = value.clone();
            }
            let read = check(claims, &config(), "n", now).unwrap();
            assert_eq!(read.get("email"), Some(&read.all["email"]).filter(|email| !email.is_null()), "{changes}");
            assert_eq!((&*read.email, read.name.as_deref(), &*read.subject), (email, name, "42"), "{changes}");
        }
    }

    #[test]
    fn an_address_is_verified_by_entras_own_claim_or_by_the_operator_where_the_token_says_nothing() {
        let now = Timestamp::now();
        let entra = "https://login.microsoftonline.com/8c0f7d6a-1b1e-4f63-9d2e-000000000000/v2.0";
        for (issuer, vouched, verified, by_domain, expected) in [
            (entra, false, Value::Null, json!(true), true),
            (entra, false, Value::Null, json!("1"), true),
            (entra, false, Value::Null, json!("true"), true),
            (entra, false, Value::Null, json!(false), false),
            (entra, false, Value::Null, json!("0"), false),
            (entra, false, Value::Null, json!([true]), false),
            (entra, false, Value::Null, Value::Null, false),
            (entra, false, json!(false), json!(true), false),
            (entra, true, Value::Null, Value::Null, true),
            (entra, true, Value::Null, json!(false), false),
            (entra, true, json!(false), Value::Null, false),
            ("https://login.example.com", false, Value::Null, json!(true), false),
            ("https://login.example.com", true, Value::Null, Value::Null, true),
            ("https://login.example.com", true, json!("true"), Value::Null, false),
            ("https://login.microsoftonline.com.example.com/x", false, Value::Null, json!(true), false),
        ] {
            let (mut claims, mut config) = (claims(now), config());
            (config.issuer, config.emails_are_verified) = (issuer.into(), vouched);
            (claims["iss"], claims["email_verified"], claims["xms_edov"]) =
                (json!(issuer), verified.clone(), by_domain.clone());
            let read = check(claims, &config, "n", now).unwrap();
            let expected = if expected { "ana@acme.example" } else { "42" };
            assert_eq!(read.email, expected, "{issuer} {vouched} {verified} {by_domain}");
        }
    }

    #[test]
    fn a_token_is_signed_by_a_key_of_the_set() {
        let now = Timestamp::now();
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let public = URL_SAFE_NO_PAD.encode(pair.public_key_raw());
        let key = jsonwebtoken::EncodingKey::from_ed_der(&pair.serialize_der());
        let token = |head: Value, claims: &str| {
            let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(head.to_string()), URL_SAFE_NO_PAD.encode(claims));
            let signature = crypto::sign(signed.as_bytes(), &key, Algorithm::EdDSA).unwrap();
            format!("{signed}.{signature}")
        };
        let own = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "k", "x": public });
        let nameless = json!({ "kty": "OKP", "crv": "Ed25519", "x": public });
        let other = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "k", "x": URL_SAFE_NO_PAD.encode([7; 32]) });
        let short = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "AQAB" });
        let (named, claims) = (json!({ "alg": "Ed25519", "kid": "k" }), claims(now).to_string());
        for (head, claims, keys, expected) in [
            (&named, &*claims, [&own], Ok(())),
            (&json!({ "alg": "EdDSA" }), &claims, [&own], Ok(())),
            (&named, &claims, [&nameless], Ok(())),
            (&named, &claims, [&other], Err(IdTokenError::Signature)),
            (&json!({ "alg": "EdDSA" }), &claims, [&other], Err(IdTokenError::UnknownKey)),
            (&named, &claims, [&short], Err(IdTokenError::UnusableKey)),
            (&named, "[]", [&own], Err(IdTokenError::Issuer)),
            (&named, "{", [&own], Err(IdTokenError::Malformed)),
        ] {
            let keys = KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap();
            let verified = verify(&token(head.clone(), claims), &keys, &config(), "n", now).map(drop);
            assert_eq!(verified, expected, "{head} {claims}");
        }
        let keys = KeySet::parse(json!({ "keys": [own] }).to_string().as_bytes()).unwrap();
        for changed in
            [token(named.clone(), &claims) + "A", token(named.clone(), &claims) + ".x.y", "e30.e30".to_owned()]
        {
            assert!(verify(&changed, &keys, &config(), "n", now).is_err(), "{changed}");
        }
    }

    #[test]
    fn only_asymmetric_algorithms_are_accepted() {
        let head = |json: &str| format!("{}.e30.AAAA", URL_SAFE_NO_PAD.encode(json));
        for (json, expected) in [
            (r#"{"alg":"RS256","kid":"k"}"#, Ok(Some("k".to_owned()))),
            (r#"{"alg":"EdDSA"}"#, Ok(None)),
            (r#"{"alg":"Ed25519","kid":null,"x5c":null}"#, Ok(None)),
            (r#"{"alg":"HS256"}"#, Err(IdTokenError::Algorithm)),
            (r#"{"alg":"none"}"#, Err(IdTokenError::Algorithm)),
            (r#"{"alg":"None"}"#, Err(IdTokenError::Algorithm)),
            (r#"{"alg":"rs256"}"#, Err(IdTokenError::Algorithm)),
            (r#"{"alg":"RS256","crit":["exp"]}"#, Err(IdTokenError::Extension)),
            (r#"{"alg":1}"#, Err(IdTokenError::Malformed)),
            ("[]", Err(IdTokenError::Malformed)),
        ] {
            assert_eq!(TokenHead::of(&head(json)).map(|head| head.key_id), expected, "{json}");
        }
        for token in ["", ".", "..", "a.b.c", "%"] {
            assert!(TokenHead::of(token).is_err(), "{token}");
        }
    }
}
