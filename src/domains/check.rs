//! Checks a domain in DNS.

use std::time::Instant;

use super::error::DomainsError;
use super::reason::{OtherReason, Reason, own_label, records_to_set};
use super::schedule;
use super::shared::Domains;
use super::transition::Cause;
use crate::dns::{DnsCheck, Issuer, Question};
use crate::host::HostName;
use crate::store::registry::{DomainRecord, DomainState};

impl Domains {
    /// What DNS shows about a domain.
    pub(super) async fn check(&self, domain: &DomainRecord, host: &HostName) -> DnsCheck {
        let label = own_label(domain, &self.config);
        let (mut issuers, mut methods) = (Vec::new(), Vec::new());
        if let Some(acme) = &self.acme {
            let named = |name: &Option<String>| name.as_deref().map_or_else(Default::default, ToOwned::to_owned);
            issuers.extend(acme.requests.authorities.iter().map(|ca| named(&ca.issuer)));
            methods.extend(acme.requests.challenges.iter().map(|kind| kind.as_str()));
        } else {
            issuers.push(String::new());
        }
        let issuers: Vec<_> = issuers.iter().map(|name| Issuer { name, ..Issuer::default() }).collect();
        let needs_proof = domain.is_added && !self.config.owns(host);
        let began = Instant::now();
        let check = self
            .dns
            .check(&Question {
                host,
                own_label: label.as_ref(),
                target: self.config.target.as_ref(),
                addresses: &self.config.addresses,
                proof: needs_proof.then_some(domain.proof.as_str()),
                issuers: &issuers,
                methods: &methods,
            })
            .await;
        self.metrics.checked(began.elapsed());
        check
    }

    /// DNS was unreachable: its state stays, and so does what a CA said about its renewal.
    pub(super) async fn not_asked(&self, mut domain: DomainRecord, detail: String) -> Result<(), DomainsError> {
        let until = schedule::to_second(self.now() + schedule::ASK_AGAIN);
        domain.next_at = until;
        if domain.not_after.is_none() || domain.failures == 0 {
            let records = match domain.state {
                DomainState::Claimed | DomainState::Dns => {
                    records_to_set(&domain.host, own_label(&domain, &self.config).as_ref(), &self.config)
                }
                _ => Vec::new(),
            };
            let reason = Reason::Other(OtherReason::DnsDown { detail, until, records });
            self.transition(&mut domain, Cause::Unasked, &reason);
        }
        self.release(&domain, &[]).await
    }
}
