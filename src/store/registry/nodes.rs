//! How far each node has got in reading the registry.
//!
//! A node writes its row whenever it has applied changes, and every few seconds: its revision with its stamp, so that the
//! row of a node that follows another history of the registry says nothing. Each time it writes something random, and
//! compares it at its next look: if the row has something else, the registry was restored.

mod record;

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::Registry;
use super::databases::{SharedDatabase, read_shared, shared};
use super::keeping::{KeepingNode, RECENT};
use super::moves::{SeenMove, open_moves, read_open};
use super::stamps::{RegistryMark, has_history, head_stamp, stamp_of};
use crate::store::StoreError;
use crate::store::statement::{Sql, sql};
pub use record::{NodeBehind, NodeRecord};

/// How often it is looked how far the nodes are, for a caller that waits.
///
/// Larger: callers wait longer than they have to. Smaller: more statements.
const WAIT_INTERVAL: Duration = Duration::from_millis(50);

/// Where the registry is, as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The revision of the last change.
    pub revision: i64,
    /// The stamp of the revision: another one after a restore.
    pub stamp: i64,
    /// Another one if it is another registry.
    pub epoch: String,
}

impl Head {
    /// The revision with its stamp.
    #[must_use]
    pub fn mark(&self) -> RegistryMark {
        RegistryMark { revision: self.revision, stamp: self.stamp }
    }
}

/// What a node finds when it looks.
#[derive(Clone, Debug)]
pub struct Look {
    /// Where the registry is.
    pub head: Head,
    /// Whether it has the history of each of the marks.
    pub has: [bool; 2],
    /// The last beat of each node.
    pub beats: HashMap<String, String>,
    /// The nodes that look after tenants.
    pub keeping: Vec<KeepingNode>,
    /// The highest number of [`Registry::subscribed_after`].
    pub subscribed: i64,
    /// The tenants whose databases others have.
    pub shared: Vec<SharedDatabase>,
    /// The accounts that move to other databases.
    pub moves: Vec<SeenMove>,
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
    pub mark: RegistryMark,
    /// The first tenants whose rows it can't read, in alphabetical order, at most [`Self::NAMED`].
    pub refused: Vec<String>,
    /// Why it can't read each of them, in a few words.
    pub reasons: Vec<String>,
    /// How many rows it can't read.
    pub refused_count: i64,
    /// Something that no other beat has.
    pub beat: String,
    /// The ids of the keys that seal private keys, that of the key that seals first.
    pub seal_keys: Vec<String>,
    /// When it started.
    pub started_at: Timestamp,
    /// The tenants that were removed and whose databases it has still open.
    pub closing: Vec<String>,
}

