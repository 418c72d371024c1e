//! The zones of a claimed host and of the gateway, and what is asked about the host.

use std::net::IpAddr;

use formgate::dns::{Dns, DnsCheck, DnsFault, Finding, Issuer, Ownership, Proof, Question};
use formgate::domains::Reason;
use formgate::host::HostName;

use crate::support::zones::{Zones, ip};

/// The record that leads the host here and proves its ownership.
pub(super) const OWN_LABEL: &str = "forms CNAME acme.forms.net";

/// The proof that is asked for.
pub(super) const PROOF: &str = "formgate-domain=acme-4f2a";

/// The servers of the host's zone.
pub(super) const SERVERS: [u8; 2] = [3, 4];

/// What is asked about a host; changed by the tests that ask for something else.
pub(super) struct Claim {
    pub(super) host: String,
    pub(super) own_label: Option<HostName>,
    pub(super) target: Option<HostName>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) proof: Option<&'static str>,
    pub(super) issuers: Vec<Issuer<'static>>,
}

impl Claim {
    /// The usual claim, of another host.
    pub(super) fn of(host: &str) -> Self {
        let name = |text: &str| HostName::parse(text).ok();
        Self {
            host: host.to_owned(),
            own_label: name("acme.forms.net"),
            target: name("forms.net"),
            addresses: vec![ip("2001:db8::10"), ip("192.0.2.10")],
            proof: Some(PROOF),
            issuers: vec![
                Issuer { name: "ca.example", account: None },
                Issuer { name: "second.example", account: None },
            ],
        }
    }

    pub(super) fn usual() -> Self {
        Self::of("forms.acme.com")
    }
}

/// Servers, with the zones `com`, `net` and `forms.net`; the zone of the host is served by the test.
pub(super) async fn zones() -> Zones {
    let zones = Zones::start().await;
    zones.serve("com", &[2], "");
    zones.serve("net", &[2], "");
    zones.serve("forms.net", &[2], GATEWAY);
    zones
}

/// The gateway's zone: its target, and the labels of tenants.
pub(super) const GATEWAY: &str = "@ A 192.0.2.10
    @ AAAA 2001:db8::10
    acme A 192.0.2.10
    acme AAAA 2001:db8::10
    other A 192.0.2.10";

/// Serves the zone of the host, and asks.
pub(super) async fn look_at(records: &str) -> DnsCheck {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, records);
    look(&zones, &Claim::usual()).await
}

pub(super) async fn look(zones: &Zones, claim: &Claim) -> DnsCheck {
    let dns = Dns::new(&[zones.resolver()]).with_private_servers(zones.port);
    ask(&dns, claim).await
}

pub(super) async fn ask(dns: &Dns, claim: &Claim) -> DnsCheck {
    let host = HostName::parse(&claim.host).expect("a host");
    let question = Question {
        host: &host,
        own_label: claim.own_label.as_ref(),
        target: claim.target.as_ref(),
        addresses: &claim.addresses,
        proof: claim.proof,
        issuers: &claim.issuers,
        methods: &["http-01", "tls-alpn-01"],
    };
    dns.check(&question).await
}

/// Both authorities may issue.
pub(super) fn ready(proof: Proof) -> DnsCheck {
    DnsCheck { ownership: Ownership::Proved(proof), finding: Finding::Ready { issuers: vec![0, 1] } }
}

/// The fault, which reads the same after it was stored.
#[track_caller]
pub(super) fn fault(check: DnsCheck) -> DnsFault {
    let Finding::Fault(fault) = check.finding else { panic!("no fault, but {check:?}") };
    let stored = serde_json::to_string(&fault).expect("a fault can be stored");
    assert_eq!(serde_json::from_str::<DnsFault>(&stored).expect("it can be read"), fault);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&stored).unwrap()["reason"], fault.reason());
    fault
}

/// The reason and the step.
#[track_caller]
pub(super) fn assert_fault(check: DnsCheck, reason: &str, next_step: &str) {
    let fault = fault(check);
    assert_eq!((fault.reason(), &*Reason::Dns(fault.clone()).next_step()), (reason, next_step));
}
