//! A flood of bad tokens from one address.

use std::time::{Duration, Instant};

use formgate::tenant::token::PresentedToken;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;
use toml::Table;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::client::{Call, Client, operator_count};
use crate::support::connection::Protocol;
use crate::support::fixture::{Engine, Site};

const ME: &str = "/api/v1/me";

const BURST: usize = 5;

/// How long a flood may go on until the address is refused.
const LIMIT: Duration = Duration::from_secs(60);

/// A gateway that takes five bad tokens in a row from an address, and one a second.
fn acme() -> Acme {
    let limits: Table = format!("bad_tokens_burst = {BURST}\nbad_tokens_per_second = 1").parse().expect("TOML");
    Acme::of(Site::new().gateway("limits", limits).tenant("acme", Engine::Postgres).requests_per_minute(1000))
}

/// A caller without a token, whose requests share a connection: handshakes would take a busy machine too long.
fn stranger(acme: &Acme) -> Client {
    acme.stranger().over(Protocol::Http2)
}

/// Tries an invented token, with the right checksum.
async fn invent(stranger: &Client) -> Answer {
    stranger.with(PresentedToken::generate().expose()).get(ME).send().await
}

/// Tries invented tokens, several at once, until the address may try no more. Returns a time before that.
async fn flood(stranger: &Client) -> Instant {
    let began = Instant::now();
    loop {
        let sent = Instant::now();
        let answers = join_all((0..2 * BURST).map(|_| invent(stranger))).await;
        if answers.iter().any(|answer| answer.status == 429) {
            return sent;
        }
        assert!(began.elapsed() < LIMIT, "they are slowed");
    }
}

#[tokio::test]
async fn after_so_many_bad_tokens_an_address_waits_and_callers_with_good_ones_do_not() {
    let mut acme = acme();
    let (known, stranger) = (acme.caller(), stranger(&acme));
    assert_eq!(known.get(ME).send().await.status, 200);
    for _ in 0..BURST {
        assert_eq!(invent(&stranger).await.status, 401);
    }
    let with = |token: &str| stranger.with(token).get(ME);
    let malformed = || stranger.get(ME).header("authorization", "Bearer no");
    let calls: [(&str, &dyn Fn() -> Call); 4] = [
        ("invented", &|| with(PresentedToken::generate().expose())),
        ("missing", &|| stranger.get(ME)),
        ("malformed", &malformed),
        ("met for the first time", &|| with(&acme.site.token("acme", "new"))),
    ];
    for (kind, call) in calls {
        let mut attempts = 0..10;
        let answer = loop {
            assert!(attempts.next().is_some(), "{kind}: not refused");
            let call = call();
            flood(&stranger).await;
            let answer = call.send().await;
            // After a second, the address may try once more. A busy machine takes that long for a call, but not always.
            if answer.status == 429 {
                break answer;
            }
        };
        assert_eq!(answer.json(), serde_json::json!({"message": "Too Many Attempts."}), "{kind}");
        assert_eq!(answer.number("retry-after"), Some(1), "{kind}");
        assert!(answer.number("x-ratelimit-remaining") >= Some(980), "{kind}: the account's budget is its own");
    }
    for protocol in [Protocol::Http1, Protocol::Http2] {
        assert_eq!(known.over(protocol).get(ME).send().await.status, 200);
    }
    // As Retry-After says.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(with(&acme.site.token("acme", "second")).send().await.status, 200);
    let refused = r#"formgate_requests_refused_total{reason="bad_tokens"}"#;
    assert!(operator_count(acme.node.operator_address(), refused).await >= 5);
}

/// Asserts that of many invented tokens at once, few are looked up after a flood: an attempt that was left, and one for each
/// second that has passed. Those wait for a lock on the tokens.
async fn assert_few_are_looked_up(stranger: &Client, database: &mut PgConnection) {
    const MANY: usize = 20;
    // Less than a request waits for the lock.
    const LOCKED: Duration = Duration::from_millis(1500);
    // On a machine that is busy for so long, another time: without the limit, each of the tokens is looked up.
    for _ in 0..10 {
        let flooded = flood(stranger).await;
        let mut locking = database.begin().await.expect("the database");
        sqlx::query("LOCK TABLE tokens IN ACCESS EXCLUSIVE MODE").execute(&mut *locking).await.expect("the database");
        let locked = Instant::now();
        let mut waiting: FuturesUnordered<_> = (0..MANY).map(|_| invent(stranger)).collect();
        let mut is_few = false;
        while !is_few && locked.elapsed() < LOCKED {
            if let Ok(answer) = timeout(Duration::from_millis(50), waiting.next()).await {
                assert_eq!(answer.expect("one waits at least").status, 429);
            }
            is_few = waiting.len() as u64 <= 1 + flooded.elapsed().as_secs();
        }
        drop(waiting);
        locking.rollback().await.expect("the database");
        if is_few {
            return;
        }
    }
    panic!("more invented tokens are looked up than the address may try");
}

#[tokio::test]
async fn a_flood_costs_no_look_ups_and_a_good_token_is_looked_up_all_the_same() {
    let acme = acme();
    assert_eq!(acme.caller().get(ME).send().await.status, 200);
    let stranger = stranger(&acme);
    let mut database = PgConnection::connect(acme.site.database_url("acme")).await.expect("the database");
    assert_few_are_looked_up(&stranger, &mut database).await;
    // Longer than a token is remembered.
    tokio::time::sleep(Duration::from_millis(4200)).await;
    flood(&stranger).await;
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
