//! The threads that serve: as many of the runtime's workers are at work as the load needs, and the others rest.
//!
//! Tokio has a worker for each core and wakes another one whenever a worker has two things to do. As long as one has time
//! to spare, that costs more than it brings: two share what would be warm in one core's memory, each finds less to do at a
//! time, and both are woken more often. So a worker that is not needed is given a task that blocks its thread, which is
//! all that a runtime has for it. One thread looks at what the workers spend (`clock.rs`), some hundred times a second, and
//! `load.rs` decides.
//!
//! Tasks that wait for a worker whose thread is blocked may wait as long: another takes them out of its queue once it has
//! nothing to do itself, and never those that yielded. So a worker goes only when nothing waits for it, which is told by
//! an unstable part of Tokio (`--cfg tokio_unstable`, in `.cargo/config.toml`). Built without it, all are at work.

mod clock;
mod load;

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use prometheus::IntGauge;
use tokio::runtime::{Builder, Handle, Runtime};

use clock::polls_here;
use load::Load;

/// The runtime of the program, with a worker for each core. Only of such a one can workers rest.
///
/// # Errors
/// The system has no threads to spare, or no way to wait for sockets.
pub fn runtime() -> io::Result<Runtime> {
    builder().build()
}

fn builder() -> Builder {
    let mut builder = Builder::new_multi_thread();
    builder.enable_all();
    #[cfg(tokio_unstable)]
    builder.on_before_task_poll(|_| clock::count_poll());
    builder
}

/// How often is looked at the load while a worker rests that may soon be needed. Longer, and a burst waits for that; shorter
/// costs more than it tells.
const LOOK: Duration = Duration::from_millis(5);

/// How often while those at work have time to spare, or none rests.
const GLANCE: Duration = Duration::from_millis(20);

/// The workers of a runtime, of which as many are at work as its load needs. Dropped, all of them are.
#[derive(Debug)]
pub(crate) struct Workers {
    rest: Arc<Rest>,
    looking: Option<JoinHandle<()>>,
}

impl Workers {
    /// Begins to look at the load of a runtime. `at_work` tells how many it needs.
    pub(crate) fn follow_load(runtime: Handle, at_work: IntGauge) -> Self {
        let rest = Arc::new(Rest::default());
        let all = runtime.metrics().num_workers();
        at_work.set(i64::try_from(all).unwrap_or(i64::MAX));
        if all == 1 || cfg!(not(tokio_unstable)) {
            return Self { rest, looking: None };
        }
        let look = Look { rest: Arc::clone(&rest), runtime, at_work };
        let looking = thread::Builder::new().name("workers".to_owned()).spawn(move || look.follow(all));
        if let Err(error) = &looking {
            tracing::warn!(%error, "no thread looks at the load: all workers are at work");
        }
        Self { rest, looking: looking.ok() }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.rest.end();
        if self.looking.take().is_some_and(|looking| looking.join().is_err()) {
            tracing::error!("the thread that looks at the load panicked");
        }
    }
}

/// The thread that looks at the load.
struct Look {
    rest: Arc<Rest>,
    runtime: Handle,
    at_work: IntGauge,
}

impl Look {
    fn follow(self, all: usize) {
        let mut load = Load::new(all);
        let (mut since, mut spent) = (Instant::now(), clock::spent());
        let mut until_next = GLANCE;
        loop {
            if !self.wait(until_next) {
                return;
            }
            let (now, spent_now) = (Instant::now(), clock::spent());
            let (wall, took) = (now - since, spent_now.zip(spent).map(|(now, before)| now.saturating_sub(before)));
            (since, spent) = (now, spent_now);
            let Some(took) = took else { continue };
            let cores = took.as_secs_f64() / wall.as_secs_f64().max(f64::MIN_POSITIVE);

            let needed = load.observe(wall, cores);
            let rest = self.rest.lock();
            until_next = if rest.wanted == 0 || load.has_time_to_spare(cores) { GLANCE } else { LOOK };
            if rest.wanted != all - needed {
                self.want(rest, all - needed);
                self.at_work.set(i64::try_from(needed).unwrap_or(i64::MAX));
            }
        }
    }

