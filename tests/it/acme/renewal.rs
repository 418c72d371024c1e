//! ARI: when an authority suggests to renew, and which certificate an order replaces.

use std::time::Duration;

use formgate::acme::{AcmeError, certificate_id};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::scene::{Scene, host};
use crate::support::acme_proxy::{Fault, Kind};

const START: &str = "2030-01-01T00:00:00Z";
const END: &str = "2030-01-02T12:00:00Z";

#[tokio::test]
async fn an_authority_suggests_a_window_and_when_to_ask_again() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let issued = scene.obtain(&acme, scene.host()).await.unwrap();
    let leaf = CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap();
    assert_eq!(acme.renewal_info(0, &leaf).await, Ok(None), "Pebble has no ARI");
    for (retry_after, seconds) in
        [(Some("3600"), 3600), (None, 6 * 3600), (Some("0"), 60), (Some("9999999"), 86_400), (Some("soon"), 6 * 3600)]
    {
        scene.proxy.suggest(Some((START, END)), retry_after);
        let window = acme.renewal_info(0, &leaf).await.unwrap().unwrap();
        assert_eq!((window.start.to_string(), window.end.to_string()), (START.to_owned(), END.to_owned()));
        assert_eq!(window.retry_after, Duration::from_secs(seconds), "{retry_after:?}");
    }
    let asked = scene.proxy.passed().into_iter().rev().find(|passed| passed.kind == Some(Kind::RenewalInfo));
    assert_eq!(asked.unwrap().path, format!("/renewal-info/{}", certificate_id(&leaf).unwrap()));
}

#[tokio::test]
async fn a_suggestion_that_makes_no_sense_is_none() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let issued = scene.obtain(&acme, scene.host()).await.unwrap();
    let leaf = CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap();
    scene.proxy.suggest(Some((END, START)), None);
    assert_eq!(acme.renewal_info(0, &leaf).await, Ok(None));
    scene.proxy.break_next(1, Kind::RenewalInfo, Fault::refusal(404, "malformed", "unknown certificate"));
    assert_eq!(acme.renewal_info(0, &leaf).await, Ok(None));
    for fault in [Fault::Answer(200, "<html>"), Fault::Answer(200, "{}"), Fault::refusal(403, "malformed", "no")] {
        scene.proxy.break_next(1, Kind::RenewalInfo, fault.clone());
        assert!(matches!(acme.renewal_info(0, &leaf).await, Err(AcmeError::Down { .. })), "{fault:?}");
    }
    scene.proxy.break_next(1, Kind::RenewalInfo, Fault::limit("60"));
    assert!(matches!(acme.renewal_info(0, &leaf).await, Err(AcmeError::Limited { .. })));
}

#[tokio::test]
async fn an_order_names_the_certificate_that_it_replaces_where_the_authority_has_ari() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let issued = scene.obtain(&acme, scene.host()).await.unwrap();
    let leaf = CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap();
    let id = certificate_id(&leaf).unwrap();
    acme.open(0, &host(scene.host()), Some(&id)).await.unwrap();
    assert_eq!(scene.proxy.replaced(), Vec::<String>::new());
    scene.proxy.suggest(Some((START, END)), None);
    scene.process().open(0, &host(scene.host()), Some(&id)).await.unwrap();
    assert_eq!(scene.proxy.replaced(), [id]);
}
