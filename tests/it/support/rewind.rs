//! A database that goes back to an earlier state while nodes use it, as a standby that was promoted does: the newest commits
//! are gone, and nobody is told.

use super::database::Database;

/// What goes back, in the order in which rows may be inserted. Search tables are derived again.
const TABLES: [&str; 9] = [
    "submissions",
    "answers",
    "submission_labels",
    "submission_changes",
    "submission_moves",
    "change_stamps",
    "form_placements",
    "form_notes",
    "intake",
];

/// A state to go back to.
pub(crate) struct Rewind<'d> {
    database: &'d Database,
}

impl<'d> Rewind<'d> {
    /// Keeps the state of now.
    pub(crate) async fn to_now(database: &'d Database) -> Self {
        let mut text = begin(database);
        for table in TABLES.into_iter().chain(["forms", "change_state", "subscriptions"]) {
            text += &format!("CREATE TABLE kept_{table} AS SELECT * FROM {table}; ");
        }
        database.execute(&format!("{text} COMMIT")).await;
        Self { database }
    }

    /// Loses everything that was committed since. Forms and subscriptions that were created since stay.
    pub(crate) async fn go_back(self) {
        let mut text = begin(self.database);
        for table in TABLES.into_iter().rev() {
            text += &format!("DELETE FROM {table}; ");
        }
        for (table, columns) in
            [("forms", &["graduated", "parent_id"][..]), ("subscriptions", &["position", "done_beyond"])]
        {
            for column in columns {
                text += &format!(
                    "UPDATE {table} SET {column} = (SELECT k.{column} FROM kept_{table} k WHERE k.id = {table}.id) \
                     WHERE id IN (SELECT id FROM kept_{table}); "
                );
            }
        }
        for column in ["epoch", "last_seq", "forgotten_seq", "unstamped_seq", "released_seq"] {
            text += &format!("UPDATE change_state SET {column} = (SELECT k.{column} FROM kept_change_state k); ");
        }
        for table in TABLES {
            // The triggers note what is inserted, but the kept notes were all.
            if ["intake", "form_notes"].contains(&table) {
                text += &format!("DELETE FROM {table}; ");
            }
            text += &format!("INSERT INTO {table} SELECT * FROM kept_{table}; ");
        }
        for table in TABLES.into_iter().chain(["forms", "change_state", "subscriptions"]) {
            text += &format!("DROP TABLE kept_{table}; ");
        }
        // Has the search tables derived again.
        self.database.execute(&format!("{text} INSERT INTO intake DEFAULT VALUES; COMMIT")).await;
        if matches!(self.database, Database::Sqlite(_)) {
            self.database.execute("PRAGMA foreign_keys = ON").await;
        }
    }
}

/// Begins a transaction while nobody settles or sends, and whose rows of the log are no dump's. What writers without foreign
/// keys or without triggers left goes back too.
///
/// A server that loses commits ends every statement first. Here, without the lock of the table, a sender's UPDATE that waits for
/// a row that goes back would decide by the log of before, and write its position into the state of after.
fn begin(database: &Database) -> String {
    match database {
        Database::Postgres(_) => {
            "BEGIN; SET LOCAL formgate.numbers = 'on'; SET LOCAL session_replication_role = replica; \
            SELECT pg_advisory_xact_lock(\
            hashtextextended(coalesce(current_schema(), ''), 7310577365311121507)); \
            LOCK TABLE subscriptions IN ACCESS EXCLUSIVE MODE; "
                .to_owned()
        }
        Database::Sqlite(_) => "PRAGMA busy_timeout = 20000; PRAGMA foreign_keys = OFF; BEGIN IMMEDIATE; ".to_owned(),
    }
}
