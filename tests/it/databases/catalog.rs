//! What the catalog of a migrated Postgres database says, which is a file of the program: inspections compare databases with it.

use std::path::{Path, PathBuf};

use formgate::store::{DatabaseLocation, read_catalog};

use super::restored::run;
use crate::support::fixture::{self, Engine};
use crate::support::folder;
use crate::support::postgres::{Postgres, Version};

/// Set to anything, it has the test write the file.
const WRITE: &str = "FORMGATE_WRITE_CATALOG";

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/schema/postgres.tsv")
}

async fn catalog(url: &str) -> String {
    let location = DatabaseLocation::parse(url, Path::new("/")).expect("a URL of a server");
    read_catalog(&location).await.expect("the database is migrated")
}

/// Other versions print the same definitions, and so does another schema.
#[tokio::test]
async fn the_file_of_the_catalog_is_what_every_version_says_of_a_migrated_database() {
    let database = Engine::Postgres.database(Path::new(""), "");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(file(), catalog(&database).await).expect("the source can be written");
    }
    let expected = std::fs::read_to_string(file()).expect("the source is there");
    let schema = Postgres::new_schema();
    fixture::migrate(&schema);
    for url in [
        database,
        schema,
        Postgres::of_version(Version::V17).new_migrated_database(),
        Postgres::of_version(Version::V18).new_migrated_database(),
    ] {
        let found = catalog(&url).await;
        let other: Vec<_> = found.lines().filter(|line| !expected.lines().any(|known| known == *line)).collect();
        assert!(found == expected, "{url}: run this test with {WRITE}=1; what is new: {other:#?}");
    }
}

/// Definitions that Postgres has read once as it printed them.
#[tokio::test]
async fn a_restored_dump_has_the_same_catalog() {
    let url = Engine::Postgres.database(Path::new(""), "");
    let restored = Postgres::database();
    let dump = folder::of_this_run().join("catalog.sql");
    let dump = dump.to_str().expect("the temporary folder has a UTF-8 name");
    run("pg_dump", &["--file", dump, "--dbname", &url]);
    run("psql", &["--quiet", "--set=ON_ERROR_STOP=1", "--file", dump, "--dbname", &restored]);
    assert_eq!(catalog(&restored).await, catalog(&url).await);
}
