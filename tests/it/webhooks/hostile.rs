//! Receivers that misbehave, and targets that must not be reached.

use std::time::{Duration, Instant};

use serde_json::json;

use super::scene::{LIMIT, Scene, envelope, received};
use crate::support::child::free_port;
use crate::support::dns::Lookup;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::receiver::{Act, HOST, Receiver};
use crate::support::redis::Redis;

on_both_databases! {
    async fn bad_receivers_harm_no_other_one(engine: Engine) {
        let scene = Scene::with(engine, |webhooks| _ = webhooks.insert("timeout_seconds".into(), 2.into())).await;
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n";
        let elsewhere = Receiver::always(Act::status(200)).await;
        let bad = [
            Receiver::always(vec![Act::Hang]).await,
            Receiver::always(vec![Act::Close]).await,
            Receiver::always(vec![Act::send(head), Act::Drip(b"x".to_vec())]).await,
            Receiver::always(vec![Act::Flood(vec![b'x'; 64 * 1024])]).await,
            Receiver::always(Act::answer(307, &[&format!("Location: {}", elsewhere.url("/"))], "")).await,
            Receiver::always(Act::answer(429, &["Retry-After: 3600"], "")).await,
        ];
        for receiver in &bad {
            scene.subscribe(receiver, "submission.created", None).await;
        }
        let good = Receiver::always(Act::status(200)).await;
        scene.subscribe(&good, "submission.created", None).await;
        for id in 1..=30 {
            scene.insert(id, 1, "x").await;
        }
        assert_eq!(received(&good, 30).await.len(), 30);
        let failing = "SELECT count(*) FROM subscriptions WHERE state = 'failing' AND failing_since IS NOT NULL";
        scene.wait_for(failing, 5).await;
        // The one that drips has answered 200, whatever follows.
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE last_success_at IS NOT NULL", 2).await;
        assert!(elsewhere.requests().is_empty(), "redirects are not followed");
        let later = match engine {
            Engine::Sqlite => "unixepoch() * 1000000 + 1800000000",
            _ => "now() + interval '30 minutes'",
        };
        scene.wait_for(&format!("SELECT count(*) FROM subscriptions WHERE next_attempt_at > {later}"), 1).await;
    }

    async fn a_long_submission_is_sent_without_its_answers(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(200)).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        scene.insert(1, 1, &"x".repeat(300 * 1024)).await;
        scene.insert(2, 1, &"x".repeat(1500 * 1024)).await;
        scene.insert(3, 1, "short").await;
        let mut sent: Vec<_> = received(&receiver, 3).await.iter().map(envelope).collect();
        sent.sort_by_key(|event| event["data"]["id"].to_string());
        for (event, id) in sent.iter().zip(["sub_1", "sub_2"]) {
            assert_eq!(event["truncated"], true, "{id}");
            assert_eq!(event["data"]["id"], id);
            assert_eq!(event["data"]["status"], "pending");
            assert!(event["data"].get("allElements").is_none());
            let href = format!("https://{}/api/v1/submission/{id}", scene.site.host("acme"));
            assert_eq!(event["href"], href.as_str());
        }
        assert!(sent[2].get("truncated").is_none() && sent[2].get("href").is_none());
        assert_eq!(sent[2]["data"]["allElements"][0]["value"], "short");
    }

    async fn own_services_are_refused_although_their_network_is_allowed(engine: Engine) {
        let redis = Redis::start();
        let mut scene = Scene::built(engine, |site| site.redis(&redis), |_| ()).await;
        let own = [scene.nodes[0].operator_address().port(), redis.port()];
        for port in own.into_iter().chain(port_of(&scene.site)) {
            is_refused(&scene, port).await;
        }
    }

    async fn without_any_hint_a_sweep_delivers(engine: Engine) {
        let scene = Scene::with(engine, |webhooks| _ = webhooks.insert("sweep_seconds".into(), 1.into())).await;
        scene.turn_hints_off().await;
        let receiver = Receiver::always(Act::status(200)).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        for id in 1..=3 {
            scene.insert(id, 1, "x").await;
            received(&receiver, usize::try_from(id).unwrap()).await;
        }
    }
}

/// Subscribes a URL until that is refused: addresses are looked up right after the start.
async fn is_refused(scene: &Scene, port: u16) {
    is_refused_within(LIMIT, scene, port).await;
}

