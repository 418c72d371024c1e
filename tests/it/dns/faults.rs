//! What an owner did not do, or did wrong: each reason, with its step and its records.

use formgate::dns::{Action, DnsFault, Finding, Kind, Proof, Record};
use formgate::domains::Reason;
use jiff::{SignedDuration, Timestamp};

use super::scene::{Claim, GATEWAY, OWN_LABEL, PROOF, SERVERS, assert_fault, fault, look, look_at, ready, zones};
use crate::support::zones::NEGATIVE_TTL;

#[tokio::test]
async fn no_records_names_the_alias_to_add() {
    let finding = look_at("www A 203.0.113.7").await;
    let added = Record {
        action: Action::Add,
        kind: Kind::Cname,
        name: "forms.acme.com".to_owned(),
        relative: Some("forms".to_owned()),
        value: "acme.forms.net".to_owned(),
    };
    assert_eq!(fault(finding.clone()).records(), [added]);
    assert_fault(
        finding,
        "no_records",
        "Add the CNAME record `forms` (`forms.acme.com`) with the value `acme.forms.net`.",
    );
}

#[tokio::test]
async fn no_records_at_an_apex_names_addresses_and_never_an_alias() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, "@ TXT hello");
    assert_fault(
        look(&zones, &Claim::of("acme.com")).await,
        "no_records",
        "Add the AAAA record `@` (`acme.com`) with the value `2001:db8::10` and the A record `@` (`acme.com`) with \
         the value `192.0.2.10`.",
    );
}

#[tokio::test]
async fn a_name_that_only_has_other_records_has_no_records() {
    let finding = look_at("forms TXT hello\nforms MX 10 mail.acme.com").await;
    assert_eq!(fault(finding).reason(), "no_records");
}

#[tokio::test]
async fn a_domain_that_is_not_registered_is_named() {
    let zones = zones().await;
    assert_fault(
        look(&zones, &Claim::of("forms.acmee.com")).await,
        "no_records",
        "`acmee.com` has no name servers: register it, or set its name servers at the registrar.",
    );
}

#[tokio::test]
async fn an_address_elsewhere_is_to_be_removed_and_the_right_one_to_be_added() {
    assert_fault(
        look_at("forms A 203.0.113.7").await,
        "elsewhere",
        "Remove the A record `forms` (`forms.acme.com`) with the value `203.0.113.7`. Add the CNAME record `forms` \
         (`forms.acme.com`) with the value `acme.forms.net`. Then `forms.acme.com` leads here.",
    );
}

#[tokio::test]
async fn an_ipv6_address_elsewhere_is_named_first_and_only_wrong_ones_are() {
    let one = "forms A 192.0.2.10\nforms AAAA 2001:db8::bad";
    assert_fault(
        look_at(one).await,
        "elsewhere",
        "Remove the AAAA record `forms` (`forms.acme.com`) with the value `2001:db8::bad`. Then `forms.acme.com` leads \
         here.",
    );
    let both = fault(look_at("forms A 203.0.113.7\nforms AAAA 2001:db8::bad\nforms A 192.0.2.10").await);
    let removed: Vec<_> = both.records().iter().map(|record| (record.action, record.kind, &*record.value)).collect();
    assert_eq!(
        removed,
        [(Action::Remove, Kind::Aaaa, "2001:db8::bad"), (Action::Remove, Kind::A, "203.0.113.7")],
        "an address that leads here stays"
    );
}

#[tokio::test]
async fn an_alias_elsewhere_is_to_be_replaced() {
    let step = "Remove the CNAME record `forms` (`forms.acme.com`) with the value `shop.acme.com`. Add the CNAME \
                record `forms` (`forms.acme.com`) with the value `acme.forms.net`. Then `forms.acme.com` leads here.";
    for records in [
        "forms CNAME shop.acme.com\nshop A 203.0.113.7",
        "forms CNAME shop.acme.com",
        "forms CNAME shop.acme.com\nshop CNAME forms.acme.com",
        "forms CNAME shop.acme.com\nshop CNAME shop.acme.com",
    ] {
        assert_fault(look_at(records).await, "elsewhere", step);
    }
}

#[tokio::test]
async fn an_address_of_a_cdn_is_behind_it() {
    for (records, cdn, found) in [
        ("forms A 104.21.3.4\nforms AAAA 2606:4700:3030::6815:304", "Cloudflare", "2606:4700:3030::6815:304"),
        ("forms A 151.101.1.195", "Fastly", "151.101.1.195"),
    ] {
        assert_fault(
            look_at(records).await,
            "behind_cdn",
            &format!(
                "`forms.acme.com` is behind {cdn} (`{found}`): switch its proxy off for this name, or let it pass \
                 requests below `/.well-known/acme-challenge/` on port 80 through to here."
            ),
        );
    }
}

#[tokio::test]
async fn an_alias_to_a_cdn_is_behind_it() {
    let zones = zones().await;
    zones.serve("cloudfront.net", &[5], "d1 A 203.0.113.7");
    zones.serve("acme.com", &SERVERS, "forms CNAME d1.cloudfront.net");
    assert_fault(
        look(&zones, &Claim::usual()).await,
        "behind_cdn",
        "`forms.acme.com` is behind CloudFront (`d1.cloudfront.net`): let it pass requests below \
         `/.well-known/acme-challenge/` on port 80 through to here, or lead `forms.acme.com` past it. Remove the CNAME \
         record `forms` (`forms.acme.com`) with the value `d1.cloudfront.net`. Add the CNAME record `forms` \
         (`forms.acme.com`) with the value `acme.forms.net`.",
    );
}

