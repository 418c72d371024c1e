//! Upgrades: a later version of formgate migrates a database that nodes of this version serve.
//!
//! The nodes are the program. The later version is the library with made-up migrations after those of the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use formgate::store::{self, DatabaseConcern, DatabaseLocation, MIGRATIONS, Migration, Reach, Store, StoreError};
use serde_json::json;
use sqlx::migrate::MigrateError;
use tokio::task::JoinHandle;

use crate::api::changes::follower::{Follower, all_submissions};
use crate::api::submission::NOTHING_WRONG;
use crate::api::world::{World, ZONE};
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Site, Tenant, on_all_databases, on_both_databases};

/// The version of a database that this program has migrated.
fn now() -> i64 {
    i64::try_from(MIGRATIONS.len()).expect("the list is short")
}

/// What a later version could add: a column, an index and tables. It keeps a table for nodes of the version before, which
/// its second migration removes.
fn later() -> Vec<Migration> {
    let second = "ALTER TABLE submissions ADD COLUMN reviewed_by bigint; \
        CREATE INDEX submissions_reviewed ON submissions (reviewed_by) WHERE reviewed_by IS NOT NULL; \
        CREATE TABLE reviews (submission_id bigint PRIMARY KEY); CREATE TABLE old_reviews (submission_id bigint)";
    let second_on_sqlite = "ALTER TABLE submissions ADD COLUMN reviewed_by INTEGER REFERENCES users; \
        CREATE INDEX submissions_reviewed ON submissions (reviewed_by) WHERE reviewed_by IS NOT NULL; \
        CREATE TABLE reviews (submission_id INTEGER PRIMARY KEY) STRICT; \
        CREATE TABLE old_reviews (submission_id INTEGER) STRICT";
    let third = "DROP TABLE old_reviews";
    let fourth = "CREATE TABLE review_notes (note text)";
    followed_by(&[
        Migration::new("reviews", second, second_on_sqlite),
        Migration::finishing("no old reviews", third, third),
        Migration::new("notes of reviews", fourth, fourth),
    ])
}

/// The migrations of the program, and more.
fn followed_by(more: &[Migration]) -> Vec<Migration> {
    [&MIGRATIONS[..], more].concat()
}

fn location(site: &Site) -> DatabaseLocation {
    DatabaseLocation::parse(site.database_url("acme"), site.folder()).expect("the site has a valid URL")
}

/// Whether the database has a table.
async fn has_table(site: &Site, table: &str) -> bool {
    let database = Database::connect(site.database_url("acme")).await;
    let found = database.try_execute(&format!("SELECT 1 FROM {table}")).await.is_ok();
    database.close().await;
    found
}

/// A caller of one node, which writes, searches and follows the feed until it is stopped.
struct Caller {
    rounds: Arc<AtomicI64>,
    is_stopped: Arc<AtomicBool>,
    calls: JoinHandle<()>,
}

