//! How far each node has got in reading the registry.
//!
//! A node writes its row whenever it has applied changes, and every few seconds. Each time it writes something random,
//! and compares it at its next look: if the row has something else, the registry was restored to an earlier state, whose
//! revisions may mean other changes.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::Registry;
use crate::store::StoreError;
use crate::store::statement::Row;

/// How often it is looked how far the nodes are, for a caller that waits.
///
/// Larger: callers wait longer than they have to. Smaller: more statements.
const WAIT_INTERVAL: Duration = Duration::from_millis(50);

/// Where the registry is, as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The revision of the last change.
    pub revision: i64,
    /// Another one after a restore.
    pub epoch: String,
}

/// What a node writes about itself.
#[derive(Clone, Debug)]
pub struct Beat {
    /// The node: one process, until it ends.
    pub id: String,
    /// Its host and process, for people.
    pub name: String,
    /// The version of its program.
    pub version: &'static str,
    /// Up to here it has applied every change.
    pub revision: i64,
    /// The tenants whose rows it can't read.
    pub refused: Vec<String>,
    /// Something that no other beat has.
    pub beat: String,
    /// The ids of the keys that seal private keys, that of the key that seals first.
    pub seal_keys: Vec<String>,
    /// When it started.
    pub started_at: Timestamp,
}

/// A node, as it last wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// One process, until it ends.
    pub id: String,
    /// Its host and process.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// Up to here it has applied every change.
    pub revision: i64,
    /// The tenants whose rows it can't read.
    pub refused: Vec<String>,
    /// The ids of the keys that seal private keys, that of the key that seals first. `None` for a node of an earlier
    /// version, which does not write them.
    pub seal_keys: Option<Vec<String>>,
    /// When it started.
    pub started_at: Timestamp,
    /// When it last wrote, by the clock of the registry.
    pub seen_at: Timestamp,
    /// Whether that was within the time after which a node counts as gone. An instant that is still ahead is from before the
    /// clock was set back, and a node that lives writes another one soon.
    pub is_live: bool,
}

/// A node that does not serve a change, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeBehind {
    /// One process, until it ends.
    pub id: String,
    /// Its host and process.
    pub name: String,
    /// In a few words.
    pub reason: String,
}

impl NodeRecord {
    /// Why a live node does not serve the changes of these tenants up to a revision.
    fn behind(&self, revision: i64, slugs: &[&str]) -> Option<NodeBehind> {
        let refused = slugs.iter().find(|slug| self.refused.iter().any(|refused| refused == *slug));
        let reason = match refused {
            _ if !self.is_live => return None,
            _ if self.revision < revision => format!("it is at revision {}", self.revision),
            Some(slug) => format!("it can't serve the row of `{slug}`; its log has the reason"),
            None => return None,
        };
        Some(NodeBehind { id: self.id.clone(), name: self.name.clone(), reason })
    }

    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            version: row.get(2)?,
            revision: row.get(3)?,
            refused: serde_json::from_str(&row.get::<String>(4)?).unwrap_or_default(),
            seal_keys: row.get::<Option<String>>(5)?.and_then(|keys| serde_json::from_str(&keys).ok()),
            started_at: row.get(6)?,
            seen_at: row.get(7)?,
            is_live: row.get(8)?,
        })
    }
}

impl Registry {
    /// How long a node that no longer writes counts as live.
    ///
    /// Larger: callers wait longer for a node that died. Smaller: a node that stalls for a moment is not waited for.
    pub const LIVE: Duration = Duration::from_secs(15);

    /// How long a node that no longer writes is listed.
    ///
    /// Larger: the list is longer. Smaller: an operator looks for a node of last night in vain.
    const LISTED: Duration = Duration::from_hours(24);

