//! Sign-ins at a real provider.

use serde_json::{Value, json};

use super::provider::Provider;
use super::{Caller, administration, table};
use crate::administration::scene::{SLUGS, Scene, random, text};
use crate::support::browser::Browser;
use crate::support::client::operator_count;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::process::Node;

fn callbacks(scene: &Scene, nodes: &[&Node]) -> Vec<String> {
    let of = |node: &&Node| {
        let port = node.address.port();
        SLUGS.map(|slug| format!("https://{}:{port}/admin/callback", scene.site.host(slug)))
    };
    nodes.iter().flat_map(of).collect()
}

fn ana(groups: &Value) -> Value {
    json!({
        "sub": "user-42", "email": "ana@acme.example", "email_verified": true, "name": "Ana <b>", "groups": groups,
    })
}

/// The last entry of the audit log with an action.
async fn last_entry(scene: &Scene, action: &str) -> Value {
    let output = scene.site.run_in_thread(&["audit", "list", "--tenant", "acme", "--json"]).await;
    assert_eq!(output.code, 0, "{}", output.stderr);
    let lines = output.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|entry| entry["action"] == action).max_by_key(|entry| entry["id"].as_i64()).expect("an entry")
}

/// The numbers of sessions, links and entries of the audit log.
async fn stored(scene: &Scene) -> [i64; 3] {
    let database = scene.database("acme").await;
    let count = "SELECT (SELECT count(*) FROM admin_sessions), (SELECT count(*) FROM admin_links), \
                 (SELECT count(*) FROM audit_log)";
    let counts = database.integers(count).await;
    database.close().await;
    counts
}

async fn sign_ins(scene: &mut Scene, result: &str) -> u64 {
    let series = format!("formgate_admin_sign_ins_total{{by=\"oidc\",result=\"{result}\"}}");
    operator_count(scene.node.operator_address(), &series).await
}

