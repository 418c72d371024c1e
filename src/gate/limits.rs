//! Refuses requests by the limits of their token: networks and scopes.
//!
//! A token that is used from a wrong network may have been stolen. The client gets the response to a bad token, in the same
//! time; administrators find it in the audit log, at most once an hour for each token and node: a flood writes nothing
//! more.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use moka::sync::Cache;
use serde_json::json;

use crate::error::Refusal;
use crate::metrics::GateMetrics;
use crate::store::{Actor, AuditEntry, AuditSource, Scope, StoreError, with_causes};
use crate::tenant::{Generation, Tenant, Token, shown_network};

/// How long a token is remembered after its use from a wrong network was recorded.
///
/// Larger: a second attempt is recorded later. Smaller: a flood writes more rows to the audit log.
const RECORD_PAUSE: Duration = Duration::from_secs(60 * 60);

/// How many tokens are remembered.
///
/// Larger: more memory. Smaller: if more tokens are stolen, each is recorded more often.
const MAX_RECORDED: u64 = 10_000;

/// Refuses requests by the limits of their token.
#[derive(Debug)]
pub struct TokenLimitChecks {
    recorded: Cache<(Generation, i64), ()>,
    metrics: GateMetrics,
}

impl TokenLimitChecks {
    /// Checks that have not recorded anything.
    #[must_use]
    pub fn new(metrics: GateMetrics) -> Self {
        let recorded = Cache::builder().max_capacity(MAX_RECORDED).time_to_live(RECORD_PAUSE).build();
        Self { recorded, metrics }
    }

    /// The refusal of a request whose token lacks one of the scopes that its endpoint needs.
    ///
    /// # Errors
    /// [`Refusal::ScopeMissing`] with the first one that is missing.
    pub fn require(&self, token: &Token, scopes: &[Scope]) -> Result<(), Refusal> {
        let Some(missing) = scopes.iter().find(|scope| !token.limits.allow(**scope)) else { return Ok(()) };
        let required = missing.as_str();
        self.metrics.limited.with_label_values(&[required]).inc();
        Err(Refusal::ScopeMissing { required })
    }

    /// Counts and records a request that is refused since its token is used from a wrong network.
    pub(super) fn refuse_network(&self, tenant: &Arc<Tenant>, token: &Token, caller: Option<IpAddr>) -> Refusal {
        self.metrics.limited.with_label_values(&["networks"]).inc();
        let key = (tenant.tokens.generation, token.id);
        if self.recorded.entry(key).or_insert(()).is_fresh() {
            let (tenant, network) = (Arc::clone(tenant), caller.map(shown_network));
            let details = json!({ "name": &*token.name, "reason": "wrong_network" });
            let entry = AuditEntry { action: "token.refused", subject: format!("token {}", token.id), details };
            tracing::warn!(
                tenant = &*tenant.slug,
                token = token.id,
                network,
                reason = "wrong_network",
                "a token was used from a wrong network"
            );
            tokio::spawn(record(tenant, network, entry));
        }
        Refusal::WrongNetwork { token: token.id }
    }
}

/// Adds a row to the audit log.
async fn record(tenant: Arc<Tenant>, network: Option<String>, entry: AuditEntry) {
    let actor = Actor { name: "formgate".to_owned(), source: AuditSource::Gateway, network, identity: None };
    let recorded = async {
        let store = tenant.database.store().await?;
        store.audit(&actor, entry, Timestamp::now()).await?;
        Ok::<_, StoreError>(())
    };
    if let Err(error) = recorded.await {
        let cause = with_causes(&error);
        tracing::warn!(tenant = &*tenant.slug, cause, "a refused token could not be recorded in the audit log");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::SCOPES;

    #[test]
    fn the_metrics_know_every_scope() {
        let scopes: Vec<_> = Scope::SINGLE.into_iter().chain([Scope::All]).map(Scope::as_str).collect();
        assert_eq!(scopes, SCOPES);
    }
}
