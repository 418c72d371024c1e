//! What an order needs to know about a CA: its directory, and the URL of the account.
//!
//! The account is registered here and not by instant-acme, which can't register an own key with contacts or an external
//! account. Registering is idempotent: a CA finds the account by its key. Nothing of this is stored; a process asks again when
//! it starts, once a day, and after an inconsistent response. If the CA returns another contact than the configured one, the
//! account is updated; Let's Encrypt keeps no contacts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderName, Method, Request, Response, StatusCode};
use instant_acme::Account;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::account_key::AccountKey;
use super::error::{AcmeError, Step};
use super::order::{Failure, NONCE_ATTEMPTS};
use super::settings::{AcmeSettings, Authority, ExternalAccount};
use super::transport::{Transport, TransportError};
use crate::outbound::Target;

/// How long a session is used.
///
/// Larger: a CA that changes its URLs is noticed later. Smaller: more requests.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The back-off after a failure of a CA.
///
/// Larger: orders still fail after the CA works again. Smaller: each order at a CA that hangs waits for its own time limit,
/// one after the other.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// The header with the nonce for the next request (RFC 8555, section 6.5.1).
const REPLAY_NONCE: HeaderName = HeaderName::from_static("replay-nonce");

/// The part of a CA's directory (RFC 8555, section 7.1.1) that the library does not read.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Directory {
    pub(super) new_nonce: String,
    pub(super) new_account: String,
    /// The resource of ARI.
    #[serde(default)]
    pub(super) renewal_info: Option<String>,
}

/// A CA with the registered account.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) directory: Directory,
    pub(super) account: Account,
}

/// An account, as the CA returns it when it is registered or found.
struct Registered {
    /// Its URL.
    id: String,
    /// Its contact. `None` if the CA does not show it, or keeps none.
    contact: Option<Vec<String>>,
}

/// The used part of the body of that response (RFC 8555, section 7.1.2).
#[derive(Deserialize)]
struct AccountObject {
    #[serde(default)]
    contact: Option<Vec<String>>,
}

/// Creates and caches the session with one CA.
pub(super) struct Sessions {
    pub(super) transport: Transport,
    directory: Target,
    key: Arc<AccountKey>,
    contact: Vec<String>,
    external_account: Option<ExternalAccount>,
    cached: Mutex<CachedSession>,
}

#[derive(Default)]
struct CachedSession {
    session: Option<(Instant, Session)>,
    failed: Option<(Instant, AcmeError)>,
}

impl Sessions {
    pub(super) fn new(authority: &Authority, settings: &AcmeSettings, key: &Arc<AccountKey>) -> Self {
        Self {
            transport: Transport::new(settings, &authority.roots),
            directory: authority.directory.clone(),
            key: Arc::clone(key),
            contact: settings.contact.clone(),
            external_account: authority.external_account.clone(),
            cached: Mutex::default(),
        }
    }

    /// The session; one caller creates it while the others wait.
    pub(super) async fn current(&self) -> Result<Session, AcmeError> {
        let mut kept = self.cached.lock().await;
        let is_within = |at: &Instant, time| at.elapsed() < time;
        if let Some((_, session)) = kept.session.as_ref().filter(|(at, _)| is_within(at, LIFETIME)) {
            return Ok(session.clone());
        }
        if let Some((_, error)) = kept.failed.as_ref().filter(|(at, _)| is_within(at, RETRY_AFTER)) {
            return Err(error.clone());
        }
        let made = self.make().await;
        let now = Instant::now();
        match &made {
            Ok(session) => *kept = CachedSession { session: Some((now, session.clone())), failed: None },
            Err(error) => *kept = CachedSession { session: None, failed: Some((now, error.clone())) },
        }
        made
    }

    /// Creates a new session before the next order.
    pub(super) async fn forget(&self) {
        self.cached.lock().await.session = None;
    }

    /// The directory.
    pub(super) async fn directory(&self) -> Result<Directory, AcmeError> {
        let request = Request::get(self.directory.uri().clone()).body(Bytes::new());
        let response = self.send(request.expect("a target's URI is valid")).await?;
        serde_json::from_slice(response.body())
            .map_err(|error| AcmeError::down(&format_args!("the directory is unusable: {error}")))
    }

