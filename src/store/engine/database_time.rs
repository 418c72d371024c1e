//! Measures how long a request waited for statements. The access log reports it for slow requests.
//!
//! The current request is a task-local, so the statement code needs no parameter for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

tokio::task_local! {
    static CURRENT: DatabaseTime;
}

/// The statement time of one request. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct DatabaseTime {
    micros: Arc<AtomicU64>,
}

impl DatabaseTime {
    /// Runs `work` and counts the statements that it awaits. Statements in tasks that it spawns are not counted.
    pub async fn measure<T>(&self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self.clone(), work).await
    }

    /// The total so far.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }
}

/// Times one statement. Dropping it ends the measurement, also if the request was cancelled.
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
    async fn a_cancelled_statement_counts_and_one_outside_a_request_does_not() {
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
