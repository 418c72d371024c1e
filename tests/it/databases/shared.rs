//! A database that several accounts share, each with a schema of its own: none is ever served another's, and they share
//! connections.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{find, submissions};
use crate::support::client::operator_count;
use crate::support::fixture::{Engine, Site};
use crate::support::postgres::Postgres;
use crate::support::process::Node;

/// Two accounts whose URLs end like this.
fn site(acme: &str, globex: &str) -> Site {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", acme));
    site.tenant_with("globex", Engine::Sqlite, |tenant| tenant.set("database", globex)).write()
}

async fn assert_kept_apart(site: &Site) {
    assert_eq!(site.run(&["migrate", "--tenant", "globex"], b"").code, 0);
    let token = site.token("globex", "tests");
    site.import("globex", &submissions(&["Zürich", "Zug"]));

    // The other account has no tables yet.
    let checked = site.run(&["check"], b"");
    assert_eq!(checked.code, 1, "{checked:?}");
    assert!(checked.stdout.contains("schema version 0"), "{}", checked.stdout);
    let node = site.start();
    let call = |node: &Node, slug: &str| node.client().to(&site.host(slug)).with(&token);
    assert_eq!(call(&node, "acme").get("/api/v1/form").send().await.status, 503);
    assert_eq!(find(&call(&node, "globex"), "zürich").await, 1);

    site.migrate();
    let own = site.token("acme", "tests");
    site.import("acme", &submissions(&["Bern"]));
    let node = site.start();
    let acme = call(&node, "acme").with(&own);
    assert_eq!((find(&acme, "bern").await, find(&acme, "zürich").await), (1.into(), 0.into()));
    let globex = call(&node, "globex");
    assert_eq!((find(&globex, "bern").await, find(&globex, "zürich").await), (0.into(), 1.into()));
    assert_eq!(call(&node, "acme").get("/api/v1/form").send().await.status, 401, "a token of the other account");
}

/// Spellings of one place that the URLs show, and one that shows only once both are connected to.
#[test]
fn a_database_that_two_accounts_would_share_is_a_fault() {
    let database = Postgres::database();
    let long = "x".repeat(63);
    let (one, other) = (format!("{database}?schema={long}a"), format!("{database}?schema={long}b"));
    let option = format!("{database}?options=-csearch_path%3Dopt");
    let alias = database.replace("127.0.0.1", "localhost");
    for (acme, globex, fault) in [
        (database.clone(), format!("{database}?schema=public"), "each tenant needs a database of its own"),
        (option, format!("{database}?schema=opt"), "each tenant needs a database of its own"),
        (one, other, "at most 63 bytes"),
        (format!("{database}?schema=a&schema=b"), format!("{database}?schema=c"), "one schema of your own"),
        (format!("{database}?schema=a%0Ab"), format!("{database}?schema=c"), "no control characters"),
        (format!("{database}?schema=pg_catalog"), format!("{database}?schema=c"), "one schema of your own"),
        (format!("{database}?schema=loc"), format!("{alias}?schema=loc"), "the database of the tenant `acme` too"),
    ] {
        let site = site(&acme, &globex);
        // Where the configuration is refused, nothing is migrated.
        site.run(&["migrate"], b"");
        let checked = site.run(&["check"], b"");
        assert_eq!(checked.code, 1, "{acme} and {globex}: {checked:?}");
        assert!(checked.stdout.contains(fault), "{acme} and {globex}: {}", checked.stdout);
    }
}

/// `formgate migrate` creates the schema that a URL names.
#[tokio::test]
async fn by_the_schema_that_the_url_names() {
    let database = Postgres::database();
    let url = |schema: &str| format!("{database}?schema={schema}");
    assert_kept_apart(&site(&url("acme"), &url("Globex%20%22AG%22"))).await;
}

#[tokio::test]
async fn by_the_search_path_that_the_url_sets() {
    let database = Postgres::database();
    Postgres::execute_in(&database, "CREATE SCHEMA acme; CREATE SCHEMA globex");
    let url = |schema: &str| format!("{database}?options=-csearch_path%3D{schema}");
    assert_kept_apart(&site(&url("acme"), &url("globex"))).await;
}

