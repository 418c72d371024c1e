//! The metadata of a provider (OpenID Connect Discovery 1.0), as much of it as a sign-in needs.

use serde_json::Value;
use url::Url;

use super::{Endpoint, OidcError};
use crate::json_text::without_mark;
use crate::outbound::Target;

/// What is appended to an issuer.
const WELL_KNOWN: &str = "/.well-known/openid-configuration";

/// The longest address of an endpoint. Larger: redirects that browsers refuse. Smaller: providers with long paths fail.
const MAX_ADDRESS: usize = 1024;

/// How formgate authenticates at the token endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientAuthentication {
    /// `Authorization: Basic` (`client_secret_basic`).
    Basic,
    /// Within the form (`client_secret_post`).
    Form,
}

/// The metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Metadata {
    /// Where the browser goes.
    pub(super) authorization: Url,
    pub(super) token: Target,
    pub(super) keys: Target,
    pub(super) authentication: ClientAuthentication,
    /// Whether answers always name their issuer (RFC 9207).
    pub(super) names_issuer: bool,
}

/// Where the metadata of an issuer is.
pub(super) fn address_of(issuer: &str) -> Option<Target> {
    Target::parse(&format!("{}{WELL_KNOWN}", issuer.strip_suffix('/').unwrap_or(issuer))).ok()
}

impl Metadata {
    /// Reads the document of an issuer.
    pub(super) fn parse(body: &[u8], issuer: &str) -> Result<Self, OidcError> {
        let fault = |reason| OidcError::Malformed(Endpoint::Metadata, reason);
        let document: Value = serde_json::from_slice(without_mark(body)).map_err(|_| fault("not JSON"))?;
        if document["issuer"].as_str() != Some(issuer) {
            return Err(fault("`issuer` is not the configured one, to the letter"));
        }
        let address = |key: &str, reason| {
            let text = document[key].as_str().filter(|text| text.len() <= MAX_ADDRESS);
            text.filter(|text| Target::parse(text).is_ok()).ok_or(fault(reason))
        };
        let target = |text: &str, reason| Target::parse(text).map_err(|_| fault(reason));
        let authorization = address("authorization_endpoint", "`authorization_endpoint` is not an https URL")?;
        let mut authorization =
            Url::parse(authorization).map_err(|_| fault("`authorization_endpoint` is not an https URL"))?;
        authorization.set_fragment(None);
        let token = address("token_endpoint", "`token_endpoint` is not an https URL")?;
        let keys = address("jwks_uri", "`jwks_uri` is not an https URL")?;
        let methods = &document["token_endpoint_auth_methods_supported"];
        let supports = |method: &str| methods.as_array().is_some_and(|all| all.iter().any(|it| it == method));
        let authentication = if methods.is_null() || supports("client_secret_basic") {
            ClientAuthentication::Basic
        } else if supports("client_secret_post") {
            ClientAuthentication::Form
        } else {
            return Err(fault("it takes neither `client_secret_basic` nor `client_secret_post`"));
        };
        Ok(Self {
            authorization,
            token: target(token, "`token_endpoint` is not an https URL")?,
            keys: target(keys, "`jwks_uri` is not an https URL")?,
            authentication,
            names_issuer: document["authorization_response_iss_parameter_supported"] == true,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ISSUER: &str = "https://login.example.com/tenant";

    fn document() -> Value {
        json!({
            "issuer": ISSUER,
            "authorization_endpoint": "https://login.example.com/authorize?p=x",
            "token_endpoint": "https://login.example.com/token",
            "jwks_uri": "https://keys.example.com/",
        })
    }

    fn parse(document: &Value) -> Result<Metadata, OidcError> {
        Metadata::parse(document.to_string().as_bytes(), ISSUER)
    }

    #[test]
    fn the_address_follows_the_issuer_with_or_without_a_slash() {
        for issuer in ["https://login.example.com/tenant", "https://login.example.com/tenant/"] {
            let expected = Target::parse("https://login.example.com/tenant/.well-known/openid-configuration").unwrap();
            assert_eq!(address_of(issuer), Some(expected));
        }
    }

    #[test]
    fn the_method_of_authentication_is_one_that_the_provider_takes() {
        for (methods, expected) in [
            (Value::Null, Ok(ClientAuthentication::Basic)),
            (json!(["client_secret_post", "client_secret_basic"]), Ok(ClientAuthentication::Basic)),
            (json!(["client_secret_post", "private_key_jwt"]), Ok(ClientAuthentication::Form)),
            (json!(["private_key_jwt"]), Err(())),
            (json!("client_secret_basic"), Err(())),
        ] {
            let mut document = document();
            document["token_endpoint_auth_methods_supported"] = methods.clone();
            assert_eq!(parse(&document).map(|read| read.authentication).map_err(drop), expected, "{methods}");
        }
    }

    #[test]
    fn anything_else_is_not_metadata() {
        assert!(parse(&document()).is_ok());
        for key in ["issuer", "authorization_endpoint", "token_endpoint", "jwks_uri"] {
            for value in [Value::Null, json!(1), json!("http://login.example.com/tenant"), json!("x".repeat(2000))] {
                let mut document = document();
                document[key] = value.clone();
                assert!(parse(&document).is_err(), "{key}: {value}");
            }
        }
        for body in [&b""[..], b"[]", b"null", b"<html>", b"{\"issuer\":"] {
            assert!(Metadata::parse(body, ISSUER).is_err(), "{}", String::from_utf8_lossy(body));
        }
        assert!(Metadata::parse(document().to_string().as_bytes(), &format!("{ISSUER}/")).is_err());
    }
}
