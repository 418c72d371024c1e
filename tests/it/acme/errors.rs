//! Refusals, and whose fault they are.

use std::net::Ipv4Addr;

use formgate::acme::{AccountKey, Acme, AcmeError, AcmeSettings, ChallengeKind, Fault as Whose};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::scene::{Scene, host, open};
use crate::support::acme_proxy::{Fault, Kind};
use crate::support::pebble::{BLOCKED, ports};
use crate::support::zones::Mood;

/// A part of loopback that nothing listens at.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

#[tokio::test]
async fn a_host_that_the_authority_cannot_connect_to_is_unreachable() {
    let scene = Scene::new().await;
    scene.point_to(NOWHERE);
    let [closed, _] = ports();
    let acme = scene.process();
    let stored = open(&acme, scene.host()).await.unwrap();
    for _ in 0..2 {
        let error = scene.advance(&acme, scene.host(), &stored).await.unwrap_err();
        let is_http = matches!(&error, AcmeError::Unreachable { challenge: ChallengeKind::Http01, .. });
        assert!(is_http && error.to_string().contains(&closed.to_string()), "{error}");
        assert_eq!((error.fault(), error.is_fault_of_authority()), (Whose::Host, false));
    }
    assert_eq!(scene.proxy.count(Kind::Challenge), 1, "an order that failed is not validated again");
    // Pebble calls this one `unauthorized`.
    let acme = scene.process_with(|settings| settings.challenges = vec![ChallengeKind::TlsAlpn01]);
    let error = scene.obtain(&acme, scene.host()).await.unwrap_err();
    assert!(error.fault() == Whose::Host && error.to_string().contains("Failed to connect"), "{error}");
}

#[tokio::test]
async fn a_host_at_another_address_is_unreachable_there() {
    let scene = Scene::new().await;
    scene.point_to(NOWHERE);
    let error = scene.obtain(&scene.process(), scene.host()).await.unwrap_err();
    let is_there = error.to_string().contains(&NOWHERE.to_string());
    assert!(matches!(error, AcmeError::Unreachable { .. }) && is_there, "{error}");
}

#[tokio::test]
async fn a_host_that_does_not_answer_for_us_is_refused() {
    let scene = Scene::new().await;
    // Its challenges are answered with another account's key.
    let other = Acme::new(
        AcmeSettings {
            challenges: vec![ChallengeKind::Http01],
            authorities: vec![scene.authority()],
            ..AcmeSettings::default()
        },
        AccountKey::generate(),
    );
    let error = scene.obtain(&other, scene.host()).await.unwrap_err();
    assert!(matches!(&error, AcmeError::Refused { problem, .. } if problem == "unauthorized"), "{error}");
    assert_eq!(error.fault(), Whose::Host);
}

#[tokio::test]
async fn a_host_whose_dns_fails_is_refused_in_the_words_of_the_authority() {
    let scene = Scene::new().await;
    scene.zones.set_resolver_mood(Mood::Servfail);
    let error = scene.obtain(&scene.process(), scene.host()).await.unwrap_err();
    assert!(matches!(error.fault(), Whose::Host) && error.to_string().contains(scene.host()), "{error}");
}

#[tokio::test]
async fn a_host_that_the_authority_never_issues_for_is_refused_when_the_order_is_opened() {
    let scene = Scene::new().await;
    let error = open(&scene.process(), &format!("forms.{BLOCKED}")).await.err().unwrap();
    assert!(matches!(&error, AcmeError::Refused { problem, .. } if problem == "rejectedIdentifier"), "{error}");
    assert_eq!((error.fault(), scene.proxy.orders()), (Whose::Host, 0));
}

#[tokio::test]
async fn an_order_that_the_authority_does_not_know_is_gone() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let mut stored = open(&acme, scene.host()).await.unwrap();
    // Not if it is the authority that is gone, and a server in front of it answers.
    scene.proxy.break_everything(&Fault::Answer(404, "default backend"));
    let error = scene.advance(&acme, scene.host(), &stored).await.unwrap_err();
    assert!(matches!(error, AcmeError::Down { .. }), "{error}");
    scene.proxy.heal();
    let acme = scene.process();
    scene.advance(&acme, scene.host(), &stored).await.unwrap();
    stored.url = scene.proxy.directory().replace("/dir", "/my-order/none");
    assert_eq!(scene.advance(&acme, scene.host(), &stored).await, Err(AcmeError::OrderGone));
}

#[tokio::test]
async fn an_order_of_another_account_is_gone() {
    let scene = Scene::new().await;
    let stored = open(&scene.process(), scene.host()).await.unwrap();
    let settings = AcmeSettings { authorities: vec![scene.authority()], ..AcmeSettings::default() };
    let other = Acme::new(settings, AccountKey::generate());
    assert_eq!(scene.advance(&other, scene.host(), &stored).await, Err(AcmeError::OrderGone));
}

