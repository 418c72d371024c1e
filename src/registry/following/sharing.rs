//! Divides the work for tenants between the nodes, and follows which of them have subscriptions.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use super::{Followed, Following};
use crate::config::TenantConfig;
use crate::registry::keepers::{Keepers, KeptTenants};
use crate::registry::subscribed::SubscribedTenants;
use crate::store::registry::{KeepingNode, SharedDatabase, SubscribedTenant};
use crate::store::{OWN_DATABASE, Registry, StoreError, with_causes};
use crate::tenant::SubscriptionLedger;

/// How many rows are read at once. They are short.
///
/// Larger: a statement takes longer. Smaller: more statements, each of which crosses the network.
const READ_AT_ONCE: u32 = 20_000;

/// How long a caller who subscribes waits for the registry.
///
/// Larger: while it hangs, subscribing takes longer. Smaller: if this node dies while the registry is slow, the others find the
/// subscription when they inspect the database.
const WRITE_LIMIT: Duration = Duration::from_secs(2);

impl Following {
    /// Which node keeps which tenant.
    #[must_use]
    pub fn keepers(&self) -> &Arc<Keepers> {
        &self.keepers
    }

    /// Which tenants have subscriptions.
    #[must_use]
    pub fn subscribed(&self) -> &SubscribedTenants {
        &self.subscribed
    }

    /// Completes when the work for tenants is divided differently, or another tenant has subscriptions.
    pub async fn shares_changed(&self) {
        self.shares_changed.notified().await;
    }

    /// How many tenants this node keeps.
    #[must_use]
    pub fn kept(&self) -> KeptTenants {
        *self.kept.load_full()
    }

    /// Leaves the tenants to the other nodes, because this one ends or delivers no webhooks.
    pub fn leave_tenants(&self) {
        self.keepers.rest();
        self.shares_changed.notify_one();
        self.changed.notify_one();
    }

