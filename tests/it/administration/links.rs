//! Links that sign in: once, on whichever node, and not by being looked at.

use futures_util::future::join_all;
use http::Method;

use super::scene::{Scene, form_of, text};
use crate::support::connection::Protocol;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::process::Node;

on_both_databases! {
    async fn a_link_signs_in_once_under_simultaneous_requests_to_three_nodes(engine: Engine) {
        let scene = Scene::start(engine);
        let nodes: Vec<Node> = (0..2).map(|_| scene.site.start()).collect();
        let link = scene.link("acme", "admin", 60).await;
        let presses = (0..50).map(|press| {
            let node = [&scene.node, &nodes[0], &nodes[1]][press % 3];
            let host = format!("{}:{}", scene.site.host("acme"), node.address.port());
            form_of(node.client().to(&host).method(Method::POST, &link), &host, &[]).fresh().send()
        });
        let answers = join_all(presses).await;
        let statuses: Vec<_> = answers.iter().map(|answer| answer.status.as_u16()).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 303).count(), 1, "{statuses:?}");
        // A database that fifty requests want at once may refuse some; none of these signs in.
        assert!(statuses.iter().all(|status| [303, 404, 503].contains(status)), "{statuses:?}");
        let database = scene.database("acme").await;
        let counts = database.integers(
            "SELECT (SELECT count(*) FROM admin_links), (SELECT count(*) FROM admin_sessions), \
             (SELECT count(*) FROM audit_log WHERE action = 'session.start')",
        );
        assert_eq!(counts.await, [0, 1, 1]);
        database.close().await;
        assert_eq!(scene.site.run(&["audit", "verify", "--tenant", "acme"], b"").code, 0);
    }

    async fn looking_at_a_link_uses_up_nothing(engine: Engine) {
        let scene = Scene::start(engine);
        let link = scene.link("acme", "viewer", 600).await;
        let caller = scene.node.client().to(&scene.host("acme"));
        for round in 0..500 {
            let over = if round % 2 == 0 { Protocol::Http1 } else { Protocol::Http2 };
            let page = caller.get(&link).over(over).send().await;
            assert_eq!((page.status.as_u16(), page.header("referrer-policy")), (200, Some("no-referrer")));
            if round == 0 {
                let page = text(&page);
                assert!(page.contains("<strong>Ana &#60;b&#62;</strong> (viewer@acme.example)"), "{page}");
                assert!(page.contains("Continue to Acme</button>") && page.contains("change nothing"), "{page}");
            }
            assert_eq!(caller.method(Method::HEAD, &link).over(over).send().await.status, 200);
        }
        assert!(scene.redeem("globex", &link).await.is_none(), "it is not another account's");
        assert!(scene.redeem("acme", &link).await.is_some());
        assert!(scene.redeem("acme", &link).await.is_none());
        assert_eq!(caller.get(&link).send().await.status, 404);
    }
}

#[tokio::test]
async fn an_expired_or_unknown_link_is_a_page_that_says_what_to_do() {
    let mut scene = Scene::start(Engine::Sqlite);
    let expired = scene.link("acme", "admin", -1).await;
    let caller = scene.node.client().to(&scene.host("acme"));
    for link in [&*expired, "/admin/enter/0", &format!("/admin/enter/{}", "x".repeat(500)), "/admin/enter/%00%ff"] {
        for answer in [caller.get(link).send().await, scene.button("acme", link).send().await] {
            assert_eq!(
                (answer.status.as_u16(), answer.header("referrer-policy")),
                (404, Some("no-referrer")),
                "{link}"
            );
            assert!(text(&answer).contains("This link does not work") && answer.header("set-cookie").is_none());
        }
    }
    let valid = scene.link("acme", "admin", 60).await;
    let signed_in = scene.redeem("acme", &valid).await.expect("a link");
    let metrics = crate::support::client::operator_get(scene.node.operator_address(), "/metrics").await;
    let metrics = text(&metrics);
    assert!(metrics.contains("formgate_admin_sign_ins_total{by=\"link\",result=\"done\"} 1\n"), "{metrics}");
    assert!(metrics.contains("formgate_admin_sign_ins_total{by=\"link\",result=\"unknown_link\"} 4\n"), "{metrics}");
    let log = scene.node.log();
    assert!(log.contains("an administrator signed in by a link") && log.contains("admin@acme.example"), "{log}");
    assert!(log.contains("GET /admin/enter/{secret}"), "{log}");
    let cookie = signed_in.cookie.split_once('=').expect("a value").1.to_owned();
    for secret in [expired.rsplit('/').next(), valid.rsplit('/').next(), Some(&*cookie), Some(&*signed_in.form_token)] {
        let secret = secret.expect("a secret");
        assert!(!log.contains(secret) && !metrics.contains(secret), "{secret} is in {log}");
    }
}

#[tokio::test]
async fn guessed_links_and_cookies_share_the_limit_of_bad_tokens() {
    let limits: toml::Table = "bad_tokens_burst = 10\nbad_tokens_per_second = 1".parse().unwrap();
    let scene = Scene::of(Scene::site(Engine::Sqlite).gateway("limits", limits));
    let signed_in = scene.sign_in("acme", "admin").await;
    let caller = scene.node.client().to(&scene.host("acme"));
    let mut statuses = Vec::new();
    for guess in 0..20 {
        let answer = match guess % 2 {
            0 => caller.get(&format!("/admin/enter/{guess}")).send().await,
            _ => caller.get("/admin").header("cookie", &format!("__Host-formgate={guess:0>42}A")).send().await,
        };
        statuses.push(answer.status.as_u16());
    }
    assert!(statuses[..8].iter().all(|status| [401, 404].contains(status)), "{statuses:?}");
    assert_eq!(statuses.last(), Some(&429), "{statuses:?}");
    assert_eq!(signed_in.get("/admin").await.status, 200, "a session that is known goes on");
}
