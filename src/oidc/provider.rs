//! One provider: its metadata and keys, and the requests to it.
//!
//! Metadata and keys are cached for an hour. After a failure, there is a short back-off for all sign-ins. A token by an unknown
//! or unusable key has the keys read again, at most once a minute: a provider can change its keys at any time, and invented
//! tokens cause no requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, StatusCode};
use jiff::Timestamp;
use secrecy::ExposeSecret;
use serde_json::Value;
use tokio::sync::Mutex;

use super::claims::Claims;
use super::id_token::{self, CLOCK_SKEW, IdTokenError};
use super::keys::KeySet;
use super::metadata::{self, ClientAuthentication, Metadata};
use super::{Endpoint, OidcError, SignInAttempt, known_code};
use crate::config::OidcConfig;
use crate::json_text::without_mark;
use crate::outbound::{Client, Target};
use crate::store::AdminRole;

/// How long metadata and keys are used.
///
/// Larger: a withdrawn key is trusted for longer. Smaller: more sign-ins wait for two further requests.
const LIFETIME: Duration = Duration::from_secs(60 * 60);

/// Back-off after a failure.
///
/// Larger: sign-ins still fail after the provider works again. Smaller: each sign-in at a provider that hangs opens another
/// connection.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// How often the keys are read again because of an unknown key.
///
/// Larger: sign-ins fail for longer after a provider changed its keys twice. Smaller: more requests because of invented
/// tokens.
const REFETCH_INTERVAL: Duration = Duration::from_secs(60);

/// A person that a provider signed in, with a role.
#[derive(Clone, Debug)]
pub struct Identified {
    /// The person's identity at the issuer.
    pub subject: String,
    /// The e-mail address if the provider has verified it, or else the subject.
    pub email: String,
    /// The name, next to a verified address.
    pub name: Option<String>,
    /// What the person may do.
    pub role: AdminRole,
}

/// A provider.
#[derive(Debug)]
pub struct Provider {
    issuer: Box<str>,
    client: Arc<Client>,
    metadata: Mutex<Cached<Metadata>>,
    keys: Mutex<Cached<KeySet>>,
}

/// A cached document, or the last failure to read it.
#[derive(Debug)]
struct Cached<T> {
    read: Option<(Instant, Arc<T>)>,
    failed: Option<(Instant, OidcError)>,
    /// When it was last read again before its time.
    refetched: Option<Instant>,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self { read: None, failed: None, refetched: None }
    }
}

impl<T> Cached<T> {
    fn current(&self, now: Instant) -> Option<Result<Arc<T>, OidcError>> {
        let is_within = |at: &Instant, time| now.saturating_duration_since(*at) < time;
        let read = self.read.as_ref().filter(|(at, _)| is_within(at, LIFETIME));
        let failed = self.failed.as_ref().filter(|(at, _)| is_within(at, RETRY_AFTER));
        let failed = failed.map(|(_, error)| Err(error.clone()));
        read.map(|(_, document)| Ok(Arc::clone(document))).or(failed)
    }

    fn keep(&mut self, read: Result<T, OidcError>) -> Result<Arc<T>, OidcError> {
        let now = Instant::now();
        match read {
            Ok(document) => {
                let document = Arc::new(document);
                (self.read, self.failed) = (Some((now, Arc::clone(&document))), None);
                Ok(document)
            }
            Err(error) => {
                self.failed = Some((now, error.clone()));
                Err(error)
            }
        }
    }
}

/// The response of the provider through the browser, and its attempt.
pub struct BrowserResponse {
    attempt: SignInAttempt,
    parameters: Parameters,
}

/// The parameters of a response.
#[derive(Default)]
struct Parameters {
    state: Option<String>,
    issuer: Option<String>,
    code: Option<String>,
    error: Option<String>,
}

impl BrowserResponse {
    /// Reads a query, and finds its attempt in the browser, which has one for each tab.
    ///
    /// # Errors
    /// [`OidcError::ForeignResponse`]: there is none. Whoever sent the browser here knows no `state` of it.
    pub fn find(
        config: &OidcConfig,
        attempts: impl IntoIterator<Item = SignInAttempt>,
        query: &str,
    ) -> Result<Self, OidcError> {
        let parameters = Parameters::parse(query)?;
        let state = parameters.state.as_deref().unwrap_or_default();
        let attempt = attempts.into_iter().find(|attempt| attempt.has_state(state, config));
        Ok(Self { attempt: attempt.ok_or(OidcError::ForeignResponse)?, parameters })
    }

