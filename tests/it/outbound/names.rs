//! Names that don't resolve, and DNS servers that don't answer.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::TcpListener;

use super::scene::Scene;
use crate::support::dns::Lookup;
use crate::support::receiver::{Act, HOST, Receiver};

#[tokio::test]
async fn a_name_without_an_address_is_a_failure_that_says_why() {
    let scene = Scene::new().await;
    scene.dns.answer("empty.example.test", &[Lookup::of(&[])]);
    scene.dns.answer("broken.example.test", &[Lookup::Failure]);
    for (host, cause) in [
        ("none.example.test", "the name does not exist"),
        ("empty.example.test", "the name has no address"),
        ("broken.example.test", "the DNS servers failed"),
        ("anything.invalid", "the name does not exist"),
    ] {
        let expected = ("dns", format!("the host name was not resolved: {cause}"));
        assert_eq!(scene.failure(&format!("https://{host}/")).await, expected, "{host}");
    }
}

#[tokio::test]
async fn silent_dns_servers_end_a_request_before_its_time_limit() {
    let scene = Scene::new().await;
    scene.dns.answer(HOST, &[Lookup::Silence]);
    let attempt = scene.send(&format!("https://{HOST}/")).await;
    let error = attempt.outcome.unwrap_err();
    assert_eq!(error.to_string(), "the host name was not resolved: the DNS servers did not answer");
    assert!(attempt.took < Duration::from_secs(40), "{:?} for two attempts of two seconds", attempt.took);
    assert!(scene.dns.queries(HOST) >= 2, "a lost packet is sent again");
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again() {
    let receiver = Receiver::always(Act::status(204)).await;
    let scene = Scene::new().await;
    scene.dns.answer(HOST, &[Lookup::Silence, Lookup::of(&["127.0.0.1"])]);
    assert_eq!(scene.status(&receiver.url("/")).await, 204);
}

#[tokio::test]
async fn an_answer_is_remembered_for_its_time_to_live() {
    let scene = Scene::new().await;
    for (ttl, expected) in [(0, 2), (3600, 3)] {
        scene.dns.set_ttl(ttl);
        // Each on a connection of its own.
        for _ in 0..2 {
            let receiver = Receiver::always(Act::status(204)).await;
            assert_eq!(scene.status(&receiver.url("/")).await, 204);
        }
        assert_eq!(scene.dns.queries(HOST), expected, "TTL {ttl}");
    }
}

#[tokio::test]
async fn many_names_at_once_are_all_looked_up() {
    let scene = Scene::new().await;
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let names: Vec<_> = (0..100).map(|nth| format!("hooks-{nth}.example.test")).collect();
    let urls: Vec<_> = names.iter().map(|name| format!("https://{name}:{port}/")).collect();
    names.iter().for_each(|name| scene.dns.answer(name, &[Lookup::of(&["127.0.0.1"])]));
    let failures = join_all(urls.iter().map(|url| scene.failure(url))).await;
    let refused = ("connect", "no connection: connection refused".to_owned());
    assert!(failures.iter().all(|failure| *failure == refused), "{failures:?}");
}

#[tokio::test]
async fn a_name_is_looked_up_as_written() {
    let receiver = Receiver::always(Act::status(204)).await;
    let scene = Scene::with(&["127.0.0.0/8"], |_| ()).await;
    let url = receiver.url("/").replace(HOST, "HOOKS.Example.test.");
    assert_eq!(scene.status(&url).await, 204);
    let host = receiver.requests()[0].headers["host"].to_str().unwrap().to_owned();
    assert_eq!(host, format!("{HOST}:{}", receiver.address.port()));
}
