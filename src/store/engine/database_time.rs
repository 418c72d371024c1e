//! How long a request spent waiting for statements, for whoever serves it and wants to know what made it slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

tokio::task_local! {
    static CURRENT: DatabaseTime;
}

/// The time of the statements of one request. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct DatabaseTime {
    micros: Arc<AtomicU64>,
}

impl DatabaseTime {
    /// Runs what asks for statements, and counts those that it waits for itself: not what it hands to other tasks.
    pub async fn measure<T>(&self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self.clone(), work).await
    }

    /// What was spent so far.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }
}

/// One statement that is waited for; dropping it ends that, also when its request was given up.
#[derive(Debug)]
pub(super) struct Timing {
    time: Option<DatabaseTime>,
    began: Instant,
}

impl Timing {
    pub(super) fn begin() -> Self {
        Self { time: CURRENT.try_with(DatabaseTime::clone).ok(), began: Instant::now() }
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        if let Some(time) = &self.time {
            let micros = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
            time.micros.fetch_add(micros, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_given_up_counts_and_what_is_not_measured_does_not() {
        let time = DatabaseTime::default();
        drop(Timing::begin());
        let waiting = async {
            let _timing = Timing::begin();
            std::future::pending::<()>().await;
        };
        let given_up = tokio::time::timeout(Duration::from_millis(20), time.measure(waiting)).await;
        assert!(given_up.is_err());
        assert!((20..5000).contains(&time.total().as_millis()), "{:?}", time.total());
    }
}