    /// The attempt.
    #[must_use]
    pub fn attempt(&self) -> &SignInAttempt {
        &self.attempt
    }
}

impl Parameters {
    /// Each parameter may be there once (RFC 6749, section 3.1).
    fn parse(query: &str) -> Result<Self, OidcError> {
        let mut answer = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let known = match &*name {
                "state" => &mut answer.state,
                "iss" => &mut answer.issuer,
                "code" => &mut answer.code,
                "error" => &mut answer.error,
                _ => continue,
            };
            if known.replace(value.into_owned()).is_some() {
                return Err(OidcError::ForeignResponse);
            }
        }
        Ok(answer)
    }
}

impl Provider {
    pub(super) fn new(issuer: &str, client: Arc<Client>) -> Self {
        Self { issuer: issuer.into(), client, metadata: Mutex::default(), keys: Mutex::default() }
    }

    /// Where the browser begins to sign in.
    ///
    /// # Errors
    /// If the provider's metadata can't be read.
    pub async fn authorization_url(
        &self,
        config: &OidcConfig,
        attempt: &SignInAttempt,
        redirect: &str,
    ) -> Result<String, OidcError> {
        let mut url = self.metadata().await?.authorization.clone();
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &config.client_id)
            .append_pair("redirect_uri", redirect)
            .append_pair("scope", &config.scopes)
            .append_pair("state", &attempt.state(config))
            .append_pair("nonce", &attempt.nonce(config))
            .append_pair("code_challenge", &attempt.challenge(config))
            .append_pair("code_challenge_method", "S256");
        Ok(url.into())
    }

    /// The person, from what the provider sent the browser back with.
    ///
    /// # Errors
    /// Whatever keeps the person from signing in.
    pub async fn identify(
        &self,
        config: &OidcConfig,
        BrowserResponse { attempt, parameters }: &BrowserResponse,
        redirect: &str,
    ) -> Result<Identified, OidcError> {
        if attempt.is_expired(Timestamp::now(), CLOCK_SKEW) {
            return Err(OidcError::Expired);
        }
        let metadata = self.metadata().await?;
        let is_of_issuer = match &parameters.issuer {
            Some(issuer) => *issuer == *self.issuer,
            None => !metadata.names_issuer,
        };
        if !is_of_issuer {
            return Err(OidcError::WrongIssuer);
        }
        if let Some(error) = &parameters.error {
            return Err(OidcError::Denied(known_code(error)));
        }
        let code = parameters.code.as_deref().filter(|code| !code.is_empty()).ok_or(OidcError::NoCode)?;
        let token = self.exchange(&metadata, config, attempt, code, redirect).await?;
        let claims = self.verify(&metadata, config, attempt, &token).await?;
        let claim = claims.get(&config.role_claim);
        let role = claim
            .and_then(|claim| config.role(claim))
            .ok_or_else(|| OidcError::NoRole { claim: config.role_claim.to_string(), is_present: claim.is_some() })?;
        Ok(Identified { subject: claims.subject, email: claims.email, name: claims.name, role })
    }

    /// Exchanges a code for an ID token.
    async fn exchange(
        &self,
        metadata: &Metadata,
        config: &OidcConfig,
        attempt: &SignInAttempt,
        code: &str,
        redirect: &str,
    ) -> Result<String, OidcError> {
        let (form, authorization) = exchange_form(metadata, config, attempt, code, redirect);
        let answer = self.client.post_form(&metadata.token, form, authorization).await;
        let answer = answer.map_err(|error| OidcError::Unreachable(Endpoint::Token, error))?;
        let body: Value = serde_json::from_slice(without_mark(&answer.body)).unwrap_or_default();
        match answer.status {
            StatusCode::OK => body["id_token"]
                .as_str()
                .map(ToOwned::to_owned)
                .ok_or(OidcError::Malformed(Endpoint::Token, "it sent no ID token")),
            StatusCode::BAD_REQUEST if body["error"] == "invalid_grant" => Err(OidcError::RefusedCode),
            status => Err(OidcError::Status(Endpoint::Token, status, body["error"].as_str().and_then(known_code))),
        }
    }

    async fn verify(
        &self,
        metadata: &Metadata,
        config: &OidcConfig,
        attempt: &SignInAttempt,
        token: &str,
    ) -> Result<Claims, OidcError> {
        let nonce = attempt.nonce(config);
        let keys = self.keys(&metadata.keys, false).await?;
        match id_token::verify(token, &keys, config, &nonce, Timestamp::now()) {
            Err(IdTokenError::UnknownKey | IdTokenError::UnusableKey) => {
                let keys = self.keys(&metadata.keys, true).await?;
                Ok(id_token::verify(token, &keys, config, &nonce, Timestamp::now())?)
            }
            verified => Ok(verified?),
        }
    }

    async fn metadata(&self) -> Result<Arc<Metadata>, OidcError> {
        let mut kept = self.metadata.lock().await;
        if let Some(current) = kept.current(Instant::now()) {
            return current;
        }
        let target = metadata::address_of(&self.issuer);
        let target = target.ok_or(OidcError::Malformed(Endpoint::Metadata, "the issuer has no address for it"))?;
        let read = self.read(&target, Endpoint::Metadata).await;
        kept.keep(read.and_then(|body| Metadata::parse(&body, &self.issuer)))
    }

    /// The keys. With `is_missing`, read again unless that happened a moment ago.
    async fn keys(&self, target: &Target, is_missing: bool) -> Result<Arc<KeySet>, OidcError> {
        let mut kept = self.keys.lock().await;
        let now = Instant::now();
        let may_refetch = kept.refetched.is_none_or(|at| now.saturating_duration_since(at) >= REFETCH_INTERVAL);
        if is_missing && may_refetch {
            kept.refetched = Some(now);
        } else if let Some(current) = kept.current(now) {
            return current;
        }
        let read = self.read(target, Endpoint::Keys).await;
        kept.keep(read.and_then(|body| KeySet::parse(&body)))
    }

    async fn read(&self, target: &Target, what: Endpoint) -> Result<bytes::Bytes, OidcError> {
        let answer = self.client.get(target).await.map_err(|error| OidcError::Unreachable(what, error))?;
        match answer.status {
            StatusCode::OK => Ok(answer.body),
            status => Err(OidcError::Status(what, status, None)),
        }
    }
}