    /// Where the registry is.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn head(&self) -> Result<Head, StoreError> {
        Ok(self.look().await?.0)
    }

    /// Where the registry is, and the last beat of each node.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn look(&self) -> Result<(Head, HashMap<String, String>), StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT registry_head.revision, epoch, registry_nodes.id, beat FROM registry_head LEFT JOIN registry_nodes ON true");
        let rows = reader.fetch_all(sql).await?;
        let head = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let head = Head { revision: head.get(0)?, epoch: head.get(1)? };
        let beat = |row: &Row| Ok(row.get::<Option<String>>(2)?.zip(row.get::<Option<String>>(3)?));
        let beats = rows.iter().filter_map(|row| beat(row).transpose()).collect::<Result<_, sqlx::Error>>()?;
        Ok((head, beats))
    }

    /// Writes how far a node has got.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn write_beat(&self, beat: &Beat) -> Result<(), StoreError> {
        let mut sql = self.database.sql();
        sql.push(
            "INSERT INTO registry_nodes (id, name, version, revision, refused, seal_keys, beat, started_at, seen_at) \
             VALUES (",
        );
        sql.bind(beat.id.as_str()).push(", ").bind(beat.name.as_str()).push(", ").bind(beat.version).push(", ");
        let list = |texts: &[String]| serde_json::to_string(texts).expect("texts are always JSON");
        sql.bind(beat.revision).push(", ").bind(list(&beat.refused)).push(", ").bind(list(&beat.seal_keys)).push(", ");
        sql.bind(beat.beat.as_str()).push(", ");
        sql.bind(beat.started_at).push(", ").push_now_plus(Duration::ZERO);
        sql.push(") ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, refused = excluded.refused, ");
        sql.push("beat = excluded.beat, seen_at = excluded.seen_at");
        self.database.execute(sql).await?;
        Ok(())
    }

    /// Forgets nodes that are gone for long, but none of `running`, whatever the clock.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn forget_gone_nodes(&self, running: &[String]) -> Result<(), StoreError> {
        let mut sql = self.database.sql();
        sql.push("DELETE FROM registry_nodes WHERE seen_at NOT BETWEEN ").push_now_minus(Self::LISTED);
        sql.push(" AND ").push_now_plus(Self::LISTED).push(" AND NOT (id").in_texts(running).push(")");
        self.database.execute(sql).await?;
        Ok(())
    }

    /// Removes a node that stops.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn forget_node(&self, node: &str) -> Result<(), StoreError> {
        let mut sql = self.database.sql();
        sql.push("DELETE FROM registry_nodes WHERE id = ").bind(node);
        self.database.execute(sql).await?;
        Ok(())
    }

    /// The nodes, the last one that wrote first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT id, name, version, revision, refused, seal_keys, started_at, seen_at, seen_at BETWEEN ");
        sql.push_now_minus(Self::LIVE).push(" AND ").push_now_plus(Self::LIVE);
        sql.push(" FROM registry_nodes ORDER BY name, id");
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(NodeRecord::read).collect::<Result<_, _>>()?)
    }

    /// Waits until every live node serves the changes of these tenants up to a revision. Returns the others. A node
    /// that `is_running` by what the caller has seen of it is live too: after a step of the clock, all rows seem to be old.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn wait_for_nodes(
        &self,
        revision: i64,
        slugs: &[&str],
        wait: Duration,
        is_running: impl Fn(&str) -> bool,
    ) -> Result<Vec<NodeBehind>, StoreError> {
        let deadline = Instant::now() + wait;
        loop {
            let mut nodes = self.nodes().await?;
            nodes.iter_mut().for_each(|node| node.is_live |= is_running(&node.id));
            // A node that can't serve a tenant will not learn it by waiting.
            let is_final = nodes.iter().all(|node| !node.is_live || node.revision >= revision);
            if is_final || Instant::now() >= deadline {
                return Ok(nodes.iter().filter_map(|node| node.behind(revision, slugs)).collect());
            }
            sleep(WAIT_INTERVAL).await;
        }
    }
}
