//! Runs plain SQL for tests, as an operator's own program would. Not part of the gateway.

use super::location::DatabaseLocation;
use crate::store::statement::Sql;

/// The first column of every row, as text.
pub(crate) async fn select(location: &DatabaseLocation, text: &'static str) -> Vec<String> {
    let database = location.connect_for_maintenance();
    let mut reader = database.reader().await.unwrap();
    let rows = reader.fetch_all(Sql::text(text)).await.unwrap();
    drop(reader);
    database.close().await;
    rows.iter().map(|row| row.get(0).unwrap()).collect()
}

/// Runs one statement.
pub(crate) async fn execute(location: &DatabaseLocation, text: &'static str) {
    let database = location.connect_for_maintenance();
    database.execute(Sql::text(text)).await.unwrap();
    database.close().await;
}
