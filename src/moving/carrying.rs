//! Carries one move out, from wherever it is.
//!
//! Each step is idempotent: a node that takes over a move starts with the first step, which skips finished work. A transient
//! error is recorded in the registry as the reason why the move waits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, json};
use tokio::sync::RwLock;
use tokio::time::{Instant, sleep, timeout};

use super::task::MoveContext;
use crate::config::RegisteredTenant;
use crate::config::registered::json as registered_json;
use crate::registry::FollowError;
use crate::store::registry::{MoveRecord, MoveState};
use crate::store::{CaughtUp, DatabaseLocation, MoveError, MoveMark, Moving, with_causes};

/// The interval between renewals of the lease, and how long renewals may fail. The lease lasts for five seconds.
///
/// Larger: a node that lost the lease does useless work for longer. Smaller: more statements.
const BEAT: Duration = Duration::from_millis(700);
const DOUBT: Duration = Duration::from_secs(4);

/// The pause after a failed step, and after one that another program blocked.
///
/// Larger: a move takes longer than it has to. Smaller: an unavailable database gets more queries.
const PAUSE: Duration = Duration::from_secs(1);
const SHORT_PAUSE: Duration = Duration::from_millis(100);

/// The number of database errors after which another move gets its turn.
///
/// Larger: databases that do not answer keep other accounts waiting for longer. Smaller: more leases.
const MOST_WAITS: u32 = 50;

/// How long the preparation of both sides is tried before the move fails: a target that can't be written may stay so.
///
/// Larger: it takes longer until that is known. Smaller: a move fails because a database restarts.
const PREPARE_LIMIT: Duration = Duration::from_secs(30);

/// The number of attempts to remove the tables and triggers of a move.
///
/// Larger: a source that is gone keeps the account from being moved again for longer. Smaller: tables and triggers may stay,
/// which cost its writers a little.
const CLEANINGS: u32 = 30;

/// Why this node stopped carrying out a move.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The lease is lost: another node has it, or none.
    Lost,
    /// It was cancelled, or has failed.
    GivenUp,
    /// It can't succeed, for this reason; unless the account has left.
    Hopeless(String),
}

/// How a move ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// The account has moved.
    Finish,
    /// It stays.
    Undo,
}

/// One move, as this node carries it out.
pub(super) struct Carrier {
    pub(super) all: Arc<MoveContext>,
    pub(super) record: MoveRecord,
    /// How often it has waited for a database.
    waits: AtomicU32,
    /// What it waited for last: logged once, and not each time.
    waited_for: Mutex<Option<String>>,
}

impl Carrier {
    pub(super) fn new(all: Arc<MoveContext>, record: MoveRecord) -> Self {
        let waited_for = Mutex::new(record.reason.clone());
        Self { all, record, waits: AtomicU32::new(0), waited_for }
    }

