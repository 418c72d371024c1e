//! A database that several accounts share, each with a schema of its own: none is ever served another's.

use super::{find, submissions};
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