impl Caller {
    /// The caller's submissions are of a form of its own, so that it knows how many a search has to find.
    fn start(client: &Client, database_url: &str, form: i64) -> Self {
        let (rounds, is_stopped) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&rounds), Arc::clone(&is_stopped));
        let (client, url) = (client.clone(), database_url.to_owned());
        let calls = tokio::spawn(async move {
            let database = Database::connect(&url).await;
            database.execute(&format!("INSERT INTO forms (id, name) VALUES ({form}, 'Review')")).await;
            let mut follower = Follower::new(&client, "limit=50");
            while !stopped.load(Ordering::Relaxed) {
                let round = counted.fetch_add(1, Ordering::Relaxed) + 1;
                let id = form * 100_000 + round;
                let columns = "id, form_id, status, created_at, updated_at";
                let values = format!("SELECT {id}, {form}, 'info', created_at, updated_at FROM submissions LIMIT 1");
                database.execute(&format!("INSERT INTO submissions ({columns}) {values}")).await;
                let found = client.post("/api/v1/submission").json(&json!({"forms": [form]})).send().await;
                assert_eq!(found.status, 200, "{found:?}");
                assert_eq!(found.json()["meta"]["total"], round, "{found:?}");
                let members = [json!({"email": format!("{round}@{form}.example.com"), "name": "R"})];
                let group = json!({"name": format!("Reviewers {form}"), "members": members});
                let written = client.put("/api/v1/group").json(&group).send().await;
                assert!(written.status.is_success(), "{written:?}");
                follower.catch_up().await;
                assert!(follower.copy.contains_key(&format!("sub_{id}")), "the feed has what was written");
            }
            follower.catch_up().await;
            assert_eq!(follower.restarts, 0, "the change log goes on");
        });
        Self { rounds, is_stopped, calls }
    }

    /// Waits for two more rounds: the second one began after this call.
    async fn wait(&self) {
        let enough = self.rounds.load(Ordering::Relaxed) + 2;
        while self.rounds.load(Ordering::Relaxed) < enough {
            assert!(!self.calls.is_finished(), "the caller goes on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn stop(self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.calls.await.expect("every call was answered as it should be");
    }
}

on_all_databases! {
    async fn nodes_serve_while_a_later_version_migrates_their_database(engine: Engine) {
        let world = World::new(21, 0, 120);
        let site = Site::new()
            .tenant_with("acme", engine, |tenant| tenant.set("timezone", ZONE))
            .requests_per_minute(100_000)
            .write();
        site.import("acme", &world.ndjson());
        let token = site.token("acme", "tests");
        let nodes = [site.start(), site.start()];
        let clients = nodes.each_ref().map(|node| node.client().to(&site.host("acme")).with(&token));
        let filters: Vec<_> = (1..=5).flat_map(|id| [json!({"labels": [id]}), json!({"forms": [id]})]).collect();
        let callers = [901, 902].map(|form| Caller::start(&clients[(form - 901) as usize], site.database_url("acme"), form));
        for caller in &callers {
            caller.wait().await;
        }

        let (location, later) = (location(&site), later());
        let migrated = store::migrate_by(&later, &location, Reach::Served).await;
        assert_eq!(migrated.expect("a later version migrates"), (now(), now() + 1), "the step that finishes is missing");
        assert!(has_table(&site, "review_notes").await && has_table(&site, "old_reviews").await);
        for (caller, client) in callers.iter().zip(&clients) {
            caller.wait().await;
            world.assert_found(client, filters.clone()).await;
        }
        // A command of this version leaves it as it is.
        let warned = site.run_in_thread(&["migrate", "--finish"]).await;
        assert_eq!((warned.code, warned.stdout), (0, format!("acme: at version {}\n", now() + 3)));
        assert!(warned.stderr.contains(&format!("this program knows versions up to {}", now())), "{}", warned.stderr);
        assert!(has_table(&site, "old_reviews").await);

        let finished = store::migrate_by(&later, &location, Reach::Newest).await;
        assert_eq!(finished.expect("a later version finishes"), (now() + 1, now() + 3));
        assert!(!has_table(&site, "old_reviews").await);
        for caller in callers {
            caller.wait().await;
            caller.stop().await;
        }
        let mut follower = Follower::new(&clients[0], "limit=50");
        follower.catch_up().await;
        assert_eq!(follower.copy, all_submissions(&clients[0], &json!({})).await);
        world.assert_found(&clients[1], filters).await;
        let repaired = site.run_in_thread(&["reindex", "--tenant", "acme"]).await;
        assert_eq!(repaired.stdout, NOTHING_WRONG);
    }

    async fn a_new_database_gets_every_migration_at_once(engine: Engine) {
        let site = Site::new().tenant_with("acme", engine, Tenant::unmigrated).write();
        let migrated = store::migrate_by(&later(), &location(&site), Reach::Served).await;
        assert_eq!(migrated.expect("a later version migrates"), (0, now() + 3));
        assert!(!has_table(&site, "old_reviews").await);
        assert_eq!(site.run_in_thread(&["check"]).await.code, 0, "this version serves it");
    }

    async fn a_second_step_that_was_not_run_is_reported_until_it_is(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let (location, later) = (location(&site), later());
        let concerns = async || {
            let store = Store::open(&location, 1).await.expect("it is served");
            let concerns = store.concerns_by(&later).await.expect("it can be read");
            store.close().await;
            let concerns = concerns.into_iter().filter(|concern| matches!(concern, DatabaseConcern::Unfinished { .. }));
            concerns.collect::<Vec<_>>()
        };
        store::migrate_by(&later, &location, Reach::Served).await.expect("a later version migrates");
        let expected = DatabaseConcern::Unfinished { steps: "no old reviews".to_owned() };
        assert_eq!(concerns().await, std::slice::from_ref(&expected));
        assert!(expected.to_string().ends_with("was not run yet: no old reviews"), "{expected}");
        assert!(expected.remedy("acme").starts_with("run `formgate migrate --finish --tenant acme` once no node"));
        store::migrate_by(&later, &location, Reach::Newest).await.expect("a later version finishes");
        assert_eq!(concerns().await, []);
    }

    async fn later_migrations_at_once_wait_for_each_other(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let (location, later) = (location(&site), later());
        let migrate = || store::migrate_by(&later, &location, Reach::Newest);
        let (first, second, third) = tokio::join!(migrate(), migrate(), migrate());
        for migrated in [first, second, third] {
            let (before, after) = migrated.expect("it waits");
            assert!((now()..=now() + 3).contains(&before) && after == now() + 3, "{before} {after}");
        }
    }
}

on_both_databases! {
    async fn a_failed_migration_changes_nothing(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let half = "CREATE TABLE reviews (id bigint); CREATE TABLE reviews (id bigint)";
        let faulty = followed_by(&[Migration::new("reviews", half, half)]);
        let failed = store::migrate_by(&faulty, &location(&site), Reach::Newest).await.expect_err("the table exists");
        let StoreError::Migration(MigrateError::ExecuteMigration(_, version)) = failed else { panic!("{failed:?}") };
        assert_eq!(version, now() + 1);
        assert!(!has_table(&site, "reviews").await);
        let again = store::migrate_by(&later(), &location(&site), Reach::Newest).await;
        assert_eq!(again.expect("the failed one was rolled back"), (now(), now() + 3));
    }

    async fn a_migration_that_another_build_changed_is_refused(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        store::migrate_by(&later(), &location(&site), Reach::Newest).await.expect("a later version migrates");
        let other = "CREATE TABLE other_reviews (id bigint)";
        let changed = followed_by(&[Migration::new("reviews", other, other)]);
        let refused = store::migrate_by(&changed, &location(&site), Reach::Newest).await.expect_err("another checksum");
        let StoreError::Migration(MigrateError::VersionMismatch(version)) = refused else { panic!("{refused:?}") };
        assert_eq!(version, now() + 1);
        let remedy = store::remedy(&refused, &location(&site), "acme");
        assert!(remedy.starts_with("another build of formgate migrated this database"), "{remedy}");
        assert!(!has_table(&site, "other_reviews").await);
    }

    async fn a_migration_that_was_not_completed_is_refused(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let database = Database::connect(site.database_url("acme")).await;
        let row = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)";
        database.execute(&format!("{row} VALUES ({}, 'reviews', false, '', 0)", now() + 1)).await;
        database.close().await;
        let refused = store::migrate_by(&later(), &location(&site), Reach::Newest).await.expect_err("it is incomplete");
        let StoreError::Migration(MigrateError::Dirty(version)) = refused else { panic!("{refused:?}") };
        assert_eq!(version, now() + 1);
        let output = site.run_in_thread(&["migrate"]).await;
        assert_eq!((output.code, output.stdout), (0, format!("acme: at version {}\n", now())));
    }
}
