//! Obtains the certificate of a domain.
//!
//! Owns what is written before which step. The row has the key, the request and the CA before the order is opened, and its
//! URL before it is advanced: a node that takes over the lease resumes the same order. `beginning` has written the row, and
//! used the budgets in the same transaction.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use secrecy::zeroize::Zeroizing;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::budgets::{self, Order};
use super::error::DomainsError;
use super::reason::Reason;
use super::renewal::spread;
use super::schedule;
use super::shared::Domains;
use super::transition::{Cause, event};
use crate::acme::{Acme, AcmeError, Challenge, ChallengeKind, Checkpoint, IssuedChain, LeaseLost, certificate_id};
use crate::certificate::{self, Certificate};
use crate::config::AcmeConfig;
use crate::host::HostName;
use crate::seal::Unopened;
use crate::store::registry::{
    BudgetTaken, CertificateRecord, DomainEvent, DomainRecord, DomainState, Lease, NodeRecord, StoredPair,
};
use crate::store::with_causes;

/// How often a lease is renewed while a CA works.
const KEEP_INTERVAL: Duration = Duration::from_secs(15);

/// How many times storing an issued certificate is tried while the registry is unavailable. After that the order stays in
/// its row, and a later node downloads the same certificate.
const STORE_TRIES: u32 = 20;

/// How long a node does not lease an order whose key only another node can open, plus up to a fifth. Without the random part,
/// the end would coincide with this node's own poll, so it would always take the lease first.
///
/// Larger: the other node resumes the order later. Smaller: this node leases the row more often for nothing.
const LEAVE: Duration = Duration::from_secs(5);

/// A pending order, as a row stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PendingOrder {
    /// The CA.
    pub(super) authority: String,
    /// The private key in PEM, sealed for the host.
    pub(super) key: String,
    /// The request for the certificate: Base64.
    pub(super) csr: String,
    /// The order, once it was opened.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) url: Option<String>,
    /// The challenge, once the CA is to verify it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) challenge: Option<PublishedChallenge>,
    /// Whether it used no budget, since it names the certificate that it replaces.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(super) is_exempt: bool,
    /// Why DNS was unreachable before it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) unasked: Option<String>,
}

/// A challenge that any node responds to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PublishedChallenge {
    pub(super) kind: ChallengeKind,
    pub(super) token: String,
}

impl PendingOrder {
    pub(super) fn read(domain: &DomainRecord) -> Option<Self> {
        serde_json::from_str(domain.pending.as_deref()?).ok()
    }

    pub(super) fn stored(&self) -> Option<String> {
        Some(serde_json::to_string(self).expect("texts are always JSON"))
    }
}

impl Domains {
    /// Resumes the pending order of a row.
    pub(super) async fn resume_order(&self, mut domain: DomainRecord, host: &HostName) -> Result<(), DomainsError> {
        let Some((acme, client)) = self.ordering_client().await? else { return Ok(()) };
        let known = PendingOrder::read(&domain).and_then(|pending| {
            let at = client.authorities().iter().position(|ca| ca.name == pending.authority)?;
            Some((pending, at))
        });
        let Some((pending, authority)) = known else {
            // The CA is no longer configured.
            domain.pending = None;
            domain.next_at = self.now();
            return self.release(&domain, &[]).await;
        };
        let key = match acme.seals.open(&pending.key, host.as_str()) {
            Ok(key) => Zeroizing::new(key),
            Err(cause) => return self.give_up(domain, &pending, acme, cause).await,
        };
        let csr = STANDARD.decode(&pending.csr).unwrap_or_default();
        let mut steps = Steps { domains: self, domain: domain.clone(), pending };
        let advance = async {
            let url = match steps.pending.url.clone() {
                Some(url) => url,
                None => self.open(&client, authority, host, &mut steps).await?,
            };
            client.advance(authority, &url, &csr, &mut steps).await
        };
        let outcome = tokio::select! {
            outcome = advance => outcome,
            () = self.keep_lease(&domain) => Err(AcmeError::Stopped),
        };
        let Steps { domain, pending, .. } = steps;
        match outcome {
            Ok(chain) => self.issued(domain, host, pending, &key, authority, chain).await,
            Err(error) => self.failed(domain, host, acme, authority, error).await,
        }
    }

