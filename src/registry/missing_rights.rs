//! The rights that this node's role lacks in the registry: logged when they change, and shown by readiness. Some are needed for
//! the first time weeks after the start.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::store::registry::RegistryUse;
use crate::store::{Registry, StoreError};

/// How often rights are checked.
///
/// Larger: a right that was revoked is noticed later. Smaller: more statements.
const INTERVAL: Duration = Duration::from_hours(6);

/// The same while some are missing.
///
/// Larger: they seem to be missing for longer after they were granted. Smaller: more statements.
const MISSING_INTERVAL: Duration = Duration::from_secs(15);

/// What to do about it.
const GRANT: &str = "grant them, as `Rights of a node` in deploy/registry.md shows";

/// What is known of the rights for some uses of the registry.
#[derive(Debug)]
pub struct MissingRights {
    uses: Vec<RegistryUse>,
    checked: Mutex<Checked>,
}

#[derive(Debug, Default)]
struct Checked {
    at: Option<Instant>,
    missing: Vec<String>,
}

impl MissingRights {
    /// Not checked yet.
    #[must_use]
    pub fn new(uses: impl IntoIterator<Item = RegistryUse>) -> Self {
        Self { uses: uses.into_iter().collect(), checked: Mutex::default() }
    }

    /// Checks the rights if it is time.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn check(&self, registry: &Registry) -> Result<(), StoreError> {
        let is_due = {
            let Checked { at, missing } = &*self.lock();
            at.is_none_or(|at| at.elapsed() >= if missing.is_empty() { INTERVAL } else { MISSING_INTERVAL })
        };
        if !is_due {
            return Ok(());
        }
        let found = registry.missing_rights(&self.uses).await?;
        let mut checked = self.lock();
        if checked.missing != found {
            if found.is_empty() {
                tracing::info!("the role of this node has the rights in the registry that it lacked");
            } else {
                let (missing, next_step) = (found.join(", "), GRANT);
                tracing::error!(missing, next_step, "the role of this node lacks rights in the registry");
            }
        }
        *checked = Checked { at: Some(Instant::now()), missing: found };
        Ok(())
    }

    /// What is missing, and what to do about it.
    #[must_use]
    pub fn describe(&self) -> Option<String> {
        let missing = &self.lock().missing;
        let missing = (!missing.is_empty()).then(|| missing.join(", "))?;
        Some(format!("the role of this node lacks {missing} in the registry; {GRANT}"))
    }

    fn lock(&self) -> MutexGuard<'_, Checked> {
        // Each change is a single assignment.
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