    /// Notes whether this node can keep tenants; if not, another node does.
    pub fn note_able<'t>(&self, tenants: impl IntoIterator<Item = (&'t Arc<str>, bool)>) {
        if self.keepers.note_able(tenants) {
            self.changed.notify_one();
        }
    }

    /// Notes which of these tenants have a file that is missing here: no other node may have the file either, but one that
    /// has it looks after the tenant.
    pub async fn check_files(&self, tenants: impl IntoIterator<Item = &Arc<TenantConfig>>) {
        let of_registry = tenants.into_iter().filter(|tenant| tenant.origin.is_registered());
        let with_files: Vec<_> = of_registry.filter(|tenant| tenant.database.file().is_some()).cloned().collect();
        if with_files.is_empty() {
            return;
        }
        let found = tokio::task::spawn_blocking(move || {
            let is_there = |tenant: Arc<TenantConfig>| {
                let is_there = tenant.database.file().is_none_or(std::path::Path::exists);
                (Arc::clone(&tenant.slug), is_there)
            };
            with_files.into_iter().map(is_there).collect::<Vec<_>>()
        });
        let found = found.await.unwrap_or_default();
        self.note_able(found.iter().map(|(slug, is_there)| (slug, *is_there)));
    }

    /// Notes whether tenants have subscriptions, where the registry has something else.
    pub async fn note_subscribed(&self, found: &[(Arc<TenantConfig>, bool)]) {
        let differs = |(tenant, is_subscribed): &&(Arc<TenantConfig>, bool)| {
            tenant.origin.is_registered() && self.subscribed.is_subscribed(tenant) != Some(*is_subscribed)
        };
        let changed = found.iter().filter(differs);
        self.write_subscribed(changed.map(|(tenant, has)| SubscribedTenants::record(tenant, *has)).collect()).await;
    }

    async fn write_subscribed(&self, tenants: Vec<SubscribedTenant>) {
        if tenants.is_empty() || !self.config.is_written {
            return;
        }
        let writing = async { self.open().await?.write_subscribed(&tenants).await };
        match timeout(WRITE_LIMIT, writing).await {
            Ok(Ok(())) => {}
            outcome => {
                let cause = outcome.ok().and_then(Result::err).map(|error| with_causes(&error));
                tracing::debug!(cause, "could not write to the registry which tenants have subscriptions; retrying");
                self.subscribed.keep_unwritten(tenants);
            }
        }
        self.changed.notify_one();
    }

    /// Follows which nodes keep tenants, and which tenants have subscriptions: the last change of these has a number.
    pub(super) async fn follow_shares(
        &self,
        registry: &Registry,
        followed: &mut Followed,
        nodes: Vec<KeepingNode>,
        number: i64,
    ) -> Result<(), StoreError> {
        // A node that only reads is a drill: it keeps all tenants, whatever other nodes exist.
        if self.config.is_written {
            let own = nodes.iter().find(|node| node.id == self.node.id()).map(|node| node.mark.clone());
            let list = self.keepers.own_list(followed.refused.keys().cloned());
            let mark = list.as_ref().map(|(mark, _)| mark.clone());
            if own != mark {
                let list = list.as_ref().map(|(mark, list)| (mark.as_str(), list.as_slice()));
                // A registry without write access is still followed, and the beat reports it.
                if let Err(error) = registry.write_unable(self.node.id(), list).await {
                    tracing::debug!(
                        cause = with_causes(&error),
                        "could not write to the registry which tenants this node can keep"
                    );
                }
            }
            let mut read = Vec::new();
            for id in self.keepers.note_seen(nodes) {
                if let Some((mark, unable)) = registry.unable_of(&id).await? {
                    read.push((id, mark, unable));
                }
            }
            self.divide(followed, read);
        }
        let unwritten = self.subscribed.take_unwritten();
        if !unwritten.is_empty()
            && let Err(error) = registry.write_subscribed(&unwritten).await
        {
            tracing::debug!(
                cause = with_causes(&error),
                "could not write to the registry which tenants have subscriptions"
            );
            self.subscribed.keep_unwritten(unwritten);
        }
        self.read_subscribed(registry, followed, number).await
    }

    /// Refuses tenants whose databases others have, and writes which databases were found here.
    pub(super) async fn follow_databases(&self, registry: &Registry, shared: Vec<SharedDatabase>) {
        let directory = self.directory.load_full();
        for SharedDatabase { slug, owner, .. } in directory.owners().refuse(shared) {
            let next_step = OWN_DATABASE;
            tracing::error!(tenant = slug, owner, next_step, "a tenant is not served: another one has its database");
        }
        let found = directory.owners().take_found();
        if found.is_empty() || !self.config.is_written {
            return;
        }
        match registry.note_databases(&found).await {
            Ok(()) => self.look_soon(),
            Err(error) => {
                tracing::debug!(cause = with_causes(&error), "the registry does not take which databases tenants have");
                directory.owners().keep_found(found);
            }
        }
    }

    async fn read_subscribed(
        &self,
        registry: &Registry,
        followed: &mut Followed,
        number: i64,
    ) -> Result<(), StoreError> {
        if number < followed.subscribed {
            self.forget_subscribed(followed);
        }
        // A tenant without subscriptions at the time of a backup may have some now.
        let is_restored = followed.subscribed == 0 && self.restores() > 0;
        while followed.subscribed < number {
            let rows = registry.subscribed_after(followed.subscribed, READ_AT_ONCE).await?;
            let Some(last) = rows.last().map(|(number, _)| *number) else { break };
            let tenants = rows.into_iter().map(|(_, tenant)| tenant);
            self.subscribed.take(tenants.filter(|tenant| tenant.is_subscribed || !is_restored));
            followed.subscribed = last;
            self.keepers.note_change();
        }
        Ok(())
    }

    /// Takes over lists that were read, and leaves out nodes that are gone.
    fn divide(&self, followed: &Followed, read: Vec<(String, String, Vec<String>)>) {
        self.keepers.divide(read, self.keepers.own_list(followed.refused.keys().cloned()));
    }

    /// Leaves out nodes that are gone, also while the registry can't be read: then every node is soon alone, and looks after
    /// all tenants. Counts those of this node if that may have changed.
    pub(in crate::registry) async fn share_out(&self) {
        self.divide(&*self.followed.lock().await, Vec::new());
        let directory = self.directory.load_full();
        let generation = self.keepers.generation();
        {
            let mut shared_out = self.shared_out.lock().unwrap_or_else(PoisonError::into_inner);
            let state = (generation, Arc::downgrade(&directory));
            if shared_out.as_ref().is_some_and(|before| before.0 == state.0 && before.1.ptr_eq(&state.1)) {
                return;
            }
            *shared_out = Some(state);
        }
        let keepers = Arc::clone(&self.keepers);
        let counting = tokio::task::spawn_blocking(move || keepers.count(directory.configs()));
        if let Ok(kept) = counting.await {
            self.metrics.kept(kept.keeper, kept.deputy);
            self.kept.store(Arc::new(kept));
        }
        self.shares_changed.notify_one();
    }

    /// Forgets what an earlier state of the registry does not have.
    pub(super) fn forget_subscribed(&self, followed: &mut Followed) {
        self.subscribed.forget_unsubscribed();
        self.keepers.note_change();
        followed.subscribed = 0;
    }
}

impl SubscriptionLedger for Following {
    fn will_subscribe<'l>(&'l self, slug: &'l str) -> BoxFuture<'l, ()> {
        Box::pin(async move {
            let tenant = self.directory.load().config(slug).cloned();
            if let Some(tenant) = tenant.filter(|tenant| tenant.origin.is_registered()) {
                // Even if it is known, so that nothing overwrites it.
                self.write_subscribed(vec![SubscribedTenants::record(&tenant, true)]).await;
            }
        })
    }
}
