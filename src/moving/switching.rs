//! The moment in which an account changes its database.
//!
//! The account's requests wait on every node for at most two seconds. If a node does not confirm the hold in time, the old
//! database can't be locked, or too much was written, the requests continue and the switch is retried later.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::RwLockWriteGuard;
use tokio::time::{Instant, sleep, timeout};

use super::carrying::{Carrier, Stopped};
use crate::config::registered::{database_of, with_database};
use crate::config::{RegisteredTenant, TenantConfig};
use crate::registry::FollowError;
use crate::store::registry::{Claims, MoveRecord, MoveState, RegistryChange, RegistryWrite, WriteRefused};
use crate::store::{Actor, Approached, AuditEntry, AuditSource, Locked, MoveError, Moving, Registry, with_causes};

/// The limit on the time from the hold until the source is committed or the attempt is given up. A commit and a change of the
/// registry follow before requests continue: two seconds in all, unless one of these hangs.
///
/// Larger: requests wait for longer. Smaller: a slow database is never left.
const HOLD_LIMIT: Duration = Duration::from_millis(1_300);

/// How long the nodes have to confirm the hold. The rest of the time is for the databases.
///
/// Larger: less is left for the databases. Smaller: a move is put off while a node is slow.
const NODES_LIMIT: Duration = Duration::from_millis(800);

/// The interval at which confirmations of the nodes are polled.
///
/// Larger: requests wait for longer. Smaller: more statements.
const NODES_INTERVAL: Duration = Duration::from_millis(10);

/// The first and the longest pause before the next try.
///
/// Larger: a move takes longer. Smaller: more holds that move nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long a step may take that only a registry or a database that does not work delays.
///
/// Larger: the next try is later. Smaller: more tries.
const RETRY: Duration = Duration::from_millis(200);

/// An account whose requests wait.
pub(super) struct Held<'m> {
    /// Since when.
    began: Instant,
    /// That no other move works.
    _turn: RwLockWriteGuard<'m, ()>,
}

/// Why an attempt failed.
enum PutOff {
    /// For a transient reason.
    Later(String),
    /// This node stops carrying the move out.
    Stopped(Stopped),
}

impl From<FollowError> for PutOff {
    fn from(error: FollowError) -> Self {
        Self::Later(with_causes(&error))
    }
}

impl From<MoveError> for PutOff {
    fn from(error: MoveError) -> Self {
        match error {
            MoveError::Lost => Self::Stopped(Stopped::Lost),
            other => Self::Later(with_causes(&other)),
        }
    }
}

impl Carrier {
    /// Tries until the account has left its old database.
    pub(super) async fn switch(&self, moving: &mut Moving) -> Result<Held<'_>, Stopped> {
        let mut pause = FIRST_PAUSE;
        loop {
            self.catch_up(moving, Some(&self.all.turn)).await?;
            let turn = match self.all.turn.try_write() {
                Ok(turn) => turn,
                Err(_) => {
                    let turn = self.all.turn.write().await;
                    // Much may have been written during the wait.
                    self.catch_up(moving, None).await?;
                    turn
                }
            };
            let approached = match self.draw_near(moving).await {
                Ok(approached) => approached,
                Err(error) => {
                    drop(turn);
                    self.wait_for(MoveState::CatchingUp, &error).await?;
                    continue;
                }
            };
            let began = Instant::now();
            let tried = timeout(HOLD_LIMIT, self.try_to_switch(moving, approached, began)).await;
            let reason = match tried {
                Ok(Ok(locked)) => match locked.commit().await {
                    Ok(()) => return Ok(Held { began, _turn: turn }),
                    // The commit may have been made.
                    Err(error) if self.has_left(moving).await? => {
                        tracing::info!(
                            tenant = self.record.slug,
                            cause = with_causes(&error),
                            "commit made, but not answered"
                        );
                        return Ok(Held { began, _turn: turn });
                    }
                    Err(error) => with_causes(&error),
                },
                Ok(Err(PutOff::Stopped(stopped))) => return Err(stopped),
                Ok(Err(PutOff::Later(reason))) => reason,
                Err(_) => "it took too long".to_owned(),
            };
            tracing::info!(tenant = self.record.slug, reason, "move put off; the account's requests continue");
            self.note(MoveState::CatchingUp, Some(&format!("put off: {reason}"))).await?;
            self.all.following.look_soon();
            drop(turn);
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn draw_near(&self, moving: &mut Moving) -> Result<Approached, MoveError> {
        let approached = moving.approach().await?;
        moving.draw_near().await?;
        Ok(approached)
    }

    async fn try_to_switch(
        &self,
        moving: &mut Moving,
        approached: Approached,
        began: Instant,
    ) -> Result<Locked, PutOff> {
        let MoveRecord { id, fence, .. } = self.record;
        let registry = self.all.following.registry().await?;
        // The nodes do not hold a tenant that was removed.
        self.require_tenant(registry).await?;
        let hold = registry.begin_hold(id, fence).await.map_err(FollowError::from)?;
        let Some(hold) = hold else { return Err(PutOff::Stopped(self.why_stopped().await)) };
        self.all.following.look_soon();
        self.await_nodes(registry, hold, began + NODES_LIMIT).await?;
        let locked = moving.switch(approached, &self.actor(), self.entry()).await?;
        self.require_tenant(registry).await?;
        if !registry.begin_switch(id, fence).await.map_err(FollowError::from)? {
            return Err(PutOff::Stopped(self.why_stopped().await));
        }
        Ok(locked)
    }

    /// Fails the move if the tenant is no longer in the old database.
    async fn require_tenant(&self, registry: &Registry) -> Result<(), PutOff> {
        let row = registry.find(&self.record.slug).await.map_err(FollowError::from)?;
        let text = row.and_then(|row| row.text).unwrap_or_default();
        if database_of(&text).as_deref() == Some(self.record.old_database()) {
            return Ok(());
        }
        let reason = "the tenant was removed, or got another database, while it was being moved";
        Err(PutOff::Stopped(self.fail(reason).await))
    }

    /// Waits until every live node has the account's requests wait.
    async fn await_nodes(&self, registry: &Registry, hold: i64, deadline: Instant) -> Result<(), PutOff> {
        let following = &self.all.following;
        let nodes = registry.nodes().await.map_err(FollowError::from)?;
        let live: Vec<_> = nodes.into_iter().filter(|node| node.is_live || following.is_running(&node.id)).collect();
        loop {
            let holding = registry.holding_nodes(self.record.id, hold).await.map_err(FollowError::from)?;
            let Some(missing) = live.iter().find(|node| !holding.contains(&node.id)) else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(PutOff::Later(format!("requests are under way on the node {}", missing.name)));
            }
            sleep(NODES_INTERVAL).await;
        }
    }

