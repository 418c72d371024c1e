//! Exports that administrators have chosen, behind links that work once.
//!
//! A session has at most one, in its row: it ends with the session, and choosing again replaces it. Redeeming it empties the
//! column by one statement, so a link works once, on whichever node that is.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::audit::{self, Actor, AuditEntry};
use super::engine::retry;
use super::statement::sql;
use super::{Store, StoreError};
use crate::instant::Rfc3339Micros;

/// A chosen export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminExport {
    /// The secret in the link, which only helps the session.
    pub key: String,
    /// From this instant on, the link is refused.
    pub expires_at: Timestamp,
    /// The name of the format.
    pub format: String,
    /// The form; all of them without one.
    pub form: Option<i64>,
    /// Only submissions that were created from here on.
    pub start: Option<Timestamp>,
    /// Only submissions that were created up to here.
    pub end: Option<Timestamp>,
    /// Whether it is to be opened by Excel.
    pub excel: bool,
}

impl AdminExport {
    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("it is JSON")
    }
}

impl Store {
    /// Stores the export that the administrator of a session chose, in place of the one before.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn offer_admin_export(&self, session: i64, export: &AdminExport) -> Result<(), StoreError> {
        let export = export.to_json();
        let sql = sql!("UPDATE admin_sessions SET export = {export} WHERE id = {session}", export, session);
        self.database.execute(sql).await?;
        Ok(())
    }

    /// The export of a session with a key, unless its link has expired or was used.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_admin_export(
        &self,
        session: i64,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<AdminExport>, StoreError> {
        let mut reader = self.database.reader().await?;
        let row =
            reader.fetch_optional(sql!("SELECT export FROM admin_sessions WHERE id = {session}", session)).await?;
        let stored: Option<String> = row.as_ref().map(|row| row.get(0)).transpose()?.flatten();
        // What another version stored is no export of this one.
        let export = stored.and_then(|stored| serde_json::from_str(&stored).ok());
        Ok(export.filter(|export: &AdminExport| export.key == key && export.expires_at > now))
    }

    /// Uses the link to an export, and records that in the audit log. Whether it was not used yet.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn redeem_admin_export(
        &self,
        session: i64,
        export: &AdminExport,
        by: &Actor,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let redeem = sql!(
                "UPDATE admin_sessions SET export = NULL WHERE id = {session} AND export = {stored} RETURNING id",
                session,
                stored = export.to_json(),
            );
            if transaction.fetch_all(redeem).await?.is_empty() {
                return Ok(false);
            }
            let subject = export.form.map_or_else(|| "submissions".to_owned(), |form| format!("for_{form}"));
            let [since, until] = [export.start, export.end].map(|border| border.map(Rfc3339Micros));
            let details = json!({ "format": export.format, "since": since, "until": until });
            audit::append(&mut transaction, by, AuditEntry { action: "export", subject, details }, now).await?;
            transaction.commit().await?;
            Ok(true)
        })
        .await
    }
}
