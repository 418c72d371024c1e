//! Checks the tenant's database and its schema.
//!
//! Opens the database as the gateway does, and reads its tokens and the state of its search tables. Writes nothing.

use std::time::Instant;

use super::Finding;
use crate::config::TenantConfig;
use crate::store::{DatabaseIdentity, Pooler, Store, StoreError, TokenRecord, remedy, with_causes};

/// Opens the database as the gateway does. Also returns its identity and tokens if it can be read.
pub(super) async fn find(tenant: &TenantConfig) -> (Finding, Option<(DatabaseIdentity, Vec<TokenRecord>)>) {
    let began = Instant::now();
    let location = &tenant.database;
    let store = match Store::open(location, 1).await {
        Ok(store) => store,
        Err(error) => return (fault(&error, tenant), None),
    };
    let (identity, tokens, wrong) = (store.identity().clone(), store.list_tokens().await, store.count_wrong().await);
    let concern = store.concerns().await.ok().and_then(|concerns| concerns.into_iter().next());
    store.close().await;
    match tokens {
        Ok(tokens) => {
            let what =
                format!("{location:?} answers in {} ms, at the schema that is needed", began.elapsed().as_millis());
            let finding = match wrong {
                _ if let Err(error) = location.require_writable() => {
                    let what = format!("{}. Reads are served, and writes are answered with 503", with_causes(&error));
                    Finding::warns(what, remedy(&error, location, &tenant.slug))
                }
                _ if let Some(concern) = &concern => {
                    Finding::warns(format!("{what}; {concern}"), concern.remedy(&tenant.slug))
                }
                Ok(wrong @ 1..) => Finding::warns(
                    format!("{what}; {wrong} rows that searches read are not what they are derived from"),
                    format!("formgate reindex --tenant {}", tenant.slug),
                ),
                Ok(0) | Err(_) if let Some(pooler) = location.detected_pooler() => {
                    Finding::warns(format!("{what}; it is behind {pooler}"), Pooler::REMEDY)
                }
                // With many submissions, counting may exceed the statement timeout.
                Ok(0) | Err(_) => Finding::passes(what),
            };
            (finding, Some((identity, tokens)))
        }
        Err(error) => (fault(&error, tenant), None),
    }
}

pub(super) fn fault(error: &StoreError, tenant: &TenantConfig) -> Finding {
    let what = format!("{}. Requests are answered with 503", with_causes(error));
    Finding::stops(what, remedy(error, &tenant.database, &tenant.slug))
}
