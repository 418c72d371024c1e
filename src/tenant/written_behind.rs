//! What requests leave to be written to their tenant's database: noted in memory, and written behind them, together in
//! one transaction.
//!
//! With thousands of SQLite files, what costs is not the write but opening a file for it, and the log that the next
//! close has to write back. So what is due is written right after a request that used the database, while its connection
//! is still open ([`Due::AfterRequest`]). Only if there is no such request for as long again is a connection opened for
//! it ([`Due::Afterwards`]). A normal stop writes everything; a crash loses what was not written. Whenever something is
//! due, everything that is not written yet goes with it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;

use super::last_used::{PAUSE, minute_of};
use super::{TenantDatabase, Tokens};
use crate::store::{NotWritten, Store, Unwritten, with_causes};

/// How many tenants are written concurrently.
///
/// Larger: more connections are opened at once. Smaller: a few databases that hang hold up the rest.
const MAX_CONCURRENT: usize = 32;

/// How long a round of writes waits for the next one to succeed.
///
/// Larger: databases that hang delay a stop. Smaller: slow databases are written at a later attempt.
const LIMIT: Duration = Duration::from_secs(5);

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Uses of tokens not written for an hour. Their request has just ended.
    AfterRequest,
    /// Uses that were due an hour ago.
    Afterwards,
    /// All.
    All,
}

impl Due {
    /// Whether what was last written, or began to wait, this many minutes ago is due.
    pub(super) fn is_reached(self, age: i64) -> bool {
        match self {
            Self::AfterRequest => age >= PAUSE,
            Self::Afterwards => age >= 2 * PAUSE,
            Self::All => true,
        }
    }
}

/// A write of what one tenant's requests left.
#[derive(Debug)]
pub struct WriteBehind {
    slug: Arc<str>,
    tokens: Arc<Tokens>,
    store: Arc<Store>,
    due: Due,
}

impl WriteBehind {
    /// What is due, if anything, while the database is open: recording a use implies that it was opened.
    pub(super) fn find(slug: &Arc<str>, tokens: &Arc<Tokens>, database: &TenantDatabase, due: Due) -> Option<Self> {
        let now = minute_of(Timestamp::now());
        let is_counted_due = || tokens.usage.age(now).is_some_and(|age| due.is_reached(age));
        if !tokens.last_used.is_due(due, now) && !is_counted_due() && !tokens.reads.is_due(due, now) {
            return None;
        }
        Some(Self { slug: Arc::clone(slug), tokens: Arc::clone(tokens), store: database.if_open()?, due })
    }

    /// Writes them. If that fails, they are kept for the next attempt. Returns whether it succeeded.
    pub(super) async fn write(self) -> bool {
        // A task of its own: a caller that stops waiting must not leave the outcome of a commit unknown.
        tokio::spawn(self.write_in_turn()).await.unwrap_or(false)
    }

    async fn write_in_turn(self) -> bool {
        let usage = &self.tokens.usage;
        let _turn = usage.writing.lock().await;
        match self.try_to_write().await {
            Ok(is_written) => is_written,
            Err(error) => {
                if let NotWritten::InDoubt { mark, .. } = error {
                    usage.doubt(Some(mark));
                }
                tracing::warn!(
                    tenant = &*self.slug,
                    cause = with_causes(&error),
                    "uses of tokens not written; they are written at the next attempt"
                );
                false
            }
        }
    }

    async fn try_to_write(&self) -> Result<bool, NotWritten> {
        let Tokens { last_used, usage, reads, .. } = &*self.tokens;
        if let Some(mark) = usage.in_doubt() {
            match self.store.is_committed(mark).await? {
                None => return Ok(false),
                Some(true) => usage.confirm(),
                Some(false) => usage.doubt(None),
            }
        }
        let now = Timestamp::now();
        // Another write may have just finished.
        let unwritten =
            Unwritten { uses: last_used.unwritten(), hours: usage.take(now), reads: reads.take(self.due, now) };
        if unwritten.is_empty() {
            usage.confirm();
            return Ok(true);
        }
        if !self.store.write_behind_if_idle(&unwritten, now).await? {
            let may_open = match self.due {
                // The next request may leave a connection.
                Due::AfterRequest => false,
                Due::Afterwards => last_used.may_open(minute_of(now)),
                Due::All => true,
            };
            if !may_open {
                reads.stay_due();
                return Ok(false);
            }
            self.store.write_behind(&unwritten, now).await?;
        }
        last_used.mark_written(&unwritten.uses);
        usage.confirm();
        reads.confirm();
        Ok(true)
    }
}

/// Carries these writes out.
pub async fn write(writes: Vec<WriteBehind>) {
    // Concurrently: a tenant whose database hangs must not hold up the others.
    let mut written = stream::iter(writes).map(WriteBehind::write).buffer_unordered(MAX_CONCURRENT);
    let mut deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        match tokio::time::timeout_at(deadline, written.next()).await {
            Ok(None) => return,
            Ok(Some(true)) => deadline = tokio::time::Instant::now() + LIMIT,
            Ok(Some(false)) => {}
            Err(_) => {
                tracing::warn!("uses of tokens not written in time; they are written at the next attempt");
                return;
            }
        }
    }
}