impl Beat {
    /// How many tenants that it can't read a node names.
    ///
    /// Larger: each node writes, and reads of others, a larger row. Smaller: if many can't be read, less is known of which.
    pub const NAMED: usize = 100;
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
        Ok(self.look([RegistryMark::default(); 2]).await?.head)
    }

    /// Where the registry is, whether it has the history of these marks, the last beat of each node, which of them look after
    /// tenants, and which number the last change of subscriptions has: by one statement, since every node looks twice a second.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn look(&self, marks: [RegistryMark; 2]) -> Result<Look, StoreError> {
        let mut reader = self.database.reader().await?;
        let [has_first, has_second] = marks.map(has_history);
        // What is the same for all nodes is read once, not again for each row. One row also without any node.
        let sql = sql!(
            "SELECT head.*, n.id, n.beat, n.unable_mark, n.seen_at BETWEEN head.since AND head.until
             FROM (SELECT registry_head.revision, epoch, {+head_stamp}, {+has_first}, {+has_second},
               (SELECT coalesce(max(number), 0) FROM registry_subscribed), {+shared}, {+open_moves},
               {clock - recent} AS since, {clock + recent} AS until FROM registry_head) AS head
             LEFT JOIN registry_nodes AS n ON TRUE",
            head_stamp = head_stamp(),
            has_first,
            has_second,
            shared = shared(),
            open_moves = open_moves(),
            recent = RECENT,
        );
        let rows = reader.fetch_all(sql).await?;
        let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let head = Head { revision: first.get(0)?, epoch: first.get(1)?, stamp: first.get(2)? };
        let (has, subscribed) = ([first.get(3)?, first.get(4)?], first.get(5)?);
        let shared = read_shared(&first.get::<String>(6)?);
        let moves = read_open(&first.get::<String>(7)?);
        let (mut beats, mut keeping) = (HashMap::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        for row in &rows {
            let Some(id) = row.get::<Option<String>>(10)? else { continue };
            let beat: String = row.get(11)?;
            if let Some(mark) = row.get(12)? {
                keeping.push(KeepingNode { id: id.clone(), beat: beat.clone(), mark, is_recent: row.get(13)? });
            }
            beats.insert(id, beat);
        }
        Ok(Look { head, has, beats, keeping, subscribed, shared, moves })
    }

    /// Writes how far a node has got.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn write_beat(&self, beat: &Beat) -> Result<(), StoreError> {
        let list = |texts: &[String]| serde_json::to_string(texts).expect("texts are always JSON");
        let sql = sql!(
            "INSERT INTO registry_nodes
               (id, name, version, revision, stamp, refused, reasons, refused_count, seal_keys, beat, closing, started_at,
                seen_at)
             VALUES ({id}, {name}, {version}, {revision}, {stamp}, {refused}, {reasons}, {refused_count}, {seal_keys}, {beat},
               {closing}, {started_at}, {clock})
             ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, stamp = excluded.stamp,
               refused = excluded.refused, reasons = excluded.reasons, refused_count = excluded.refused_count, beat = excluded.beat,
               closing = excluded.closing, seen_at = excluded.seen_at",
            id = &beat.id,
            name = &beat.name,
            version = beat.version,
            revision = beat.mark.revision,
            stamp = beat.mark.stamp,
            refused = list(&beat.refused),
            reasons = list(&beat.reasons),
            refused_count = beat.refused_count,
            seal_keys = list(&beat.seal_keys),
            beat = &beat.beat,
            closing = list(&beat.closing),
            started_at = beat.started_at,
        );
        self.database.execute(sql).await?;
        Ok(())
    }

    /// Forgets nodes that are gone for long, but none of `running`, whatever the clock.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn forget_gone_nodes(&self, running: &[String]) -> Result<(), StoreError> {
        let sql = sql!(
            "DELETE FROM registry_nodes
             WHERE seen_at NOT BETWEEN {clock - listed} AND {clock + listed} AND id {not in running}",
            listed = Self::LISTED,
            running,
        );
        self.database.execute(sql).await?;
        Ok(())
    }

    /// Removes a node that stops.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn forget_node(&self, node: &str) -> Result<(), StoreError> {
        self.database.execute(sql!("DELETE FROM registry_nodes WHERE id = {node}", node)).await?;
        Ok(())
    }

    /// The nodes, the last one that wrote first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT id, name, version, CASE WHEN stamp = {+stamp} THEN revision ELSE 0 END, refused, refused_count,
               seal_keys, started_at, seen_at, seen_at BETWEEN {clock - live} AND {clock + live}, reasons, closing
             FROM registry_nodes
             ORDER BY name, id",
            stamp = stamp_of(Sql::text("registry_nodes.revision")),
            live = Self::LIVE,
        );
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
        Ok(self.wait_until(wait, is_running, |node| node.behind(revision, slugs)).await?.1)
    }

    /// Waits until no live node serves a tenant that was removed with a revision, or has its database open. Returns the live nodes
    /// that do, and the names of those that are not live and did not say that they don't.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn wait_for_release(
        &self,
        revision: i64,
        slug: &str,
        wait: Duration,
        is_running: impl Fn(&str) -> bool,
    ) -> Result<(Vec<NodeBehind>, Vec<String>), StoreError> {
        let live = |node: &NodeRecord| node.holds(revision, slug).filter(|_| node.is_live);
        let (nodes, behind) = self.wait_until(wait, is_running, live).await?;
        let silent = nodes.iter().filter(|node| !node.is_live).filter_map(|node| node.holds(revision, slug));
        Ok((behind, silent.map(|node| node.name).collect()))
    }

    /// Waits until no node is behind in a way that changes. Returns all nodes, and those that are behind.
    async fn wait_until(
        &self,
        wait: Duration,
        is_running: impl Fn(&str) -> bool,
        behind: impl Fn(&NodeRecord) -> Option<NodeBehind>,
    ) -> Result<(Vec<NodeRecord>, Vec<NodeBehind>), StoreError> {
        let deadline = Instant::now() + wait;
        loop {
            let mut nodes = self.nodes().await?;
            nodes.iter_mut().for_each(|node| node.is_live |= is_running(&node.id));
            let found: Vec<_> = nodes.iter().filter_map(&behind).collect();
            // A node that can't serve a tenant will not learn it by waiting.
            if found.iter().all(|node| node.is_final) || Instant::now() >= deadline {
                return Ok((nodes, found));
            }
            sleep(WAIT_INTERVAL).await;
        }
    }
}
