//! What requests leave to be written to their tenant's database: noted in memory, and written behind them, together in
//! one transaction.
//!
//! With thousands of SQLite files, what costs is not the write but opening a file for it, and the log that the next
//! close has to write back. So what is due is written right after a request that used the database, while its connection
//! is still open ([`Due::AfterRequest`]). Only if there is no such request for as long again is a connection opened for
//! it ([`Due::Afterwards`]). Times of last use and hours are due after an hour; what administrators look for while
//! something goes wrong, the log of requests, and who was sent what are due after seconds ([`Due::Promptly`],
//! [`super::prompt`]).
//!
//! A normal stop writes everything; a crash loses what was not written. Whenever something is due, everything that is not
//! written yet goes with it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;

use super::last_used::{PAUSE, minute_of};
use super::prompt::{self, MayUse};
use super::{TenantDatabase, Tokens};
use crate::store::{NotWritten, Store, StoreError, Unwritten, with_causes};

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
    /// What is written within seconds.
    Promptly,
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
            Self::Promptly => false,
            Self::Afterwards => age >= 2 * PAUSE,
            Self::All => true,
        }
    }
}

/// Whether any tenant has something that is written within seconds.
#[must_use]
pub fn is_any_prompt() -> bool {
    prompt::is_any_waiting()
}

/// A write of what one tenant's requests left.
#[derive(Debug)]
pub struct WriteBehind {
    slug: Arc<str>,
    tokens: Arc<Tokens>,
    store: Arc<Store>,
    due: Due,
    /// Whether last uses, hours or the first read are due.
    is_hourly_due: bool,
    /// The connection for what is written within seconds. None: nothing of that is due.
    prompt: Option<MayUse>,
}

impl WriteBehind {
    /// What is due, if anything, while the database is open: recording a use implies that it was opened.
    pub(super) fn find(slug: &Arc<str>, tokens: &Arc<Tokens>, database: &TenantDatabase, due: Due) -> Option<Self> {
        if due == Due::Promptly && !tokens.prompt.is_waiting() {
            return None;
        }
        // What is left is written to the database to which the account moves.
        if database.is_held() || database.has_moved() {
            return None;
        }
        let store = database.if_open()?;
        // The first read is written at once: from then on the database knows that this node may hold others.
        if due != Due::All && tokens.prompt.is_pausing() && !tokens.reads.is_first() {
            return None;
        }
        let now = minute_of(Timestamp::now());
        let prompt = tokens.prompt.may_use(due, &store, database.is_file());
        let is_counted_due = || tokens.usage.age(now).is_some_and(|age| due.is_reached(age));
        let is_hourly_due = tokens.last_used.is_due(due, now) || is_counted_due() || tokens.reads.is_due(due, now);
        let is_in_vain = prompt == Some(MayUse::Idle) && !is_hourly_due && !store.has_idle();
        if !is_hourly_due && prompt.is_none() || is_in_vain {
            return None;
        }
        Some(Self { slug: Arc::clone(slug), tokens: Arc::clone(tokens), store, due, is_hourly_due, prompt })
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
                let is_first = self.tokens.prompt.failed(&self.store);
                let (tenant, cause) = (&*self.slug, with_causes(&error));
                // A database that is unavailable is reported by those who found out, and another one once.
                let is_reported = matches!(error, NotWritten::Failed(StoreError::Resting | StoreError::Busy));
                if is_first && !is_reported {
                    tracing::warn!(
                        tenant,
                        cause,
                        "what requests left is not written; it is written at a later attempt"
                    );
                } else {
                    tracing::debug!(
                        tenant,
                        cause,
                        "what requests left is not written; it is written at a later attempt"
                    );
                }
                false
            }
        }
    }

    async fn try_to_write(&self) -> Result<bool, NotWritten> {
        let usage = &self.tokens.usage;
        if let Some(mark) = usage.in_doubt() {
            match self.store.is_committed(mark).await? {
                None => return Ok(false),
                Some(true) => usage.confirm(),
                Some(false) => usage.doubt(None),
            }
        }
        let since = self.tokens.prompt.take();
        let written = self.write_taken().await;
        if !matches!(written, Ok(true)) {
            self.tokens.prompt.put_back(since);
        }
        written
    }

    async fn write_taken(&self) -> Result<bool, NotWritten> {
        let Tokens { last_used, usage, requests, reads, prompt, .. } = &*self.tokens;
        let now = Timestamp::now();
        let uses = last_used.unwritten();
        // Adding to the row of an hour takes several statements: once a minute is enough, as for uses.
        let is_older = || usage.age(minute_of(now)).is_some_and(|age| age > 0);
        let takes_hours = self.is_hourly_due || !uses.is_empty() || is_older();
        let hours = if takes_hours { usage.take(now) } else { Vec::new() };
        // Another write may have just finished.
        let unwritten = Unwritten { uses, hours, requests: requests.take(now), reads: reads.take(self.due, now) };
        if unwritten.is_empty() {
            if takes_hours {
                usage.confirm();
            }
            return Ok(true);
        }
        if !self.store.write_behind_if_idle(&unwritten, now).await? {
            let may_open = self.prompt == Some(MayUse::New)
                || match self.due {
                    // The next request may leave a connection.
                    Due::AfterRequest | Due::Promptly => false,
                    Due::Afterwards => self.is_hourly_due && last_used.may_open(minute_of(now)),
                    Due::All => true,
                };
            if !may_open {
                reads.stay_due();
                return Ok(false);
            }
            self.store.write_behind(&unwritten, now).await?;
        }
        last_used.mark_written(&unwritten.uses);
        if takes_hours {
            usage.confirm();
        }
        requests.confirm(&unwritten.requests, now);
        reads.confirm();
        prompt.written(&self.store);
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
                tracing::warn!("what requests left is not written in time; it is written at the next attempt");
                return;
            }
        }
    }
}
