//! Replaces the account key in the registry, so that every CA gets another account: `formgate acme account new`.
//!
//! The accounts are registered before the key is stored: a CA that refuses another account, such as one whose external account
//! key works only once, keeps the old one. Running nodes take the new key over ([`super::client`]).

use tokio::time::sleep;

use super::account_key::sealed;
use super::client::KEY_CHECKED;
use super::error::DomainsError;
use super::reason::CA_ACCOUNT;
use crate::acme::{AccountKey, Acme, AcmeError, Fault};
use crate::config::AcmeConfig;
use crate::store::Registry;

/// What became of the account at a CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAccount {
    /// The CA.
    pub authority: String,
    /// The URL of the account, or why there is none yet.
    pub registered: Result<String, AcmeError>,
}

impl NewAccount {
    /// Whether the CA refuses the account. One that is only unreachable registers it with the next order.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.registered.as_ref().is_err_and(|error| error.fault() == Fault::Operator)
    }
}

/// Registers an account with a new key at every CA, and stores the key unless one refuses it. Returns the accounts, and whether
/// the key is stored.
///
/// # Errors
/// [`DomainsError`].
pub async fn replace_account(
    registry: &Registry,
    config: &AcmeConfig,
) -> Result<(Vec<NewAccount>, bool), DomainsError> {
    let key = AccountKey::generate();
    let sealed = sealed(&key, &config.seals);
    let settings = config.requests.clone();
    let client = tokio::task::spawn_blocking(move || Acme::new(settings, key)).await;
    let client = client.map_err(|_| DomainsError::Damaged)?;
    let mut accounts = Vec::with_capacity(client.authorities().len());
    for (at, authority) in client.authorities().iter().enumerate() {
        let registered = client.register(at).await;
        accounts.push(NewAccount { authority: authority.name.clone(), registered });
    }
    if accounts.iter().any(NewAccount::is_refused) {
        return Ok((accounts, false));
    }
    registry.replace_account_key(&sealed).await?;
    // By then every node has noticed.
    sleep(KEY_CHECKED * 2).await;
    registry.retry_domains(CA_ACCOUNT).await?;
    Ok((accounts, true))
}
