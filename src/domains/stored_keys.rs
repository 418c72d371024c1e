//! Whether the keys of `seal_keys` open what the registry has, and whether every node has them.
//!
//! A sealed text begins with the id of its key, and each node writes the ids of its keys into its row. So both are known
//! without opening anything, and ids give nothing away.

use std::fmt;

use super::error::DomainsError;
use crate::seal::Seals;
use crate::store::Registry;
use crate::store::registry::SealedBy;

/// A key that sealed something and is not configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKey {
    /// Its id.
    pub id: String,
    /// Whether it sealed the account key.
    pub account: bool,
    /// How many keys of certificates it sealed.
    pub certificates: i64,
}

impl MissingKey {
    /// What an operator does about it.
    pub const NEXT_STEP: &'static str = "put the key with this id back into `seal_keys` of `[gateway.acme]`, behind the \
         first one, on every node, and restart them; if no copy of it is left, follow `A lost seal key` in deploy/domains.md";
}

impl fmt::Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, account, certificates } = self;
        let certificates = match certificates {
            0 => None,
            1 => Some("the key of 1 certificate".to_owned()),
            more => Some(format!("the keys of {more} certificates")),
        };
        let sealed = account.then(|| "the account key".to_owned()).into_iter().chain(certificates);
        let sealed = sealed.collect::<Vec<_>>().join(" and ");
        write!(f, "`seal_keys` lacks the key `{id}`, which sealed {sealed}")
    }
}

/// The keys that sealed what the registry has, and are not configured.
///
/// # Errors
/// [`DomainsError::Follow`] if the registry can't be used.
pub async fn missing_keys(registry: &Registry, seals: &Seals) -> Result<Vec<MissingKey>, DomainsError> {
    let stored = registry.sealed_by().await?;
    let missing = stored.into_iter().filter_map(|SealedBy { beginning, account, certificates }| {
        let id = seals.missing_key(&beginning)?.to_owned();
        Some(MissingKey { id, account, certificates })
    });
    Ok(missing.collect())
}

/// The live nodes that can't continue after everything is resealed with the first key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreadyNodes {
    /// The names of nodes that don't have it.
    pub lacking: Vec<String>,
    /// The names of nodes that have it, and seal with another one.
    pub sealing_with_another: Vec<String>,
    /// The names of nodes of an earlier version, which don't write which keys they have.
    pub silent: Vec<String>,
}

/// Compares the first key with those of the live nodes. A node without keys obtains and serves no certificates, so it
/// needs none.
///
/// # Errors
/// [`DomainsError::Follow`] if the registry can't be used.
pub async fn unready_nodes(registry: &Registry, seals: &Seals) -> Result<UnreadyNodes, DomainsError> {
    let mut unready = UnreadyNodes::default();
    let first = seals.ids().next();
    for node in registry.nodes().await?.into_iter().filter(|node| node.is_live) {
        match node.seal_keys.as_deref() {
            None => unready.silent.push(node.name),
            Some([]) => {}
            Some([sealing, ..]) if first == Some(sealing.as_str()) => {}
            Some(keys) if keys.iter().any(|key| first == Some(key.as_str())) => {
                unready.sealing_with_another.push(node.name);
            }
            Some(_) => unready.lacking.push(node.name),
        }
    }
    Ok(unready)
}
