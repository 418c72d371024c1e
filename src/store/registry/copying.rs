//! Takes over the rows of another registry, for the snapshot of a node.

use super::{Head, Registry, RegistryRow};
use crate::store::StoreError;
use crate::store::statement::{Argument, JsonRows, JsonTimestamp, TextList, sql};

/// How many rows are copied in one statement.
///
/// Larger: more memory for the statement. Smaller: more statements.
const COPIED_AT_ONCE: usize = 1_000;

impl Registry {
    /// Takes over rows of another registry, as they are there. With `is_whole`, removes all others.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn copy(&self, head: &Head, rows: &[RegistryRow], is_whole: bool) -> Result<(), StoreError> {
        let mut transaction = self.database.begin().await?;
        let sql = if is_whole {
            sql!("DELETE FROM registry_tenants {scans: all are replaced}")
        } else {
            let slugs: TextList = rows.iter().map(|row| &row.slug).collect();
            sql!("DELETE FROM registry_tenants WHERE slug {in slugs}", slugs)
        };
        transaction.execute(sql).await?;
        let kept: Vec<_> = rows.iter().filter(|row| row.text.is_some()).collect();
        for batch in kept.chunks(COPIED_AT_ONCE) {
            let mut values = JsonRows::new();
            for RegistryRow { slug, text, domains, revision, position, changed_at, changed_by, is_erased: _ } in batch {
                let changed_at = JsonTimestamp::new(*changed_at, transaction.dialect());
                let domains = serde_json::to_string(domains).expect("texts are always JSON");
                values.push(&(slug, text, revision, position, changed_at, changed_by, domains));
            }
            let sql = sql!(
                "INSERT INTO registry_tenants (slug, toml, revision, position, changed_at, changed_by, domains)
                 SELECT slug, toml, revision, position, changed_at, changed_by, domains
                 FROM {rows rows: slug text, toml text, revision bigint, position bigint,
                   changed_at timestamptz, changed_by text, domains text} AS batch",
                // Their texts may have passwords.
                rows = Argument::Secret(values.text()),
            );
            transaction.execute(sql).await?;
        }
        let Head { revision, stamp, epoch } = head;
        let sql = sql!("UPDATE registry_head SET revision = {revision}, epoch = {epoch}", revision = *revision, epoch);
        transaction.execute(sql).await?;
        transaction.execute(sql!("DELETE FROM registry_stamps {scans: all are replaced}")).await?;
        let sql = sql!(
            "INSERT INTO registry_stamps (revision, stamp, at) VALUES ({revision}, {stamp}, {clock})",
            revision = *revision,
            stamp = *stamp,
        );
        transaction.execute(sql).await?;
        Ok(transaction.commit().await?)
    }
}
