//! The client of the CAs, with the account key of the registry.
//!
//! `formgate acme account new` replaces the key while nodes run. So a node compares its key with the registry's whenever it uses
//! one that it has not compared for a second, and a node that finds another key orders nothing with it for longer than that: then
//! every node that a CA may ask answers with the same key. While the registry is away, the known key holds.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::time::{sleep, timeout};

use super::account_key::{open, stored_key};
use super::error::DomainsError;
use super::shared::Domains;
use crate::acme::Acme;
use crate::config::AcmeConfig;

/// For how long a key is used before it is compared again.
///
/// Larger: nodes order later after the key was replaced. Smaller: strangers who request challenges cause more statements.
pub(super) const KEY_CHECKED: Duration = Duration::from_secs(1);

/// For how long a node does not order with a key that replaced another one.
const SETTLES: Duration = KEY_CHECKED.saturating_mul(2);

/// How long a caller waits for the comparison if there is a key.
///
/// Larger: answers to CAs are late while the registry hangs. Smaller: a slow registry counts as one that is away.
const CHECK_LIMIT: Duration = Duration::from_secs(1);

/// The client, once there is one.
#[derive(Debug, Default)]
pub(super) struct Clients {
    current: ArcSwapOption<Client>,
    /// Held while the key is compared.
    checking: tokio::sync::Mutex<()>,
}

/// The client with an account key.
#[derive(Debug)]
struct Client {
    acme: Arc<Acme>,
    /// The key as the registry has it.
    stored: String,
    checked_at: Instant,
    /// From when on it orders.
    orders_from: Instant,
    /// The CAs that have deactivated its account, as far as the log says so.
    deactivated: Arc<Mutex<BTreeSet<usize>>>,
}

impl Client {
    fn is_checked(&self) -> bool {
        self.checked_at.elapsed() < KEY_CHECKED
    }

    /// The same client, compared at this instant.
    fn checked(&self, checked_at: Instant) -> Self {
        let Self { acme, stored, orders_from, deactivated, .. } = self;
        let (acme, deactivated) = (Arc::clone(acme), Arc::clone(deactivated));
        Self { acme, stored: stored.clone(), checked_at, orders_from: *orders_from, deactivated }
    }
}

impl Domains {
    /// The client of the CAs, to respond to them and to ask about certificates; the first node creates the account key. `None` if
    /// no certificates are obtained.
    pub(super) async fn client(&self) -> Result<Option<(&AcmeConfig, Arc<Acme>)>, DomainsError> {
        let Some(acme) = &self.acme else { return Ok(None) };
        Ok(Some((acme, Arc::clone(&self.checked_client(acme).await?.acme))))
    }

    /// The same, to order certificates.
    pub(super) async fn ordering_client(&self) -> Result<Option<(&AcmeConfig, Arc<Acme>)>, DomainsError> {
        let Some(acme) = &self.acme else { return Ok(None) };
        let client = self.checked_client(acme).await?;
        sleep(client.orders_from.saturating_duration_since(Instant::now())).await;
        Ok(Some((acme, Arc::clone(&client.acme))))
    }

    /// Logs once that a CA no longer accepts the account.
    pub(super) fn note_deactivated(&self, authority: usize, name: &str, detail: &str) {
        let Some(client) = self.clients.current.load_full() else { return };
        if client.deactivated.lock().unwrap_or_else(PoisonError::into_inner).insert(authority) {
            let next_step = "run `formgate acme account new`";
            tracing::error!(authority = name, cause = detail, next_step, "the CA has deactivated the ACME account");
        }
    }

    async fn checked_client(&self, acme: &AcmeConfig) -> Result<Arc<Client>, DomainsError> {
        match self.clients.current.load_full() {
            None => self.check_client(acme).await,
            Some(known) if known.is_checked() => Ok(known),
            Some(known) => match timeout(CHECK_LIMIT, self.check_client(acme)).await {
                Ok(Ok(client)) => Ok(client),
                Ok(Err(_)) | Err(_) => {
                    // Others need not wait for it too. `try_keys` reports a key that can't be opened.
                    self.clients.current.store(Some(Arc::new(known.checked(Instant::now()))));
                    Ok(known)
                }
            },
        }
    }

    /// Compares the key with that of the registry, and replaces the client if it is another one.
    async fn check_client(&self, acme: &AcmeConfig) -> Result<Arc<Client>, DomainsError> {
        let _turn = self.clients.checking.lock().await;
        let known = self.clients.current.load_full();
        if let Some(known) = known.as_ref().filter(|known| known.is_checked()) {
            return Ok(Arc::clone(known));
        }
        let checked_at = Instant::now();
        let stored = stored_key(self.registry().await?, &acme.seals).await?;
        let client = match &known {
            Some(known) if known.stored == stored => known.checked(checked_at),
            known => {
                let key = open(&stored, &acme.seals)?;
                match known.as_ref().filter(|known| known.acme.account_key().thumbprint() == key.thumbprint()) {
                    // Sealed with another key.
                    Some(same) => Client { stored, ..same.checked(checked_at) },
                    None => {
                        let settings = acme.requests.clone();
                        let client = tokio::task::spawn_blocking(move || Acme::new(settings, key)).await;
                        let client = Arc::new(client.map_err(|_| DomainsError::Damaged)?);
                        let orders_from = if known.is_some() { Instant::now() + SETTLES } else { checked_at };
                        if known.is_some() {
                            tracing::info!("the ACME account was replaced; orders use the new one");
                            (0..acme.requests.authorities.len()).for_each(|at| self.breakers.note_success(at));
                        }
                        Client { acme: client, stored, checked_at, orders_from, deactivated: Arc::default() }
                    }
                }
            }
        };
        let client = Arc::new(client);
        self.clients.current.store(Some(Arc::clone(&client)));
        Ok(client)
    }
}
