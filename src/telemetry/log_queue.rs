//! The queue between the process and standard error: no thread but the writer's waits for the reader of the log.
//!
//! Lines of requests are collected for a moment and written together; others are written at once. If the reader is slower than the process, lines queue up;
//! beyond a bound in bytes, further ones are dropped and counted, and once writing goes on, a line says how many. A
//! process that is killed loses its last lines; every other exit waits a second for them ([`LogQueue::flush`]).
//!
//! The writer has a descriptor of its own: if it waited while it held the lock of [`std::io::Stderr`], everything else
//! that is written there would wait with it.

use std::io::{ErrorKind, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use prometheus::IntCounter;

/// How long lines of requests are collected before they are written.
///
/// Larger: `tail -f` stutters and a crash loses more. Smaller: a quiet gateway writes more often.
const BATCH_DELAY: Duration = Duration::from_millis(50);

/// How many bytes of lines are written at once.
///
/// Larger: they leave the core's cache before they are written. Smaller: a busy gateway writes more often.
const BATCH_BYTES: usize = 128 * 1024;

/// How many bytes are written at once while the process waits to exit: what a pipe takes without being empty (`PIPE_BUF`).
///
/// Larger: a slow reader looks like one that does not read. Smaller: more calls for the same lines.
const LAST_BYTES: usize = 4096;

/// Maximum bytes of queued lines: some seconds of a busy gateway.
///
/// Larger: a log that is not read costs more memory. Smaller: lines are dropped sooner.
pub(super) const MAX_QUEUED: usize = 8 * 1024 * 1024;

/// How long an exit waits for the reader of the log.
///
/// Larger: a log that nobody reads delays each exit. Smaller: a busy reader misses the last lines.
pub(super) const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The queue. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct LogQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There are lines, enough of them, or an exit waits for them.
    filled: Condvar,
    /// All lines were written.
    emptied: Condvar,
    capacity: usize,
    dropped: IntCounter,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<u8>,
    /// How many bytes the writer has taken out of `lines` and not yet written.
    in_writing: usize,
    /// Bytes written so far.
    written: u64,
    /// Whether the lines are written without waiting for others.
    is_urgent: bool,
    is_flushing: bool,
}

impl State {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.in_writing == 0
    }
}

impl LogQueue {
    /// Starts the thread that writes to `log`. Counts dropped lines in `dropped`.
    ///
    /// # Panics
    /// The system has no thread left.
    pub(super) fn start(log: impl Write + Send + 'static, capacity: usize, dropped: IntCounter) -> Self {
        let (state, filled, emptied) = (Mutex::default(), Condvar::new(), Condvar::new());
        let queue = Self(Arc::new(Shared { state, filled, emptied, capacity, dropped }));
        let writer = queue.clone();
        let thread = thread::Builder::new().name("log".to_owned()).spawn(move || writer.write_to(log));
        thread.expect("the system has a thread left");
        queue
    }

    /// Queues a line of a request, or counts it as dropped. Never waits for the log.
    pub(super) fn push(&self, line: &[u8]) {
        self.enqueue(line, false);
    }

    fn enqueue(&self, line: &[u8], is_urgent: bool) {
        let mut state = self.lock();
        if state.lines.len() + state.in_writing + line.len() > self.0.capacity {
            drop(state);
            self.0.dropped.inc();
            return;
        }
        let before = state.lines.len();
        state.lines.extend_from_slice(line);
        state.is_urgent |= is_urgent;
        if before == 0 || is_urgent || before < BATCH_BYTES && state.lines.len() >= BATCH_BYTES {
            self.0.filled.notify_one();
        }
    }

    /// Waits until all lines are written, at most as long as the limit. Returns whether they are.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let mut state = self.lock();
        state.is_flushing = true;
        self.0.filled.notify_one();
        let waited = self.0.emptied.wait_timeout_while(state, limit, |state| !state.is_empty());
        let (mut state, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_flushing = false;
        !outcome.timed_out()
    }

    /// Waits until all lines are written, however slowly, unless nothing of them is read for as long as the limit.
    pub(super) fn flush_while_read(&self, limit: Duration) {
        loop {
            let before = self.lock().written;
            if self.flush(limit) || self.lock().written == before {
                return;
            }
        }
    }

    fn write_to(&self, mut log: impl Write) {
        let (mut batch, mut reported) = (Vec::new(), self.0.dropped.get());
        let mut is_broken_off = false;
        loop {
            self.take_batch(&mut batch);
            if is_broken_off {
                batch.insert(0, b'\n');
            }
            let unwritten = self.write_batch(&mut log, &batch);
            if let Some(last) = batch[..batch.len() - unwritten.len()].last() {
                is_broken_off = *last != b'\n';
            }
            if !unwritten.is_empty() {
                // A file system that is full, a limit of file size, or a reader that is gone.
                let lines = unwritten.iter().filter(|byte| **byte == b'\n').count();
                self.0.dropped.inc_by(lines.try_into().unwrap_or(u64::MAX));
            } else if self.0.dropped.get() > reported {
                let total = self.0.dropped.get();
                let dropped = total - mem::replace(&mut reported, total);
                tracing::warn!(dropped, total, "the log was not read, or could not be written: lines were dropped");
            }
            batch.clear();
            batch.shrink_to(2 * BATCH_BYTES);
            let mut state = self.lock();
            state.in_writing = 0;
            if state.is_empty() {
                self.0.emptied.notify_all();
            }
        }
    }