const TENANTS: usize = 8;

fn slug(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

/// Tenants with a schema each in one database, whose connections on a node are limited.
fn sharing(database: &str, tenants: usize, max_connections: i64) -> Site {
    let site = (0..tenants).fold(Site::new(), |site, tenant| {
        let url = format!("{database}?schema=s{tenant}");
        site.tenant_with(&slug(tenant), Engine::Sqlite, |tenant| tenant.set("database", url))
    });
    // No request is refused because it waited.
    let site = site.databases("max_shared_connections", max_connections).databases("wait_ms", 60_000);
    site.requests_per_minute(100_000).write()
}

/// The texts that a query returns.
async fn texts(database: &str, query: String) -> Vec<String> {
    let mut connection = PgConnection::connect(database).await.expect("the server takes connections");
    sqlx::query_scalar(AssertSqlSafe(query)).fetch_all(&mut connection).await.expect("the query has no fault")
}

/// Waits until `count` processes of the server serve a database: those of finished commands may still be there.
async fn backends_once(database: &str, count: usize) -> Vec<String> {
    let began = Instant::now();
    loop {
        let found = backends(database).await;
        if found.len() == count {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{found:?} are not {count}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The processes of the server that serve a database for a node, by process id.
async fn backends(database: &str) -> Vec<String> {
    let ours = "datname = current_database() AND application_name = 'formgate'";
    texts(database, format!("SELECT pid::text FROM pg_stat_activity WHERE {ours} ORDER BY 1")).await
}

#[tokio::test]
async fn many_tenants_share_few_connections_and_each_reads_and_writes_its_own() {
    let database = Postgres::database();
    let site = sharing(&database, TENANTS, 2);
    site.migrate();
    for tenant in 0..TENANTS {
        site.import(&slug(tenant), &submissions(&[&format!("word{tenant}")]));
    }
    let tokens: Vec<_> = (0..TENANTS).map(|tenant| site.token(&slug(tenant), "tests")).collect();
    let mut node = site.start();
    let operator = node.operator_address();
    let calls = (0..TENANTS * 20).map(async |n| {
        let (tenant, other) = (n % TENANTS, (n / TENANTS + 1 + n) % TENANTS);
        let client = node.client().to(&site.host(&slug(tenant))).with(&tokens[tenant]);
        match n / TENANTS % 3 {
            0 => {
                assert_eq!(find(&client, &format!("word{tenant}")).await, 1);
                assert_eq!(find(&client, &format!("word{other}")).await, i32::from(tenant == other));
            }
            1 => {
                let members = json!([{"email": format!("{n}@example.com")}]);
                let group = json!({"name": format!("of {tenant}"), "external_id": "x", "members": members});
                let answer = client.put("/api/v1/group").json(&group).send().await;
                assert!([200, 201].contains(&answer.status.as_u16()), "{answer:?}");
            }
            _ => {
                let groups = client.get("/api/v1/group?managed=1").send().await.json();
                let names = groups["data"].as_array().expect("a list").iter().map(|group| group["name"].clone());
                assert!(names.into_iter().all(|name| name == format!("of {tenant}")), "{groups}");
            }
        }
    });
    join_all(calls).await;
    backends_once(&database, 2).await;
    let open = r#"formgate_database_connections{database="postgres",state="open"}"#;
    assert_eq!(operator_count(operator, open).await, 2);
    for tenant in 0..TENANTS {
        let names = format!("SELECT name FROM s{tenant}.groups WHERE external_id IS NOT NULL");
        let names = texts(&database, names).await;
        assert_eq!(names, [format!("of {tenant}")]);
    }
}

/// A table that is missing in a tenant's schema is not looked for in another one, not even in `public`.
#[tokio::test]
async fn a_name_is_resolved_in_the_schema_of_the_tenant_only() {
    let database = Postgres::database();
    let site = sharing(&database, 2, 1);
    site.migrate();
    for tenant in 0..2 {
        site.import(&slug(tenant), &submissions(&["word"]));
    }
    Postgres::execute_in(&database, "CREATE TABLE public.forms AS SELECT * FROM s0.forms");
    let token = site.token(&slug(1), "tests");
    let node = site.start();
    let first = node.client().to(&site.host(&slug(0))).with(&site.token(&slug(0), "tests"));
    let second = node.client().to(&site.host(&slug(1))).with(&token);
    for client in [&first, &second] {
        assert_eq!(client.get("/api/v1/form").send().await.json()["data"].as_array().map(Vec::len), Some(1));
    }
    Postgres::execute_in(&database, "DROP TABLE s1.forms CASCADE");
    let answer = second.get("/api/v1/form").send().await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(first.get("/api/v1/form").send().await.status, 200);
}

/// A statement that the server knows by name is planned for the columns of that time.
#[tokio::test]
async fn what_an_operator_does_to_a_schema_causes_no_500() {
    let database = Postgres::database();
    let site = sharing(&database, 1, 1);
    site.migrate();
    site.import(&slug(0), &submissions(&["word"]));
    let token = site.token(&slug(0), "tests");
    let node = site.start();
    let client = node.client().to(&site.host(&slug(0))).with(&token);
    let call = async || client.get("/api/v1/form/for_1").send().await.status.as_u16();
    let until_served = async || {
        let began = Instant::now();
        loop {
            match call().await {
                200 => return,
                503 => assert!(began.elapsed() < Duration::from_secs(30), "it is not served again"),
                status => panic!("{status}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert_eq!(call().await, 200);
    for kind in ["varchar(300)", "text"] {
        Postgres::execute_in(&database, &format!("ALTER TABLE s0.elements ALTER COLUMN name TYPE {kind}"));
        until_served().await;
    }
    Postgres::execute_in(&database, "ALTER SCHEMA s0 RENAME TO away");
    assert_eq!(call().await, 503);
    Postgres::execute_in(&database, "ALTER SCHEMA away RENAME TO s0");
    until_served().await;
}

/// A process of the server keeps the description of each table that it has used. Background tasks look at all schemas as
/// well, so their number decides, and not who was called.
#[tokio::test]
async fn a_connection_that_has_served_many_schemas_is_replaced() {
    for (tenants, is_replaced) in [(60, false), (102, true)] {
        let database = Postgres::database();
        let site = sharing(&database, tenants, 1);
        assert_eq!(site.run(&["migrate", "--tenant", &slug(0)], b"").code, 0);
        let token = site.token(&slug(0), "tests");
        let node = site.start();
        let call = async |tenant: usize| {
            node.client().to(&site.host(&slug(tenant))).with(&token).get("/api/v1/form").send().await.status.as_u16()
        };
        assert_eq!(call(0).await, 200);
        let first = backends_once(&database, 1).await;
        for tenant in 1..tenants {
            // It has no tables yet, which only its schema can show.
            assert_eq!(call(tenant).await, 503);
        }
        assert_eq!(call(0).await, 200);
        assert_eq!(backends_once(&database, 1).await != first, is_replaced, "{tenants} schemas");
    }
}

/// A tenant that leaves does not take the shared connection with it.
#[tokio::test]
async fn a_tenant_that_is_removed_leaves_the_others_their_connection() {
    let database = Postgres::database();
    let site = sharing(&database, 3, 1);
    site.migrate();
    let tokens: Vec<_> = (0..3).map(|tenant| site.token(&slug(tenant), "tests")).collect();
    let mut node = site.start();
    let client = node.client();
    let call = async |tenant: usize| {
        let client = client.to(&site.host(&slug(tenant))).with(&tokens[tenant]);
        client.get("/api/v1/form").send().await.status.as_u16()
    };
    for tenant in 0..3 {
        assert_eq!(call(tenant).await, 200);
    }
    let before = backends_once(&database, 1).await;
    let text = std::fs::read_to_string(&site.config_path).expect("it was written");
    let mut config: toml::Table = text.parse().expect("TOML");
    config["tenant"].as_array_mut().expect("a list").truncate(2);
    std::fs::write(&site.config_path, config.to_string()).expect("it can be written");
    node.wait_for_lines(Duration::from_secs(30), "the configuration is reloaded", 1);
    assert_eq!(call(0).await, 200);
    // That of the tenant that was removed may not have ended yet.
    assert_eq!(backends_once(&database, 1).await, before);
}
