//! Orders: from nothing to a certificate, and on from any step after a crash.

use formgate::acme::{Acme, AcmeError, Challenge, ChallengeKind, Checkpoint, ExternalAccount, LeaseLost};
use futures_util::{StreamExt, stream};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use super::scene::{Scene, Stored, open};
use crate::support::acme_proxy::{Fault, Kind};
use crate::support::child;
use crate::support::pebble::Pebble;

#[tokio::test]
async fn either_challenge_leads_to_a_certificate_for_the_key_of_the_request() {
    let scene = Scene::new().await;
    for (name, kind) in scene.hosts.iter().zip([ChallengeKind::Http01, ChallengeKind::TlsAlpn01]) {
        let acme = scene.process_with(|settings| settings.challenges = vec![kind]);
        let stored = open(&acme, name).await.unwrap();
        let mut owner = scene.owner(name);
        let issued = acme.advance(0, &stored.url, &stored.request.csr, &mut owner).await.unwrap();
        assert_eq!(owner.published.iter().map(|challenge| challenge.kind).collect::<Vec<_>>(), [kind]);
        scene.pebble.verify(&issued.pem, name);
        let chain: Vec<_> = CertificateDer::pem_slice_iter(issued.pem.as_bytes()).map(Result::unwrap).collect();
        let key = PrivatePkcs8KeyDer::from(stored.request.key_pkcs8.to_vec()).into();
        assert!(CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).is_ok());
    }
}

#[tokio::test]
async fn the_first_challenge_that_is_configured_is_used() {
    let scene = Scene::new().await;
    let order = [ChallengeKind::TlsAlpn01, ChallengeKind::Http01];
    let acme = scene.process_with(|settings| settings.challenges = order.to_vec());
    let stored = open(&acme, scene.host()).await.unwrap();
    let mut owner = scene.owner(scene.host());
    acme.advance(0, &stored.url, &stored.request.csr, &mut owner).await.unwrap();
    assert_eq!(owner.published[0].kind, ChallengeKind::TlsAlpn01);
}

#[tokio::test]
async fn a_hundred_orders_succeed_although_three_of_ten_nonces_are_refused() {
    let scene = Scene::of(Pebble::with(|options| options.refused_nonces = 30).await).await;
    let acme = scene.process();
    let obtained = stream::iter(&scene.hosts).map(|host| scene.obtain(&acme, host));
    let obtained: Vec<_> = obtained.buffer_unordered(8).collect().await;
    let failed: Vec<_> = obtained.iter().filter_map(|issued| issued.as_ref().err()).collect();
    assert_eq!(failed, Vec::<&AcmeError>::new());
    assert_eq!((scene.proxy.orders(), scene.proxy.finalized(), scene.proxy.accounts()), (100, 100, 1));
}

#[tokio::test]
async fn an_order_is_finished_by_another_process_whatever_answer_was_lost() {
    let scene = Scene::new().await;
    let mut orders = 0;
    for kind in [Kind::Order, Kind::Authorization, Kind::Challenge, Kind::Finalize, Kind::Certificate] {
        let (acme, name) = (scene.process(), &scene.hosts[orders]);
        let stored = open(&acme, name).await.unwrap();
        orders += 1;
        scene.proxy.break_next(1, kind, Fault::LoseAnswer);
        let lost = scene.advance(&acme, name, &stored).await.unwrap_err();
        assert!(matches!(lost, AcmeError::Down { .. }), "{kind:?}: {lost}");
        let issued = scene.advance(&scene.process(), name, &stored).await.unwrap();
        scene.pebble.verify(&issued.pem, name);
        assert_eq!((scene.proxy.orders(), scene.proxy.finalized()), (orders, orders), "{kind:?}");
        // What was issued can be had again.
        assert_eq!(scene.advance(&scene.process(), name, &stored).await.unwrap(), issued);
    }
    assert_eq!(scene.proxy.accounts(), 1);
}

