//! The tenant's database and its schema.

use std::time::Instant;

use super::Finding;
use crate::config::TenantConfig;
use crate::store::{DatabaseIdentity, Pooler, Store, StoreError, TokenRecord};

/// Opens the database as serving does. Which one it is and the tokens in it, where it can be read.
pub(super) async fn find(tenant: &TenantConfig) -> (Finding, Option<(DatabaseIdentity, Vec<TokenRecord>)>) {
    let began = Instant::now();
    let location = &tenant.database;
    let store = match Store::open(location, 1).await {
        Ok(store) => store,
        Err(error) => return (fault(&error, tenant), None),
    };
    let (identity, tokens, wrong) = (store.identity().clone(), store.list_tokens().await, store.count_wrong().await);
    store.close().await;
    match tokens {
        Ok(tokens) => {
            let what =
                format!("{location:?} answers in {} ms, at the schema that is needed", began.elapsed().as_millis());
            let finding = match wrong {
                Ok(wrong @ 1..) => Finding::warns(
                    format!("{what}; {wrong} rows that searches read are not what they are derived from"),
                    format!("formgate reindex --tenant {}", tenant.slug),
                ),
                Ok(0) | Err(_) if let Some(pooler) = location.noticed_pooler() => {
                    Finding::warns(format!("{what}; it is behind {pooler}"), Pooler::REMEDY)
                }
                // Of many submissions, counting may take longer than a statement may.
                Ok(0) | Err(_) => Finding::passes(what),
            };
            (finding, Some((identity, tokens)))
        }
        Err(error) => (fault(&error, tenant), None),
    }
}

fn fault(error: &StoreError, tenant: &TenantConfig) -> Finding {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    let what = format!("{error}{cause}. Requests are answered with 503");
    let slug = &tenant.slug;
    let is_missing = tenant.database.file().is_some_and(|file| !file.exists());
    let mend = match error {
        StoreError::SchemaOlder { .. } => {
            format!("formgate migrate --tenant {slug}; the running node goes on by itself")
        }
        StoreError::Unavailable(_) | StoreError::Folder { .. } if is_missing => {
            format!("there is no such file yet: formgate migrate --tenant {slug} makes it")
        }
        StoreError::Folder { .. } => "make the folder, or let the process make it".to_owned(),
        StoreError::Unavailable(_)
        | StoreError::Resting
        | StoreError::Busy
        | StoreError::Locked(_)
        | StoreError::Unsettled
        | StoreError::MemorySpent(_)
        | StoreError::Migration(_)
        | StoreError::Statement(_) => format!(
            "mend the database, or `database` of the tenant `{slug}`; the running node tries again every second"
        ),
    };
    Finding::stops(what, mend)
}
