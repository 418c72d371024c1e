//! Name servers that fail, wrong signatures, and resolvers that are away.

use std::net::SocketAddr;

use formgate::dns::{Dns, Finding, Proof};
use tokio::net::UdpSocket;

use super::scene::{Claim, OWN_LABEL, PROOF, SERVERS, ask, assert_fault, fault, look, ready, zones};
use crate::support::zones::{Mood, Zones};

async fn all_servers(mood: Mood) -> Zones {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    for server in SERVERS {
        zones.set_mood(server, mood);
    }
    zones
}

#[tokio::test]
async fn servers_that_all_fail_are_named() {
    for (mood, does) in [
        (Mood::Servfail, "answers SERVFAIL"),
        (Mood::Silent, "does not answer"),
        (Mood::Refuses, "does not serve the zone"),
        (Mood::Lame, "does not serve the zone"),
    ] {
        let zones = all_servers(mood).await;
        let step = format!(
            "Repair the name server `ns3.acme.com` (127.0.0.3): asked for A records of `forms.acme.com`, it {does}."
        );
        assert_fault(look(&zones, &Claim::usual()).await, "dns_broken", &step);
    }
}

#[tokio::test]
async fn a_server_of_an_alias_on_the_way_is_named() {
    let zones = zones().await;
    zones.serve("shop.net", &[5], "@ A 192.0.2.10");
    zones.serve("acme.com", &SERVERS, "forms CNAME shop.net");
    zones.set_mood(5, Mood::Servfail);
    assert_fault(
        look(&zones, &Claim::usual()).await,
        "dns_broken",
        "Repair the name server `ns5.shop.net` (127.0.0.5): asked for A records of `shop.net`, it answers SERVFAIL.",
    );
}

#[tokio::test]
async fn a_server_that_fails_for_caa_is_named() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    for server in SERVERS {
        zones.fail_for(server, "CAA".parse().unwrap());
    }
    assert_fault(
        look(&zones, &Claim::usual()).await,
        "dns_broken",
        "Repair the name server `ns3.acme.com` (127.0.0.3): asked for CAA records of `forms.acme.com`, it answers SERVFAIL.",
    );
}

#[tokio::test]
async fn servers_that_fail_for_one_family_and_have_nothing_of_the_other_are_named() {
    let server = "the name server `ns3.acme.com` (127.0.0.3): asked for AAAA records of `forms.acme.com`, it";
    // Without A records, the servers can't be found either.
    let resolver = "the name servers of `forms.acme.com`: asked for its A records, the resolver 127.0.0.1";
    for (kind, asked) in [("AAAA", server), ("A", resolver)] {
        let zones = zones().await;
        zones.serve("acme.com", &SERVERS, &format!("forms MX 10 mail\n_formgate.forms TXT {PROOF}"));
        for server in SERVERS {
            zones.fail_for(server, kind.parse().unwrap());
        }
        let step = format!("Repair {asked} answers SERVFAIL.");
        assert_fault(look(&zones, &Claim::usual()).await, "dns_broken", &step);
    }
}

#[tokio::test]
async fn a_private_zone_that_fails_is_reported_with_its_resolver() {
    let zones = zones().await;
    zones.serve("acme.internal", &[], "forms A 192.0.2.10");
    zones.fail_for(1, "A".parse().unwrap());
    zones.fail_for(1, "AAAA".parse().unwrap());
    let claim = Claim { proof: None, ..Claim::of("forms.acme.internal") };
    assert_fault(
        look(&zones, &claim).await,
        "dns_broken",
        "Repair the name servers of `forms.acme.internal`: asked for its A records, the resolver 127.0.0.1 answers \
         SERVFAIL.",
    );
}

#[tokio::test]
async fn wrong_signatures_are_found_when_the_resolver_need_not_check_them() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    zones.break_signatures("acme.com", true);
    let step = "Repair DNSSEC of `acme.com`: the resolver 127.0.0.1 refuses its answers because their signatures are \
                wrong. Sign the zone again, or remove the DS record at the registrar.";
    assert_fault(look(&zones, &Claim::usual()).await, "dnssec", step);
}

