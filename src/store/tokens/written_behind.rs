//! What is written behind requests, in one transaction.

use jiff::Timestamp;

use super::hours::{self, CommitMark, TokenHour};
use super::last_used::{TokenUse, touch};
use crate::store::engine::Transaction;
use crate::store::reads::{self, UnwrittenReads};
use crate::store::request_log::{self, UnwrittenRequests};
use crate::store::{Store, StoreError};

/// What a node has noted of an account's requests and not written.
#[derive(Debug, Default)]
pub struct Unwritten {
    /// How tokens were last used.
    pub uses: Vec<TokenUse>,
    /// How often.
    pub hours: Vec<TokenHour>,
    /// Which requests there were.
    pub requests: UnwrittenRequests,
    /// Which submissions they were sent, and whether this node may hold more.
    pub reads: Option<UnwrittenReads>,
}

impl Unwritten {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.uses.is_empty() && self.hours.is_empty() && self.requests.rows.is_empty() && self.reads.is_none()
    }
}

/// Why it was not written, as far as is known.
#[derive(Debug, thiserror::Error)]
pub enum NotWritten {
    /// Nothing was written.
    #[error(transparent)]
    Failed(#[from] StoreError),
    /// The commit was not answered. Whether it was made has to be asked ([`Store::is_committed`]) before the same hours
    /// are written again.
    #[error("the commit was not answered")]
    InDoubt {
        /// Identifies the write.
        mark: CommitMark,
        /// What happened.
        source: StoreError,
    },
}

impl From<sqlx::Error> for NotWritten {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl Store {
    /// How often a connection was opened while no other one was open. While the number stays the same, the database stayed open.
    #[must_use]
    pub fn openings(&self) -> u64 {
        self.database.openings()
    }

    /// Whether a connection is open and idle.
    #[must_use]
    pub fn has_idle(&self) -> bool {
        self.database.has_idle()
    }

    /// Writes what requests left, in one transaction.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub async fn write_behind(&self, unwritten: &Unwritten, now: Timestamp) -> Result<(), NotWritten> {
        write(self.database.begin().await?, unwritten, now).await
    }

    /// The same, on a connection that is open and idle. Returns whether there is one.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub async fn write_behind_if_idle(&self, unwritten: &Unwritten, now: Timestamp) -> Result<bool, NotWritten> {
        let Some(transaction) = self.database.begin_if_idle().await? else { return Ok(false) };
        write(transaction, unwritten, now).await?;
        Ok(true)
    }
}

async fn write(mut transaction: Transaction, unwritten: &Unwritten, now: Timestamp) -> Result<(), NotWritten> {
    if !unwritten.uses.is_empty() {
        transaction.execute(touch(&unwritten.uses)).await?;
    }
    // Old rows are deleted also while the log is off.
    if !unwritten.requests.rows.is_empty() || unwritten.requests.deletes_old {
        request_log::write(&mut transaction, &unwritten.requests, now).await?;
    }
    let mark = hours::add(&mut transaction, &unwritten.hours, now).await?;
    // Last: it may lock the end of the audit log.
    if let Some(unwritten) = &unwritten.reads {
        reads::add(&mut transaction, unwritten, now).await?;
    }
    match (transaction.commit().await, mark) {
        (Ok(()), _) => Ok(()),
        // Writing the others again changes nothing.
        (Err(error), None) => Err(error.into()),
        (Err(error), Some(mark)) => Err(NotWritten::InDoubt { mark, source: error.into() }),
    }
}
