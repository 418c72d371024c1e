//! Which nodes look after tenants: the part of their rows that says so, next to the beat that shows that they live.
//!
//! A node writes what it can't look after when that changes, and reads the lists of the others when their marks do.

use std::time::Duration;

use super::Registry;
use crate::store::StoreError;
use crate::store::statement::sql;

/// How old the last beat of a node may be that counts as living before it was seen to write. It is more than twice as long as
/// the time between two beats.
///
/// Larger: for a moment, a node that starts leaves tenants to one that died. Smaller: to nobody but itself.
pub(super) const RECENT: Duration = Duration::from_secs(5);

/// A node that looks after tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepingNode {
    /// The node.
    pub id: String,
    /// What it wrote last.
    pub beat: String,
    /// Another one whenever the list of tenants changes that it can't look after.
    pub mark: String,
    /// Whether it wrote a moment ago, by the clock of the registry.
    pub is_recent: bool,
}

impl Registry {
    /// The tenants that a node can't look after, with the mark of that list. None if it looks after none.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn unable_of(&self, node: &str) -> Result<Option<(String, Vec<String>)>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql =
            sql!("SELECT unable_mark, unable FROM registry_nodes WHERE unable_mark IS NOT NULL AND id = {node}", node);
        let Some(row) = reader.fetch_optional(sql).await? else { return Ok(None) };
        let list: Option<String> = row.get(1)?;
        Ok(Some((row.get(0)?, serde_json::from_str(&list.unwrap_or_default()).unwrap_or_default())))
    }

    /// Writes what a node can't look after: none of the tenants, or none of a list. Its row is there once it has written a
    /// beat.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn write_unable(&self, node: &str, unable: Option<(&str, &[String])>) -> Result<(), StoreError> {
        let (mark, list) = unable.unzip();
        let list = list.map(|list| serde_json::to_string(list).expect("texts are always JSON"));
        let sql =
            sql!("UPDATE registry_nodes SET unable_mark = {mark}, unable = {list} WHERE id = {node}", mark, list, node);
        self.database.execute(sql).await?;
        Ok(())
    }
}