#[tokio::test]
async fn a_gateway_behind_a_cdn_is_not_elsewhere() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, "forms A 104.21.3.4");
    let claim = Claim { addresses: vec!["104.21.3.4".parse().unwrap()], proof: None, ..Claim::usual() };
    assert_eq!(look(&zones, &claim).await, ready(Proof::NotNeeded));
}

#[tokio::test]
async fn a_host_that_nothing_proves_needs_the_txt_record() {
    let step = format!(
        "Add the TXT record `_formgate.forms` (`_formgate.forms.acme.com`) with the value `{PROOF}`. It proves that the domain is \
         yours. Keep it there."
    );
    for records in [
        "forms A 192.0.2.10",
        "forms CNAME forms.net",
        "forms CNAME other.forms.net",
        "forms A 192.0.2.10\n_formgate.forms TXT formgate-domain=other",
        "forms A 192.0.2.10\n_formgate.forms CNAME proof.acme.com\nproof TXT formgate-domain=acme-4f2a",
    ] {
        assert_fault(look_at(records).await, "proof_missing", &step);
    }
}

#[tokio::test]
async fn a_proof_that_one_server_lacks_is_missing() {
    let zones = zones().await;
    let leads_here = "forms A 192.0.2.10";
    zones.serve("acme.com", &SERVERS, &format!("{leads_here}\n_formgate.forms TXT {PROOF}"));
    zones.serve_older(SERVERS[1], "acme.com", leads_here);
    assert_eq!(fault(look(&zones, &Claim::usual()).await).reason(), "proof_missing");
}

#[tokio::test]
async fn a_server_that_has_not_copied_the_change_is_waited_for() {
    for older in ["", "forms A 203.0.113.7", "forms CNAME shop.acme.com\nshop A 203.0.113.7"] {
        for behind in SERVERS {
            let zones = zones().await;
            zones.serve("acme.com", &SERVERS, OWN_LABEL);
            zones.serve_older(behind, "acme.com", older);
            let step = format!(
                "Wait until the name server `ns{behind}.acme.com` (127.0.0.{behind}) has copied the change to \
                 `forms.acme.com`; if it does not within hours, ask your DNS provider."
            );
            assert_fault(look(&zones, &Claim::usual()).await, "not_seen_yet", &step);
            zones.transfer(behind, "acme.com");
            assert_eq!(look(&zones, &Claim::usual()).await, ready(Proof::OwnLabel));
        }
    }
}

#[tokio::test]
async fn what_a_resolver_remembers_is_waited_for_until_it_expires() {
    for (remembered, ttl) in [("", 120), ("@ A 203.0.113.7", 60), ("@ CNAME shop.acme.com", 30)] {
        let zones = zones().await;
        zones.serve("acme.com", &SERVERS, &format!("{OWN_LABEL}\nshop A 203.0.113.7"));
        zones.remember("forms.acme.com", remembered, ttl);
        let before = Timestamp::now();
        let fault = fault(look(&zones, &Claim::usual()).await);
        let DnsFault::NotSeenYet { until: Some(until), .. } = &fault else { panic!("{fault:?}") };
        let until = *until;
        assert!(until >= before + SignedDuration::from_secs(ttl.into()), "{remembered:?}: {until}");
        assert!(until <= Timestamp::now() + SignedDuration::from_secs(ttl.into()), "{remembered:?}: {until}");
        let minute = until.as_second() / 60 * 60 + 60;
        let minute = Timestamp::from_second(minute).unwrap().strftime("%Y-%m-%d %H:%M UTC");
        assert_eq!(
            Reason::Dns(fault).next_step(),
            format!("Wait: the resolver 127.0.0.1 still has an older answer, until {minute}.")
        );
    }
}

#[tokio::test]
async fn that_a_name_does_not_exist_is_remembered_for_as_long_as_its_zone_allows() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    zones.remember("forms.acme.com", "", 5 * NEGATIVE_TTL);
    let before = Timestamp::now();
    let fault = fault(look(&zones, &Claim::usual()).await);
    let DnsFault::NotSeenYet { until: Some(until), .. } = fault else { panic!("{fault:?}") };
    let seconds = (until - before).total(jiff::Unit::Second).unwrap();
    assert!((f64::from(NEGATIVE_TTL)..f64::from(NEGATIVE_TTL) + 15.0).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_target_without_an_address_is_not_the_owners_fault() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    zones.serve("forms.net", &[2], &GATEWAY.replace("acme A", "x A").replace("acme AAAA", "x AAAA"));
    let finding = look(&zones, &Claim::usual()).await.finding;
    assert_eq!(finding, Finding::Unknown("`acme.forms.net` has no address".to_owned()));
    zones.serve("forms.net", &[2], "");
    let claim = Claim { addresses: Vec::new(), ..Claim::usual() };
    assert_eq!(look(&zones, &claim).await.finding, Finding::Unknown("`forms.net` has no address".to_owned()));
}