async fn is_refused_within(limit: Duration, scene: &Scene, port: u16) {
    let began = Instant::now();
    let body = json!({ "target_url": format!("https://127.0.0.1:{port}/"), "event": "submission.created" });
    loop {
        let answer = scene.client.post("/api/v1/subscribe").json(&body).send().await;
        if answer.status == 422 {
            assert!(answer.json()["errors"].get("target_url").is_some(), "{answer:?}");
            return;
        }
        assert!(began.elapsed() < limit, "{port}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn the_operator_api_and_the_registry_are_own_services() {
    let registry = Engine::Postgres.empty_database(std::path::Path::new(""), "registry");
    let registry_port = url::Url::parse(&registry).expect("a URL").port().unwrap_or(5432);
    let operator: toml::Table = "listen = ['127.0.0.1:0', '0.0.0.0:0']".parse().expect("TOML");
    let build = |site: Site| site.gateway("registry", registry).gateway("operator", operator);
    let mut scene = Scene::built(Engine::Sqlite, build, |_| ()).await;
    let served = |line: &str| {
        let (_, rest) = line.split_once("operator API is served\",\"address\":\"")?;
        rest.split_once('"')?.0.parse::<std::net::SocketAddr>().ok()
    };
    let ports: Vec<_> = scene.nodes[0].log().lines().filter_map(served).map(|address| address.port()).collect();
    assert_eq!(ports.len(), 2);
    for port in ports.into_iter().chain([registry_port]) {
        is_refused(&scene, port).await;
    }
    let other = Receiver::always(Act::status(200)).await;
    scene.subscribe(&other, "submission.created", None).await;
}

#[tokio::test]
async fn the_database_of_a_new_tenant_is_an_own_service_at_once() {
    /// Shorter than the time between two look-ups of everything.
    const AT_ONCE: Duration = Duration::from_secs(30);
    let build = |site: Site| {
        let registry = format!("sqlite:{}", site.folder().join("registry.db").display());
        site.gateway("registry", registry)
    };
    let mut scene = Scene::built(Engine::Sqlite, build, |_| ()).await;
    let operator = scene.nodes[0].operator_address().port();
    is_refused(&scene, operator).await;
    let [registered, changed, filed] = [(); 3].map(|()| free_port());
    let url = |port| format!("postgres://formgate@127.0.0.1:{port}/globex");
    for port in [registered, changed] {
        let (host, url) = (scene.site.host("globex"), url(port));
        let added = scene.site.run(&["tenant", "add", "globex", "--address", &host, "--database", &url], b"");
        assert_eq!(added.code, 0, "{}", added.stderr);
        is_refused_within(AT_ONCE, &scene, port).await;
    }
    let (config, draft) = (&scene.site.config_path, scene.site.folder().join("draft"));
    let tenant = format!(
        "slug = \"initech\"\nname = \"I\"\naddress = \"initech.example.test\"\ndatabase = \"{}\"\n",
        url(filed)
    );
    let text = std::fs::read_to_string(config).expect("it was written") + "\n[[tenant]]\n" + &tenant;
    std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, config)).expect("the folder can be written");
    is_refused_within(AT_ONCE, &scene, filed).await;
}

#[tokio::test]
async fn a_name_of_the_private_network_reads_like_one_that_does_not_exist() {
    let scene =
        Scene::with(Engine::Sqlite, |webhooks| _ = webhooks.insert("allow_targets".into(), vec![HOST].into())).await;
    scene.dns.answer("redis.internal.test", &[Lookup::of(&["10.0.0.5"])]);
    scene.insert(1, 1, "x").await;
    let mut outcomes = Vec::new();
    for host in ["redis.internal.test", "none.internal.test"] {
        let body = json!({ "target_url": format!("https://{host}/"), "event": "submission.created" });
        let subscribed = scene.client.post("/api/v1/subscribe").json(&body).send().await;
        assert_eq!(subscribed.status, 201, "{subscribed:?}");
        let id = subscribed.json()["data"]["id"].as_str().expect("an id").to_owned();
        let tested = scene.client.post(&format!("/api/v1/subscribe/{id}/test")).send().await;
        let mut outcome = tested.json();
        for own in ["at", "duration_ms", "event"] {
            outcome["data"].as_object_mut().expect("an object").remove(own);
        }
        outcomes.push((tested.status, outcome));
    }
    assert_eq!(outcomes[0], outcomes[1]);
    let error = outcomes[0].1["data"]["error"].as_str().expect("a text");
    assert_eq!(error, "the host does not exist, or has no public address");
}

/// The port of the database's server, if it has one.
fn port_of(site: &Site) -> Option<u16> {
    let url = url::Url::parse(site.database_url("acme")).ok()?;
    if url.scheme() == "postgres" { Some(url.port().unwrap_or(5432)) } else { None }
}
