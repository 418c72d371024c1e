//! Obtains the certificate of a domain.
//!
//! Owns what is written before which step. The key, the request and the authority are in the row before the order is
//! opened, and its URL before it is advanced: a node that takes over a lease goes on with the same order. The budgets are
//! taken in the transaction that writes the row.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use secrecy::zeroize::Zeroizing;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::sleep;

use super::budgets::{self, Order};
use super::life::event;
use super::reason::{OtherReason, Reason};
use super::worker::LEASE;
use super::{Domains, DomainsError, schedule};
use crate::acme::{
    Acme, AcmeError, CertificateRequest, Challenge, ChallengeKind, Checkpoint, Fault, IssuedChain, Stop, certificate_id,
};
use crate::certificate::{self, Certificate};
use crate::config::AcmeConfig;
use crate::host::HostName;
use crate::store::registry::{
    BudgetTaken, CertificateRecord, DomainEvent, DomainRecord, DomainState, Lease, StoredPair,
};
use crate::store::with_causes;

/// How often a lease is kept while an authority works.
const KEEP_INTERVAL: Duration = Duration::from_secs(15);

/// When an order that the authority has not finished is advanced again.
const PENDING: Duration = Duration::from_secs(3);

/// When an authority that gives no usable answer is asked again, if it does not say so itself.
///
/// Larger: another authority takes over later. Smaller: an authority that is down is asked in vain more often.
const DOWN: Duration = Duration::from_mins(1);

/// When an authority that refused for a rate limit is asked again, if it does not say so itself.
const LIMITED: Duration = Duration::from_hours(1);

/// How often storing a certificate that was issued is tried while the registry is away. Then the order stays in its row,
/// and a later node downloads the same certificate.
const STORE_TRIES: u32 = 20;

/// An order under way, as a row stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PendingOrder {
    /// The authority.
    pub(super) authority: String,
    /// The private key in PEM, sealed for the host.
    pub(super) key: String,
    /// The request for the certificate: Base64.
    csr: String,
    /// The order, once it was opened.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    url: Option<String>,
    /// The challenge, once the authority is to verify it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) challenge: Option<PublishedChallenge>,
}

/// A challenge that any node answers.
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

/// Whether the authority is asked when a certificate should be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Authority,
    Nobody,
}

/// When a certificate is renewed.
pub(super) struct RenewalDates {
    pub(super) renew_at: Timestamp,
    pub(super) late_at: Timestamp,
    /// When the authority is to be asked again.
    pub(super) ask_again: Timestamp,
}

impl Domains {
    /// Begins an order at the first of these authorities that works.
    pub(super) async fn order(
        &self,
        mut domain: DomainRecord,
        host: &HostName,
        allowed: &[usize],
    ) -> Result<(), DomainsError> {
        let Some((acme, client)) = self.client().await? else { return Ok(()) };
        let Some(authority) = self.breakers.choose(allowed) else { return Ok(()) };
        let name = &client.authorities()[authority].name;
        let registry = self.registry().await?;
        let kind = if domain.not_after.is_some() { Order::Renewal } else { Order::First };
        let before = domain.clone();
        if let (_, Some(at)) = registry.budget_left(&budgets::failures(name, &domain.host)).await? {
            return self.wait_for_budget(before, name, "failed validations of the host", at).await;
        }
        let (request_host, seals) = (host.clone(), acme.seals.clone());
        let request = tokio::task::spawn_blocking(move || CertificateRequest::generate(&request_host)).await;
        let request = request.map_err(|_| DomainsError::Damaged)?;
        let key = pem_of(&request.key_pkcs8).ok_or(DomainsError::Damaged)?;
        let pending = PendingOrder {
            authority: name.clone(),
            key: seals.seal(&key, host.as_str()),
            csr: STANDARD.encode(&request.csr),
            url: None,
            challenge: None,
        };
        if kind == Order::First {
            self.enter(&mut domain, DomainState::Issuing, &Reason::None {});
        }
        domain.pending = pending.stored();
        let budgets = budgets::of_order(name, acme.limits[authority], &domain.host, kind);
        match registry.take_budgets(&budgets, &domain, LEASE).await? {
            BudgetTaken::Yes => self.go_on(domain, host).await,
            BudgetTaken::NotOwn => Ok(()),
            BudgetTaken::Until { budget, at } => {
                let of = budget.split(' ').next().unwrap_or_default().to_owned();
                self.wait_for_budget(before, name, &of, at).await
            }
        }
    }

    /// A budget is used up: the order waits, and nothing was sent.
    async fn wait_for_budget(
        &self,
        mut domain: DomainRecord,
        authority: &str,
        budget: &str,
        until: Timestamp,
    ) -> Result<(), DomainsError> {
        self.metrics.ordered(authority, "waits");
        let detail = format!("budget of {budget}");
        let reason = OtherReason::CaLimited { authority: authority.to_owned(), detail, until };
        let state = if domain.not_after.is_some() { domain.state } else { DomainState::Queued };
        self.enter(&mut domain, state, &Reason::Other(reason));
        domain.next_at = until;
        self.write(&domain, &[]).await
    }

