//! SQL on an account's database, as another program next to formgate writes it.

use std::path::Path;

use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::accounts::FORMS;

/// A connection.
pub(crate) enum Database {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Database {
    pub(crate) async fn sqlite(path: &Path) -> anyhow::Result<Self> {
        Ok(Self::Sqlite(SqliteConnectOptions::new().filename(path).connect().await?))
    }

    pub(crate) async fn postgres(url: &str) -> anyhow::Result<Self> {
        Ok(Self::Postgres(PgConnection::connect(url).await?))
    }

    /// Runs statements.
    pub(crate) async fn execute(&mut self, statements: &str) -> anyhow::Result<()> {
        let text = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
        match self {
            Self::Sqlite(connection) => text.execute(connection).await.map(drop)?,
            Self::Postgres(connection) => text.execute(connection).await.map(drop)?,
        }
        Ok(())
    }

    /// Inserts submissions with these ids and all their answers in one transaction, of one form after the other.
    pub(crate) async fn insert(&mut self, ids: std::ops::Range<usize>) -> anyhow::Result<()> {
        let now = jiff::Timestamp::now().as_microsecond();
        let at = match self {
            Self::Sqlite(_) => now.to_string(),
            Self::Postgres(_) => format!("to_timestamp({now} / 1e6)"),
        };
        let numbers = format!(
            "WITH RECURSIVE n(id) AS (SELECT CAST({} AS bigint) UNION ALL SELECT id + 1 FROM n WHERE id + 1 < {})",
            ids.start, ids.end
        );
        let form = format!("n.id % {FORMS} + 1");
        self.execute(&format!(
            "BEGIN; \
             INSERT INTO submissions (id, form_id, status, created_at, updated_at, draft) \
             {numbers} SELECT n.id, {form}, 'pending', {at}, {at}, FALSE FROM n; \
             INSERT INTO answers (submission_id, element_id, value, updated_at) \
             {numbers} SELECT n.id, e.id, 'Answer ' || e.position || ' of ' || n.id || ', some words long', {at} \
             FROM n JOIN elements e ON e.form_id = {form}; \
             COMMIT"
        ))
        .await
    }

    /// Does what autovacuum does in time on a server that runs all day.
    pub(crate) async fn analyze(&mut self) -> anyhow::Result<()> {
        if let Self::Postgres(_) = self {
            self.execute("VACUUM ANALYZE").await?;
        }
        Ok(())
    }
}
