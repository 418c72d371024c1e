//! A PgBouncer between, in both modes, whether the URL mentions it or not.

use futures_util::future::join_all;
use serde_json::json;

use super::{find, submissions};
use crate::support::fixture::{Engine, Site};
use crate::support::pgbouncer::{IGNORES, PgBouncer, REFUSES};
use crate::support::postgres::Postgres;

fn site(url: &str) -> Site {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", url));
    site.requests_per_minute(100_000).write()
}

/// Commands, and requests at once, many more than the pooler has connections to the server.
async fn everything_works(url: &str) -> Site {
    let site = site(url);
    site.migrate();
    site.import("acme", &submissions(&["Zürich", "Holiday"]));
    let token = site.token("acme", "tests");
    let tokens = site.run(&["token", "list", "--tenant", "acme"], b"");
    assert!(tokens.stdout.contains("tests"), "{tokens:?}");
    let node = site.start();
    let client = &node.client().to(&site.host("acme")).with(&token);
    let calls = (0..12).map(async |call| {
        for round in 0..6 {
            assert_eq!(find(client, "zür").await, 1);
            assert_eq!(find(client, "zü").await, 1);
            assert_eq!(client.get("/api/v1/submission/2").send().await.status, 200);
            let group = json!({"name": "Staff", "external_id": format!("{call}"), "members": [{"email": format!("{round}@acme.example")}]});
            let written = client.put("/api/v1/group").json(&group).send().await;
            assert_eq!(written.status, if round == 0 { 201 } else { 200 }, "{written:?}");
            // A transaction that ends without a commit.
            let ambiguous = client.put("/api/v1/group").json(&json!({"name": "Staff"})).send().await;
            assert_eq!(ambiguous.status, 422, "{ambiguous:?}");
        }
    });
    // Two groups of one name, which is a fault where it is to find one.
    for external_id in ["a", "b"] {
        let group = json!({"name": "Staff", "external_id": external_id});
        assert_eq!(client.put("/api/v1/group").json(&group).send().await.status, 201);
    }
    join_all(calls).await;
    site.import("acme", &submissions(&["Zürich", "Holiday", "Zürich again"]));
    assert_eq!(find(client, "zürich").await, 2);
    let reindexed = site.run(&["reindex", "--tenant", "acme"], b"");
    assert_eq!(reindexed.code, 0, "{reindexed:?}");
    assert!(reindexed.stdout.contains("mended 0 users, 0 submissions, 0 documents"), "{reindexed:?}");
    site
}

#[tokio::test]
async fn one_in_session_mode_that_the_url_mentions() {
    let pooler = PgBouncer::start("session", "default_pool_size = 20");
    let site = everything_works(&pooler.url(&Postgres::database(), "?pooler=session")).await;
    let check = site.run(&["check"], b"");
    assert!(check.code == 0 && !check.stdout.contains("pooler"), "{check:?}");
}

#[tokio::test]
async fn one_in_session_mode_that_the_url_does_not_mention() {
    let pooler = PgBouncer::start("session", "default_pool_size = 20");
    let site = everything_works(&pooler.url(&Postgres::database(), "")).await;
    check_names_the_remedy(&site, "PgBouncer");
}

#[tokio::test]
async fn one_in_transaction_mode_that_the_url_mentions() {
    for parameter in ["?pooler=transaction", "?pgbouncer=true"] {
        let pooler = PgBouncer::start("transaction", REFUSES);
        let site = everything_works(&pooler.url(&Postgres::database(), parameter)).await;
        let check = site.run(&["check"], b"");
        assert!(check.code == 0 && !check.stdout.contains("pooler"), "{check:?}");
    }
}

/// It takes no transactions, and writes are some.
#[tokio::test]
async fn one_in_statement_mode_is_refused_with_the_remedy() {
    let pooler = PgBouncer::start("statement", REFUSES);
    let site = site(&pooler.url(&Postgres::database(), "?pooler=transaction"));
    let checked = site.run(&["check"], b"");
    assert_eq!(checked.code, 1, "{checked:?}");
    assert!(checked.stdout.contains("set `pool_mode` of the pooler to transaction or session"), "{checked:?}");
}

#[tokio::test]
async fn one_in_transaction_mode_that_refuses_startup_parameters() {
    let pooler = PgBouncer::start("transaction", REFUSES);
    let site = everything_works(&pooler.url(&Postgres::database(), "")).await;
    check_names_the_remedy(&site, "PgBouncer");
}

#[tokio::test]
async fn one_in_transaction_mode_that_drops_startup_parameters() {
    let pooler = PgBouncer::start("transaction", IGNORES);
    let site = everything_works(&pooler.url(&Postgres::database(), "?statement-cache-capacity=0")).await;
    check_names_the_remedy(&site, "PgBouncer");
}