    /// The key of an order can't be opened. If a live node has the key that sealed it, that node resumes the order; else it
    /// can't be finished, and a new order replaces it.
    async fn give_up(
        &self,
        mut domain: DomainRecord,
        pending: &PendingOrder,
        acme: &AcmeConfig,
        cause: Unopened,
    ) -> Result<(), DomainsError> {
        if let Some(missing) = acme.seals.missing_key(&pending.key) {
            // A node of an earlier version does not write which keys it has.
            let has_it = |node: &NodeRecord| {
                node.is_live && node.seal_keys.as_ref().is_none_or(|keys| keys.iter().any(|key| key == missing))
            };
            if self.registry().await?.nodes().await?.iter().any(has_it) {
                domain.next_at = self.now() + LEAVE.mul_f64(1.0 + rand::random::<f64>() / 5.0);
                return self.release(&domain, &[]).await;
            }
        }
        let DomainRecord { slug, host, .. } = &domain;
        tracing::warn!(tenant = slug, host, %cause, "the key of an order can't be opened; ordering again");
        domain.pending = None;
        domain.next_at = self.now();
        self.release(&domain, &[]).await
    }

    /// Opens an order, and writes its URL into the row.
    async fn open(
        &self,
        client: &Acme,
        authority: usize,
        host: &HostName,
        steps: &mut Steps<'_>,
    ) -> Result<String, AcmeError> {
        let replaced = self.replaced(&steps.domain, &steps.pending.authority).await;
        let opened = match &replaced {
            Some(replaced) => client.open(authority, host, Some(replaced)).await,
            None => Err(AcmeError::ReplacesRefused { detail: String::new() }),
        };
        let opened = match opened {
            Err(AcmeError::ReplacesRefused { .. }) => {
                self.count_order(authority, steps).await?;
                client.open(authority, host, None).await?
            }
            opened => opened?,
        };
        steps.pending.url = Some(opened.url.clone());
        steps.write().await.map_err(|LeaseLost| AcmeError::Stopped)?;
        Ok(opened.url)
    }

    /// Uses the budgets of an order that used none because it was to name the certificate that it replaces.
    async fn count_order(&self, authority: usize, steps: &mut Steps<'_>) -> Result<(), AcmeError> {
        let Some(acme) = self.acme.as_ref().filter(|_| steps.pending.is_exempt) else { return Ok(()) };
        let Steps { domain, pending, .. } = steps;
        let budgets = budgets::of_order(&pending.authority, acme.limits[authority], None, &domain.host, Order::Renewal);
        let counted = PendingOrder { is_exempt: false, ..pending.clone() };
        let row = DomainRecord { pending: counted.stored(), ..domain.clone() };
        let registry = self.registry().await.map_err(|_| AcmeError::Stopped)?;
        match registry.take_budgets(&budgets, &row).await {
            Ok(BudgetTaken::Yes) => (*domain, *pending) = (row, counted),
            Ok(BudgetTaken::NotOwn) | Err(_) => return Err(AcmeError::Stopped),
            Ok(BudgetTaken::Until { budget, at }) => {
                let of = budget.split(' ').next().unwrap_or_default();
                return Err(AcmeError::Limited { until: Some(at), detail: format!("budget of {of}") });
            }
        }
        Ok(())
    }

    /// The id of the certificate that an order replaces. Only the CA that issued it knows it.
    pub(super) async fn replaced(&self, domain: &DomainRecord, authority: &str) -> Option<String> {
        let record = self.registry().await.ok()?.find_certificate(&domain.host).await.ok()??;
        let is_its_own = record.slug == domain.slug && record.authority == authority;
        let pair = record.pair.filter(|_| is_its_own)?;
        certificate_id(&CertificateDer::from_pem_slice(pair.chain.as_bytes()).ok()?)
    }