#[tokio::test]
async fn a_process_that_is_gone_while_the_authority_issues_loses_nothing() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let stored = open(&acme, scene.host()).await.unwrap();
    scene.proxy.break_next(1, Kind::Finalize, Fault::HoldAnswer);
    tokio::select! {
        advanced = scene.advance(&acme, scene.host(), &stored) => panic!("{advanced:?}"),
        () = scene.proxy.wait_for(Kind::Finalize, 1) => {}
    }
    let issued = scene.advance(&scene.process(), scene.host(), &stored).await.unwrap();
    scene.pebble.verify(&issued.pem, scene.host());
    assert_eq!(scene.proxy.orders(), 1);
}

#[tokio::test]
async fn an_owner_that_stops_causes_neither_a_validation_nor_a_certificate() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let stored = open(&acme, scene.host()).await.unwrap();
    let mut owner = scene.owner(scene.host());
    owner.stops_before_validation = true;
    let stopped = acme.advance(0, &stored.url, &stored.request.csr, &mut owner).await;
    assert_eq!((stopped, scene.proxy.count(Kind::Challenge)), (Err(AcmeError::Stopped), 0));
    let mut owner = scene.owner(scene.host());
    owner.stops_before_finalizing = true;
    let stopped = acme.advance(0, &stored.url, &stored.request.csr, &mut owner).await;
    assert_eq!((stopped, scene.proxy.count(Kind::Finalize)), (Err(AcmeError::Stopped), 0));
    assert!(scene.advance(&acme, scene.host(), &stored).await.is_ok());
    assert_eq!((scene.proxy.count(Kind::Challenge), scene.proxy.orders()), (1, 1));
}

#[tokio::test]
async fn two_processes_that_advance_one_order_get_the_same_certificate() {
    let scene = Scene::new().await;
    let (first, second) = (scene.process(), scene.process());
    let stored = open(&first, scene.host()).await.unwrap();
    let (one, other) =
        tokio::join!(scene.advance(&first, scene.host(), &stored), scene.advance(&second, scene.host(), &stored));
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!((scene.proxy.orders(), scene.proxy.finalized()), (1, 1));
}

/// The owner of an order, which another process takes as far as finalizing while this one begins a validation.
struct Overtaken<'s> {
    scene: &'s Scene,
    other: Acme,
    stored: &'s Stored,
}

impl Checkpoint for Overtaken<'_> {
    async fn publish(&mut self, _: &Challenge) -> Result<(), LeaseLost> {
        let mut owner = self.scene.owner(self.scene.host());
        owner.stops_before_finalizing = true;
        let stopped = self.other.advance(0, &self.stored.url, &self.stored.request.csr, &mut owner).await;
        assert_eq!(stopped, Err(AcmeError::Stopped));
        Ok(())
    }
}

#[tokio::test]
async fn a_validation_that_another_process_ends_meanwhile_is_no_refusal() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let stored = open(&acme, scene.host()).await.unwrap();
    let mut owner = Overtaken { scene: &scene, other: scene.process(), stored: &stored };
    assert!(acme.advance(0, &stored.url, &stored.request.csr, &mut owner).await.is_ok());
    let begun = scene.proxy.passed().into_iter().filter(|passed| passed.kind == Some(Kind::Challenge));
    let answers: Vec<_> = begun.filter_map(|passed| passed.status).map(|status| status.as_u16()).collect();
    assert_eq!(answers, [200, 400], "the authority refuses to begin it again");
}

#[tokio::test]
async fn an_authority_that_refuses_to_validate_twice_refuses_the_host() {
    let scene = Scene::new().await;
    let acme = scene.process();
    let stored = open(&acme, scene.host()).await.unwrap();
    scene.proxy.break_all(Kind::Challenge, Fault::refusal(400, "malformed", "not now"));
    let refused = scene.advance(&acme, scene.host(), &stored).await;
    assert_eq!(refused, Err(AcmeError::Refused { problem: "malformed".to_owned(), detail: "not now".to_owned() }));
    assert_eq!(scene.proxy.count(Kind::Challenge), 2);
}

