//! `wait`: requests that wait for a change.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use serde_json::json;

use super::{PATH, cursor, insert, with_forms};
use crate::support::busy::takes_less_than;
use crate::support::client::{operator_count, wait_for_count};
use crate::support::fixture::{Engine, on_both_databases};

/// How many statements a database has got so far.
async fn statements(operator: SocketAddr, engine: Engine) -> u64 {
    let database = if engine == Engine::Sqlite { "sqlite" } else { "postgres" };
    let series = format!("formgate_database_call_duration_seconds_count{{database=\"{database}\"}}");
    operator_count(operator, &series).await
}

on_both_databases! {
    async fn a_request_that_waits_is_answered_soon_after_a_change(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let here = cursor(&account.client, "").await;
        let path = format!("{PATH}?cursor={here}&wait=25");
        let began = Instant::now();
        let writing = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            database.execute(&insert(engine, 1, "1, NULL, FALSE")).await;
        };
        let (answer, ()) = tokio::join!(account.client.get(&path).send(), writing);
        assert_eq!(answer.json()["data"][0]["id"], "sub_1", "{answer:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());

        let began = Instant::now();
        let here = cursor(&account.client, "").await;
        let answer = account.client.get(&format!("{PATH}?cursor={here}&wait=1")).send().await;
        assert_eq!(answer.json()["data"], json!([]), "{answer:?}");
        assert!(began.elapsed() >= Duration::from_secs(1));
    }

    async fn requests_that_wait_are_few_and_answered_when_the_node_stops(engine: Engine) {
        takes_less_than(Duration::from_secs(20), "the answer of a node that stops", async || {
            let (mut account, _) = with_forms(engine).await;
            let client = account.client.clone();
            let here = cursor(&client, "").await;
            let path = format!("{PATH}?cursor={here}&wait=25");
            let began = Instant::now();
            let mut requests: FuturesUnordered<_> = (0..16).map(|_| client.get(&path).send()).collect();
            // Eight may wait. The others are answered at once; then the node stops.
            for answered in 1..=16 {
                let answer = requests.next().await.expect("there are sixteen");
                assert_eq!((answer.status.as_u16(), &answer.json()["data"]), (200, &json!([])), "{answer:?}");
                if answered == 8 {
                    account.stop();
                }
            }
            began.elapsed()
        })
        .await;
    }

    async fn requests_that_wait_leave_a_quiet_database_in_peace(engine: Engine) {
        const SECONDS: u64 = 12;
        let (mut account, _) = with_forms(engine).await;
        let client = account.client.clone();
        let here = cursor(&client, "").await;
        let operator = account.operator();
        let path = format!("{PATH}?cursor={here}&wait={SECONDS}");
        // Until the node would notice a write, each looks twice a second.
        let counting = async {
            wait_for_count(operator, "formgate_webhook_tenants_watched", 1).await;
            statements(operator, engine).await
        };
        let (answers, before) = tokio::join!(join_all((0..8).map(|_| client.get(&path).send())), counting);
        for answer in answers {
            assert_eq!(answer.json()["data"], json!([]), "{answer:?}");
        }
        let taken = statements(operator, engine).await - before;
        assert!(taken < 8 * SECONDS, "{taken} statements, half of what looking twice a second takes");
    }

    async fn a_request_that_rests_is_woken_by_a_change(engine: Engine) {
        let (mut account, database) = with_forms(engine).await;
        let client = account.client.clone();
        let operator = account.operator();
        let mut id = 0;
        for _ in 1..=3 {
            takes_less_than(Duration::from_secs(8), "the answer after a change", async || {
                id += 1;
                let here = cursor(&client, "").await;
                let path = format!("{PATH}?cursor={here}&wait=25");
                let writing = async {
                    // From here on the node would notice a write.
                    wait_for_count(operator, "formgate_webhook_tenants_watched", 1).await;
                    database.execute(&insert(engine, id, "1, NULL, FALSE")).await;
                    Instant::now()
                };
                let answering = async { (client.get(&path).send().await, Instant::now()) };
                let ((answer, answered), committed) = tokio::join!(answering, writing);
                assert_eq!(answer.json()["data"][0]["id"], format!("sub_{id}"), "{answer:?}");
                answered.saturating_duration_since(committed)
            })
            .await;
        }
    }
}
