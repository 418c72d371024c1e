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

/// The account key of a registry, sealed; creates one if there is none.
pub(super) async fn stored_key(registry: &Registry, seals: &Seals) -> Result<String, DomainsError> {
    if let Some(stored) = registry.account_key().await? {
        return Ok(stored);
    }
    Ok(registry.account_key_or(&sealed(&AccountKey::generate(), seals)).await?)
}

/// An account key as a registry stores it.
pub(super) fn sealed(key: &AccountKey, seals: &Seals) -> String {
    seals.seal(&STANDARD.encode(key.pkcs8()), ACCOUNT)
}

/// Opens the account key as the registry has it.
pub(super) fn open(stored: &str, seals: &Seals) -> Result<AccountKey, DomainsError> {
    let text = Zeroizing::new(seals.open(stored, ACCOUNT)?);
    let pkcs8 = Zeroizing::new(STANDARD.decode(text.as_bytes()).map_err(|_| DomainsError::Damaged)?);
    AccountKey::from_pkcs8(&pkcs8).map_err(|_| DomainsError::Damaged)
}