    /// Waits for lines, and a moment for more of them.
    fn take_batch(&self, batch: &mut Vec<u8>) {
        let state = self.0.filled.wait_while(self.lock(), |state| state.lines.is_empty());
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let may_grow = |state: &mut State| state.lines.len() < BATCH_BYTES && !state.is_urgent && !state.is_flushing;
        let waited = self.0.filled.wait_timeout_while(state, BATCH_DELAY, may_grow);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        mem::swap(batch, &mut state.lines);
        state.in_writing = batch.len();
        state.is_urgent = false;
    }

    /// Writes the lines and returns those that can't be written.
    fn write_batch<'b>(&self, log: &mut impl Write, mut lines: &'b [u8]) -> &'b [u8] {
        while !lines.is_empty() {
            let most = if self.lock().is_flushing { LAST_BYTES } else { BATCH_BYTES };
            match log.write(&lines[..lines.len().min(most)]) {
                Ok(0) => return lines,
                Ok(written) => {
                    lines = &lines[written..];
                    let mut state = self.lock();
                    state.in_writing = lines.len();
                    state.written += written as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Another process has made the terminal or pipe non-blocking for all who share it.
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(BATCH_DELAY),
                Err(_) => return lines,
            }
        }
        lines
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For the layer that formats lines: each is written by one call.
impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.enqueue(line, true);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const LINE: &[u8] = &{
        let mut line = [b'x'; 250];
        line[249] = b'\n';
        line
    };

    fn counter() -> IntCounter {
        IntCounter::new("dropped", "Lines.").unwrap()
    }

    /// A log that reports each write and blocks it until the test lets it go on, with this outcome.
    struct BlockingLog(Sender<Vec<u8>>, Receiver<io::Result<()>>);

    impl Write for BlockingLog {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.0.send(lines.to_vec()).unwrap();
            // Without the test's end, all writes go on.
            self.1.recv().unwrap_or(Ok(())).map(|()| lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn blocking_log() -> (BlockingLog, Receiver<Vec<u8>>, Sender<io::Result<()>>) {
        let ((seen, writes), (go_on, wait)) = (channel(), channel());
        (BlockingLog(seen, wait), writes, go_on)
    }

    #[test]
    fn lines_queue_while_the_log_blocks_and_overflow_is_dropped_and_counted() {
        let (log, writes, go_on) = blocking_log();
        let (lines, dropped) = (2 * BATCH_BYTES / LINE.len(), counter());
        let queue = LogQueue::start(log, (lines + 1) * LINE.len(), dropped.clone());
        queue.push(LINE);
        assert_eq!(writes.recv().unwrap(), LINE);
        for _ in 0..lines + 3 {
            queue.push(LINE);
        }
        assert_eq!(dropped.get(), 3);
        drop(go_on);
        assert!(queue.flush(Duration::from_secs(60)));
        let batches: Vec<_> = writes.try_iter().collect();
        assert_eq!(batches.concat(), LINE.repeat(lines));
    }

    #[test]
    fn an_exit_waits_for_a_slow_reader_and_not_for_one_that_does_not_read() {
        let (log, writes, go_on) = blocking_log();
        let queue = LogQueue::start(log, MAX_QUEUED, counter());
        queue.push(&LINE.repeat(3 * LAST_BYTES / LINE.len()));
        assert!(!queue.flush(Duration::ZERO), "nothing was written yet");
        queue.flush_while_read(Duration::from_millis(10));
        let reader = thread::spawn(move || {
            drop(go_on);
            writes.iter().map(|part| part.len()).sum::<usize>()
        });
        queue.flush_while_read(Duration::from_secs(60));
        assert!(queue.lock().is_empty());
        drop(queue);
        drop(reader);
    }

    #[test]
    fn lines_that_can_not_be_written_are_dropped_and_the_next_ones_are_whole() {
        let (log, writes, go_on) = blocking_log();
        let dropped = counter();
        let queue = LogQueue::start(log, MAX_QUEUED, dropped.clone());
        queue.push(&LINE.repeat(3));
        writes.recv().unwrap();
        go_on.send(Err(ErrorKind::StorageFull.into())).unwrap();
        assert!(queue.flush(Duration::from_secs(60)));
        assert_eq!(dropped.get(), 3);
        queue.push(LINE);
        assert_eq!(writes.recv().unwrap(), LINE);
        go_on.send(Err(ErrorKind::WouldBlock.into())).unwrap();
        assert_eq!(writes.recv().unwrap(), LINE, "tried again");
        go_on.send(Ok(())).unwrap();
        assert!(queue.flush(Duration::from_secs(60)));
        assert_eq!(dropped.get(), 3);
    }
}
