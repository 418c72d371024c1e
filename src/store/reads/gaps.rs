//! When reads may be missing: a node that crashed had not written all that it noted.
//!
//! A node that may hold reads of an account has a row in `read_nodes`, from its first write on: what it noted before
//! `written_until` is written. It removes the row with its last write, when it stops or after an hour without reads. If it
//! crashes, the row stays. Another process removes it and records a gap from `written_until` until then: at once if it is on the
//! same host and the process of the row is gone, otherwise once the row is older than [`LONGEST_SILENCE`].
//!
//! A node that has no row writes its first read at once. Only a crash between sending that response and the end of that write
//! leaves no trace.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::process::Process;
use super::{Day, UnwrittenReads};
use crate::instant::Rfc3339Micros;
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::statement::{Row, Sql, sql};

/// After how long without a write a node on another host has crashed. A node that runs writes or removes its row after at
/// most an hour without reads, or retries while its database fails.
///
/// Larger: a crash of a host that never returns is seen later. Smaller: a database that fails for that long becomes a gap.
const LONGEST_SILENCE: SignedDuration = SignedDuration::from_hours(48);

/// What becomes of the row of a node in `read_nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// It may hold reads from now on.
    Open,
    /// What it noted until now is written.
    Touch,
    /// It holds nothing.
    Close,
}

/// A time in which reads may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadGap {
    /// Until then all are there.
    pub from: Timestamp,
    /// From then on all are there.
    pub until: Timestamp,
}

impl ReadGap {
    /// As the API shows it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({ "from": Rfc3339Micros(self.from), "until": Rfc3339Micros(self.until) })
    }
}

/// A node that has not removed its row, though it runs no longer.
struct CrashedNode {
    node: String,
    written_until: Timestamp,
}

/// The nodes that may hold reads.
fn select_nodes() -> Sql {
    sql!("SELECT node, host, process, written_until FROM read_nodes ORDER BY node")
}

/// Those of them that crashed.
fn crashed(rows: &[Row], now: Timestamp) -> Result<Vec<CrashedNode>, sqlx::Error> {
    let mut crashed = Vec::new();
    for row in rows {
        let process = Process { host: row.get(1)?, process: row.get(2)? };
        let written_until: Timestamp = row.get(3)?;
        if process.is_gone() || now.duration_since(written_until) > LONGEST_SILENCE {
            crashed.push(CrashedNode { node: row.get(0)?, written_until });
        }
    }
    Ok(crashed)
}

/// Changes the row of a node.
pub(super) async fn change_node(
    transaction: &mut Transaction,
    of: &UnwrittenReads,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let (node, this) = (&of.node, Process::this());
    let change = match of.change {
        NodeChange::Close => sql!("DELETE FROM read_nodes WHERE node = {node}", node),
        NodeChange::Open | NodeChange::Touch => sql!(
            "INSERT INTO read_nodes (node, host, process, written_until)
             VALUES ({node}, {host}, {process}, {now})
             ON CONFLICT (node) DO UPDATE SET written_until = excluded.written_until",
            node,
            host = &this.host,
            process = &this.process,
            now,
        ),
    };
    transaction.execute(change).await.map(drop)
}

/// Removes the rows of nodes that crashed. Returns their names and gaps, each to one caller.
pub(super) async fn take_crashed(
    transaction: &mut Transaction,
    now: Timestamp,
) -> Result<Vec<(String, ReadGap)>, sqlx::Error> {
    let rows = transaction.fetch_all(select_nodes()).await?;
    let mut gaps = Vec::new();
    for CrashedNode { node, written_until } in crashed(&rows, now)? {
        let delete = sql!("DELETE FROM read_nodes WHERE node = {node}", node = &node);
        if transaction.execute(delete).await? > 0 {
            gaps.push((node, ReadGap { from: written_until, until: now.max(written_until) }));
        }
    }
    Ok(gaps)
}

/// Records a gap. Returns whether it is new.
pub(super) async fn record(
    transaction: &mut Transaction,
    day: Day,
    node: &str,
    gap: ReadGap,
) -> Result<bool, sqlx::Error> {
    let insert = sql!(
        "INSERT INTO read_gaps (day, began, node, ended) VALUES ({day}, {began}, {node}, {ended}) ON CONFLICT DO NOTHING",
        day = day.0,
        began = gap.from,
        node,
        ended = gap.until,
    );
    Ok(transaction.execute(insert).await? > 0)
}

/// Every gap that was recorded, and those of nodes that crashed and whose gap is not recorded yet, the oldest first.
pub(super) async fn list(reader: &mut PooledConnection, now: Timestamp) -> Result<Vec<ReadGap>, sqlx::Error> {
    let recorded = sql!("SELECT began, ended FROM read_gaps ORDER BY began");
    let rows = reader.fetch_all(recorded).await?;
    let mut gaps = Vec::with_capacity(rows.len());
    for row in &rows {
        gaps.push(ReadGap { from: row.get(0)?, until: row.get(1)? });
    }
    let rows = reader.fetch_all(select_nodes()).await?;
    let open = crashed(&rows, now)?.into_iter();
    gaps.extend(open.map(|of| ReadGap { from: of.written_until, until: now.max(of.written_until) }));
    Ok(gaps)
}
