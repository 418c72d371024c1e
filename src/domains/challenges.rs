//! Responds to the CAs that verify a host, on any node.
//!
//! HTTP-01 needs only the account key: the response is computed from the token without shared state. That is safe, since a
//! token only works for orders of this account. TLS-ALPN-01 needs the token of the order, which is in the row of the domain;
//! it is looked up for handshakes with that protocol only, at most once a second for each host.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::sign::SingleCertAndKey;

use super::orders::PendingOrder;
use super::shared::Domains;
use crate::acme::{ChallengeKind, HTTP_PATH, TLS_ALPN_PROTOCOL, tls_alpn_certificate};
use crate::host::HostName;

impl Domains {
    /// The document at a path for HTTP-01. `None` if it is another path, or no tenant has the host.
    pub async fn http_response(&self, host: &HostName, path: &str) -> Option<String> {
        let token = path.strip_prefix(HTTP_PATH)?;
        self.directory.load().config_at(host)?;
        let (_, client) = self.client().await.ok()??;
        client.account_key().key_authorization(token)
    }

    /// How to respond to a handshake for TLS-ALPN-01. `None` if no order of this host waits for one.
    pub async fn tls_alpn_response(&self, host: &HostName) -> Option<Arc<ServerConfig>> {
        self.directory.load().config_at(host)?;
        self.tls_alpn.get_with_by_ref(host, self.find_tls_alpn(host)).await
    }

    async fn find_tls_alpn(&self, host: &HostName) -> Option<Arc<ServerConfig>> {
        let rows = self.registry().await.ok()?.find_domains(host.as_str()).await.ok()?;
        let challenges = rows.iter().filter_map(|row| PendingOrder::read(row)?.challenge);
        let challenge = challenges.into_iter().find(|challenge| challenge.kind == ChallengeKind::TlsAlpn01)?;
        let (_, client) = self.client().await.ok()??;
        let authorization = client.account_key().key_authorization(&challenge.token)?;
        let key = Arc::new(tls_alpn_certificate(host, &authorization));
        let mut tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .ok()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        tls.alpn_protocols = vec![TLS_ALPN_PROTOCOL.to_vec()];
        Some(Arc::new(tls))
    }
}
