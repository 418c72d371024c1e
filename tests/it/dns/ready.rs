//! Hosts that can get a certificate: every way to lead here, and every proof.

use std::net::UdpSocket;
use std::process::Stdio;
use std::time::{Duration, Instant};

use formgate::dns::{Dns, Finding, Issuer, Ownership, Proof, Question};
use formgate::host::HostName;

use super::scene::{Claim, OWN_LABEL, PROOF, SERVERS, fault, look, look_at, ready, zones};
use crate::support::busy::takes_less_than;
use crate::support::child::{self, Child, free_port};
use crate::support::zones::{Mood, ip};

#[tokio::test]
async fn a_cname_to_the_tenants_own_label_points_here_and_proves_ownership() {
    assert_eq!(look_at(OWN_LABEL).await, ready(Proof::OwnLabel));
}

#[tokio::test]
async fn aliases_on_the_way_to_the_own_label_are_followed() {
    let chain = "forms CNAME a.acme.com\na CNAME b.acme.com\nb CNAME acme.forms.net";
    assert_eq!(look_at(chain).await, ready(Proof::OwnLabel));
}

#[tokio::test]
async fn addresses_and_a_txt_record_are_as_good() {
    let proof = format!("_formgate.forms TXT {PROOF}");
    for records in [
        "forms A 192.0.2.10\nforms AAAA 2001:db8::10",
        "forms A 192.0.2.10",
        "forms AAAA 2001:db8::10",
        "forms CNAME forms.net",
        "forms CNAME other.forms.net",
    ] {
        assert_eq!(look_at(&format!("{records}\n{proof}")).await, ready(Proof::Txt), "{records}");
    }
}

#[tokio::test]
async fn the_txt_record_proves_a_host_wherever_it_leads() {
    let proof = format!("_formgate.forms TXT {PROOF}");
    for (records, reason) in [
        ("", "no_records"),
        ("forms A 203.0.113.7", "elsewhere"),
        ("forms CNAME www.acme.com\nwww A 203.0.113.7", "elsewhere"),
        ("forms A 104.21.3.4", "behind_cdn"),
    ] {
        let proved = look_at(&format!("{records}\n{proof}")).await;
        assert_eq!(proved.ownership, Ownership::Proved(Proof::Txt), "{records}");
        assert_eq!(fault(proved).reason(), reason, "{records}");
        let unproved = look_at(records).await;
        assert_eq!(unproved.ownership, Ownership::Missing, "{records}");
        assert_eq!(fault(unproved).reason(), reason, "{records}");
    }
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, &proof);
    for server in SERVERS {
        zones.set_mood(server, Mood::Servfail);
    }
    assert_eq!(look(&zones, &Claim::usual()).await.ownership, Ownership::Unknown);
}

#[tokio::test]
async fn a_proof_among_other_texts_is_found() {
    let records = format!(
        "forms A 192.0.2.10
        _formgate.forms TXT another
        _formgate.forms TXT \"\\\"{PROOF}\\\"\""
    );
    assert_eq!(look_at(&records).await, ready(Proof::Txt));
}

#[tokio::test]
async fn a_host_that_the_operator_vouches_for_needs_no_proof() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, "forms A 192.0.2.10");
    let claim = Claim { proof: None, ..Claim::usual() };
    assert_eq!(look(&zones, &claim).await, ready(Proof::NotNeeded));
}

#[tokio::test]
async fn without_addresses_those_of_the_target_count_and_without_a_target_every_address() {
    let zones = zones().await;
    let target = Claim { addresses: Vec::new(), proof: None, ..Claim::usual() };
    zones.serve("acme.com", &SERVERS, "forms A 192.0.2.10");
    assert_eq!(look(&zones, &target).await, ready(Proof::NotNeeded));
    zones.serve("acme.com", &SERVERS, "forms A 203.0.113.7");
    assert!(matches!(look(&zones, &target).await.finding, Finding::Fault(_)));
    let nothing = Claim { own_label: None, target: None, ..target };
    assert_eq!(look(&zones, &nothing).await, ready(Proof::NotNeeded));
}

#[tokio::test]
async fn an_apex_leads_here_by_addresses() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, &format!("@ A 192.0.2.10\n_formgate TXT {PROOF}"));
    assert_eq!(look(&zones, &Claim::of("acme.com")).await, ready(Proof::Txt));
}

#[tokio::test]
async fn a_zone_of_its_own_below_the_domain_is_found() {
    let zones = zones().await;
    zones.serve("acme.com", &[3], "");
    zones.serve("forms.acme.com", &[4], &format!("@ A 192.0.2.10\n_formgate TXT {PROOF}"));
    assert_eq!(look(&zones, &Claim::usual()).await, ready(Proof::Txt));
    assert!(zones.queries(4) > 0, "its server was asked");
}