#[tokio::test]
async fn an_account_is_bound_to_an_external_account_once() {
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let external_accounts = vec![("kid-1".to_owned(), key.to_owned())];
    let scene = Scene::of(Pebble::with(|options| options.external_accounts = external_accounts).await).await;
    let bound = |id: &str, key: &str| {
        let account = ExternalAccount::new(id, key).unwrap();
        scene.process_with(|settings| settings.authorities[0].external_account = Some(account))
    };
    for acme in [scene.process(), bound("kid-1", &key.to_lowercase()), bound("kid-2", key)] {
        let refused = scene.obtain(&acme, scene.host()).await.unwrap_err();
        assert!(matches!(refused, AcmeError::Misconfigured { .. }) && refused.is_fault_of_authority(), "{refused}");
    }
    assert_eq!(scene.proxy.accounts(), 0);
    scene.obtain(&bound("kid-1", key), scene.host()).await.unwrap();
    // The account exists now, and is found by its key.
    scene.obtain(&scene.process(), scene.host()).await.unwrap();
    assert_eq!(scene.proxy.accounts(), 1);
    let contact = scene.proxy.passed().into_iter().rev().find_map(|passed| passed.payload?.get("contact").cloned());
    assert_eq!(contact, Some(serde_json::json!(["mailto:it@example.com"])));
}

#[tokio::test]
async fn an_account_that_the_authority_forgot_is_registered_again() {
    let scene = Scene::new().await;
    let acme = scene.process();
    scene.obtain(&acme, scene.host()).await.unwrap();
    let registered = scene.proxy.count(Kind::Account);
    let forgotten = Fault::refusal(400, "accountDoesNotExist", "unable to find account");
    scene.proxy.break_next(1, Kind::NewOrder, forgotten.clone());
    scene.obtain(&acme, scene.host()).await.unwrap();
    assert_eq!(scene.proxy.count(Kind::Account), registered + 1);
    // Not without end.
    scene.proxy.break_all(Kind::NewOrder, forgotten);
    let refused = open(&acme, scene.host()).await.err().unwrap();
    assert!(matches!(&refused, AcmeError::Misconfigured { problem, .. } if problem == "accountDoesNotExist"));
}

#[tokio::test]
async fn certificates_are_as_short_lived_as_the_authority_says() {
    let minutes = std::time::Duration::from_secs(120);
    let scene = Scene::of(Pebble::with(|options| options.validity = Some(minutes)).await).await;
    let issued = scene.obtain(&scene.process(), scene.host()).await.unwrap();
    let leaf = CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap();
    let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).unwrap();
    let left = leaf.validity().not_after.timestamp() - jiff::Timestamp::now().as_second();
    assert!((60..=120).contains(&left), "{left}");
}

#[tokio::test]
async fn a_profile_is_ordered_by_name() {
    let scene = Scene::new().await;
    let acme = scene.process_with(|settings| settings.authorities[0].profile = Some("shortlived".to_owned()));
    open(&acme, scene.host()).await.unwrap();
    let ordered = scene.proxy.passed().into_iter().find(|passed| passed.kind == Some(Kind::NewOrder));
    assert_eq!(ordered.and_then(|passed| passed.payload).unwrap()["profile"], "shortlived");
}

#[tokio::test]
async fn an_authority_that_is_not_there_is_down() {
    let scene = Scene::new().await;
    let nowhere = format!("https://127.0.0.1:{}/dir", child::free_port());
    let acme = scene.process_with(|settings| {
        settings.authorities[0].directory = formgate::outbound::Target::parse(&nowhere).unwrap();
    });
    let down = open(&acme, scene.host()).await.err().unwrap();
    let detail = "no connection: connection refused".to_owned();
    assert_eq!(down, AcmeError::Down { until: None, detail });
}
