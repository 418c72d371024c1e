//! The language of pages: that of the browser, or the configured one, on every page.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use http::Method;
use serde_json::json;

use super::scene::{Scene, form_of, random, text};
use crate::support::answer::Answer;
use crate::support::browser::Browser;
use crate::support::fixture::Engine;

/// Every text of a language by its key.
fn texts_of(tag: &str) -> BTreeMap<String, String> {
    fn collect(key: &str, value: &toml::Value, texts: &mut BTreeMap<String, String>) {
        match value {
            toml::Value::Table(table) => {
                table.iter().for_each(|(name, value)| collect(&format!("{key}.{name}"), value, texts));
            }
            toml::Value::Array(list) => {
                list.iter().enumerate().for_each(|(at, value)| collect(&format!("{key}.{at}"), value, texts));
            }
            value => drop(texts.insert(key.to_owned(), value.as_str().expect("a text").to_owned())),
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/administration/texts/{tag}.toml"));
    let file: toml::Table = fs::read_to_string(file).unwrap().parse().unwrap();
    let mut texts = BTreeMap::new();
    collect("", &toml::Value::Table(file), &mut texts);
    texts
}

/// The language that a page says it has, and whether it depends on the request.
fn language_of(answer: &Answer) -> (String, Option<&str>) {
    let tag = answer.header("content-language").expect("a page has a language").to_owned();
    assert!(text(answer).contains(&format!("<html lang=\"{tag}\">")), "{answer:?}");
    (tag, answer.header("vary"))
}

#[tokio::test]
async fn a_browser_gets_the_language_that_it_prefers() {
    let scene = Scene::start(Engine::Sqlite);
    let link = scene.link("acme", "admin", 60).await;
    let own = scene.sign_in("acme", "admin").await;
    for (accepted, expected) in
        [("de-DE,de;q=0.9,en;q=0.8", "de"), ("en-US,en;q=0.9,de;q=0.8", "en"), ("fr", "en"), ("fr, de;q=0.1", "de")]
    {
        let get = |path: &str| own.call(Method::GET, path).header("accept-language", accepted);
        for (call, status) in [
            (get("/admin"), 200),
            (get("/admin/tokens"), 200),
            (get("/admin/tokens/7"), 404),
            (get("/admin/nothing"), 404),
            (get("/admin/sign-out"), 405),
            (get(&link), 200),
            (get("/admin/enter/wrong"), 404),
            (own.caller.get("/admin").header("accept-language", accepted), 401),
            (own.call(Method::POST, "/admin/tokens").header("accept-language", accepted), 403),
            (form_of(own.call(Method::POST, "/admin/tokens").header("accept-language", accepted), &own.host, &[]), 403),
        ] {
            let answer = call.send().await;
            assert_eq!(answer.status, status, "{answer:?}");
            assert_eq!(language_of(&answer), (expected.to_owned(), Some("accept-language")), "{accepted}");
        }
    }
    // Without the header, and in answers that are no pages.
    assert_eq!(language_of(&own.get("/admin").await).0, "en");
    let export = own.call(Method::GET, "/admin/audit/export").header("accept-language", "de").send().await;
    assert_eq!((export.status.as_u16(), export.header("content-language")), (200, None));
    // A form that is not accepted says why in the same language.
    let empty = [("form_token", &*own.form_token), ("name", ""), ("form_key", &random())];
    let call = own.call(Method::POST, "/admin/tokens").header("accept-language", "de");
    let refused = form_of(call, &own.host, &empty).send().await;
    assert_eq!(refused.status, 422);
    assert!(text(&refused).contains(&texts_of("de")[".token_forms.no_name"]), "{refused:?}");
}

#[tokio::test]
async fn a_configured_language_is_that_of_every_page() {
    let area: toml::Table = "language = \"de\"".parse().unwrap();
    let scene = Scene::of(Scene::site(Engine::Sqlite).gateway("administration", area));
    let own = scene.sign_in("acme", "admin").await;
    for path in ["/admin", "/admin/tokens", "/admin/nothing"] {
        for accepted in ["en", "de", "fr"] {
            let answer = own.call(Method::GET, path).header("accept-language", accepted).send().await;
            assert_eq!(language_of(&answer), ("de".to_owned(), None), "{path} for {accepted}");
        }
    }
}

/// Whole English sentences, without the places in them. Single words may be the same in both languages.
pub(super) fn english_sentences() -> Vec<String> {
    let german = texts_of("de");
    let foreign: Vec<String> = texts_of("en")
        .into_iter()
        .filter(|(key, text)| text != &german[key] && text.split(' ').count() >= 3)
        .flat_map(|(_, text)| text.split(['{', '}']).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .filter(|words| words.trim().split(' ').count() >= 3)
        .map(|words| words.replace('&', "&amp;"))
        .collect();
    assert!(foreign.len() > 100, "{}", foreign.len());
    foreign
}

/// Looks at a page in German: it is accessible in every look, has no text in English, and no place without a value.
pub(super) async fn check_german(browser: &Browser, name: &str, foreign: &[String]) {
    assert_eq!(browser.script("return document.documentElement.lang").await, json!("de"), "{name}");
    // Reasons of the webhook sender are stored in English, and marked as such.
    let words = "const page = document.documentElement.cloneNode(true); \
                 page.querySelectorAll('[lang=en]').forEach(part => part.remove()); return page.outerHTML";
    let words = browser.script(words).await;
    let words = words.as_str().expect("a page");
    for text in foreign {
        assert!(!words.contains(text.as_str()), "{name} says {text}");
    }
    let is_place =
        |rest: &str| rest.split_once('}').is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase()));
    assert!(!words.split('{').skip(1).any(is_place), "{name} has an empty place: {words}");
    browser.check_page(&format!("de-{name}")).await;
}

#[tokio::test]
async fn every_page_is_accessible_and_complete_in_german() {
    let scene = Scene::start(Engine::Sqlite);
    let base = format!("https://{}", scene.host("acme"));
    let foreign = english_sentences();
    let browser = Browser::start_in("de-DE,de").await;
    let open = async |path: &str| {
        browser.open(&format!("{base}/admin{path}")).await;
    };
    open("").await;
    check_german(&browser, "not-signed-in", &foreign).await;
    browser.open(&format!("{base}{}", scene.link("acme", "admin", 600).await)).await;
    check_german(&browser, "enter", &foreign).await;
    browser.follow("button").await;
    check_german(&browser, "overview-empty", &foreign).await;
    for page in ["tokens", "webhooks", "groups", "export", "audit"] {
        open(&format!("/{page}")).await;
        check_german(&browser, &format!("{page}-empty"), &foreign).await;
    }

    open("/tokens").await;
    browser.type_into("#name", "   ").await;
    browser.follow("main form button").await;
    check_german(&browser, "tokens-error", &foreign).await;
    browser.type_into("#name", "Verzeichnisdienst").await;
    browser.follow("main form button").await;
    let value = browser.text("#token-value").await;
    check_german(&browser, "token-value", &foreign).await;
    browser.page.refresh().await.unwrap();
    check_german(&browser, "token-again", &foreign).await;

    let api = scene.node.client().to(&scene.host("acme")).with(&value);
    let group = json!({ "name": "Vertrieb", "members": [{ "email": "ana@acme.example" }] });
    assert_eq!(api.put("/api/v1/group").json(&group).send().await.status, 201);
    let hook = json!({ "target_url": "https://hooks.example.com/x", "event": "submission.created" });
    assert_eq!(api.post("/api/v1/subscribe").json(&hook).send().await.status, 201);
    let own = scene.sign_in("acme", "admin").await;
    let tomorrow = jiff::Zoned::now().date().tomorrow().unwrap().to_string();
    let soon = [("name", "Bald vorbei"), ("expires", "on"), ("expires_on", &*tomorrow), ("form_key", &random())];
    assert_eq!(own.post("/admin/tokens", &soon).await.status, 201);
    open("/tokens/1").await;
    browser.follow("#rotate ~ button").await;
    check_german(&browser, "token-rotated", &foreign).await;
    for (path, name) in [
        ("", "overview"),
        ("/tokens?show=all", "tokens"),
        ("/tokens/1", "token"),
        ("/tokens/3", "token-that-replaces"),
        ("/tokens/1/revoke", "revoke"),
        ("/tokens/2/revoke", "revoke-unused"),
        ("/tokens/99", "token-unknown"),
        ("/webhooks", "webhooks"),
        ("/webhooks/1", "webhook"),
        ("/groups?group=1", "groups-of-one"),
        ("/groups/1", "group-sync"),
        ("/groups/all", "all-groups"),
        ("/requests", "requests"),
        ("/requests?since=x", "requests-error"),
        ("/requests?status=500", "requests-none"),
        ("/requests/1-1", "request-unknown"),
        ("/export", "export"),
        ("/audit", "audit"),
        ("/audit?since=x", "audit-error"),
        ("/audit?actor=keiner", "audit-none"),
        ("/sessions", "sessions"),
        ("/nothing", "unknown-page"),
    ] {
        open(path).await;
        check_german(&browser, name, &foreign).await;
    }
    open("/requests").await;
    browser.follow("tbody a").await;
    check_german(&browser, "request", &foreign).await;
    open("/webhooks/1").await;
    browser.follow("button[value=test]").await;
    check_german(&browser, "webhook-not-tested", &foreign).await;
    open("/webhooks/1").await;
    browser.follow("button[value=pause]").await;
    check_german(&browser, "webhook-paused", &foreign).await;
    browser.follow("#rotate ~ button").await;
    check_german(&browser, "webhook-secret", &foreign).await;
    open("/groups/1").await;
    browser.follow("main form button").await;
    check_german(&browser, "groups-undone", &foreign).await;
    open("/groups/1").await;
    check_german(&browser, "group-sync-undone", &foreign).await;
    open("/tokens/2/revoke").await;
    browser.follow("main form button").await;
    check_german(&browser, "token-revoked", &foreign).await;
    browser.follow("header form button").await;
    check_german(&browser, "signed-out", &foreign).await;
    browser.open(&format!("{base}{}", scene.link("acme", "viewer", 600).await)).await;
    check_german(&browser, "enter-viewer", &foreign).await;
    browser.follow("button").await;
    open("/tokens/1/revoke").await;
    check_german(&browser, "revoke-viewer", &foreign).await;
}
