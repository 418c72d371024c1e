//! Where the sessions of a pool come from, and under which id they are counted.
//!
//! Each tenant has a pool of its own. Tenants whose Postgres URLs differ only in `schema` share one source, so their
//! pools use each other's idle connections: a thousand tenants that call seldom need few connections, where a database
//! for each needs a new connection for almost every call. A session of such a source has an empty `search_path`, and
//! each transaction sets its tenant's schema for itself ([`super::schema_setting`]). A statement that ran without one would
//! find no table, rather than another tenant's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sha2::{Digest, Sha256};

use super::connections::{Connections, PoolId};
use super::session::SessionAddress;

/// One server, database and role, or one file.
#[derive(Debug)]
pub(super) struct SessionSource {
    id: PoolId,
    address: SessionAddress,
    /// The most sessions that are open at once.
    max_open: u32,
    connections: Arc<Connections>,
}

impl SessionSource {
    pub(super) fn new(address: SessionAddress, max_open: u32, connections: &Arc<Connections>) -> Self {
        Self { id: connections.new_pool(address.dialect()), address, max_open, connections: Arc::clone(connections) }
    }

    pub(super) fn id(&self) -> PoolId {
        self.id
    }

    pub(super) fn address(&self) -> &SessionAddress {
        &self.address
    }

    pub(super) fn max_open(&self) -> u32 {
        self.max_open
    }

    pub(super) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }
}

impl Drop for SessionSource {
    fn drop(&mut self) {
        self.connections.close_idle(self.id);
    }
}

/// Where what a Postgres URL omits comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Omitted {
    /// The environment of this process (`PGHOST`, `PGPASSWORD`, …), its user and a password file, as with libpq.
    FromEnvironment,
    /// Nowhere: a port, a database and the like have fixed defaults, and the user and the host are required.
    Fixed,
}

/// The URL of a shared source without its schema, hashed because it may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedKey([u8; 32]);

impl SharedKey {
    /// The key of a URL that has a `schema` in its query. Sessions with a password that the URL omits are not for those
    /// that may not have it.
    pub(super) fn of(url: &str, omitted: Omitted) -> Self {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let rest: Vec<_> = query.split('&').filter(|parameter| !parameter.starts_with("schema=")).collect();
        Self(Sha256::digest(format!("{omitted:?} {address}?{}", rest.join("&"))).into())
    }
}

/// The sources that pools share.
#[derive(Debug, Default)]
pub(super) struct SharedSources(Mutex<HashMap<SharedKey, Weak<SessionSource>>>);

impl SharedSources {
    /// The source with this key, or a new one.
    pub(super) fn find_or_insert(&self, key: SharedKey, create: impl FnOnce() -> SessionSource) -> Arc<SessionSource> {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = sources.get(&key).and_then(Weak::upgrade) {
            return source;
        }
        sources.retain(|_, source| source.strong_count() > 0);
        let source = Arc::new(create());
        sources.insert(key, Arc::downgrade(&source));
        source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_differ_only_in_their_schema_have_one_key() {
        let [one, other] = ["acme", "globex"].map(|schema| {
            [
                format!("postgres://app:secret@db/forms?schema={schema}"),
                format!("postgres://app:secret@db/forms?sslmode=require&schema={schema}"),
                format!("postgres://app:other@db/forms?schema={schema}"),
            ]
            .map(|url| SharedKey::of(&url, Omitted::FromEnvironment))
        });
        assert_eq!(one, other);
        assert!(one[0] != one[1] && one[0] != one[2] && one[1] != one[2]);
        assert_ne!(one[0], SharedKey::of("postgres://app:secret@db/forms?schema=acme", Omitted::Fixed));
    }
}
