//! `pg_trgm` in a schema that is not on the search path, as some providers have it.

use super::{find, submissions};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site};
use crate::support::postgres::Postgres;

/// A database whose owner may not create extensions where they are; the URL for that role.
async fn database_with_extension(rights: &str) -> (Database, String) {
    let url = Postgres::database();
    let database = Database::connect(&url).await;
    database
        .execute(&format!(
            "DO $$ BEGIN CREATE ROLE trigram_owner LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$; \
             GRANT ALL ON SCHEMA public TO trigram_owner; CREATE SCHEMA extensions; \
             CREATE EXTENSION pg_trgm SCHEMA extensions; {rights}"
        ))
        .await;
    (database, url.replace("postgres@", "trigram_owner@"))
}

/// A site on it that is migrated and filled, and whose searches find what they should.
async fn searched(url: &str) -> Site {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", url)).write();
    site.migrate();
    site.import("acme", &submissions(&["Holiday in Zürich", "Sick"]));
    let reindexed = site.run(&["reindex", "--tenant", "acme"], b"");
    assert_eq!(reindexed.code, 0, "{reindexed:?}");
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
    assert_eq!(find(&client, "liday").await, 1);
    site
}

const INDEX: &str = "SELECT count(*) FROM pg_indexes WHERE indexname = 'listed_documents_trigrams'";

#[tokio::test]
async fn in_a_separate_schema_the_index_is_created_and_used() {
    let (database, url) = database_with_extension("GRANT USAGE ON SCHEMA extensions TO trigram_owner").await;
    let site = searched(&url).await;
    let plan = "EXPLAIN SELECT 1 FROM listed_documents WHERE least(octet_length(document), 4194305) <> 4194305 AND document LIKE '%liday%'";
    database.execute("SET enable_seqscan = off").await;
    let plan = database.texts(plan).await.join("\n");
    assert!(plan.contains("listed_documents_trigrams"), "{plan}");
    database.execute("DROP INDEX listed_documents_trigrams").await;
    assert_eq!(site.run(&["reindex", "--tenant", "acme"], b"").code, 0);
    assert_eq!(database.integers(INDEX).await, [1], "reindex makes it again");
    database.execute("CREATE SCHEMA elsewhere; ALTER EXTENSION pg_trgm SET SCHEMA elsewhere").await;
    assert_eq!(site.run(&["reindex", "--tenant", "acme"], b"").code, 0);
    assert_eq!(database.integers(INDEX).await, [1], "the index outlives a move of the extension");
}

#[tokio::test]
async fn in_a_schema_that_the_role_may_not_use_searches_read_everything() {
    let (database, url) = database_with_extension("REVOKE ALL ON SCHEMA extensions FROM PUBLIC").await;
    searched(&url).await;
    assert_eq!(database.integers(INDEX).await, [0]);
}