#[tokio::test]
async fn a_private_zone_is_asked_at_the_resolvers() {
    let zones = zones().await;
    zones.serve("acme.internal", &[], &format!("forms A 192.0.2.10\n_formgate.forms TXT {PROOF}"));
    assert_eq!(look(&zones, &Claim::of("forms.acme.internal")).await, ready(Proof::Txt));
}

#[tokio::test]
async fn a_server_of_many_that_fails_does_no_harm() {
    for mood in [Mood::Servfail, Mood::Silent, Mood::Refuses, Mood::Lame] {
        let zones = zones().await;
        zones.serve("acme.com", &SERVERS, OWN_LABEL);
        zones.set_mood(SERVERS[0], mood);
        assert_eq!(look(&zones, &Claim::usual()).await, ready(Proof::OwnLabel), "{mood:?}");
    }
}

#[tokio::test]
async fn servers_that_only_the_resolvers_can_reach_are_asked_through_them() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    // A part of loopback that nothing listens at.
    zones.set_glue("acme.com", "127.9.9.9");
    assert_eq!(look(&zones, &Claim::usual()).await, ready(Proof::OwnLabel));
    assert_eq!(zones.queries(SERVERS[0]) + zones.queries(SERVERS[1]), 0);
}

#[tokio::test]
async fn servers_without_edns_are_asked_without_it() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    for server in [1, 2, 3, 4] {
        zones.set_mood(server, Mood::WithoutEdns);
    }
    assert_eq!(look(&zones, &Claim::usual()).await, ready(Proof::OwnLabel));
}

#[tokio::test]
async fn a_server_that_fails_for_ipv6_does_no_harm() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, &format!("forms A 192.0.2.10\n_formgate.forms TXT {PROOF}"));
    for server in SERVERS {
        zones.fail_for(server, "AAAA".parse().unwrap());
    }
    assert_eq!(look(&zones, &Claim::usual()).await, ready(Proof::Txt));
}

#[tokio::test]
async fn an_answer_that_is_too_large_for_udp_is_read_by_tcp() {
    let zones = zones().await;
    let ours: Vec<_> = (1..=60).map(|n| format!("192.0.2.{n}")).collect();
    let records: Vec<_> = ours.iter().map(|address| format!("forms A {address}")).collect();
    zones.serve("acme.com", &SERVERS, &records.join("\n"));
    let addresses = ours.iter().map(|address| ip(address)).collect();
    let claim = Claim { addresses, proof: None, ..Claim::usual() };
    assert_eq!(look(&zones, &claim).await, ready(Proof::NotNeeded));
}

#[tokio::test]
async fn a_host_that_is_asked_for_once_more_sees_the_change_at_once() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, "");
    assert!(matches!(look(&zones, &Claim::usual()).await.finding, Finding::Fault(_)));
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    assert_eq!(look(&zones, &Claim::usual()).await, ready(Proof::OwnLabel));
}

#[tokio::test]
async fn an_authority_that_does_not_look_at_caa_is_always_allowed() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, &format!("{OWN_LABEL}\n@ CAA 0 issue \";\""));
    let issuers = vec![Issuer { name: "ca.example", account: None }, Issuer::default()];
    let claim = Claim { issuers, ..Claim::usual() };
    let expected = Finding::Ready { issuers: vec![1] };
    assert_eq!(look(&zones, &claim).await.finding, expected);
}

#[tokio::test]
async fn a_resolver_that_knows_no_zones_is_asked_for_addresses_alone() {
    let [address, management] = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let mut command = child::bound_to_us("pebble-challtestsrv", "KILL", &[]);
    command.args(["-dns01", &address, "-management", &management, "-http01", "", "-https01", "", "-tlsalpn01", ""]);
    command.args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""]).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Child::spawn(command);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(&address).unwrap();
    udp.set_read_timeout(Some(child::GLANCE)).unwrap();
    // An empty header is answered with an error.
    let is_up = || udp.send(&[0; 12]).and_then(|_| udp.recv(&mut [0; 12])).ok();
    child::until(Duration::from_secs(30), is_up).expect("it starts (Debian: apt-get install pebble)");
    takes_less_than(Duration::from_secs(15), "three looks, of which none runs into its limit,", async || {
        let began = Instant::now();
        for name in ["forms.acme.org", "forms.acme.test", "forms.acme.co.uk"] {
            let (host, here) = (HostName::parse(name).unwrap(), ["127.0.0.1".parse().unwrap()]);
            let question = Question {
                host: &host,
                own_label: None,
                target: None,
                addresses: &here,
                proof: None,
                issuers: &[Issuer::default()],
                methods: &[],
            };
            let finding = Dns::new(&[address.parse().unwrap()]).check(&question).await.finding;
            assert_eq!(finding, Finding::Ready { issuers: vec![0] }, "{name}");
        }
        began.elapsed()
    })
    .await;
}
