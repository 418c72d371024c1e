//! What keeps others out: every route against every defect, another account's session, another address.

use formgate::administration::endpoints::{ENDPOINTS, Needs};
use http::Method;

use super::scene::{Administrator, SLUGS, Scene, form_of, random, text};
use crate::support::answer::Answer;
use crate::support::fixture::{Engine, Site, on_both_databases};

/// Whatever a page may change.
async fn state(scene: &Scene) -> Vec<[i64; 6]> {
    let mut counts = Vec::new();
    for slug in SLUGS {
        let database = scene.database(slug).await;
        let count = database.integers(
            "SELECT (SELECT count(*) FROM tokens), (SELECT count(*) FROM tokens WHERE revoked_at IS NOT NULL), \
             (SELECT count(*) FROM admin_sessions), (SELECT count(*) FROM admin_links), \
             (SELECT count(*) FROM audit_log), (SELECT count(*) FROM tokens WHERE expires_at IS NOT NULL)",
        );
        counts.push(count.await);
        database.close().await;
    }
    counts
}

/// The path of an endpoint, about something that exists.
fn path_of(path: &str, token: i64, link: &str) -> String {
    let segment =
        if path.starts_with("/enter") { link.rsplit('/').next().unwrap_or_default() } else { &token.to_string() };
    match path.split_once('{') {
        Some((before, rest)) => {
            let (_, after) = rest.split_once('}').expect("a place ends");
            format!("/admin{before}{segment}{after}")
        }
        None => format!("/admin{path}"),
    }
}

/// The fields that make each form valid.
fn fields(administrator: &Administrator) -> Vec<(&'static str, String)> {
    let fields =
        [("form_token", &*administrator.form_token), ("name", "forged"), ("expires", "30d"), ("session", "all")];
    let fields = fields.map(|(name, value)| (name, value.to_owned()));
    [&fields[..], &[("overlap", "1h".to_owned()), ("form_key", random())]].concat()
}

/// What is wrong with a POST.
const DEFECTS: [&str; 12] = [
    "no origin",
    "a foreign origin",
    "the origin of another account",
    "the origin null",
    "the origin without TLS",
    "a cross-site request",
    "a same-site request",
    "no cookie",
    "an invented cookie",
    "the cookie of another account",
    "no form token",
    "the form token of another session",
];

async fn post_with(
    defect: &str,
    path: &str,
    own: &Administrator,
    second: &Administrator,
    other: &Administrator,
) -> Answer {
    let origin = format!("https://{}", own.host);
    let origin = match defect {
        "no origin" => None,
        "a foreign origin" => Some("https://evil.example".to_owned()),
        "the origin of another account" => Some(format!("https://{}", other.host)),
        "the origin null" => Some("null".to_owned()),
        "the origin without TLS" => Some(origin.replace("https", "http")),
        _ => Some(origin),
    };
    let site = match defect {
        "a cross-site request" => Some("cross-site"),
        "a same-site request" => Some("same-site"),
        "the origin null" => None,
        _ => Some("same-origin"),
    };
    let cookie = match defect {
        "no cookie" => None,
        "an invented cookie" => Some(format!("__Host-formgate={}", "A".repeat(43))),
        "the cookie of another account" => Some(other.cookie.clone()),
        _ => Some(own.cookie.clone()),
    };
    let mut fields = fields(own);
    match defect {
        "no form token" => fields.retain(|(name, _)| *name != "form_token"),
        "the form token of another session" => fields[0].1 = second.form_token.clone(),
        _ => {}
    }
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(&fields).finish();
    let mut call = own.caller.method(Method::POST, path).header("content-type", "application/x-www-form-urlencoded");
    for (name, value) in [("origin", origin), ("sec-fetch-site", site.map(str::to_owned)), ("cookie", cookie)] {
        if let Some(value) = value {
            call = call.header(name, &value);
        }
    }
    call.body(body).send().await
}