    /// Waits for the time of the next look, unless all this has ended. When a worker goes to rest meanwhile, wakes another:
    /// who waits for sockets was perhaps the one that went, or looked whether it could while that one did.
    fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut rest = self.rest.lock();
        loop {
            if std::mem::take(&mut rest.one_went) {
                drop(rest);
                self.runtime.spawn(async {});
                rest = self.rest.lock();
            }
            let left = until.saturating_duration_since(Instant::now());
            if rest.ended || left.is_zero() {
                return !rest.ended;
            }
            rest = self.rest.went.wait_timeout(rest, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has so many workers rest. Those that are to do so are given a task, by which they do.
    fn want(&self, mut rest: MutexGuard<'_, Resting>, wanted: usize) {
        for _ in rest.wanted..wanted {
            let rest = Arc::clone(&self.rest);
            self.runtime.spawn(async move { rest.take().await });
        }
        rest.wanted = wanted;
        drop(rest);
        self.rest.changed.notify_all();
    }
}

/// Where workers rest.
#[derive(Debug, Default)]
struct Rest {
    resting: Mutex<Resting>,
    /// Another number is wanted.
    changed: Condvar,
    /// One went to rest, or all this has ended.
    went: Condvar,
}

#[derive(Debug, Default)]
struct Resting {
    /// How many are to rest: always fewer than there are.
    wanted: usize,
    /// How many do.
    resting: usize,
    /// Whether one went, of which nobody took notice yet.
    one_went: bool,
    /// Whether nobody rests any more.
    ended: bool,
}

impl Rest {
    fn lock(&self) -> MutexGuard<'_, Resting> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
        self.went.notify_all();
    }

    /// Blocks a worker until it is wanted at work, unless enough others rest, and once nothing waits for it.
    async fn take(&self) {
        loop {
            let (thread, polls) = polls_here();
            // Now whatever yielded before is woken, and what arrived is in the queue; then comes what is in it. If nothing
            // else was polled here in all this, there was nothing, and nothing could yield meanwhile.
            tokio::task::yield_now().await;
            let yielded = polls_here();
            after_what_waits().await;
            let came_back = polls_here();
            if !self.has_room() || came_back == (thread, polls) {
                // Enough others rest, or nobody counts.
                return;
            }
            if yielded == (thread, polls.wrapping_add(1)) && came_back == (thread, polls.wrapping_add(2)) {
                break;
            }
        }
        let mut rest = self.lock();
        if rest.resting >= rest.wanted {
            return;
        }
        rest.resting += 1;
        rest.one_went = true;
        self.went.notify_one();
        while !rest.ended && rest.resting <= rest.wanted {
            rest = self.changed.wait(rest).unwrap_or_else(PoisonError::into_inner);
        }
        rest.resting -= 1;
    }

    fn has_room(&self) -> bool {
        let rest = self.lock();
        rest.resting < rest.wanted
    }
}

/// Comes back behind what is in the queue of this worker now. Who yields comes back once that and all others' are empty.
async fn after_what_waits() {
    let mut came = false;
    poll_fn(|context| {
        if std::mem::replace(&mut came, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(all(test, tokio_unstable))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A worker that is always busy takes nothing from another's queue.
    #[test]
    fn nothing_is_left_behind_with_a_worker_that_rests() {
        let runtime = builder().worker_threads(2).build().unwrap();
        let (rest, stop) = (Arc::new(Rest::default()), Arc::new(AtomicBool::new(false)));
        rest.lock().wanted = 1;
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (busy, busy_stop) = (begun.clone(), Arc::clone(&stop));
        let busy = runtime.spawn(async move {
            busy.send(()).unwrap();
            while !busy_stop.load(Ordering::Relaxed) {
                after_what_waits().await;
            }
        });
        has_begun.recv().unwrap();
        let (to_rest, done) = (Arc::clone(&rest), Arc::new(Mutex::new(0)));
        let (all_done, are_all_done) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            for number in 0..50 {
                let (done, all_done) = (Arc::clone(&done), all_done.clone());
                tokio::spawn(async move {
                    for _ in 0..number {
                        match number % 2 {
                            0 => after_what_waits().await,
                            _ => tokio::task::yield_now().await,
                        }
                    }
                    *done.lock().unwrap() += 1;
                    if *done.lock().unwrap() == 50 {
                        all_done.send(()).unwrap();
                    }
                });
            }
            to_rest.take().await;
        });
        let all_were_done = are_all_done.recv_timeout(Duration::from_secs(20));
        while rest.lock().resting != 1 {
            thread::sleep(Duration::from_millis(1));
        }
        rest.end();
        stop.store(true, Ordering::Relaxed);
        runtime.block_on(busy).unwrap();
        all_were_done.unwrap();
    }

    #[test]
    fn what_is_begun_is_done_whoever_rests_meanwhile() {
        let runtime = builder().worker_threads(4).build().unwrap();
        let look = Look {
            rest: Arc::default(),
            runtime: runtime.handle().clone(),
            at_work: IntGauge::new("at_work", "Workers.").unwrap(),
        };
        thread::scope(|scope| {
            scope.spawn(|| while look.wait(LOOK) {});
            for wanted in [3, 0, 2, 3, 1, 0, 3].repeat(20) {
                let tasks: Vec<_> = (0..200).map(|_| runtime.spawn(to_and_fro())).collect();
                look.want(look.rest.lock(), wanted);
                for task in tasks {
                    runtime.block_on(task).unwrap();
                }
                while look.rest.lock().resting != wanted {
                    thread::sleep(Duration::from_millis(1));
                }
                runtime.block_on(runtime.spawn(to_and_fro())).unwrap();
            }
            look.rest.end();
        });
        // Waits for all of its workers.
        drop(runtime);
    }

    async fn to_and_fro() {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::spawn(async { tokio::task::yield_now().await }).await.expect("it does not panic");
        }
    }

    #[test]
    fn an_idle_runtime_keeps_one_worker_and_has_all_of_them_when_it_ends() {
        let runtime = builder().worker_threads(3).build().unwrap();
        let at_work = IntGauge::new("at_work", "Workers.").unwrap();
        let rest = Arc::new(Rest::default());
        let look = Look { rest: Arc::clone(&rest), runtime: runtime.handle().clone(), at_work: at_work.clone() };
        let workers = Workers { rest: Arc::clone(&rest), looking: Some(thread::spawn(move || look.follow(3))) };
        // Other tests of this process are a load, too, which ends.
        while rest.lock().resting != 2 {
            thread::sleep(Duration::from_millis(1));
        }
        runtime.block_on(runtime.spawn(to_and_fro())).unwrap();
        drop(workers);
        while rest.lock().resting != 0 {
            thread::sleep(Duration::from_millis(1));
        }
        drop(runtime);
    }
}