#[tokio::test]
async fn a_rate_limit_ends_when_the_authority_says_to_the_second() {
    let scene = Scene::new().await;
    let acme = scene.process();
    for wait in [1, 120, 3 * 60 * 60, 7 * 24 * 60 * 60] {
        scene.proxy.break_next(1, Kind::NewOrder, Fault::limit(Box::leak(wait.to_string().into_boxed_str())));
        let before = Timestamp::now().as_second();
        let error = open(&acme, scene.host()).await.err().unwrap();
        let after = Timestamp::now().as_second();
        assert!(matches!(error, AcmeError::Limited { .. }), "{error}");
        assert!((before..=after).contains(&(error.until().unwrap().as_second() - wait)), "{wait}: {error:?}");
        assert_eq!((error.fault(), error.is_fault_of_authority()), (Whose::None, false));
    }
    let date = Timestamp::from_second(Timestamp::now().as_second() + 600).unwrap();
    let text = date.to_zoned(TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    scene.proxy.break_next(1, Kind::Finalize, Fault::limit(Box::leak(text.into_boxed_str())));
    let stored = open(&acme, scene.host()).await.unwrap();
    let until = scene.advance(&acme, scene.host(), &stored).await.unwrap_err().until().unwrap();
    assert!((until.as_second() - date.as_second()).abs() <= 1, "{until} {date}");
    // The limit was no reason to lose the order.
    scene.advance(&acme, scene.host(), &stored).await.unwrap();
    assert_eq!((scene.proxy.orders(), scene.proxy.finalized()), (1, 1));
}

#[tokio::test]
async fn a_refusal_of_the_certificate_to_replace_is_one_of_its_own() {
    let scene = Scene::new().await;
    scene.proxy.suggest(Some(("2030-01-01T00:00:00Z", "2030-01-02T00:00:00Z")), None);
    let acme = scene.process();
    let open = async |replaces| acme.open(0, &host(scene.host()), replaces).await.map(|_| ());
    let id = Some("aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE");
    for (status, kind, detail) in [
        (409, "alreadyReplaced", "conflict"),
        (400, "malformed", "parsing ARI CertID failed"),
        (403, "unauthorized", "requester account did not request the certificate being replaced by this order"),
        (404, "malformed", "the certificate that is replaced was not found"),
        (422, "somethingNew", "Field `replaces` is not valid"),
        // Nobody can know all words, so a refusal that may be of the host is one too until the order without it is refused.
        (400, "malformed", "bad request"),
        (403, "unauthorized", "predecessor unknown"),
        (400, "rejectedIdentifier", "no such domain"),
        (403, "userActionRequired", "see our terms"),
        (500, "serverInternal", "something failed"),
    ] {
        scene.proxy.break_next(2, Kind::NewOrder, Fault::refusal(status, kind, detail));
        let refused = open(id).await;
        assert_eq!(refused, Err(AcmeError::ReplacesRefused { detail: detail.to_owned() }), "{status} {kind}");
        // Without it, the same words are about something else.
        assert!(!matches!(open(None).await, Err(AcmeError::ReplacesRefused { .. })), "{status} {kind}");
    }
    scene.proxy.break_next(1, Kind::NewOrder, Fault::Answer(500, "default backend"));
    let detail = "responded with status 500".to_owned();
    assert_eq!(open(id).await, Err(AcmeError::ReplacesRefused { detail }));
    scene.proxy.break_next(1, Kind::NewOrder, Fault::limit("60"));
    assert!(matches!(open(id).await, Err(AcmeError::Limited { .. })));
    assert_eq!(open(id).await, Ok(()));
}

#[tokio::test]
async fn the_words_of_an_authority_are_one_line_of_limited_length() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let long: &str = Box::leak(format!("first\r\nsecond\u{1b}[31m\0 {}", "x".repeat(10_000)).into_boxed_str());
    scene.proxy.break_next(1, Kind::NewOrder, Fault::refusal(400, "rejectedIdentifier", long));
    let refused = acme.open(0, &host(scene.host()), None).await;
    let Err(AcmeError::Refused { detail, .. }) = refused else { panic!("{refused:?}") };
    assert!(detail.starts_with("first second [31m x") && detail.ends_with("x…"), "{detail}");
    assert!(detail.chars().count() == 501 && !detail.contains(char::is_control));
}

#[tokio::test]
async fn an_error_is_stored_as_it_is() {
    let until = Some("2026-11-27T14:00:00Z".parse().unwrap());
    for error in [
        AcmeError::Limited { until, detail: "too many".to_owned() },
        AcmeError::Unreachable { challenge: ChallengeKind::Http01, detail: "refused".to_owned() },
        AcmeError::OrderGone,
    ] {
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<AcmeError>(&text).unwrap(), error, "{text}");
    }
}
