//! When and how tokens were last used, written behind.

use jiff::Timestamp;

use crate::store::statement::Sql;
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

impl Store {
    /// Writes how tokens were last used, with one statement. A use that is older than the stored one changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn touch_tokens(&self, used: &[TokenUse]) -> Result<(), StoreError> {
        self.database.execute(touch(self.database.sql(), used)).await?;
        Ok(())
    }

    /// The same, on a connection that is open and idle. Returns whether there is one.
    ///
    /// # Errors
    /// [`StoreError::Statement`].
    pub async fn touch_tokens_if_idle(&self, used: &[TokenUse]) -> Result<bool, StoreError> {
        let Some(mut transaction) = self.database.begin_if_idle().await? else { return Ok(false) };
        transaction.execute(touch(self.database.sql(), used)).await?;
        transaction.commit().await?;
        Ok(true)
    }
}

fn touch(mut sql: Sql, used: &[TokenUse]) -> Sql {
    let rows = used.iter().map(|used| (used.id, used.at.as_microsecond(), used.route, &used.network));
    let rows = serde_json::to_string(&rows.collect::<Vec<_>>()).expect("numbers and texts are JSON");
    sql.push("UPDATE tokens SET last_used_at = ");
    sql.push_either("to_timestamp(used.at / 1e6)", "used.at");
    sql.push(", last_used_route = used.route, last_used_network = used.network FROM ");
    let columns = [("id", "bigint"), ("at", "bigint"), ("route", "text"), ("network", "text")];
    sql.push_rows(rows, &columns).push(" AS used WHERE tokens.id = used.id");
    sql.push(" AND (last_used_at IS NULL OR last_used_at < ")
        .push_either("to_timestamp(used.at / 1e6)", "used.at")
        .push(")");
    sql
}
