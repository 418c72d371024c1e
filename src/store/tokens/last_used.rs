//! When and how tokens were last used, and how often, written behind.

use jiff::Timestamp;

use super::hours::{self, CommitMark, TokenHour};
use crate::store::engine::Transaction;
use crate::store::statement::{Sql, sql};
use crate::store::{Store, StoreError};

/// The last use of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenUse {
    /// The token.
    pub id: i64,
    /// When, to the minute.
    pub at: Timestamp,
    /// The route of the request, as metrics name it.
    pub route: &'static str,
    /// The network of the caller, if it is known: an IPv4 /24 or an IPv6 /48.
    pub network: Option<String>,
}

/// Why uses of tokens were not written, as far as is known.
#[derive(Debug, thiserror::Error)]
pub enum UsesNotWritten {
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

impl From<sqlx::Error> for UsesNotWritten {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl Store {
    /// Writes how tokens were last used, and adds their requests to the hours, in one transaction. A use that is older
    /// than the stored one changes nothing.
    ///
    /// # Errors
    /// [`UsesNotWritten`].
    pub async fn write_uses(
        &self,
        used: &[TokenUse],
        hours: &[TokenHour],
        now: Timestamp,
    ) -> Result<(), UsesNotWritten> {
        write(self.database.begin().await?, used, hours, now).await
    }

    /// The same, on a connection that is open and idle. Returns whether there is one.
    ///
    /// # Errors
    /// [`UsesNotWritten`].
    pub async fn write_uses_if_idle(
        &self,
        used: &[TokenUse],
        hours: &[TokenHour],
        now: Timestamp,
    ) -> Result<bool, UsesNotWritten> {
        let Some(transaction) = self.database.begin_if_idle().await? else { return Ok(false) };
        write(transaction, used, hours, now).await?;
        Ok(true)
    }
}

async fn write(
    mut transaction: Transaction,
    used: &[TokenUse],
    hours: &[TokenHour],
    now: Timestamp,
) -> Result<(), UsesNotWritten> {
    if !used.is_empty() {
        transaction.execute(touch(used)).await?;
    }
    let mark = hours::add(&mut transaction, hours, now).await?;
    match (transaction.commit().await, mark) {
        (Ok(()), _) => Ok(()),
        // Writing last uses again changes nothing.
        (Err(error), None) => Err(error.into()),
        (Err(error), Some(mark)) => Err(UsesNotWritten::InDoubt { mark, source: error.into() }),
    }
}

fn touch(used: &[TokenUse]) -> Sql {
    let rows = used.iter().map(|used| (used.id, used.at.as_microsecond(), used.route, &used.network));
    let rows = serde_json::to_string(&rows.collect::<Vec<_>>()).expect("numbers and texts are JSON");
    sql!(
        "UPDATE tokens SET last_used_at = {pg: to_timestamp(used.at / 1e6) | lite: used.at},
           last_used_route = used.route, last_used_network = used.network
         FROM {rows rows: id bigint, at bigint, route text, network text} AS used
         WHERE tokens.id = used.id
           AND (last_used_at IS NULL OR last_used_at < {pg: to_timestamp(used.at / 1e6) | lite: used.at})",
        rows
    )
}
