//! Why a node can't do its work on domains: what readiness reports, and the log says once.
//!
//! A fault of the work as a whole stands until the next run succeeds; one of a domain until the same domain is worked on with
//! success, or for a while: another node may work on it next.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::DomainsError;
use crate::store::with_causes;

/// How long a fault of a domain is reported if this node does not work on the domain again.
///
/// Larger: a fault that is gone is reported for longer. Smaller: a fault seems to be gone until the lease of the domain ends.
const REPORTED: Duration = Duration::from_mins(15);

/// What to do about rights that are missing.
const GRANT: &str = "grant them, as `The registry` in deploy/README.md shows";

/// The faults.
#[derive(Debug, Default)]
pub(super) struct Trouble(Mutex<Faults>);

#[derive(Debug, Default)]
struct Faults {
    work: Option<String>,
    /// The rights that the role of this node lacks in the registry.
    rights: Vec<String>,
    /// The last domain that failed, why, and when.
    domain: Option<(String, String, Instant)>,
}

impl Trouble {
    /// Notes a run of the work as a whole.
    pub(super) fn note_work(&self, outcome: &Result<(), DomainsError>) {
        let cause = cause(outcome);
        let mut faults = self.lock();
        if let Some(cause) = &cause
            && faults.work.is_none()
        {
            tracing::error!(cause, "domains can't be looked after");
        }
        faults.work = cause;
    }

    /// Notes the rights that the role of this node lacks in the registry. Some of the work may not be due for weeks.
    pub(super) fn note_rights(&self, missing: Vec<String>) {
        let mut faults = self.lock();
        if faults.rights != missing {
            if missing.is_empty() {
                tracing::info!("the role of this node has all rights for domains in the registry again");
            } else {
                let (missing, next_step) = (missing.join(", "), GRANT);
                tracing::error!(missing, next_step, "the role of this node lacks rights in the registry");
            }
        }
        faults.rights = missing;
    }

    /// Whether rights were missing when they were last looked at.
    pub(super) fn lacks_rights(&self) -> bool {
        !self.lock().rights.is_empty()
    }

    /// Notes a step of a domain.
    pub(super) fn note_domain(&self, host: &str, outcome: &Result<(), DomainsError>) {
        let mut faults = self.lock();
        match cause(outcome) {
            Some(cause) => {
                if faults.domain.is_none() {
                    tracing::error!(cause, host, "a domain can't be looked after");
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
        let rights = (!faults.rights.is_empty())
            .then(|| format!("the role of this node lacks {} in the registry; {GRANT}", faults.rights.join(", ")));
        rights.or_else(|| faults.work.clone()).or(domain)
    }

    fn lock(&self) -> MutexGuard<'_, Faults> {
        // Each change is a single assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That keys can't be opened is logged when it changes, and reported by itself.
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
