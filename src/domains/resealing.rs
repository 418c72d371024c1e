//! Seals the keys of certificates, of pending orders and of the ACME account with the first key of `seal_keys`.
//!
//! Then the other keys can be removed from `seal_keys`. Nodes that still seal with another key may store something in the
//! meantime, so it can be repeated until nothing is found.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::account_key::ACCOUNT;
use super::error::DomainsError;
use super::orders::PendingOrder;
use crate::acme::AccountKey;
use crate::seal::Seals;
use crate::store::Registry;
use crate::store::registry::{PAGE, PendingRecord, StoredPair};

/// What was resealed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resealed {
    /// How many keys of certificates.
    pub certificates: u64,
    /// How many keys of orders.
    pub orders: u64,
    /// Whether the key of the accounts was one of them.
    pub account: bool,
    /// The hosts that a node works on now, or that changed during this.
    pub busy: Vec<String>,
    /// The private keys that no configured key opens.
    pub unopened: Vec<UnopenedKey>,
}

/// A private key that can't be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnopenedKey {
    /// The host of its certificate or order. `None` for the account key.
    pub host: Option<String>,
    /// The id of the key that it is sealed with. `None` if that key is configured and the text is damaged.
    pub missing: Option<String>,
}

impl UnopenedKey {
    fn new(host: Option<&str>, stored: &str, seals: &Seals) -> Self {
        Self { host: host.map(ToOwned::to_owned), missing: seals.missing_key(stored).map(ToOwned::to_owned) }
    }
}

impl Resealed {
    /// Whether the first key opens everything.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.busy.is_empty() && self.unopened.is_empty()
    }
}

/// Reseals with the first of the keys what another one sealed.
///
/// # Errors
/// [`DomainsError::Follow`] if the registry can't be used.
pub async fn reseal(registry: &Registry, seals: &Seals) -> Result<Resealed, DomainsError> {
    let mut resealed = Resealed::default();
    reseal_account(registry, seals, &mut resealed).await?;
    // Before the certificates, since an order becomes one.
    reseal_orders(registry, seals, &mut resealed).await?;
    reseal_certificates(registry, seals, &mut resealed).await?;
    Ok(resealed)
}

async fn reseal_account(registry: &Registry, seals: &Seals, resealed: &mut Resealed) -> Result<(), DomainsError> {
    let Some(stored) = registry.account_key().await?.filter(|stored| !seals.is_current(stored)) else {
        return Ok(());
    };
    let opened = seals.open(&stored, ACCOUNT).ok();
    // A key that the CAs would refuse is not written again.
    let opened = opened.filter(|text| STANDARD.decode(text).is_ok_and(|key| AccountKey::from_pkcs8(&key).is_ok()));
    match opened {
        Some(text) => {
            registry.replace_account_key(&seals.seal(&text, ACCOUNT)).await?;
            resealed.account = true;
        }
        None => resealed.unopened.push(UnopenedKey::new(None, &stored, seals)),
    }
    Ok(())
}

async fn reseal_orders(registry: &Registry, seals: &Seals, resealed: &mut Resealed) -> Result<(), DomainsError> {
    let mut after = (String::new(), String::new());
    loop {
        let page = registry.pending_orders((&after.0, &after.1), PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = (last.host.clone(), last.slug.clone());
        for record in page {
            reseal_order(registry, seals, record, resealed).await?;
        }
    }
}

async fn reseal_order(
    registry: &Registry,
    seals: &Seals,
    record: PendingRecord,
    resealed: &mut Resealed,
) -> Result<(), DomainsError> {
    let pending: Result<PendingOrder, _> = serde_json::from_str(&record.pending);
    let Ok(mut pending) = pending else {
        resealed.unopened.push(UnopenedKey::new(Some(&record.host), "", seals));
        return Ok(());
    };
    if seals.is_current(&pending.key) {
        return Ok(());
    }
    let Ok(key) = seals.open(&pending.key, &record.host) else {
        resealed.unopened.push(UnopenedKey::new(Some(&record.host), &pending.key, seals));
        return Ok(());
    };
    pending.key = seals.seal(&key, &record.host);
    match pending.stored() {
        Some(pending) if registry.reseal_pending(&record, &pending).await? => resealed.orders += 1,
        _ => resealed.busy.push(record.host),
    }
    Ok(())
}

async fn reseal_certificates(registry: &Registry, seals: &Seals, resealed: &mut Resealed) -> Result<(), DomainsError> {
    let mut after = 0;
    loop {
        // A certificate that was resealed has a later revision and is skipped.
        let page = registry.certificates(after, i64::MAX, PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.revision;
        for certificate in page {
            let Some(StoredPair { key, .. }) = &certificate.pair else { continue };
            if seals.is_current(key) {
                continue;
            }
            match seals.open(key, &certificate.host) {
                Err(_) => resealed.unopened.push(UnopenedKey::new(Some(&certificate.host), key, seals)),
                Ok(opened) => {
                    let sealed = seals.seal(&opened, &certificate.host);
                    if registry.reseal_certificate(&certificate, &sealed).await? {
                        resealed.certificates += 1;
                    } else {
                        resealed.busy.push(certificate.host);
                    }
                }
            }
        }
    }
}
