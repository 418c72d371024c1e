//! The key of the ACME account, which the registry has for all nodes, sealed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::zeroize::Zeroizing;

use super::error::DomainsError;
use crate::acme::AccountKey;
use crate::seal::Seals;
use crate::store::Registry;

/// What the account key is sealed for.
pub(super) const ACCOUNT: &str = "acme account";

/// The account key of a registry; creates one if there is none.
pub(super) async fn account_key(registry: &Registry, seals: &Seals) -> Result<AccountKey, DomainsError> {
    let stored = match registry.account_key().await? {
        Some(stored) => stored,
        None => {
            let new = AccountKey::generate();
            registry.account_key_or(&seals.seal(&STANDARD.encode(new.pkcs8()), ACCOUNT)).await?
        }
    };
    open(&stored, seals)
}

/// Opens the account key as the registry has it.
pub(super) fn open(stored: &str, seals: &Seals) -> Result<AccountKey, DomainsError> {
    let text = Zeroizing::new(seals.open(stored, ACCOUNT)?);
    let pkcs8 = Zeroizing::new(STANDARD.decode(text.as_bytes()).map_err(|_| DomainsError::Damaged)?);
    AccountKey::from_pkcs8(&pkcs8).map_err(|_| DomainsError::Damaged)
}