on_both_databases! {
    async fn no_get_changes_anything_and_each_post_with_a_defect_is_refused(engine: Engine) {
        let scene = Scene::start(engine);
        let (own, second) = (scene.sign_in("acme", "admin").await, scene.sign_in("acme", "admin").await);
        let viewer = scene.sign_in("acme", "viewer").await;
        let other = scene.sign_in("globex", "admin").await;
        let (token, _) = own.generate("kept").await;
        let link = scene.link("acme", "admin", 600).await;
        let before = state(&scene).await;
        for endpoint in ENDPOINTS.iter() {
            let needs = endpoint.handler.needs;
            let path = path_of(endpoint.path, token, &link);
            if endpoint.method == Method::GET {
                for administrator in [&own, &viewer] {
                    for method in [Method::GET, Method::HEAD] {
                        let answer = administrator.call(method, &path).send().await;
                        assert!([200, 404].contains(&answer.status.as_u16()), "{} {answer:?}", endpoint.name);
                    }
                }
                let stranger = own.caller.get(&path).send().await;
                let expected = match needs {
                    Needs::Nothing => 404,
                    Needs::Link => 200,
                    Needs::Viewer | Needs::Admin => 401,
                };
                assert_eq!(stranger.status, expected, "{} {stranger:?}", endpoint.name);
                let foreign = own.caller.get(&path).header("cookie", &other.cookie).send().await;
                assert_eq!(foreign.status, expected, "the session of another account at {}", endpoint.name);
                continue;
            }
            for defect in DEFECTS {
                // A link is not bound to a session: anyone with the link may redeem it.
                if needs == Needs::Link && (defect.contains("cookie") || defect.contains("form token")) {
                    continue;
                }
                let answer = post_with(defect, &path, &own, &second, &other).await;
                let expected = if defect.contains("cookie") { 401 } else { 403 };
                assert_eq!(answer.status, expected, "{} with {defect}: {answer:?}", endpoint.name);
            }
            if needs == Needs::Admin {
                let answer = post_with("nothing", &path, &viewer, &viewer, &other).await;
                assert_eq!(answer.status, 403, "{} by a viewer", endpoint.name);
                assert!(text(&answer).contains("Your role is viewer"));
            }
            for (kind, status) in [("application/json", 415), ("multipart/form-data; boundary=x", 415), ("text/plain", 415)] {
                let call = own.call(Method::POST, &path).header("origin", &format!("https://{}", own.host));
                assert_eq!(call.header("content-type", kind).body("a=b").send().await.status, status, "{}", endpoint.name);
            }
            let large = "x".repeat(17 * 1024);
            let answer = form_of(own.call(Method::POST, &path), &own.host, &[("name", &large)]).send().await;
            assert_eq!(answer.status, 413, "{}", endpoint.name);
        }
        assert_eq!(state(&scene).await, before, "nothing was changed");
    }
}

#[tokio::test]
async fn a_custom_domain_redirects_before_a_cookie_is_looked_at() {
    let scene = Scene::start(Engine::Sqlite);
    let own = scene.sign_in("acme", "admin").await;
    let port = scene.node.address.port();
    let domain = scene.node.client().to(&format!("forms.acme.test:{port}"));
    for path in ["/admin", "/admin/tokens?show=all", "/admin/enter/secret", "/admin/nothing"] {
        for cookie in ["a=b", &own.cookie] {
            let answer = domain.get(path).header("cookie", cookie).send().await;
            let expected = format!("https://{}{path}", own.host);
            assert_eq!((answer.status.as_u16(), answer.header("location")), (303, Some(&*expected)));
            assert!(answer.header("set-cookie").is_none());
        }
    }
    let post = form_of(domain.post("/admin/tokens").header("cookie", &own.cookie), &own.host, &[("name", "x")]);
    assert_eq!(post.send().await.status, 303);
    assert_eq!(domain.get("/administration").send().await.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn the_area_costs_no_budget_and_works_with_none_left() {
    let scene = Scene::of(Scene::site(Engine::Sqlite).requests_per_minute(3));
    let own = scene.sign_in("acme", "admin").await;
    let (id, token) = own.generate("spender").await;
    for _ in 0..20 {
        assert_eq!(own.get("/admin").await.status, 200);
    }
    assert!(text(&own.get("/admin").await).contains("<strong>3</strong> of 3 in this minute"));
    let api = own.caller.with(&token);
    for left in [2, 1, 0] {
        assert_eq!(api.get("/api/v1/me").send().await.number("x-ratelimit-remaining"), Some(left));
    }
    assert_eq!(api.get("/api/v1/me").send().await.status, 429);
    assert!(text(&own.get("/admin").await).contains("<strong>0</strong> of 3 in this minute"));
    let answer = own.post(&format!("/admin/tokens/{id}/revoke"), &[]).await;
    assert_eq!(answer.status, 303);
    assert_eq!(api.get("/api/v1/me").send().await.status, 401, "at once on this node");
}

#[tokio::test]
async fn without_the_table_there_is_no_area_and_a_reload_switches_it_on() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let mut node = site.start();
    let caller = node.client().to(&site.host("acme"));
    for path in ["/admin", "/admin/", "/admin/tokens", "/admin/enter/x"] {
        let answer = caller.get(path).send().await;
        assert_eq!((answer.status.as_u16(), answer.json()["message"].as_str()), (404, Some("Not found")), "{path}");
    }
    let table: toml::Table = "path = \"/manage\"\nsign_in_url = \"https://forms.example/{slug}\"".parse().unwrap();
    let _site = site.gateway("administration", table).write();
    node.signal("HUP");
    node.wait_for_lines(std::time::Duration::from_secs(30), "the configuration is reloaded", 1);
    assert_eq!(caller.get("/admin").send().await.status, 404);
    let answer = caller.get("/manage").send().await;
    assert_eq!(answer.status, 401);
    assert!(text(&answer).contains("href=\"https://forms.example/acme\""), "{answer:?}");
}
