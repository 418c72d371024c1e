//! Builds the domains of a gateway, which know its certificates and are known to them.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::config::Config;
use crate::domains::{Domains, GatewayCovers};
use crate::edge::Certificates;
use crate::metrics::Metrics;
use crate::registry::Following;
use crate::tenant::Directory;

/// The domains, if they are configured. Handshakes of authorities are answered for them from now on.
pub(super) fn open(
    config: &Config,
    following: Option<&Arc<Following>>,
    directory: &Arc<ArcSwap<Directory>>,
    certificates: &Arc<Certificates>,
    metrics: &Metrics,
) -> Option<Arc<Domains>> {
    let (domains, following) = config.gateway.domains.as_ref().zip(following)?;
    let covers: GatewayCovers = Arc::new({
        let certificates = Arc::clone(certificates);
        move |host| certificates.gateway_covers(host)
    });
    let (acme, following, directory) = (config.gateway.acme.as_ref(), Arc::clone(following), Arc::clone(directory));
    let domains = Arc::new(Domains::new(domains, acme, following, directory, covers, metrics.domains.clone()));
    certificates.answer_for(Arc::clone(&domains));
    Some(domains)
}
