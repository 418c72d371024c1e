//! A flood of bad tokens from one address.

use std::time::{Duration, Instant};

use formgate::tenant::token::PresentedToken;
use futures_util::future::join_all;
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;
use toml::Table;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::client::operator_count;
use crate::support::connection::Protocol;
use crate::support::fixture::{Engine, Site};

const ME: &str = "/api/v1/me";

const BURST: usize = 5;

/// A gateway that takes five bad tokens in a row from an address, and one a second.
fn acme() -> Acme {
    let limits: Table = format!("bad_tokens_burst = {BURST}\nbad_tokens_per_second = 1").parse().expect("TOML");
    Acme::of(Site::new().gateway("limits", limits).tenant("acme", Engine::Postgres).requests_per_minute(1000))
}

/// Tries an invented token, with the right checksum.
async fn invent(acme: &Acme) -> Answer {
    acme.stranger().with(PresentedToken::generate().expose()).get(ME).send().await
}

/// Tries invented tokens until the address may try no more.
async fn flood(acme: &Acme) {
    let began = Instant::now();
    while invent(acme).await.status != 429 {
        assert!(began.elapsed() < Duration::from_secs(10), "they are slowed");
    }
}

#[tokio::test]
async fn after_so_many_bad_tokens_an_address_waits_and_callers_with_good_ones_do_not() {
    let mut acme = acme();
    let second = acme.site.token("acme", "second");
    let (known, at_first) = (acme.caller(), acme.caller().get(ME).send().await);
    assert_eq!(at_first.status, 200);
    for _ in 0..BURST {
        assert_eq!(invent(&acme).await.status, 401);
    }
    flood(&acme).await;
    for (kind, call) in [
        ("invented", acme.stranger().with(PresentedToken::generate().expose()).get(ME)),
        ("missing", acme.stranger().get(ME)),
        ("malformed", acme.stranger().get(ME).header("authorization", "Bearer no")),
        ("met for the first time", acme.stranger().with(&second).get(ME)),
    ] {
        let answer = call.send().await;
        assert_eq!(answer.status, 429, "{kind}: {answer:?}");
        assert_eq!(answer.json(), serde_json::json!({"message": "Too Many Attempts."}), "{kind}");
        assert_eq!(answer.number("retry-after"), Some(1), "{kind}");
        assert!(answer.number("x-ratelimit-remaining") >= Some(998), "{kind}: the account's budget is its own");
    }
    for protocol in [Protocol::Http1, Protocol::Http2] {
        assert_eq!(known.over(protocol).get(ME).send().await.status, 200);
    }
    // As Retry-After says.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(acme.stranger().with(&second).get(ME).send().await.status, 200);
    let refused = r#"formgate_requests_refused_total{reason="bad_tokens"}"#;
    assert!(operator_count(acme.node.operator_address(), refused).await >= 5);
}

#[tokio::test]
async fn a_flood_costs_no_look_ups_and_a_good_token_is_looked_up_all_the_same() {
    let acme = acme();
    assert_eq!(acme.caller().get(ME).send().await.status, 200);
    flood(&acme).await;
    let mut database = PgConnection::connect(acme.site.database_url("acme")).await.expect("the database");
    let mut locking = database.begin().await.expect("the database");
    sqlx::query("LOCK TABLE tokens IN ACCESS EXCLUSIVE MODE").execute(&mut *locking).await.expect("the database");
    // One that is looked up waits for the lock; the address may have an attempt or two by now.
    let invented = join_all((0..20).map(|_| timeout(Duration::from_secs(1), invent(&acme)))).await;
    let waiting = invented.iter().filter(|answer| answer.is_err()).count();
    assert!(waiting <= 3, "{waiting}");
    assert!(invented.iter().flatten().all(|answer| answer.status == 429));
    locking.rollback().await.expect("the database");
    // Longer than a token is remembered.
    tokio::time::sleep(Duration::from_millis(4200)).await;
    flood(&acme).await;
    assert_eq!(acme.caller().get(ME).send().await.status, 200);
}

#[tokio::test]
async fn good_tokens_spend_no_attempts() {
    let acme = acme();
    for number in 0..2 * BURST {
        let token = acme.site.token("acme", &number.to_string());
        assert_eq!(acme.stranger().with(&token).get(ME).send().await.status, 200, "token {number}");
    }
}
