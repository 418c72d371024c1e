//! CAA records: where they are looked for, and which authorities they leave.

use formgate::dns::{Finding, Proof};

use super::scene::{Claim, OWN_LABEL, PROOF, SERVERS, assert_fault, look, look_at, ready, zones};

#[tokio::test]
async fn an_authority_that_no_record_allows_is_to_be_added_where_the_records_are() {
    for records in [
        "@ CAA 0 issue \"other.example\"",
        "@ CAA 0 issue \";\"",
        "@ CAA 0 issue \"ca.example; validationmethods=dns-01\"",
    ] {
        assert_fault(
            look_at(&format!("{OWN_LABEL}\n{records}")).await,
            "caa",
            "The CAA records of `acme.com` allow none of our CAs. Add the CAA record `@` (`acme.com`) with the \
             value `0 issue \"ca.example\"`.",
        );
    }
}

#[tokio::test]
async fn the_closest_records_count_and_those_above_them_do_not() {
    let proof = format!("forms A 192.0.2.10\n_formgate.forms TXT {PROOF}");
    let closest = "forms CAA 0 issue \"second.example\"\n@ CAA 0 issue \"other.example\"";
    let expected = Finding::Ready { issuers: vec![1] };
    assert_eq!(look_at(&format!("{proof}\n{closest}")).await.finding, expected);
    assert_fault(
        look_at(&format!("{proof}\nforms CAA 0 issue \"other.example\"\n@ CAA 0 issue \"ca.example\"")).await,
        "caa",
        "The CAA records of `forms.acme.com` allow none of our CAs. Add the CAA record `forms` \
         (`forms.acme.com`) with the value `0 issue \"ca.example\"`.",
    );
}

#[tokio::test]
async fn records_without_issue_allow_everyone() {
    let records = format!("{OWN_LABEL}\n@ CAA 0 iodef \"mailto:dns@acme.com\"\n@ CAA 0 issuewild \";\"");
    assert_eq!(look_at(&records).await, ready(Proof::OwnLabel));
}

#[tokio::test]
async fn a_critical_property_that_authorities_do_not_know_is_to_be_removed() {
    assert_fault(
        look_at(&format!("{OWN_LABEL}\n@ CAA 128 tbs \"unknown\"\n@ CAA 0 issue \"ca.example\"")).await,
        "caa",
        "Remove the CAA record `@` (`acme.com`) with the value `128 tbs \"unknown\"`: it is critical, and CAs that \
         do not know it issue nothing.",
    );
}

#[tokio::test]
async fn the_records_at_the_end_of_an_alias_count() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, &format!("{OWN_LABEL}\n@ CAA 0 issue \"other.example\""));
    let gateway = "acme A 192.0.2.10\nacme CAA 0 issue \"second.example\"";
    zones.serve("forms.net", &[2], gateway);
    let expected = Finding::Ready { issuers: vec![1] };
    assert_eq!(look(&zones, &Claim::usual()).await.finding, expected);
}

#[tokio::test]
async fn an_account_that_the_records_name_has_to_be_ours() {
    let zones = zones().await;
    let account = "https://ca.example/acct/1";
    zones.serve("acme.com", &SERVERS, &format!("{OWN_LABEL}\n@ CAA 0 issue \"ca.example; accounturi={account}\""));
    let mut claim = Claim::usual();
    let expected = Finding::Ready { issuers: vec![0] };
    assert_eq!(look(&zones, &claim).await.finding, expected, "without an account, any one fits");
    claim.issuers[0].account = Some(account);
    assert_eq!(look(&zones, &claim).await.finding, expected);
    claim.issuers[0].account = Some("https://ca.example/acct/2");
    assert!(matches!(look(&zones, &claim).await.finding, Finding::Fault(fault) if fault.reason() == "caa"));
}
