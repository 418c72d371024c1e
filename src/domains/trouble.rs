//! Why a node can't do its work on domains: what readiness reports, and the log says once.
//!
//! A fault of the work as a whole is reported until the next run succeeds; a fault of a domain until this node advances the
//! same domain, or for a while: another node may work on it next.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::DomainsError;
use crate::registry::MissingRights;
use crate::store::registry::RegistryUse;
use crate::store::with_causes;

/// How long a fault of a domain is reported if this node does not work on the domain again.
///
/// Larger: a fault that is over is reported for longer. Smaller: a fault seems to be over until the lease of the domain ends.
const REPORTED: Duration = Duration::from_mins(15);

/// The faults.
#[derive(Debug)]
pub(super) struct Trouble {
    /// What the role of this node may not do. Some of the work may not be due for weeks.
    pub(super) rights: MissingRights,
    faults: Mutex<Faults>,
}

#[derive(Debug, Default)]
struct Faults {
    work: Option<String>,
    /// The last domain that failed, why, and when.
    domain: Option<(String, String, Instant)>,
}

impl Default for Trouble {
    fn default() -> Self {
        Self { rights: MissingRights::new([RegistryUse::WorkOnDomains]), faults: Mutex::default() }
    }
}

impl Trouble {
    /// Notes a run of the work as a whole.
    pub(super) fn note_work(&self, outcome: &Result<(), DomainsError>) {
        let cause = cause(outcome);
        let mut faults = self.lock();
        if let Some(cause) = &cause
            && faults.work.is_none()
        {
            tracing::error!(cause, "domain worker failed");
        }
        faults.work = cause;
    }

    /// Notes a step of a domain.
    pub(super) fn note_domain(&self, host: &str, outcome: &Result<(), DomainsError>) {
        let mut faults = self.lock();
        match cause(outcome) {
            Some(cause) => {
                if faults.domain.is_none() {
                    tracing::error!(cause, host, "could not advance a domain");
                }
                faults.domain = Some((host.to_owned(), cause, Instant::now()));
            }
            None if faults.domain.as_ref().is_some_and(|(failed, ..)| failed == host) => faults.domain = None,
            None => {}
        }
    }

    /// What can't be done, in a few words.
    pub(super) fn cause(&self) -> Option<String> {
        let mut faults = self.lock();
        if faults.domain.as_ref().is_some_and(|(.., at)| at.elapsed() > REPORTED) {
            faults.domain = None;
        }
        let domain = faults.domain.as_ref().map(|(host, cause, _)| format!("{host}: {cause}"));
        self.rights.describe().or_else(|| faults.work.clone()).or(domain)
    }

    fn lock(&self) -> MutexGuard<'_, Faults> {
        // Each change is a single assignment.
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cause of an outcome. Keys that can't be opened are logged and reported elsewhere.
fn cause(outcome: &Result<(), DomainsError>) -> Option<String> {
    match outcome {
        Ok(()) | Err(DomainsError::Unopened(_) | DomainsError::Damaged) => None,
        Err(error) => Some(with_causes(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;

    #[test]
    fn a_fault_of_a_domain_is_over_once_the_same_domain_is_worked_on() {
        let trouble = Trouble::default();
        let failed = || Err(DomainsError::from(StoreError::Busy));
        trouble.note_domain("a.example", &failed());
        trouble.note_domain("b.example", &Ok(()));
        trouble.note_work(&Ok(()));
        assert!(trouble.cause().is_some_and(|cause| cause.starts_with("a.example: no connection")), "{trouble:?}");
        trouble.note_domain("a.example", &Ok(()));
        assert_eq!(trouble.cause(), None);
        trouble.note_work(&failed());
        trouble.note_domain("a.example", &Ok(()));
        assert!(trouble.cause().is_some());
        trouble.note_work(&Ok(()));
        assert_eq!(trouble.cause(), None);
    }
}
