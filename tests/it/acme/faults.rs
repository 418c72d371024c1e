//! Authorities that are down in one way or another: each call ends in bounded time, and their orders stay good.

use std::time::{Duration, Instant};

use formgate::acme::AcmeError;
use jiff::Timestamp;

use super::scene::{Scene, open};
use crate::support::acme_proxy::{Fault, Kind};
use crate::support::pebble::Pebble;

/// What every call ends within, with requests that may take a second.
const LIMIT: Duration = Duration::from_secs(40);

/// The requests of opening an order, and of advancing it.
const OPENING: [Kind; 4] = [Kind::Directory, Kind::Nonce, Kind::Account, Kind::NewOrder];
const ADVANCING: [Kind; 5] = [Kind::Order, Kind::Authorization, Kind::Challenge, Kind::Finalize, Kind::Certificate];

/// An authority with a fault is down, and afterwards finishes the order that was opened before.
async fn is_down_with(faults: &[Fault]) {
    let scene = Scene::new().await;
    for (n, fault) in faults.iter().enumerate() {
        let name = &scene.hosts[n];
        for kind in OPENING {
            let acme = scene.impatient();
            scene.proxy.break_all(kind, fault.clone());
            let began = Instant::now();
            let error = open(&acme, name).await.err();
            assert!(matches!(error, Some(AcmeError::Down { .. })), "{fault:?} {kind:?}: {error:?}");
            assert!(began.elapsed() < LIMIT, "{fault:?} {kind:?}");
            scene.proxy.heal();
        }
        let orders = scene.proxy.orders();
        let stored = open(&scene.process(), name).await.unwrap();
        for kind in ADVANCING {
            let acme = scene.impatient();
            scene.proxy.break_all(kind, fault.clone());
            let began = Instant::now();
            let error = scene.advance(&acme, name, &stored).await.err();
            assert!(matches!(error, Some(AcmeError::Down { .. })), "{fault:?} {kind:?}: {error:?}");
            assert!(error.unwrap().is_fault_of_authority() && began.elapsed() < LIMIT, "{fault:?} {kind:?}");
            scene.proxy.heal();
        }
        let issued = scene.advance(&scene.process(), name, &stored).await.unwrap();
        scene.pebble.verify(&issued.pem, name);
        assert_eq!(scene.proxy.orders(), orders + 1);
    }
}

#[tokio::test]
async fn an_authority_that_answers_with_garbage_is_down() {
    is_down_with(&[Fault::Answer(200, "<html>"), Fault::Answer(200, ""), Fault::Answer(403, "<html>")]).await;
}

#[tokio::test]
async fn an_authority_that_fails_is_down() {
    let failure = Fault::refusal(500, "serverInternal", "out of order");
    is_down_with(&[failure, Fault::Answer(502, "Bad Gateway"), Fault::Answer(302, "")]).await;
}

#[tokio::test]
async fn an_authority_that_hangs_is_down() {
    is_down_with(&[Fault::Hang]).await;
}

#[tokio::test]
async fn an_authority_whose_process_stands_still_is_down_until_it_goes_on() {
    let scene = Scene::of(Pebble::with(|_| ()).await).await;
    let directory = formgate::outbound::Target::parse(&scene.pebble.directory()).unwrap();
    let acme = scene.process_with(|settings| {
        settings.authorities[0].directory = directory;
        settings.timeout = Duration::from_secs(1);
    });
    let stored = open(&acme, scene.host()).await.unwrap();
    scene.pebble.signal("STOP");
    let error = scene.advance(&acme, scene.host(), &stored).await.unwrap_err();
    scene.pebble.signal("CONT");
    assert!(matches!(error, AcmeError::Down { .. }), "{error}");
    scene.advance(&acme, scene.host(), &stored).await.unwrap();
}

#[tokio::test]
async fn an_authority_that_refuses_all_nonces_is_down() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let stored = open(&acme, scene.host()).await.unwrap();
    for kind in [Kind::NewOrder, Kind::Order, Kind::Finalize] {
        scene.proxy.break_all(kind, Fault::refusal(400, "badNonce", "no"));
        let error = match kind {
            Kind::NewOrder => open(&acme, scene.host()).await.err(),
            _ => scene.advance(&acme, scene.host(), &stored).await.err(),
        };
        let detail = "refuses its own nonces".to_owned();
        assert_eq!(error, Some(AcmeError::Down { until: None, detail }), "{kind:?}");
        scene.proxy.heal();
    }
    scene.advance(&acme, scene.host(), &stored).await.unwrap();
}

#[tokio::test]
async fn an_authority_that_is_busy_is_down_until_it_says() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let busy = Fault::Problem { status: 503, kind: "serverInternal", detail: "busy", retry_after: Some("42") };
    scene.proxy.break_next(1, Kind::NewOrder, busy);
    let before = Timestamp::now().as_second();
    let error = open(&acme, scene.host()).await.err().unwrap();
    let after = Timestamp::now().as_second();
    assert!(matches!(error, AcmeError::Down { .. }) && error.is_fault_of_authority(), "{error}");
    assert!((before..=after).contains(&(error.until().unwrap().as_second() - 42)), "{error:?}");
}

#[tokio::test]
async fn callers_of_an_authority_that_hangs_do_not_wait_for_each_other() {
    let scene = Scene::new().await;
    let acme = scene.impatient();
    scene.proxy.break_everything(&Fault::Hang);
    let began = Instant::now();
    let opened = futures_util::future::join_all((0..50).map(|_| open(&acme, scene.host()))).await;
    assert!(opened.iter().all(|opened| matches!(opened, Err(AcmeError::Down { .. }))));
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    assert!(scene.proxy.count(Kind::Directory) < 10);
}

#[tokio::test]
async fn a_certificate_for_another_key_is_refused() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let issued = scene.obtain(&acme, scene.host()).await.unwrap();
    let stored = open(&acme, scene.host()).await.unwrap();
    scene.proxy.break_next(1, Kind::Certificate, Fault::Answer(200, Box::leak(issued.pem.into_boxed_str())));
    let detail = "sent a certificate for another key".to_owned();
    assert_eq!(scene.advance(&acme, scene.host(), &stored).await, Err(AcmeError::Down { until: None, detail }));
    scene.advance(&acme, scene.host(), &stored).await.unwrap();
}