    /// Goes on with the order of a row, wherever it is.
    pub(super) async fn go_on(&self, mut domain: DomainRecord, host: &HostName) -> Result<(), DomainsError> {
        let Some((acme, client)) = self.client().await? else { return Ok(()) };
        let known = PendingOrder::read(&domain).and_then(|pending| {
            let at = client.authorities().iter().position(|authority| authority.name == pending.authority)?;
            Some((pending, at))
        });
        let Some((pending, authority)) = known else {
            // Of a configuration that has this authority no more.
            domain.pending = None;
            domain.next_at = self.now();
            return self.write(&domain, &[]).await;
        };
        let csr = STANDARD.decode(&pending.csr).unwrap_or_default();
        let mut steps = Steps { domains: self, domain: domain.clone(), pending };
        let advance = async {
            let url = match steps.pending.url.clone() {
                Some(url) => url,
                None => self.open(client, authority, host, &mut steps).await?,
            };
            client.advance(authority, &url, &csr, &mut steps).await
        };
        let outcome = tokio::select! {
            outcome = advance => outcome,
            () = self.keep_lease(&domain) => Err(AcmeError::Stopped),
        };
        let Steps { domain, pending, .. } = steps;
        match outcome {
            Ok(chain) => self.issued(domain, host, pending, authority, chain).await,
            Err(error) => self.failed(domain, host, acme, authority, error).await,
        }
    }

    /// Opens an order, and writes its URL into the row.
    async fn open(
        &self,
        client: &Acme,
        authority: usize,
        host: &HostName,
        steps: &mut Steps<'_>,
    ) -> Result<String, AcmeError> {
        let replaced = self.leaf(host, &steps.domain).await.and_then(|leaf| certificate_id(&leaf));
        let opened = match client.open(authority, host, replaced.as_deref()).await {
            Err(AcmeError::ReplacesRefused { .. }) => client.open(authority, host, None).await?,
            opened => opened?,
        };
        steps.pending.url = Some(opened.url.clone());
        steps.write().await.map_err(|Stop| AcmeError::Stopped)?;
        Ok(opened.url)
    }