/// The form that exchanges a code, and the credentials if they are not part of it.
fn exchange_form(
    metadata: &Metadata,
    config: &OidcConfig,
    attempt: &SignInAttempt,
    code: &str,
    redirect: &str,
) -> (String, Option<HeaderValue>) {
    let secret = config.client_secret.expose_secret();
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("grant_type", "authorization_code")
        .append_pair("code", code)
        .append_pair("redirect_uri", redirect)
        .append_pair("code_verifier", &attempt.verifier(config));
    let authorization = match metadata.authentication {
        ClientAuthentication::Basic => Some(basic(&config.client_id, secret)),
        ClientAuthentication::Form => {
            form.append_pair("client_id", &config.client_id).append_pair("client_secret", secret);
            None
        }
    };
    (form.finish(), authorization)
}

/// `client_secret_basic`: both parts are encoded as in a form first (RFC 6749, section 2.3.1).
fn basic(client_id: &str, secret: &str) -> HeaderValue {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let pair = STANDARD.encode(format!("{}:{}", encoded(client_id), encoded(secret)));
    let mut value = HeaderValue::try_from(format!("Basic {pair}")).expect("Base64 is ASCII");
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_of_an_answer_is_there_once() {
        let answer = Parameters::parse("state=a%20b&code=c&session_state=x&session_state=y").unwrap();
        assert_eq!((answer.state.as_deref(), answer.code.as_deref()), (Some("a b"), Some("c")));
        for query in ["state=a&state=a", "iss=a&iss=b", "code=a&code=b", "error=a&error=b"] {
            assert!(Parameters::parse(query).is_err(), "{query}");
        }
    }

    #[test]
    fn the_parts_of_basic_credentials_are_encoded_first() {
        let value = basic("a:b c", "ä%");
        assert!(value.is_sensitive());
        assert_eq!(value, format!("Basic {}", STANDARD.encode("a%3Ab+c:%C3%A4%25")));
    }
}
