//! The way to a receiver, step by step, and what would help where it stops.

use formgate::outbound::{EventId, ProbeStep, Probed, SigningSecret, Target};
use tokio::net::TcpListener;

use super::scene::{ID, SECRET, Scene, message};
use crate::support::dns::Lookup;
use crate::support::receiver::{Act, HOST, Identity, Receiver};

async fn probe(scene: &Scene, url: &str) -> Vec<Probed> {
    let target = Target::parse(url).unwrap();
    let (secrets, id) = ([SigningSecret::parse(SECRET).unwrap()], EventId::parse(ID).unwrap());
    scene.client.probe(&target, Some(&message(&target, &secrets, &id))).await
}

#[tokio::test]
async fn a_healthy_receiver_passes_every_step() {
    let scene = Scene::new().await;
    let receiver = Receiver::always(Act::status(204)).await;
    let steps = probe(&scene, &receiver.url("/")).await;
    let names: Vec<_> = steps.iter().map(|probed| probed.step.name()).collect();
    assert_eq!(names, ["dns", "address", "tcp", "tls", "answer"]);
    let texts: Vec<_> = steps.iter().map(|probed| probed.finding.clone().unwrap()).collect();
    let address = receiver.address.to_string();
    for (text, parts) in texts.iter().zip([
        &[HOST, "127.0.0.1"][..],
        &["every address is allowed"],
        &[address.as_str(), "accepts connections"],
        &["the certificate is valid", HOST, "HTTP/1.1"],
        &["answered 204"],
    ]) {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}: {parts:?}");
    }
    assert_eq!(receiver.requests().len(), 1);
    let target = Target::parse(&receiver.url("/")).unwrap();
    let without = scene.client.probe(&target, None).await;
    assert_eq!(without.last().map(|probed| probed.step), Some(ProbeStep::Tls));
    assert_eq!(receiver.requests().len(), 1, "nothing was sent");
}

#[tokio::test]
async fn the_step_that_fails_is_the_last_and_has_a_remedy() {
    let scene = Scene::with(&["127.0.0.1"], |_| ()).await;
    scene.dns.answer("inner.example.test", &[Lookup::of(&["10.0.0.1"])]);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let expired = Receiver::identified(Identity::Expired).await;
    let of_client = Receiver::identified(Identity::OfClient).await;
    let hasty = Receiver::always(vec![Act::Close]).await;
    for (url, step, what, remedy) in [
        ("https://none.example.test/", ProbeStep::Dns, "does not exist", "create its DNS record"),
        ("https://inner.example.test/", ProbeStep::Address, "blocked address", "allow_targets"),
        (&format!("https://{HOST}:{closed}/"), ProbeStep::Tcp, "connection refused", "start the receiver"),
        (&expired.url("/"), ProbeStep::Tls, "expired", "renew"),
        (&of_client.url("/"), ProbeStep::Tls, "not valid", "a certificate for servers"),
        (&hasty.url("/"), ProbeStep::Answer, "without an answer", "a complete HTTP answer"),
    ] {
        let steps = probe(&scene, url).await;
        let last = steps.last().unwrap();
        assert!(steps[..steps.len() - 1].iter().all(|probed| probed.finding.is_ok()), "{steps:?}");
        let fault = last.finding.as_ref().unwrap_err();
        assert_eq!(last.step, step, "{fault:?}");
        assert!(fault.what.contains(what) && fault.remedy.contains(remedy), "{fault:?}");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_accept_has_a_remedy() {
    let scene = Scene::new().await;
    for (status, remedy) in [
        (302, "redirects"),
        (401, "credentials"),
        (404, "path"),
        (410, "gone"),
        (429, "slowed"),
        (422, "its log"),
        (503, "its log"),
    ] {
        let receiver = Receiver::always(Act::status(status)).await;
        let steps = probe(&scene, &receiver.url("/")).await;
        let fault = steps.last().unwrap().finding.as_ref().unwrap_err();
        assert!(fault.what.contains(&status.to_string()) && fault.remedy.contains(remedy), "{fault:?}");
    }
}
