//! Moves of accounts to other databases, as this node takes part in them: it holds the account's requests when the registry
//! says so, and confirms in the registry that none is under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Following;
use crate::store::registry::{MoveState, SeenMove};
use crate::store::{Registry, with_causes};
use crate::tenant::{Directory, TenantDatabase};

/// How long requests may take that are under way when the hold begins.
///
/// Larger: the others wait for longer. Smaller: while there are slow requests, a move is put off.
const REST_LIMIT: Duration = Duration::from_millis(600);

/// How often a move is put off for requests that are under way. After that, the only ones left are responses to slow readers.
///
/// Larger: clients that read slowly keep an account where it is. Smaller: a slow write is refused at the old place.
const PUT_OFF: i64 = 5;

/// The moves that this node takes part in.
#[derive(Debug, Default)]
pub(super) struct FollowedMoves {
    /// One is about to hold its account, or does.
    is_near: bool,
    /// By tenant: the number of the hold, and the database that is held.
    held: HashMap<String, (i64, Arc<TenantDatabase>)>,
    /// Accounts that are in another database now.
    moved: Vec<Arc<str>>,
}

impl Following {
    fn moves(&self) -> MutexGuard<'_, FollowedMoves> {
        lock(&self.moves)
    }

    /// Whether an account is about to move.
    pub(in crate::registry) fn has_near_move(&self) -> bool {
        self.moves().is_near
    }

    /// The accounts that have moved to another database since the last call.
    #[must_use]
    pub fn take_moved(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.moves().moved)
    }

    /// Notes where accounts are going: when the row of one has that database, it is the same account.
    pub(super) fn expect_moves(&self, moves: &[SeenMove]) {
        let directory = self.directory.load();
        for seen in moves {
            if let Some(database) = leaving(&directory, seen) {
                database.expect_move(&seen.place);
            }
        }
    }

    /// Holds or releases requests, as the open moves say.
    pub(super) fn follow_moves(&self, registry: &Registry, seen: &[SeenMove]) {
        let count = |state: MoveState| seen.iter().filter(|seen| seen.state == state).count();
        self.metrics.moving(MoveState::ALL.into_iter().map(|state| (state.as_str(), count(state))));
        let directory = self.directory.load_full();
        let mut moves = self.moves();
        moves.is_near = seen.iter().any(|seen| matches!(seen.state, MoveState::CatchingUp | MoveState::Holding));
        let holding: HashMap<&str, &SeenMove> = seen
            .iter()
            .filter(|seen| seen.state == MoveState::Holding)
            .map(|seen| (seen.slug.as_str(), seen))
            .collect();
        moves.held.retain(|slug, (hold, database)| {
            let goes_on = holding.get(slug.as_str()).is_some_and(|seen| seen.hold == *hold);
            if !goes_on {
                database.release();
            }
            goes_on
        });
        for (slug, seen) in holding {
            let Some(database) = leaving(&directory, seen).filter(|_| !moves.held.contains_key(slug)) else { continue };
            database.hold();
            moves.held.insert(slug.to_owned(), (seen.hold, Arc::clone(&database)));
            let (registry, node, seen) = (registry.clone(), self.node.id().to_owned(), seen.clone());
            tokio::spawn(async move {
                if !database.rest(REST_LIMIT).await && seen.hold < PUT_OFF {
                    return;
                }
                if let Err(error) = registry.note_hold(seen.id, &node, seen.hold).await {
                    let (tenant, cause) = (seen.slug, with_causes(&error));
                    tracing::warn!(
                        tenant,
                        cause,
                        "could not write that the requests of an account wait; its move is put off"
                    );
                }
            });
        }
    }

    /// Notes which of these tenants have moved to another database.
    pub(super) fn note_moved(&self, before: &Directory, slugs: &[Arc<str>]) {
        let has_moved = |slug: &&Arc<str>| before.in_use(slug).is_some_and(TenantDatabase::has_moved);
        let moved: Vec<_> = slugs.iter().filter(has_moved).cloned().collect();
        for tenant in &moved {
            tracing::info!(tenant = &**tenant, "account has moved to another database");
        }
        self.moves().moved.extend(moved);
    }
}

/// The database that an account leaves, unless it has left it already.
fn leaving(directory: &Directory, seen: &SeenMove) -> Option<Arc<TenantDatabase>> {
    let config = directory.config(&seen.slug)?;
    let is_there = config.origin.is_registered() && config.database_identity() != seen.place;
    let tenant = directory.tenant(&seen.slug).filter(|_| is_there)?;
    Some(Arc::clone(&tenant.database))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is complete when it is visible.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