    /// Carries the move out until it is done, or another node has it.
    pub(super) async fn run(self) {
        let stopped = tokio::select! {
            stopped = self.work() => stopped.err(),
            stopped = self.keep() => Some(stopped),
        };
        let MoveRecord { slug, id, .. } = &self.record;
        match stopped {
            None => {}
            Some(Stopped::Lost) => tracing::info!(tenant = slug, r#move = id, "another node carries the move out"),
            Some(Stopped::GivenUp | Stopped::Hopeless(_)) => {
                tokio::select! {
                    () = self.clean() => {}
                    _ = self.keep_anyhow() => {}
                }
            }
        }
    }

    /// Keeps the lease; returns once it is lost, or the move was given up.
    async fn keep(&self) -> Stopped {
        let mut kept_at = Instant::now();
        loop {
            sleep(BEAT).await;
            match self.keep_once().await {
                Some(Ok(Some(MoveState::Cancelled | MoveState::Failed))) => return Stopped::GivenUp,
                Some(Ok(Some(_))) => kept_at = Instant::now(),
                Some(Ok(None)) => return Stopped::Lost,
                Some(Err(_)) | None if kept_at.elapsed() > DOUBT => return Stopped::Lost,
                Some(Err(_)) | None => {}
            }
        }
    }

    /// The same for a move that was given up.
    async fn keep_anyhow(&self) {
        while !matches!(self.keep_once().await, Some(Ok(None))) {
            sleep(BEAT).await;
        }
    }

    async fn keep_once(&self) -> Option<Result<Option<MoveState>, FollowError>> {
        let MoveRecord { id, fence, .. } = self.record;
        let keeping = async { Ok(self.all.following.registry().await?.keep_move(id, fence).await?) };
        timeout(BEAT, keeping).await.ok()
    }

    async fn work(&self) -> Result<(), Stopped> {
        let record = &self.record;
        if matches!(record.state, MoveState::Cancelled | MoveState::Failed) {
            return Err(Stopped::GivenUp);
        }
        let [source, target] = match self.locations() {
            Ok(locations) => locations,
            Err(fault) => return Err(self.fail(&fault).await),
        };
        let mut moving = Moving::new(&source, &target, self.mark());
        let outcome = match self.steps(&mut moving).await {
            Err(Stopped::Hopeless(reason)) => Err(self.fail_unless_left(&moving, &reason).await),
            outcome => outcome,
        };
        moving.close().await;
        outcome
    }

    fn mark(&self) -> MoveMark {
        let MoveRecord { id, fence, identity, to, .. } = &self.record;
        MoveMark { id: *id, fence: *fence, identity: identity.clone(), place: to.clone() }
    }

    async fn steps(&self, moving: &mut Moving) -> Result<(), Stopped> {
        let held = if self.has_left(moving).await? {
            None
        } else {
            self.copy(moving).await?;
            Some(self.switch(moving).await?)
        };
        let published = self.publish(moving).await;
        self.note_end(held).await;
        if let Some(published) = published {
            self.all.following.note_subscribed(&[published]).await;
        }
        self.end(moving, Ending::Finish).await?;
        self.close().await;
        Ok(())
    }

    /// Whether the account has left the old database. Retries until that can be read.
    pub(super) async fn has_left(&self, moving: &Moving) -> Result<bool, Stopped> {
        loop {
            match moving.has_left().await {
                Ok(has_left) => return Ok(has_left),
                Err(error) => self.wait_for(self.record.state, &error).await?,
            }
        }
    }

    async fn copy(&self, moving: &mut Moving) -> Result<(), Stopped> {
        self.note(MoveState::Copying, None).await?;
        let began = Instant::now();
        while let Err(error) = moving.prepare().await {
            if began.elapsed() > PREPARE_LIMIT && matches!(error, MoveError::Store(_)) {
                return Err(Stopped::Hopeless(with_causes(&error)));
            }
            self.wait_for(MoveState::Copying, &error).await?;
        }
        self.note(MoveState::Copying, None).await?;
        loop {
            let step = self.all.turn.read().await;
            let copied = moving.copy_some().await;
            drop(step);
            match copied {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => self.wait_for(MoveState::Copying, &error).await?,
            }
        }
        while let Err(error) = moving.index().await {
            self.wait_for(MoveState::Copying, &error).await?;
        }
        self.note(MoveState::CatchingUp, None).await
    }

    /// Applies what was written, until little is left. Each step waits for a turn, unless the caller has it.
    pub(super) async fn catch_up(&self, moving: &mut Moving, turn: Option<&RwLock<()>>) -> Result<(), Stopped> {
        loop {
            let step = match turn {
                Some(turn) => Some(turn.read().await),
                None => None,
            };
            let caught_up = moving.catch_up().await;
            drop(step);
            match caught_up {
                Ok(CaughtUp::Yes) => return Ok(()),
                Ok(CaughtUp::No) => {}
                Err(error) => self.wait_for(MoveState::CatchingUp, &error).await?,
            }
        }
    }

    /// Removes what the move needed, as often as it takes within limits.
    async fn end(&self, moving: &Moving, ending: Ending) -> Result<(), Stopped> {
        for _ in 0..CLEANINGS {
            let ended = match ending {
                Ending::Finish => moving.finish().await,
                Ending::Undo => moving.undo().await,
            };
            match ended {
                Ok(()) => return Ok(()),
                Err(MoveError::Lost) => return Err(Stopped::Lost),
                Err(error) => {
                    let (tenant, cause) = (&self.record.slug, with_causes(&error));
                    tracing::warn!(tenant, cause, "could not remove what a move needed; retrying");
                    sleep(PAUSE).await;
                }
            }
        }
        tracing::error!(tenant = self.record.slug, "what a move needed is still in the databases");
        Ok(())
    }

    /// Removes what the move needed in the old database, where the account stays.
    async fn clean(&self) {
        if let Ok([source, target]) = self.locations() {
            let moving = Moving::new(&source, &target, self.mark());
            let ended = self.end(&moving, Ending::Undo).await;
            moving.close().await;
            if ended.is_err() {
                return;
            }
        }
        self.close().await;
        if let Ok(Some(record)) = self.read().await {
            self.all.metrics.moved(record.state.as_str(), None);
            tracing::info!(
                tenant = record.slug,
                state = record.state.as_str(),
                reason = record.reason,
                "move given up"
            );
        }
    }

    async fn read(&self) -> Result<Option<MoveRecord>, FollowError> {
        Ok(self.all.following.registry().await?.find_move(self.record.id).await?)
    }

    async fn close(&self) {
        let MoveRecord { id, fence, .. } = self.record;
        loop {
            let closing =
                async { Ok::<_, FollowError>(self.all.following.registry().await?.close_move(id, fence).await?) };
            if closing.await.is_ok() {
                break;
            }
            sleep(PAUSE).await;
        }
        self.all.following.look_soon();
    }

    /// Records the state of the move, and what it waits for.
    pub(super) async fn note(&self, state: MoveState, reason: Option<&str>) -> Result<(), Stopped> {
        let MoveRecord { id, fence, .. } = self.record;
        loop {
            let noting = async {
                Ok::<_, FollowError>(self.all.following.registry().await?.note_move(id, fence, state, reason).await?)
            };
            match noting.await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(self.why_stopped().await),
                // If the lease is lost in the meantime, that is noticed.
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Why nothing more can be noted.
    pub(super) async fn why_stopped(&self) -> Stopped {
        match self.read().await {
            Ok(Some(MoveRecord { state: MoveState::Cancelled | MoveState::Failed, fence, .. }))
                if fence == self.record.fence =>
            {
                Stopped::GivenUp
            }
            _ => Stopped::Lost,
        }
    }

    /// Waits after a transient error, or gives up.
    pub(super) async fn wait_for(&self, state: MoveState, error: &MoveError) -> Result<(), Stopped> {
        let cause = with_causes(error);
        match error {
            MoveError::Lost => Err(Stopped::Lost),
            error if error.is_final() => Err(Stopped::Hopeless(cause)),
            MoveError::Busy(_) => {
                if self.is_new(&cause) {
                    self.note(state, Some(&cause)).await?;
                }
                sleep(SHORT_PAUSE).await;
                Ok(())
            }
            _ => {
                if self.is_new(&cause) {
                    tracing::warn!(tenant = self.record.slug, state = state.as_str(), cause, "move waits");
                }
                self.note(state, Some(&cause)).await?;
                sleep(PAUSE).await;
                if self.waits.fetch_add(1, Ordering::Relaxed) >= MOST_WAITS {
                    self.leave().await;
                    return Err(Stopped::Lost);
                }
                Ok(())
            }
        }
    }

    /// Whether it waited for something else before.
    fn is_new(&self, cause: &str) -> bool {
        let mut waited_for = self.waited_for.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = waited_for.as_deref() != Some(cause);
        *waited_for = Some(cause.to_owned());
        is_new
    }

    /// Gives the lease back; without that it expires.
    async fn leave(&self) {
        let MoveRecord { id, fence, .. } = self.record;
        if let Ok(registry) = self.all.following.registry().await {
            registry.leave_move(id, fence).await.ok();
        }
    }

    /// Records that the move can't succeed.
    pub(super) async fn fail(&self, reason: &str) -> Stopped {
        tracing::error!(tenant = self.record.slug, reason, "an account can't be moved");
        match self.note(MoveState::Failed, Some(reason)).await {
            Ok(()) => Stopped::GivenUp,
            Err(stopped) => stopped,
        }
    }

    /// The same, unless the account has already left under an earlier lease: then the move continues.
    async fn fail_unless_left(&self, moving: &Moving, reason: &str) -> Stopped {
        match self.has_left(moving).await {
            Ok(false) => self.fail(reason).await,
            Ok(true) => {
                self.leave().await;
                Stopped::Lost
            }
            // The source can't be used at all.
            Err(Stopped::Hopeless(_)) => self.fail(reason).await,
            Err(stopped) => stopped,
        }
    }

    /// The old and the new database. They come from the move, not from the tenant's row, which may be changed or removed
    /// during the move.
    fn locations(&self) -> Result<[DatabaseLocation; 2], String> {
        let slug = &self.record.slug;
        let config = self.all.following.config();
        let location = |database: &str| -> Result<DatabaseLocation, String> {
            let object = json!({
                "name": slug, "address": format!("{slug}.invalid"), "timezone": "UTC", "database": database,
            });
            let object: Map<_, _> = object.as_object().cloned().unwrap_or_default();
            let text = registered_json::to_text(slug, &object).map_err(|_| "the database has no TOML".to_owned())?;
            let tenant = RegisteredTenant::read(slug, &text, config, None).map_err(|problems| problems.titles())?;
            Ok(tenant.config.database.clone())
        };
        Ok([location(self.record.old_database())?, location(self.record.database())?])
    }
}