    /// Renews the lease until it is lost.
    async fn keep_lease(&self, domain: &DomainRecord) {
        loop {
            sleep(KEEP_INTERVAL).await;
            let Ok(registry) = self.registry().await else { continue };
            if matches!(registry.keep_lease(domain).await, Ok(false)) {
                return;
            }
        }
    }

    /// The CA has issued the certificate: from here on it must not be lost.
    async fn issued(
        &self,
        mut domain: DomainRecord,
        host: &HostName,
        pending: PendingOrder,
        key: &Zeroizing<String>,
        authority: usize,
        chain: IssuedChain,
    ) -> Result<(), DomainsError> {
        let Some((acme, client)) = self.client().await? else { return Ok(()) };
        let certificate = certificate::pair_of_text(host, &chain.pem, key)
            .map_err(|error| with_causes(&error))
            .and_then(|read| if read.names.covers(host) { Ok(read) } else { Err("it is for another host".to_owned()) });
        let certificate = match certificate {
            Ok(certificate) => certificate,
            Err(detail) => {
                let error = AcmeError::Refused { problem: "unusableCertificate".to_owned(), detail };
                return self.failed(domain, host, acme, authority, error).await;
            }
        };
        self.breakers.note_success(authority);
        let (not_before, not_after) = dates(&certificate);
        let was_live = domain.state == DomainState::Live;
        domain.pending = None;
        domain.failures = 0;
        domain.is_late = false;
        domain.not_after = Some(not_after);
        self.transition(&mut domain, Cause::Issued, &Reason::None {});
        let leaf = &certificate.key.cert[0];
        let window = client.renewal_info(authority, leaf).await.ok().flatten();
        let renew_at = schedule::renew_at(not_before, not_after, window.as_ref(), spread(host, not_after));
        domain.renew_at = Some(renew_at);
        domain.next_at = renew_at.min(self.now() + schedule::LIVE_CHECK);
        let record = CertificateRecord {
            host: domain.host.clone(),
            slug: domain.slug.clone(),
            revision: 0,
            pair: Some(StoredPair { chain: chain.pem, key: pending.key }),
            authority: pending.authority,
            not_before,
            not_after,
        };
        let events: Vec<_> = (!was_live).then(|| event("domain.live", &domain)).into_iter().collect();
        if self.store(&domain, &record, &events).await? {
            self.metrics.ordered(&record.authority, "issued");
            tracing::info!(
                tenant = domain.slug,
                host = domain.host,
                authority = record.authority,
                "certificate issued"
            );
            self.following.look_soon();
        }
        Ok(())
    }

    /// Stores a certificate. Retries for a while if the registry is unavailable.
    async fn store(
        &self,
        domain: &DomainRecord,
        record: &CertificateRecord,
        events: &[DomainEvent],
    ) -> Result<bool, DomainsError> {
        let registry = self.registry().await?;
        let mut tries = 0;
        loop {
            match registry.store_certificate(domain, record, events).await {
                Err(_) if tries < STORE_TRIES => tries += 1,
                outcome => return Ok(outcome?),
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Writes an order into its row while it advances.
struct Steps<'s> {
    domains: &'s Domains,
    domain: DomainRecord,
    pending: PendingOrder,
}

impl Steps<'_> {
    /// Writes the order into the row, and keeps the lease.
    async fn write(&mut self) -> Result<(), LeaseLost> {
        self.domain.pending = self.pending.stored();
        let registry = self.domains.registry().await.map_err(|_| LeaseLost)?;
        match registry.write_domain(&self.domain, Lease::Keep, &[]).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(LeaseLost),
        }
    }
}

impl Checkpoint for Steps<'_> {
    async fn publish(&mut self, challenge: &Challenge) -> Result<(), LeaseLost> {
        let Challenge { kind, token, .. } = challenge;
        self.pending.challenge = Some(PublishedChallenge { kind: *kind, token: token.clone() });
        self.write().await
    }

    async fn before_finalize(&mut self) -> Result<(), LeaseLost> {
        self.write().await
    }
}

fn dates(certificate: &Certificate) -> (Timestamp, Timestamp) {
    let at = |second| Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
    (at(certificate.validity.from), at(certificate.validity.until))
}
