//! A statement of the settler that takes longer than it may: it is tried again with a longer limit, so that the account
//! recovers.

use std::time::{Duration, Instant};

use serde_json::json;

use super::NOTHING_WRONG;
use crate::api::account::{Account, account_on};
use crate::support::fixture::{Engine, Site, on_both_databases};

/// How long a statement of a request may take, in seconds. One of the settler may take three times as long.
const STATEMENT_SECONDS: i64 = 3;

/// Lasts until the server's limit ends it, unless the limit is the longer one.
const SLOW_ON_POSTGRES: &str = "
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF current_setting('statement_timeout')::interval < '1 min' THEN
        PERFORM pg_sleep(3600);
      END IF;
      RETURN NULL;
    END $$;
    CREATE TRIGGER slow AFTER INSERT ON listed_submissions EXECUTE FUNCTION slow()";

/// Lasts until the limit ends it, if it begins before an instant. `now` is the beginning of the statement.
const SLOW_ON_SQLITE: &str = "
    CREATE TABLE slow (until INTEGER);
    INSERT INTO slow VALUES (0);
    CREATE VIEW endless AS WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n FROM n) SELECT count(*) AS count FROM n;
    CREATE TRIGGER slow AFTER INSERT ON listed_submissions WHEN (SELECT until FROM slow) > strftime('%s', 'now') + 0
    BEGIN
      SELECT count FROM endless;
    END";

/// Waits until a search is answered that is refused as long as the settler is not done. Returns how many it finds.
async fn total(account: &Account) -> i64 {
    let since = Instant::now();
    loop {
        let answer = account.client.post("/api/v1/submission").json(&json!({})).send().await;
        match answer.status.as_u16() {
            200 => return answer.json()["meta"]["total"].as_i64().expect("a number"),
            503 => assert!(since.elapsed() < Duration::from_secs(120), "searches are refused for ever: {answer:?}"),
            _ => panic!("{answer:?}"),
        }
    }
}

on_both_databases! {
    async fn a_settler_that_runs_out_of_time_is_tried_again_with_a_longer_limit(engine: Engine) {
        let site = Site::new().tenant("acme", engine).databases("statement_seconds", STATEMENT_SECONDS);
        let mut account = account_on(site, "");
        let database = account.database().await;
        let (at, slow) = match engine {
            Engine::Sqlite => ("1700000000000000", SLOW_ON_SQLITE),
            Engine::Postgres | Engine::PostgresOn(_) => ("now()", SLOW_ON_POSTGRES),
        };
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'F')").await;
        database.execute(slow).await;
        // So that the first try begins before the instant, and the second one, after the limit, does not.
        let until = format!("UPDATE slow SET until = strftime('%s', 'now') + {}; ", 3 * STATEMENT_SECONDS - 1);
        let until = if engine == Engine::Sqlite { &*until } else { "" };
        let insert = format!("INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (1, 1, 'info', {at}, {at})");
        database.execute(&format!("BEGIN; {until}{insert}; COMMIT")).await;

        assert_eq!(total(&account).await, 1);
        assert!(account.log().contains("settling ran out of time"), "{}", account.log());
        assert_eq!(account.reindex(), NOTHING_WRONG);

        // Others are settled within the usual limit again.
        let drop = if engine == Engine::Sqlite { "DROP TRIGGER slow" } else { "DROP TRIGGER slow ON listed_submissions" };
        database.execute(&format!("{drop}; {}", insert.replace("(1, 1,", "(2, 1,"))).await;
        assert_eq!(total(&account).await, 2);
        assert_eq!(account.log().matches("settling ran out of time").count(), 1, "{}", account.log());
    }
}
