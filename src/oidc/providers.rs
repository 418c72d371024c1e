//! Every provider in use, with its metadata and keys.
//!
//! Tenants with the same issuer share metadata and keys, and tenants with the same certificate authorities share a client.
//! Metadata and keys depend on nothing else, so a changed client id or role needs no request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use rustls::pki_types::CertificateDer;

use super::Provider;
use crate::config::OidcConfig;
use crate::outbound::{AllowedTarget, AllowedTargets, Client, Guard, Settings};

/// How long a request to a provider may take.
///
/// Larger: a person waits for longer at a provider that hangs. Smaller: providers that are slow at times fail.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How many requests to providers are expected at once; further ones get connections that are closed after them.
///
/// Larger: more idle sockets. Smaller: more handshakes when many sign in at once.
const IN_FLIGHT: u32 = 32;

/// The same to one host. Larger and smaller: as for [`IN_FLIGHT`].
const PER_HOST: u32 = 8;

/// How many providers are known at once. Larger: some kilobytes each. Smaller: with more tenants that have their own,
/// more sign-ins wait for two further requests.
const MAX_PROVIDERS: u64 = 10_000;

/// How many sets of certificate authorities are loaded at once. Larger: some hundred kilobytes each. Smaller: with more
/// tenants that have their own, sign-ins read the system's authorities again.
const MAX_CLIENTS: u64 = 100;

/// Certificate authorities next to the system's.
type Authorities = Box<[CertificateDer<'static>]>;

/// The providers.
#[derive(Debug)]
pub struct Providers {
    dns_servers: Vec<SocketAddr>,
    clients: Cache<Authorities, Arc<Client>>,
    providers: Cache<(Box<str>, Authorities), Arc<Provider>>,
}

impl Providers {
    /// Knows none yet. `dns_servers` resolve their hosts; if empty, the system's.
    #[must_use]
    pub fn new(dns_servers: Vec<SocketAddr>) -> Self {
        Self { dns_servers, clients: Cache::new(MAX_CLIENTS), providers: Cache::new(MAX_PROVIDERS) }
    }

    /// The provider of a configuration.
    pub async fn find(self: &Arc<Self>, config: &OidcConfig) -> Arc<Provider> {
        let key = (config.issuer.clone(), config.authorities.clone());
        if let Some(known) = self.providers.get(&key) {
            return known;
        }
        let all = Arc::clone(self);
        // Loading the system's certificate authorities blocks on files.
        let found = tokio::task::spawn_blocking(move || {
            all.providers.get_with(key.clone(), || Arc::new(Provider::new(&key.0, all.client(&key.1))))
        });
        found.await.expect("neither a client nor a provider panics")
    }

    fn client(&self, authorities: &Authorities) -> Arc<Client> {
        self.clients.get_with(authorities.clone(), || {
            let settings = Settings {
                timeout: TIMEOUT,
                in_flight: IN_FLIGHT,
                per_host: PER_HOST,
                allowed: everywhere(),
                authorities: authorities.to_vec(),
                dns_servers: self.dns_servers.clone(),
            };
            Arc::new(Client::new(&settings, Arc::new(Guard::new(settings.allowed.clone()))))
        })
    }
}

/// Every network. The guard still refuses link-local addresses and metadata services.
fn everywhere() -> AllowedTargets {
    ["0.0.0.0/0", "::/0"].iter().filter_map(|network| AllowedTarget::parse(network).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::Target;

    #[test]
    fn a_provider_may_be_at_a_private_address_but_not_at_a_metadata_service() {
        let guard = Guard::new(everywhere());
        for (address, is_allowed) in [
            ("127.0.0.1", true),
            ("10.0.0.1", true),
            ("[fd12:3456::1]", true),
            ("1.1.1.1", true),
            ("169.254.169.254", false),
            ("[fd00:ec2::254]", false),
            ("100.100.100.200", false),
        ] {
            let target = Target::parse(&format!("https://{address}/")).unwrap();
            assert_eq!(guard.check_literal(&target).is_ok(), is_allowed, "{address}");
        }
    }
}