    /// The leaf that is served now.
    async fn leaf(&self, host: &HostName, domain: &DomainRecord) -> Option<CertificateDer<'static>> {
        let known = self.following.certificates().find(host, &domain.slug)?;
        let pair = self.following.certificates().read(host.as_str(), &known).await.ok()?;
        CertificateDer::from_pem_slice(pair.chain.as_bytes()).ok()
    }

    /// Keeps the lease until it is lost.
    async fn keep_lease(&self, domain: &DomainRecord) {
        loop {
            sleep(KEEP_INTERVAL).await;
            let Ok(registry) = self.registry().await else { continue };
            if matches!(registry.keep_lease(domain, LEASE).await, Ok(false)) {
                return;
            }
        }
    }

    /// The authority has issued: from here on nothing may lose the certificate.
    async fn issued(
        &self,
        mut domain: DomainRecord,
        host: &HostName,
        pending: PendingOrder,
        authority: usize,
        chain: IssuedChain,
    ) -> Result<(), DomainsError> {
        let Some((acme, client)) = self.client().await? else { return Ok(()) };
        let key = Zeroizing::new(acme.seals.open(&pending.key, host.as_str())?);
        let certificate = certificate::pair_of_text(host, &chain.pem, &key)
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
        self.enter(&mut domain, DomainState::Live, &Reason::None {});
        let leaf = &certificate.key.cert[0];
        let window = client.renewal_info(authority, leaf).await.ok().flatten();
        let renew_at = schedule::renew_at(not_before, not_after, window.as_ref(), spread(host, not_after));
        domain.renew_at = Some(renew_at);
        domain.next_at = renew_at.min(self.now() + schedule::LIVE_LOOK);
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

    /// Stores a certificate. Tries for a while when the registry is away.
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

    /// The order failed, or is not finished.
    async fn failed(
        &self,
        mut domain: DomainRecord,
        host: &HostName,
        acme: &AcmeConfig,
        authority: usize,
        error: AcmeError,
    ) -> Result<(), DomainsError> {
        let name = acme.requests.authorities[authority].name.clone();
        let now = self.now();
        if error == AcmeError::Stopped {
            return Ok(());
        }
        if let AcmeError::Pending { until } = error {
            domain.next_at = until.unwrap_or(now + PENDING).max(now + PENDING);
            return self.write(&domain, &[]).await;
        }
        self.metrics.ordered(&name, if error.fault() == Fault::Host { "refused" } else { "failed" });
        let registry = self.registry().await?;
        let has_order = PendingOrder::read(&domain).is_some_and(|pending| pending.url.is_some());
        let mut until = error.until();
        match error.fault() {
            Fault::Host => {
                registry.use_budget(&budgets::failures(&name, &domain.host)).await?;
                domain.failures += 1;
                domain.pending = None;
                until = Some(now + schedule::back_off(domain.failures));
            }
            Fault::Authority | Fault::Operator => {
                if self.breakers.note_fault(authority) {
                    tracing::error!(authority = name, cause = %error, "the authority can't be used; the next one is asked");
                    // Another one is asked now.
                    until = Some(now);
                }
                if self.breakers.is_open(authority, Instant::now()) || !has_order {
                    domain.pending = None;
                }
                until = Some(until.unwrap_or(now + DOWN));
            }
            Fault::None => {
                domain.pending = None;
                if let AcmeError::Limited { detail, .. } = &error {
                    let at = until.unwrap_or(now + LIMITED);
                    // The limit of the account holds for every host.
                    if detail.contains("new orders") || detail.contains("account") {
                        let all = budgets::orders(&name, acme.limits[authority], Order::Renewal);
                        registry.exhaust_budget(&all, at).await?;
                    }
                    until = Some(at);
                } else {
                    domain.failures += 1;
                    let wait = if domain.failures == 1 { PENDING } else { schedule::back_off(domain.failures) };
                    until = Some(now + wait);
                }
            }
        }
        let until = schedule::to_second(until.unwrap_or(now + DOWN));
        let reason = Reason::of_authority(&name, &domain.host, &error, until);
        let mut events = Vec::new();
        let state = match (domain.not_after, error.fault()) {
            (None, _) => DomainState::Queued,
            (Some(_), Fault::Host) => {
                if domain.state != DomainState::Failing {
                    events.push("domain.failing");
                }
                DomainState::Failing
            }
            (Some(_), _) => domain.state,
        };
        self.enter(&mut domain, state, &reason);
        let mut events: Vec<_> = events.into_iter().map(|kind| event(kind, &domain)).collect();
        if domain.not_after.is_some() {
            events.extend(self.plan_renewal(&mut domain, host, Ask::Nobody).await?);
        }
        domain.next_at = until;
        self.write(&domain, &events).await
    }

    /// When the certificate of a domain is renewed. `None` if it has none.
    pub(super) async fn renewal_dates(
        &self,
        domain: &DomainRecord,
        host: &HostName,
        ask: Ask,
    ) -> Result<Option<RenewalDates>, DomainsError> {
        let found = self.registry().await?.find_certificate(&domain.host).await?;
        let Some((record, pair)) = found.and_then(|record| record.pair.clone().map(|pair| (record, pair))) else {
            return Ok(None);
        };
        let mut window = None;
        let mut ask_again = self.now() + schedule::LIVE_LOOK;
        if ask == Ask::Authority
            && let Some((_, client)) = self.client().await?
            && let Some(at) = client.authorities().iter().position(|authority| authority.name == record.authority)
            && let Ok(leaf) = CertificateDer::from_pem_slice(pair.chain.as_bytes())
        {
            window = client.renewal_info(at, &leaf).await.ok().flatten();
            ask_again = window.as_ref().map_or(ask_again, |window| ask_again.min(self.now() + window.retry_after));
        }
        let (not_before, not_after) = (record.not_before, record.not_after);
        let renew_at = match (&window, domain.renew_at) {
            // What the authority suggested before holds until it can be asked again.
            (None, Some(known)) if ask == Ask::Nobody => known,
            _ => schedule::renew_at(not_before, not_after, window.as_ref(), spread(host, not_after)),
        };
        Ok(Some(RenewalDates { renew_at, late_at: schedule::late_at(not_before, not_after), ask_again }))
    }
}

/// What an order does to its row while it advances.
struct Steps<'s> {
    domains: &'s Domains,
    domain: DomainRecord,
    pending: PendingOrder,
}

impl Steps<'_> {
    /// Writes the order into the row, and keeps its lease.
    async fn write(&mut self) -> Result<(), Stop> {
        self.domain.pending = self.pending.stored();
        let registry = self.domains.registry().await.map_err(|_| Stop)?;
        match registry.write_domain(&self.domain, Lease::Keep(LEASE), &[]).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(Stop),
        }
    }
}

impl Checkpoint for Steps<'_> {
    async fn publish(&mut self, challenge: &Challenge) -> Result<(), Stop> {
        let Challenge { kind, token, .. } = challenge;
        self.pending.challenge = Some(PublishedChallenge { kind: *kind, token: token.clone() });
        self.write().await
    }

    async fn before_finalize(&mut self) -> Result<(), Stop> {
        self.write().await
    }
}

fn dates(certificate: &Certificate) -> (Timestamp, Timestamp) {
    let at = |second| Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
    (at(certificate.validity.from), at(certificate.validity.until))
}

/// A number between 0 and 1 that is the same for a certificate each time, and another one for each.
fn spread(host: &HostName, not_after: Timestamp) -> f64 {
    let digest = Sha256::new().chain_update(host.as_str()).chain_update(not_after.as_second().to_be_bytes()).finalize();
    f64::from(u16::from_be_bytes([digest[0], digest[1]])) / f64::from(u16::MAX)
}

fn pem_of(pkcs8: &[u8]) -> Option<Zeroizing<String>> {
    Some(Zeroizing::new(rcgen::KeyPair::try_from(pkcs8).ok()?.serialize_pem()))
}
