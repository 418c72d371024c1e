//! Whether a token is one of the account's.

use std::time::{Duration, Instant};

use formgate::tenant::token::PresentedToken;
use http::{HeaderMap, Method};
use serde_json::Value;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::busy::takes_less_than;
use crate::support::client::Call;
use crate::support::connection::Protocol;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::redis::Redis;

/// Longer than a node caches a token.
const LONG: Duration = Duration::from_secs(70);

/// All that a caller can compare; `Date` tells only when.
fn comparable(mut answer: Answer) -> (u16, HeaderMap, Vec<u8>) {
    answer.headers.remove("date");
    (answer.status.as_u16(), answer.headers, answer.body)
}

fn tokens_of(site: &Site, slug: &str) -> Vec<Value> {
    let output = site.run(&["token", "list", "--tenant", slug, "--json"], b"");
    serde_json::from_str(&output.stdout).expect("a JSON array")
}

#[tokio::test]
async fn every_kind_of_wrong_token_gets_the_same_answer_to_the_byte() {
    let site = Site::new().tenant("acme", Engine::Sqlite).tenant("globex", Engine::Postgres);
    let acme = Acme::of(site);
    let revoked = acme.site.token("acme", "revoked");
    let ids = tokens_of(&acme.site, "acme");
    let id = ids.last().expect("two tokens")["id"].to_string();
    assert_eq!(acme.site.run(&["token", "revoke", "--tenant", "acme", &id], b"").code, 0);
    let globex = acme.site.token("globex", "tests");
    let mistyped = format!("{}{}", &acme.token[..48], if acme.token.ends_with('0') { '1' } else { '0' });
    let unknown = PresentedToken::generate();

    for protocol in [Protocol::Http1, Protocol::Http2] {
        let call = || acme.stranger().get("/api/v1/me").over(protocol).header("x-request-id", "same");
        let missing = comparable(call().send().await);
        assert_eq!(missing.0, 401);
        assert_eq!(missing.1["www-authenticate"], "Bearer");
        assert_eq!(missing.1["x-ratelimit-remaining"], "60", "no budget is spent");
        assert_eq!(missing.2, br#"{"message":"Unauthenticated."}"#);
        for (kind, value) in [
            ("empty", String::new()),
            ("scheme alone", "Bearer".into()),
            ("scheme and blank", "Bearer ".into()),
            ("another scheme", format!("Basic {}", acme.token)),
            ("no scheme", acme.token.clone()),
            ("malformed", "Bearer token".into()),
            ("too long", format!("Bearer {}x", acme.token)),
            ("mistyped", format!("Bearer {mistyped}")),
            ("unknown", format!("Bearer {}", unknown.expose())),
            ("revoked", format!("Bearer {revoked}")),
            ("another account's", format!("Bearer {globex}")),
        ] {
            let answer = call().header("authorization", &value).send().await;
            assert_eq!(comparable(answer), missing, "{kind}");
        }
        let twice = call().header("authorization", &format!("Bearer {}", acme.token));
        let twice = twice.header("authorization", &format!("Bearer {}", acme.token)).send().await;
        assert_eq!(comparable(twice), missing, "two tokens");
    }
    let answer = acme.caller().get("/api/v1/me").send().await;
    assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (200, Some(59)));
}

#[tokio::test]
async fn the_scheme_is_case_insensitive() {
    let acme = Acme::start();
    for scheme in ["Bearer", "bearer", "BEARER", "bEaReR", "Bearer  "] {
        let value = format!("{scheme} {}", acme.token);
        let answer = acme.stranger().get("/api/v1/me").header("authorization", &value).send().await;
        assert_eq!(answer.status, 200, "{scheme}");
    }
}

#[tokio::test]
async fn without_a_token_nothing_is_learnt_about_the_routes() {
    let acme = Acme::start();
    let call = |method, path: &str| acme.stranger().method(method, path).header("x-request-id", "same");
    let known = comparable(call(Method::GET, "/api/v1/me").send().await);
    assert_eq!(known.0, 401);
    for (method, path) in [
        (Method::DELETE, "/api/v1/me"),
        (Method::PATCH, "/api/v1/submission"),
        (Method::GET, "/api/v1"),
        (Method::GET, "/api/v1/"),
        (Method::GET, "/api/v1/nowhere"),
        (Method::POST, "/api/v1/nowhere/at/all"),
        (Method::OPTIONS, "/api/v1/me"),
        (Method::TRACE, "/api/v1/me"),
    ] {
        assert_eq!(comparable(call(method.clone(), path).send().await), known, "{method} {path}");
    }
    let large = call(Method::POST, "/api/v1/submission").body(vec![b'x'; 2 * 1024 * 1024]).send().await;
    assert_eq!(large.status, 401, "a body is not looked at");
}

/// Makes tokens while the gateway runs, and revokes them.
async fn is_felt_within(limit: Duration, site: Site) {
    let acme = Acme::of(site.requests_per_minute(100_000));
    let stranger = acme.stranger();
    let call = |token: &str| -> Call { stranger.with(token).get("/api/v1/me") };
    assert_eq!(call(&acme.token).send().await.status, 200);
    takes_less_than(limit, "refusing a revoked token", async || {
        let second = acme.site.token("acme", "second");
        assert_eq!(call(&second).send().await.status, 200, "at once");

        let tokens = tokens_of(&acme.site, "acme");
        let id = tokens.iter().rfind(|token| token["name"] == "second").expect("it is listed")["id"].to_string();
        assert_eq!(acme.site.run(&["token", "revoke", "--tenant", "acme", &id], b"").code, 0);
        let revoked = Instant::now();
        loop {
            let sent = revoked.elapsed();
            if call(&second).send().await.status == 401 {
                return sent;
            }
            assert!(sent < LONG, "still accepted");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(call(&acme.token).send().await.status, 200, "one token is revoked alone");
}

#[tokio::test]
async fn without_a_shared_store_a_new_token_works_at_once_and_a_revoked_one_at_most_five_seconds() {
    is_felt_within(Duration::from_secs(5), Site::new().tenant("acme", Engine::Sqlite)).await;
}

on_both_databases! {
    async fn with_a_shared_store_a_new_token_works_at_once_and_a_revoked_one_at_most_a_second(engine: Engine) {
        let redis = Redis::start();
        is_felt_within(Duration::from_secs(1), Site::new().tenant("acme", engine).redis(&redis)).await;
    }

    async fn when_a_token_was_last_used_survives_a_normal_stop(engine: Engine) {
        let mut acme = Acme::of(Site::new().tenant("acme", engine));
        acme.site.token("acme", "unused");
        let before = jiff::Timestamp::now();
        assert_eq!(acme.caller().get("/api/v1/me").send().await.status, 200);
        acme.stop().await;
        let tokens = tokens_of(&acme.site, "acme");
        let used: jiff::Timestamp = tokens[0]["last_used_at"].as_str().expect("it was used").parse().expect("an instant");
        assert_eq!(used.as_microsecond() % 60_000_000, 0, "to the minute");
        assert!((before.as_second() - 60..=jiff::Timestamp::now().as_second()).contains(&used.as_second()), "{used}");
        assert_eq!(tokens[1]["last_used_at"], Value::Null, "{tokens:?}");
    }
}