#[tokio::test]
async fn wrong_signatures_are_found_at_a_resolver_that_always_refuses_if_the_zone_is_signed() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    zones.sign("acme.com");
    zones.break_signatures("acme.com", false);
    assert_eq!(fault(look(&zones, &Claim::usual()).await).reason(), "dnssec");
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    let why = "the resolver 127.0.0.1 answers SERVFAIL for `forms.acme.com`, whose name servers answer";
    assert_eq!(look(&zones, &Claim::usual()).await.finding, Finding::Unknown(why.to_owned()));
}

#[tokio::test]
async fn resolvers_that_are_away_change_nothing() {
    let zones = all_servers(Mood::Silent).await;
    zones.set_resolver_mood(Mood::Silent);
    let why = format!("no resolver works; {} does not answer", zones.resolver());
    assert_eq!(look(&zones, &Claim::usual()).await.finding, Finding::Unknown(why));
}

#[tokio::test]
async fn a_resolver_that_fails_for_every_name_changes_nothing() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    let by_name = Claim { addresses: Vec::new(), ..Claim::usual() };
    for (mood, does) in [
        (Mood::Servfail, "answers SERVFAIL"),
        (Mood::Refuses, "does not serve the zone"),
        (Mood::NotImplemented, "answers with an error"),
    ] {
        zones.set_resolver_mood(mood);
        let why = format!("no resolver works; {} {does}", zones.resolver());
        for claim in [&Claim::usual(), &by_name] {
            assert_eq!(look(&zones, claim).await.finding, Finding::Unknown(why.clone()), "{mood:?}");
        }
    }
    zones.end_resolver_mood();
    assert_eq!(look(&zones, &Claim::usual()).await, ready(Proof::OwnLabel));
}

#[tokio::test]
async fn a_target_that_cannot_be_resolved_is_named() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    zones.set_mood(2, Mood::Servfail);
    let claim = Claim { addresses: Vec::new(), ..Claim::usual() };
    let why = "the resolver 127.0.0.1 answers SERVFAIL for `forms.net`, where hosts have to point";
    assert_eq!(look(&zones, &claim).await.finding, Finding::Unknown(why.to_owned()));
}

#[tokio::test]
async fn a_family_of_the_target_that_cannot_be_asked_for_makes_no_host_lead_elsewhere() {
    let zones = zones().await;
    let claim = Claim { addresses: Vec::new(), proof: None, ..Claim::usual() };
    zones.serve("acme.com", &SERVERS, "forms A 192.0.2.10\nforms AAAA 2001:db8::10");
    assert_eq!(look(&zones, &claim).await, ready(Proof::NotNeeded));
    zones.fail_for(1, "AAAA".parse().unwrap());
    let why = "the resolver 127.0.0.1 answers SERVFAIL for `forms.net`, where hosts have to point";
    assert_eq!(look(&zones, &claim).await.finding, Finding::Unknown(why.to_owned()), "its IPv6 address may be ours");
    zones.serve("acme.com", &SERVERS, "forms A 192.0.2.10");
    assert_eq!(look(&zones, &claim).await, ready(Proof::NotNeeded), "the family that is known decides");
    zones.serve("acme.com", &SERVERS, "forms A 203.0.113.7");
    assert_eq!(fault(look(&zones, &claim).await).reason(), "elsewhere");
}

#[tokio::test]
async fn a_resolver_that_is_not_there_changes_nothing_and_the_next_one_is_asked() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let gone: SocketAddr = socket.local_addr().unwrap();
    drop(socket);
    let finding = ask(&Dns::new(&[gone]), &Claim::usual()).await.finding;
    assert_eq!(finding, Finding::Unknown(format!("no resolver works; {gone} can't be reached")));
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, &format!("forms A 192.0.2.10\n_formgate.forms TXT {PROOF}"));
    let dns = Dns::new(&[gone, zones.resolver()]).with_private_servers(zones.port);
    assert_eq!(ask(&dns, &Claim::usual()).await, ready(Proof::Txt));
}