fn check_names_the_remedy(site: &Site, pooler: &str) {
    for command in [&["check"][..], &["explain", &site.host("acme")]] {
        let told = site.run(command, b"");
        assert_eq!((told.code, &*told.stderr), (0, ""), "{told:?}");
        assert!(told.stdout.contains(pooler) && told.stdout.contains("`pooler=transaction`"), "{told:?}");
    }
}

/// Settings seem to have arrived, as behind a pooler that passes them on to the server. It is noticed because it loses statements.
#[tokio::test]
async fn one_that_is_noticed_by_the_statements_that_it_loses() {
    let query = "SET formgate.direct = 1";
    let database = Postgres::database();
    let pooler = PgBouncer::start_with("transaction", &format!("{IGNORES}\ndefault_pool_size = 1"), query);
    let site = site(&database);
    site.migrate();
    site.import("acme", &submissions(&["Zürich"]));
    let token = site.token("acme", "tests");
    let site = self::site(&pooler.url(&database, ""));
    let mut node = site.start();
    let client = &node.client().to(&site.host("acme")).with(&token);
    let call = async || client.get("/api/v1/form").fresh().send().await.status;
    for _ in 0..10 {
        // Two at once have two sessions.
        join_all([call(), call(), call()]).await;
    }
    assert!(node.log().contains("loses prepared statements"), "{}", node.log());
    for _ in 0..10 {
        assert_eq!(join_all([call(), call(), call()]).await, [200; 3]);
    }
}

/// What other clients of the pooler get the server connection with.
#[tokio::test]
async fn nothing_stays_on_a_server_connection() {
    let database = Postgres::database();
    for parameter in ["?pooler=transaction", ""] {
        let pooler = PgBouncer::start("transaction", &format!("{IGNORES}\ndefault_pool_size = 1"));
        everything_works_once(&pooler.url(&database, parameter)).await;
        // Those that PgBouncer itself sets for each of its clients are not ours.
        let settings = "SELECT string_agg(name || '=' || setting, ', ') FROM pg_settings WHERE source = 'session' \
            AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')";
        assert_eq!(pooler.query(&database, settings), "", "settings");
        assert_eq!(pooler.query(&database, "SELECT coalesce(current_setting('formgate.direct', true), '')"), "");
        assert_eq!(
            pooler.query(&database, "SELECT string_agg(name, ', ') FROM pg_prepared_statements"),
            "",
            "statements"
        );
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        assert_eq!(pooler.query(&database, locks), "0", "advisory locks");
    }
}

async fn everything_works_once(url: &str) {
    let site = site(url);
    site.migrate();
    site.import("acme", &submissions(&["Zürich"]));
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
    assert_eq!(find(&client, "zür").await, 1);
}

#[tokio::test]
async fn the_settings_of_the_url_hold_through_a_pooler() {
    for (parameters, mode) in
        [("?pooler=transaction&", "transaction"), ("?pooler=session&", "session"), ("?", "transaction")]
    {
        let (database, pooler) = (Postgres::database(), PgBouncer::start(mode, REFUSES));
        Postgres::execute_in(&database, "CREATE SCHEMA forms");
        let url = pooler.url(&database, &format!("{parameters}options=-csearch_path%3Dforms"));
        everything_works_once(&url).await;
        let schemas =
            "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename IN ('submissions', '_sqlx_migrations')";
        assert_eq!(pooler.query(&database, schemas), "forms", "{parameters}");
    }
}

/// Tables are found where the `search_path` of the role leads past them.
#[tokio::test]
async fn tables_outside_the_search_path_are_found_through_a_pooler() {
    let database = Postgres::database();
    let name = database.rsplit_once('/').unwrap().1.to_owned();
    everything_works_once(&PgBouncer::shared().url(&database, "?pooler=transaction")).await;
    Postgres::execute_in(&database, "CREATE SCHEMA other");
    Postgres::execute_in(&database, &format!("ALTER DATABASE {name} SET search_path = other"));
    let pooler = PgBouncer::start("transaction", REFUSES);
    let site = site(&pooler.url(&database, "?pooler=transaction"));
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "more"));
    assert_eq!(find(&client, "zür").await, 1);
}

/// A tenant makes do with the connections that it gets, as with a server that takes no more.
#[tokio::test]
async fn a_pooler_that_takes_no_more_clients_serves_those_that_it_has() {
    let pooler = PgBouncer::start("transaction", "max_client_conn = 2");
    let site = site(&pooler.url(&Postgres::database(), "?pooler=transaction"));
    site.migrate();
    let token = site.token("acme", "tests");
    let node = site.start();
    let client = &node.client().to(&site.host("acme")).with(&token);
    for _ in 0..5 {
        let calls = (0..12).map(async |_| client.get("/api/v1/form").fresh().send().await.status);
        assert_eq!(join_all(calls).await, [200; 12]);
    }
}