    fn actor(&self) -> Actor {
        let name = self.record.asked_by.clone();
        Actor { name, source: AuditSource::Operator, network: None, identity: None }
    }

    /// The row of the audit log, on both sides.
    fn entry(&self) -> AuditEntry {
        let details = json!({ "from": self.record.from, "to": self.record.to, "move": self.record.id });
        AuditEntry { action: "tenant.moved", subject: format!("tenant {}", self.record.slug), details }
    }

    /// Updates the account's database in the registry, and retries until that succeeds. Returns the changed tenant, and whether
    /// it has subscriptions.
    pub(super) async fn publish(&self, moving: &Moving) -> Option<(Arc<TenantConfig>, bool)> {
        loop {
            match self.try_to_publish(moving).await {
                Ok(published) => return published,
                Err(cause) => {
                    tracing::error!(
                        tenant = self.record.slug,
                        cause,
                        "could not write where an account is now; retrying"
                    );
                    sleep(RETRY).await;
                }
            }
        }
    }

    async fn try_to_publish(&self, moving: &Moving) -> Result<Option<(Arc<TenantConfig>, bool)>, String> {
        let MoveRecord { slug, place, identity, asked_by, .. } = &self.record;
        let following = &self.all.following;
        let registry = following.registry().await.map_err(|error| with_causes(&error))?;
        let described = |error: crate::store::StoreError| with_causes(&error);
        let Some(row) = registry.find(slug).await.map_err(described)? else { return Ok(None) };
        let text = with_database(row.text.as_deref().unwrap_or_default(), self.record.database());
        let text = text.ok_or("the row of the tenant can't be read")?;
        let read = RegisteredTenant::read(slug, &text, following.config(), None);
        let tenant = read.map_err(|problems| problems.titles())?;
        if row.text.as_deref() == Some(text.as_str()) {
            return Ok(None);
        }
        // What is not found out now is found when it is opened for a request.
        let arrived = timeout(RETRY, moving.arrived()).await.ok().and_then(Result::ok);
        let found = arrived.and_then(|arrived| arrived.physical_id).map(|id| id.to_string());
        let is_subscribed = arrived.is_none_or(|arrived| arrived.has_subscriptions);
        let hosts = tenant.config.hosts().map(|host| host.as_str().to_owned()).collect();
        let claims = Claims { hosts, database: place.clone() };
        let change = RegistryChange::Put { text, claims, identity: Some(identity.clone()), found };
        let write = RegistryWrite { slug: slug.clone(), change, expected: Some(Some(row.revision)) };
        match registry.write(&[write], Timestamp::now(), asked_by).await {
            Ok(_) => {}
            Err(WriteRefused::Store(error)) => return Err(described(error)),
            Err(refused) => return Err(refused.to_string()),
        }
        // So this node serves it, and the others do within moments.
        following.catch_up().await;
        Ok(Some((tenant.config, is_subscribed)))
    }

    /// Records that the account has moved, and how long its requests waited.
    pub(super) async fn note_end(&self, held: Option<Held<'_>>) {
        let MoveRecord { id, fence, slug, to, .. } = &self.record;
        let held = held.map(|held| held.began.elapsed());
        loop {
            let noting = async {
                Ok::<_, FollowError>(self.all.following.registry().await?.note_moved(*id, *fence, held).await?)
            };
            match noting.await {
                Ok(()) => break,
                Err(_) => sleep(RETRY).await,
            }
        }
        let held_ms = held.map(|held| held.as_millis());
        tracing::info!(tenant = slug, to, held_ms, "account moved");
        self.all.metrics.moved(MoveState::Done.as_str(), held);
    }
}