on_both_databases! {
    async fn a_person_signs_in_over_two_nodes_and_comes_back_to_the_page(engine: Engine) {
        let mut provider = Provider::new();
        let site = Scene::site(engine).gateway("administration", administration(&provider.issuer(), &provider.authority()));
        // Both nodes are behind one address.
        let mut scene = Scene::of(site.gateway("public_port", 443));
        let mut second = scene.site.start();
        provider.start("client_secret_basic", &SLUGS.map(|slug| format!("https://{}/admin/callback", scene.site.host(slug))));
        provider.person(&ana(&json!(["staff", "forms-admins"]))).await;
        let (here, there) = (Caller::of(&scene, "acme", &scene.node), Caller::of(&scene, "acme", &second));

        let page = here.client.get("/admin/tokens?page=2&show=all").send().await;
        let link = "/admin/sign-in?to=%2Ftokens%3Fpage%3D2%26show%3Dall";
        assert_eq!(page.status, 401);
        assert!(text(&page).contains(&format!("href=\"{link}\"")) && text(&page).contains("Sign in with localhost"), "{page:?}");
        let leaving = here.leave(link.strip_prefix("/admin/sign-in").expect("it begins so")).await;
        assert!(leaving.url.as_str().starts_with(&format!("{}/auth?", provider.issuer())), "{}", leaving.url);
        assert_eq!(leaving.parameter("redirect_uri"), format!("https://{}/admin/callback", scene.site.host("acme")));
        assert_eq!(leaving.parameter("scope"), "openid email profile");

        let query = provider.sign_in(leaving.url.as_str()).await;
        let callback = there.back(&query, &leaving.cookie).send().await;
        // The one GET that stores something: a link for this person, which does nothing yet.
        assert_eq!(stored(&scene).await, [0, 1, 0]);
        let shown = here.client.get(callback.header("location").expect("an address")).send().await;
        let shown = text(&shown);
        assert!(shown.contains("Ana &#60;b&#62;") && shown.contains("(ana@acme.example)"), "{shown}");
        assert!(shown.contains("localhost has confirmed who you are."), "{shown}");
        let signed_in = here.press(&callback, "/admin/tokens?page=2&show=all").await;
        assert_eq!(stored(&scene).await, [1, 0, 1]);
        signed_in.generate("by Ana").await;
        assert_eq!(signed_in.at(&second).get("/admin").await.status, 200);

        for action in ["session.start", "token.create"] {
            let entry = last_entry(&scene, action).await;
            assert_eq!(entry["actor"], "ana@acme.example");
            assert_eq!((&entry["details"]["iss"], &entry["details"]["sub"]), (&json!(provider.issuer()), &json!("user-42")));
        }
        assert_eq!(last_entry(&scene, "session.start").await["details"]["by"], "oidc");
        assert!(scene.site.run(&["audit", "verify", "--tenant", "acme"], b"").code == 0);

        // A second time, with or without its cookie.
        for (cookie, reason) in [(&*leaving.cookie, "refused the code"), ("", "does not belong to a sign-in of this browser")] {
            let again = there.back(&query, cookie).send().await;
            assert_eq!(again.status, 400, "{again:?}");
            assert!(text(&again).contains("This sign-in can&#39;t be completed"), "{again:?}");
            assert!(second.log().contains(reason), "{reason}");
        }
        assert_eq!(sign_ins(&mut scene, "done").await, 1);

        // No secret is in a log.
        let code = query.split('&').find_map(|part| part.strip_prefix("code=")).expect("a code").to_owned();
        let cookie = leaving.cookie.split_once('=').expect("a value").1.to_owned();
        for log in [scene.node.log(), second.log()] {
            for secret in [&*code, &*cookie, "a secret: of", &leaving.parameter("state"), &leaving.parameter("nonce")] {
                assert!(!log.contains(secret), "{secret} is in {log}");
            }
        }
    }

    async fn the_claim_decides_the_role_and_nothing_else_does(engine: Engine) {
        let mut provider = Provider::new();
        let site = Scene::site(engine).gateway("administration", administration(&provider.issuer(), &provider.authority()));
        let mut scene = Scene::of(site);
        // This client's secret is sent in the form.
        provider.start("client_secret_post", &callbacks(&scene, &[&scene.node]));
        let caller = Caller::of(&scene, "acme", &scene.node);
        for (groups, role) in [
            (json!(["forms-admins", "forms-viewers"]), Some("admin")),
            (json!("owners"), Some("admin")),
            (json!(["x", "forms-viewers"]), Some("viewer")),
            (json!(["Forms-Admins", "forms-admins "]), None),
            (json!([["forms-admins"]]), None),
            (json!({ "forms-admins": true }), None),
            (json!(true), None),
            (json!([]), None),
            (Value::Null, None),
        ] {
            provider.person(&ana(&groups)).await;
            let leaving = caller.leave("").await;
            let query = provider.sign_in(leaving.url.as_str()).await;
            let Some(role) = role else {
                let answer = caller.back(&query, &leaving.cookie).send().await;
                assert_eq!(answer.status, 403, "{groups}: {answer:?}");
                assert!(text(&answer).contains("You have no access to these pages"), "{answer:?}");
                continue;
            };
            let signed_in = caller.arrive(&query, &leaving.cookie, "/admin").await;
            let answer = signed_in.post("/admin/tokens", &[("name", "x"), ("form_key", &random())]).await;
            assert_eq!(answer.status, if role == "admin" { 201 } else { 403 }, "{groups}: {answer:?}");
        }
        assert_eq!(sign_ins(&mut scene, "no_role").await, 6);
        assert!(scene.node.log().contains("the claim `groups` is missing"));

        // The e-mail address counts for nothing; one that is not verified is not even shown.
        let mut mallory = ana(&json!(["forms-viewers"]));
        (mallory["sub"], mallory["email_verified"]) = (json!("mallory"), json!(false));
        provider.person(&mallory).await;
        let leaving = caller.leave("").await;
        let query = provider.sign_in(leaving.url.as_str()).await;
        let signed_in = caller.arrive(&query, &leaving.cookie, "/admin").await;
        let sessions = text(&signed_in.get("/admin/sessions").await);
        assert!(sessions.contains("mallory"), "{sessions}");
        assert_eq!(last_entry(&scene, "session.start").await["actor"], "mallory");

        // The person says no.
        provider.person(&json!({ "cancels": true })).await;
        let leaving = caller.leave("").await;
        let query = provider.sign_in(leaving.url.as_str()).await;
        assert!(query.contains("error=access_denied"), "{query}");
        let answer = caller.back(&query, &leaving.cookie).send().await;
        assert_eq!(answer.status, 403);
        assert!(text(&answer).contains("did not sign you in") && !text(&answer).contains("cancelled</p>"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_tenants_provider_replaces_the_gateways() {
    let (mut of_gateway, mut of_acme) = (Provider::new(), Provider::new());
    let own = table(&of_acme.issuer(), &of_acme.authority());
    let site = Site::new()
        .tenant_with("acme", Engine::Sqlite, |acme| acme.set("oidc", own))
        .tenant("globex", Engine::Sqlite)
        .gateway("administration", administration(&of_gateway.issuer(), &of_gateway.authority()));
    let scene = Scene::of(site);
    for provider in [&mut of_gateway, &mut of_acme] {
        provider.start("client_secret_basic", &callbacks(&scene, &[&scene.node]));
        provider.person(&ana(&json!("owners"))).await;
    }
    let (acme, globex) = (Caller::of(&scene, "acme", &scene.node), Caller::of(&scene, "globex", &scene.node));
    for (caller, provider, other) in [(&acme, &of_acme, &globex), (&globex, &of_gateway, &acme)] {
        let leaving = caller.leave("").await;
        assert!(leaving.url.as_str().starts_with(&provider.issuer()), "{}", leaving.url);
        let query = provider.sign_in(leaving.url.as_str()).await;
        let elsewhere = other.back(&query, &leaving.cookie).send().await;
        assert_eq!(elsewhere.status, 400, "an answer of one provider at the account of the other");
        let signed_in = caller.arrive(&query, &leaving.cookie, "/admin").await;
        let foreign = other.client.get("/admin").header("cookie", &signed_in.cookie).send().await;
        assert_eq!(foreign.status, 401);
    }
}

#[tokio::test]
async fn a_provider_may_change_its_keys_and_be_down_for_a_while() {
    let mut provider = Provider::new();
    let site = Scene::site(Engine::Sqlite);
    let mut scene =
        Scene::of(site.gateway("administration", administration(&provider.issuer(), &provider.authority())));
    let caller = Caller::of(&scene, "acme", &scene.node);
    let down = caller.client.get("/admin/sign-in").send().await;
    assert_eq!(down.status, 502, "{down:?}");
    assert!(text(&down).contains("does not work just now"), "{down:?}");
    let redirects = callbacks(&scene, &[&scene.node]);
    for _ in 0..2 {
        provider.start("client_secret_basic", &redirects);
        provider.person(&ana(&json!("owners"))).await;
        tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
        let leaving = caller.leave("").await;
        let query = provider.sign_in(leaving.url.as_str()).await;
        caller.arrive(&query, &leaving.cookie, "/admin").await;
    }
    let leaving = caller.leave("").await;
    let query = provider.sign_in(leaving.url.as_str()).await;
    provider.stop();
    let answer = caller.back(&query, &leaving.cookie).send().await;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert_eq!(sign_ins(&mut scene, "provider").await, 2);
    assert!(
        scene.node.log().contains("the provider's token endpoint gave no response: no connection: connection refused")
    );
}

on_both_databases! {
    async fn a_person_signs_in_in_a_browser(engine: Engine) {
        let mut provider = Provider::new();
        let site = Scene::site(engine);
        let scene = Scene::of(site.gateway("administration", administration(&provider.issuer(), &provider.authority())));
        provider.start("client_secret_basic", &callbacks(&scene, &[&scene.node]));
        provider.person(&ana(&json!("owners"))).await;
        let base = format!("https://{}", scene.host("acme"));
        let browser = Browser::start().await;
        browser.open(&format!("{base}/admin/audit")).await;
        browser.check_page("not-signed-in-oidc").await;
        browser.follow("main a.button").await;
        assert!(browser.text("main").await.contains("localhost has confirmed who you are"));
        let here = browser.page.current_url().await.unwrap();
        assert!(here.path().starts_with("/admin/enter/"), "the code is in no address: {here}");
        browser.check_page("enter-oidc").await;
        browser.follow("button").await;
        assert_eq!(browser.page.current_url().await.unwrap().as_str(), format!("{base}/admin/audit"));
        assert!(browser.text("tbody").await.contains("session.start"));
        browser.check_page("audit-oidc").await;
        browser.open(&format!("{base}/admin/callback?code=a&state=b")).await;
        assert_eq!(browser.text("h1").await, "This sign-in can't be completed");
        browser.check_page("callback-refused").await;
    }
}
