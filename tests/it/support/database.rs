//! SQL on a tenant's database, past the API: what another program beside formgate writes, and what only a look at the
//! rows can prove.

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, PgPool, SqlitePool};

use super::postgres::Postgres;

/// A connection to a tenant's database.
pub(crate) enum Database {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// The URL of a database on the server itself, for one through the shared PgBouncer.
fn past_the_pooler(url: &str) -> String {
    match url.strip_suffix("?pooler=transaction").and_then(|url| url.rsplit_once('/')) {
        Some((_, name)) => Postgres::shared().url(name),
        None => url.to_owned(),
    }
}

/// The tables that a write of a group may write.
const GROUP_TABLES: [&str; 3] = ["groups", "group_members", "users"];

impl Database {
    /// Connects to the database of a configuration's URL.
    pub(crate) async fn connect(url: &str) -> Self {
        match url.strip_prefix("sqlite:") {
            Some(path) => {
                let options = SqliteConnectOptions::new().filename(path).foreign_keys(true);
                let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await;
                Self::Sqlite(pool.expect("the database's file is there"))
            }
            None => {
                let url = past_the_pooler(url);
                // What `schema` does for formgate, the search path does for other programs.
                let (url, schema) = url.split_once("?schema=").unwrap_or((&url, "public"));
                let options: PgConnectOptions = url.parse().expect("a URL of a server");
                let options = options.options([("search_path", schema)]);
                let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await;
                Self::Postgres(pool.expect("the database's server is there"))
            }
        }
    }

    /// Disconnects.
    pub(crate) async fn close(self) {
        match self {
            Self::Postgres(pool) => pool.close().await,
            Self::Sqlite(pool) => pool.close().await,
        }
    }

    /// Runs statements.
    pub(crate) async fn execute(&self, statements: &str) {
        self.try_execute(statements).await.unwrap_or_else(|error| panic!("{statements}: {error}"));
    }

    /// Runs statements that the database may refuse.
    pub(crate) async fn try_execute(&self, statements: &str) -> Result<(), sqlx::Error> {
        let text = AssertSqlSafe(statements.to_owned());
        match self {
            Self::Postgres(pool) => sqlx::raw_sql(text).execute(pool).await.map(drop),
            Self::Sqlite(pool) => sqlx::raw_sql(text).execute(pool).await.map(drop),
        }
    }

    /// Runs a statement, and returns how many rows it changed.
    pub(crate) async fn change(&self, statement: &str) -> u64 {
        let text = AssertSqlSafe(statement.to_owned());
        let changed = match self {
            Self::Postgres(pool) => sqlx::raw_sql(text).execute(pool).await.map(|done| done.rows_affected()),
            Self::Sqlite(pool) => sqlx::raw_sql(text).execute(pool).await.map(|done| done.rows_affected()),
        };
        changed.unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// An instant, in hours from now.
    pub(crate) fn in_hours(&self, hours: i64) -> String {
        match self {
            Self::Postgres(_) => format!("(now() + {hours} * interval '1 hour')"),
            Self::Sqlite(_) => format!("((CAST(strftime('%s', 'now') AS INTEGER) + {hours} * 3600) * 1000000)"),
        }
    }

    /// Adds users with these ids and addresses, but for those whose id or address is taken.
    pub(crate) async fn add_users(&self, users: impl IntoIterator<Item = (i64, String)>) {
        let row = |(id, email): (i64, String)| match self {
            Self::Postgres(_) => format!("({id}, '{email}')"),
            // A trigger could fold only ASCII, and not where a row is left out for a conflict.
            Self::Sqlite(_) => format!("({id}, '{email}', '{}')", email.to_lowercase()),
        };
        let rows: Vec<String> = users.into_iter().map(row).collect();
        let columns = if let Self::Postgres(_) = self { "id, email" } else { "id, email, email_folded" };
        self.execute(&format!("INSERT INTO users ({columns}) VALUES {} ON CONFLICT DO NOTHING", rows.join(", "))).await;
    }

    /// The integers in the first row of an answer.
    pub(crate) async fn integers<const N: usize>(&self, query: &str) -> [i64; N] {
        use sqlx::Row;
        let text = AssertSqlSafe(query.to_owned());
        let row: Result<Vec<i64>, sqlx::Error> = match self {
            Self::Postgres(pool) => {
                let row = sqlx::query(text).fetch_one(pool).await;
                row.and_then(|row| (0..N).map(|column| row.try_get(column)).collect())
            }
            Self::Sqlite(pool) => {
                let row = sqlx::query(text).fetch_one(pool).await;
                row.and_then(|row| (0..N).map(|column| row.try_get(column)).collect())
            }
        };
        row.unwrap_or_else(|error| panic!("{query}: {error}")).try_into().expect("as many columns as were read")
    }

    /// The text in the first row of an answer.
    pub(crate) async fn text(&self, query: &str) -> String {
        let text = AssertSqlSafe(query.to_owned());
        let value = match self {
            Self::Postgres(pool) => sqlx::query_scalar(text).fetch_one(pool).await,
            Self::Sqlite(pool) => sqlx::query_scalar(text).fetch_one(pool).await,
        };
        value.unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// The text in each row of an answer.
    pub(crate) async fn texts(&self, query: &str) -> Vec<String> {
        let text = AssertSqlSafe(query.to_owned());
        let values = match self {
            Self::Postgres(pool) => sqlx::query_scalar(text).fetch_all(pool).await,
            Self::Sqlite(pool) => sqlx::query_scalar(text).fetch_all(pool).await,
        };
        values.unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// The steps of SQLite's plan for a statement, whose values may be anything.
    pub(crate) async fn steps(&self, statement: &str) -> Result<Vec<String>, sqlx::Error> {
        use sqlx::Row;
        let Self::Sqlite(pool) = self else { panic!("Postgres has plans of another form") };
        let rows = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"))).fetch_all(pool).await?;
        rows.iter().map(|row| row.try_get("detail")).collect()
    }

    /// Begins to count the rows that anybody inserts, updates or deletes in the tables of groups and users: triggers see
    /// each, one that stays as it was too.
    pub(crate) async fn count_row_writes(&self) {
        self.execute("CREATE TABLE row_writes (what text)").await;
        if let Self::Postgres(_) = self {
            self.execute(
                "CREATE FUNCTION note_row_write() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN INSERT INTO row_writes VALUES (TG_OP || ' ' || TG_TABLE_NAME); RETURN NULL; END $$",
            )
            .await;
        }
        for table in GROUP_TABLES {
            for event in ["INSERT", "UPDATE", "DELETE"] {
                let action = match self {
                    Self::Postgres(_) => "FOR EACH ROW EXECUTE FUNCTION note_row_write()".to_owned(),
                    Self::Sqlite(_) => format!("BEGIN INSERT INTO row_writes VALUES ('{event} {table}'); END"),
                };
                self.execute(&format!("CREATE TRIGGER note_{event}_{table} AFTER {event} ON {table} {action}")).await;
            }
        }
    }

    /// How many rows were written since [`Self::count_row_writes`].
    pub(crate) async fn row_writes(&self) -> i64 {
        let [count] = self.integers("SELECT count(*) FROM row_writes").await;
        count
    }
}
