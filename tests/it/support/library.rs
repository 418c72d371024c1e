//! What a site does to its databases, through the library in the test's own process: a program start for each would
//! cost most tests more than what they test. Commands are tested in `cli`.
//!
//! A database is migrated once for each server, and once for SQLite; every other one is a copy of it.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;

use formgate::import::{self, Imported, OnFault};
use formgate::store::{self, Actor, AuditEntry, DatabaseLocation, Events, Reach, Store, TokenLimits};
use formgate::tenant::token::{self, Created, NewTokenRequest};
use serde_json::json;
use sqlx::{Connection, SqliteConnection};
use tokio::runtime::Builder;

use super::folder;

/// The database of a URL; a relative path starts at the folder.
pub(super) fn location(url: &str, folder: &Path) -> DatabaseLocation {
    DatabaseLocation::parse(url, folder).unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Brings a database to the newest schema; a SQLite file is created.
pub(super) fn migrate(location: &DatabaseLocation) {
    let migrated = wait_for(store::migrate(location, Reach::Served));
    migrated.unwrap_or_else(|error| panic!("{location:?} can't be migrated: {error:?}"));
}

/// A SQLite file at the newest schema, which nothing has open.
pub(super) fn migrated_file() -> &'static Path {
    static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = folder::of_this_run().join("migrated.db");
        migrate(&location(&sqlite_url(&path), Path::new("/")));
        path
    });
    &FILE
}

/// Lets a copy of a database be another one: with the same identity, two tenants are refused as one database; with the same
/// epoch, cursors of one lead into the change log of the other. One statement of Postgres, one of SQLite.
pub(super) const BECOME_ANOTHER: [&str; 2] = [
    "UPDATE database_identity SET id = replace(gen_random_uuid()::text, '-', ''); \
     UPDATE change_state SET epoch = replace(gen_random_uuid()::text, '-', '')",
    "UPDATE database_identity SET id = lower(hex(randomblob(16))); \
     UPDATE change_state SET epoch = lower(hex(randomblob(16)))",
];

/// Copies a SQLite file that nothing has open.
pub(super) fn copy_file(from: &Path, to: &Path) {
    fs::copy(from, to).expect("the folder of this run can be written");
    let url = sqlite_url(to);
    wait_for(async move {
        let mut connection = SqliteConnection::connect(&url).await.expect("the file was just copied");
        let [_, become_another] = BECOME_ANOTHER;
        sqlx::raw_sql(become_another).execute(&mut connection).await.expect("it is at the newest schema");
        connection.close().await.expect("nothing is open");
    });
}

/// Loads NDJSON into a migrated database.
pub(super) fn import(location: &DatabaseLocation, ndjson: &str) {
    let input = Cursor::new(ndjson.to_owned());
    let audited = |_: &Imported| {
        let entry = AuditEntry { action: "import", subject: "standard input".to_owned(), details: json!({}) };
        Some((actor(), entry))
    };
    let imported = wait_for(import::run(location, input, OnFault::Stop, Events::Sent, audited, |_| ()));
    imported.unwrap_or_else(|error| panic!("{location:?} takes no import: {error}"));
}

/// Creates a token in a migrated database. Running nodes are not told.
pub(super) fn create_token(location: &DatabaseLocation, name: &str) -> String {
    let request =
        NewTokenRequest { name: name.to_owned(), expires_at: None, limits: TokenLimits::default(), form_key: None };
    let created = wait_for(async {
        let store = Store::open(location, 1).await?;
        let created = token::create(&store, request, &actor()).await;
        store.close().await;
        created
    });
    match created.unwrap_or_else(|error| panic!("{location:?} takes no token: {error:?}")) {
        Created::New { token, .. } => token.expose().to_owned(),
        Created::Existing { id, .. } => panic!("no form was sent, yet token {id} exists"),
    }
}

fn actor() -> Actor {
    Actor::command("tests")
}

fn sqlite_url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

/// Waits in a thread with a runtime of its own: the caller may be in a test's runtime, and connections are closed when
/// this returns.
fn wait_for<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let on_runtime = || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("threads can be started");
        runtime.block_on(work)
    };
    thread::scope(|scope| scope.spawn(on_runtime).join().expect("the library does not panic"))
}
