//! What the workers take of the processors, and how often each polls a task.
//!
//! The time of the whole process would be nearer at hand. But the kernel adds it up from all threads, which takes it half a
//! millisecond where each of a thousand SQLite files has two; and what those threads do, no worker can do in their place.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

thread_local! {
    /// How many times a task was polled on this thread.
    static POLLS: Cell<u64> = const { Cell::new(0) };
}

/// Every thread on which a task was polled: the file in which the kernel tells its time.
static WORKERS: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Notes that a task is about to be polled on this thread.
#[cfg(tokio_unstable)]
pub(super) fn count_poll() {
    let before = POLLS.get();
    POLLS.set(before.wrapping_add(1));
    if before == 0
        && let Ok(file) = File::open("/proc/thread-self/schedstat")
    {
        WORKERS.lock().unwrap_or_else(PoisonError::into_inner).push(file);
    }
}

/// Which thread this is, and how many times a task was polled on it.
pub(super) fn polls_here() -> (ThreadId, u64) {
    (thread::current().id(), POLLS.get())
}

/// What those of the process's workers that still run have taken of the processors so far; none where the kernel does
/// not tell it, or before any has run.
pub(super) fn spent() -> Option<Duration> {
    let mut workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sum = Duration::ZERO;
    workers.retain(|worker| read(worker).map(|time| sum += time).is_ok());
    (!workers.is_empty()).then_some(sum)
}

/// The first of the numbers in a `schedstat`: nanoseconds on a processor (`Documentation/scheduler/sched-stats.rst`).
fn read(worker: &File) -> io::Result<Duration> {
    let mut text = [0; 64];
    let length = worker.read_at(&mut text, 0)?;
    let number = text[..length].split(|byte| *byte == b' ').next().unwrap_or_default();
    let nanoseconds = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
    nanoseconds.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(all(test, tokio_unstable))]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_thread_that_polls_is_a_worker_as_long_as_it_runs() {
        let (told, tells) = channel();
        let (ends, end) = channel::<()>();
        let worker = thread::spawn(move || {
            for _ in 0..3 {
                count_poll();
            }
            let (file, began) = (File::open("/proc/thread-self/schedstat").unwrap(), Instant::now());
            while read(&file).unwrap() < Duration::from_millis(20) {
                assert!(began.elapsed() < LIMIT);
            }
            told.send((polls_here(), file)).unwrap();
            end.recv().unwrap_err();
        });
        let ((thread, polls), file) = tells.recv().unwrap();
        assert_eq!((thread, polls), (worker.thread().id(), 3));
        assert!(spent().unwrap() >= Duration::from_millis(20));
        drop(ends);
        worker.join().unwrap();
        let began = Instant::now();
        while read(&file).is_ok() {
            assert!(began.elapsed() < LIMIT, "the time of a thread that has ended is told");
        }
    }
}
