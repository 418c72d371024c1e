//! Work that goes on without a request: named tasks, each run again and again by one driver.
//!
//! A task takes no input but what it reads, so a run can be repeated at any time. The driver owns when a task runs: at
//! the start, when its interval is over, and when it is woken. A run that fails or panics does not end its task. The
//! time of each task's last success is a metric, which an alert watches: a task that fails is noticed by no request.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use jiff::Timestamp;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::metrics::TaskMetrics;

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// It did all that was due.
    Succeeded,
    /// It did not, and logged why.
    Failed,
}

/// A task of the driver.
pub trait Task: Send + 'static {
    /// The value of the metric's label `task`.
    const NAME: &'static str;

    /// The longest pause before the next run.
    fn interval(&self) -> Duration;

    /// Completes when the task is to run before its interval is over. It may be dropped at any time, and must not lose
    /// the event then.
    fn woken(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Does what is due.
    fn run(&mut self) -> impl Future<Output = Run> + Send;
}

/// Runs a task until the handle is dropped.
///
/// # Panics
/// Outside of a Tokio runtime.
#[must_use = "dropping it ends the task"]
pub fn start<T: Task>(task: T, metrics: &TaskMetrics) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(drive(task, metrics.clone())))
}

async fn drive<T: Task>(mut task: T, metrics: TaskMetrics) {
    // The alert on a task that never succeeds counts from here.
    metrics.succeeded(T::NAME, Timestamp::now());
    loop {
        // A task keeps its state behind locks, or in fields that are consistent between any two statements.
        match AssertUnwindSafe(task.run()).catch_unwind().await {
            Ok(Run::Succeeded) => metrics.succeeded(T::NAME, Timestamp::now()),
            Ok(Run::Failed) => {}
            Err(_) => tracing::error!(task = T::NAME, "background task panicked; it runs again after its interval"),
        }
        let interval = task.interval();
        tokio::select! {
            () = sleep(interval) => {}
            () = task.woken() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;

    struct Counting {
        runs: Arc<AtomicU32>,
        ran: Arc<Notify>,
        wake: Arc<Notify>,
    }

    impl Task for Counting {
        const NAME: &'static str = "counting";

        fn interval(&self) -> Duration {
            Duration::from_secs(3600)
        }

        async fn woken(&mut self) {
            self.wake.notified().await;
        }

        async fn run(&mut self) -> Run {
            let run = self.runs.fetch_add(1, Ordering::AcqRel);
            self.ran.notify_one();
            match run {
                0 => Run::Failed,
                1 => panic!("MARKER"),
                _ => Run::Succeeded,
            }
        }
    }

    #[tokio::test]
    async fn a_task_runs_at_the_start_and_when_it_is_woken_also_after_a_failure_and_a_panic() {
        let metrics = TaskMetrics::unregistered();
        let (runs, ran, wake) = (Arc::<AtomicU32>::default(), Arc::<Notify>::default(), Arc::<Notify>::default());
        let task = Counting { runs: Arc::clone(&runs), ran: Arc::clone(&ran), wake: Arc::clone(&wake) };
        let driver = start(task, &metrics);
        for expected in 1..=4 {
            ran.notified().await;
            assert_eq!(runs.load(Ordering::Acquire), expected);
            wake.notify_one();
        }
        drop(driver);
    }

    #[tokio::test]
    async fn only_a_success_moves_the_metric() {
        let metrics = TaskMetrics::unregistered();
        let (runs, ran, wake) = (Arc::<AtomicU32>::default(), Arc::<Notify>::default(), Arc::<Notify>::default());
        let task = Counting { runs: Arc::clone(&runs), ran: Arc::clone(&ran), wake: Arc::clone(&wake) };
        let _driver = start(task, &metrics);
        ran.notified().await;
        // In place of the start: a time that only a success replaces.
        metrics.succeeded("counting", Timestamp::UNIX_EPOCH);
        wake.notify_one();
        ran.notified().await;
        assert_eq!(metrics.last_success("counting"), 0, "after a failure and a panic");
        wake.notify_one();
        ran.notified().await;
        while metrics.last_success("counting") == 0 {
            tokio::task::yield_now().await;
        }
    }
}