    async fn make(&self) -> Result<Session, AcmeError> {
        let directory = self.directory().await?;
        let Registered { id, contact } = self.register(&directory).await?;
        let key = PrivatePkcs8KeyDer::from(self.key.pkcs8());
        let account = Account::builder_with_http(Box::new(self.transport.clone()))
            .from_parts(id, key, self.directory.uri().to_string())
            .await
            .map_err(|error| Failure::of(error, Step::Register).into_error())?;
        if contact.is_some_and(|known| !is_same(&known, &self.contact)) {
            self.update_contact(&account).await;
        }
        Ok(Session { directory, account })
    }

    /// Replaces the contact of an account that was registered with another one. Certificates do not depend on it, so a
    /// refusal is only logged.
    async fn update_contact(&self, account: &Account) {
        let contact: Vec<_> = self.contact.iter().map(String::as_str).collect();
        let authority = self.directory.uri();
        match account.update_contacts(&contact).await {
            Ok(()) => tracing::info!(%authority, "updated the ACME contact to that of `[gateway.acme]`"),
            Err(error) => {
                let cause = Failure::of(error, Step::Register).into_error().to_string();
                tracing::warn!(%authority, cause, "could not update the ACME contact; the CA keeps the previous one");
            }
        }
    }

    /// The account.
    async fn register(&self, directory: &Directory) -> Result<Registered, AcmeError> {
        // The CA may accept an external account's key only once, so first find out whether the account exists.
        let found = self.post_new_account(directory, &json!({ "onlyReturnExisting": true })).await;
        let is_key_refused = match found {
            // The request has nothing else than the key.
            Err(AcmeError::Misconfigured { problem, .. }) => problem == "unauthorized",
            found => return found,
        };
        let mut account = json!({ "termsOfServiceAgreed": true, "contact": self.contact });
        if let Some(external) = &self.external_account {
            account["externalAccountBinding"] = self.key.bound_to(external, &directory.new_account);
        }
        match self.post_new_account(directory, &account).await {
            Err(AcmeError::Misconfigured { problem, detail }) if is_key_refused && problem == "unauthorized" => {
                Err(AcmeError::AccountDeactivated { detail })
            }
            registered => registered,
        }
    }

    async fn post_new_account(&self, directory: &Directory, payload: &Value) -> Result<Registered, AcmeError> {
        let url = &directory.new_account;
        let mut nonce = None;
        for _ in 0..NONCE_ATTEMPTS {
            let fresh = match nonce.take() {
                Some(nonce) => nonce,
                None => self.nonce(directory).await?,
            };
            let body = self.key.signed(&fresh, url, payload).to_string();
            let request = Request::post(url).header(CONTENT_TYPE, "application/jose+json").body(body.into());
            let response = self.send(request.map_err(|_| AcmeError::down(&TransportError::Url))?).await?;
            if response.status() != StatusCode::BAD_REQUEST {
                let id = response.headers().get(LOCATION).and_then(|id| id.to_str().ok());
                let id = id.map(ToOwned::to_owned).ok_or_else(|| AcmeError::down("sent no URL of the account"))?;
                let shown = serde_json::from_slice::<AccountObject>(response.body());
                return Ok(Registered { id, contact: shown.ok().and_then(|account| account.contact) });
            }
            nonce = nonce_of(&response);
        }
        Err(AcmeError::down("refuses its own nonces"))
    }

    async fn nonce(&self, directory: &Directory) -> Result<String, AcmeError> {
        let request = Request::builder().method(Method::HEAD).uri(&directory.new_nonce).body(Bytes::new());
        let response = self.send(request.map_err(|_| AcmeError::down(&TransportError::Url))?).await?;
        nonce_of(&response).ok_or_else(|| AcmeError::down("sent no nonce"))
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, AcmeError> {
        self.transport.send(request).await.map_err(|error| error.during(Step::Register))
    }
}

/// Whether these are the same addresses, in any order.
fn is_same(known: &[String], wanted: &[String]) -> bool {
    let set = |contact: &[String]| contact.iter().cloned().collect::<BTreeSet<_>>();
    set(known) == set(wanted)
}

fn nonce_of(response: &Response<Bytes>) -> Option<String> {
    response.headers().get(REPLAY_NONCE)?.to_str().ok().map(ToOwned::to_owned)
}
