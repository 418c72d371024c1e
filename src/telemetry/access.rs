//! The access log: one line per request.
//!
//! On a terminal it is text like the rest of the log. Otherwise a line is JSON like all others, but is built without
//! `tracing`'s fields and written by a separate thread: building and writing it was the largest cost of a request. A
//! slow reader of the log never blocks a request: beyond [`MAX_QUEUED`] queued lines, further ones are dropped, and
//! their number is logged. A process that is killed loses its last lines; a normal stop writes them.

use std::cell::RefCell;
use std::io::{self, Write, stderr};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use serde::Serialize;
use tracing::Level;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Its target in `FORMGATE_LOG`.
macro_rules! target {
    () => {
        "formgate::access"
    };
}

/// A field's name as part of a line. Names need no escaping.
macro_rules! name {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

/// How long lines are collected before they are written.
///
/// Larger: `tail -f` stutters and a crash loses more. Smaller: a quiet gateway writes more often.
const BATCH_DELAY: Duration = Duration::from_millis(50);

/// How many bytes of lines are written at once.
///
/// Larger: they leave the core's cache before they are written. Smaller: a busy gateway writes more often.
const BATCH_BYTES: usize = 128 * 1024;

/// Maximum number of queued lines: some seconds of a busy gateway.
///
/// Larger: a log that is not read costs more memory. Smaller: lines are dropped sooner.
const MAX_QUEUED: usize = 32 * 1024;

/// The content of one line.
#[derive(Debug)]
pub struct AccessLine<'r> {
    /// The request id.
    pub request_id: &'r str,
    /// The client's address.
    pub client: &'r str,
    /// The tenant's slug, if the host is a tenant's.
    pub tenant: Option<&'r str>,
    /// The token's name, if it was valid.
    pub token: Option<&'r str>,
    /// The method.
    pub method: &'r str,
    /// The route, if one was reached.
    pub route: Option<&'static str>,
    /// The answer's status.
    pub status: u16,
    /// Milliseconds from the head to the answer.
    pub duration_ms: f64,
    /// Bytes of the answer's body.
    pub bytes: Option<u64>,
    /// Remaining requests of the account's budget.
    pub remaining: Option<u32>,
    /// Milliseconds spent waiting for statements, for a slow request.
    pub database_ms: Option<f64>,
    /// Who ended a streamed answer before its end: the client, or a failure.
    pub cut: Option<&'static str>,
}

impl AccessLine<'_> {
    /// Logs the line, unless the log's filter excludes it.
    pub fn log(&self) {
        if !tracing::enabled!(target: target!(), Level::INFO) {
            return;
        }
        match LINES.get() {
            Some(lines) => self.write_into(lines),
            None => self.log_as_text(),
        }
    }

    fn write_into(&self, lines: &NonBlocking) {
        THREAD_BUFFER.with_borrow_mut(|own| {
            let (draft, lines) = own.get_or_insert_with(|| (Vec::new(), lines.clone()));
            draft.clear();
            self.write_to(draft);
            lines.write_all(draft).expect("a line for which there is no room counts as dropped");
        });
    }

    /// Appends the line, with the common fields of all log lines in their usual places.
    fn write_to(&self, draft: &mut Vec<u8>) {
        let mut line = LineWriter(draft);
        line.begin();
        line.text(name!("request_id"), Some(self.request_id));
        line.plain(name!("client"), Some(self.client));
        line.plain(name!("tenant"), self.tenant);
        line.text(name!("token"), self.token);
        line.plain(name!("method"), Some(self.method));
        line.plain(name!("route"), self.route);
        line.number(name!("status"), Some(self.status));
        line.number(name!("duration_ms"), Some(self.duration_ms));
        line.number(name!("bytes"), self.bytes);
        line.number(name!("remaining"), self.remaining);
        line.number(name!("database_ms"), self.database_ms);
        line.plain(name!("cut"), self.cut);
        line.end();
    }

    fn log_as_text(&self) {
        tracing::info!(
            target: target!(),
            request_id = self.request_id,
            client = self.client,
            tenant = self.tenant,
            token = self.token,
            method = self.method,
            route = self.route,
            status = self.status,
            duration_ms = self.duration_ms,
            bytes = self.bytes,
            remaining = self.remaining,
            database_ms = self.database_ms,
            cut = self.cut,
            "request"
        );
    }
}

/// The format of the time in all lines.
static TIMES: DateTimePrinter = DateTimePrinter::new().precision(Some(6));

/// A line that is built field by field. A derived serializer would escape each field's name for each request.
struct LineWriter<'d>(&'d mut Vec<u8>);

impl LineWriter<'_> {
    fn begin(&mut self) {
        self.0.extend_from_slice(br#"{"timestamp":""#);
        TIMES.print_timestamp(&Timestamp::now(), &mut *self.0).expect("memory takes everything");
        self.0.extend_from_slice(br#"","level":"INFO","message":"request""#);
    }

    fn text(&mut self, name: &'static str, value: Option<&str>) {
        if let Some(value) = value {
            self.0.extend_from_slice(name.as_bytes());
            json_escape_simd::escape_into(value, self.0);
        }
    }

    /// A text without characters that need escaping.
    fn plain(&mut self, name: &'static str, value: Option<&str>) {
        if let Some(value) = value {
            self.0.extend_from_slice(name.as_bytes());
            self.0.push(b'"');
            self.0.extend_from_slice(value.as_bytes());
            self.0.push(b'"');
        }
    }

    fn number(&mut self, name: &'static str, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.0.extend_from_slice(name.as_bytes());
            serde_json::to_writer(&mut *self.0, &value).expect("numbers are JSON");
        }
    }

    fn end(&mut self) {
        self.0.extend_from_slice(concat!(r#","target":""#, target!(), "\"}\n").as_bytes());
    }
}

/// The queue of lines; unset if lines are text.
static LINES: OnceLock<NonBlocking> = OnceLock::new();

thread_local! {
    /// Each thread's buffer for a line, and its clone of [`LINES`].
    static THREAD_BUFFER: RefCell<Option<(Vec<u8>, NonBlocking)>> = const { RefCell::new(None) };
}

/// Starts the thread that writes lines. Dropping the guard writes the queued lines. Once per process.
pub(super) fn start_writer() -> WorkerGuard {
    let (lines, guard) = non_blocking(stderr(), MAX_QUEUED, || LINES.get().map_or(0, dropped));
    LINES.set(lines).expect("the log is set up once");
    guard
}

fn non_blocking<W>(log: W, most: usize, dropped: impl Fn() -> usize + Send + 'static) -> (NonBlocking, WorkerGuard)
where
    W: Write + Send + 'static,
{
    let batches = BatchWriter { log, lines: Vec::new(), has_waited: false, dropped, dropped_before: 0 };
    NonBlockingBuilder::default().thread_name("access-log").lossy(true).buffered_lines_limit(most).finish(batches)
}

fn dropped(lines: &NonBlocking) -> usize {
    lines.error_counter().dropped_lines()
}

/// Collects lines and writes many at once. `tracing-appender` writes each line separately, and flushes when the queue
/// is empty.
struct BatchWriter<W, D> {
    log: W,
    lines: Vec<u8>,
    /// Whether the first line since the last flush has waited for others to follow.
    has_waited: bool,
    /// The total number of dropped lines.
    dropped: D,
    dropped_before: usize,
}

impl<W: Write, D: Fn() -> usize> Write for BatchWriter<W, D> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.has_waited {
            self.has_waited = true;
            thread::sleep(BATCH_DELAY);
        }
        self.lines.extend_from_slice(line);
        if self.lines.len() >= BATCH_BYTES {
            self.write_batch();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.has_waited = false;
        self.write_batch();
        let dropped = (self.dropped)();
        let new = dropped - std::mem::replace(&mut self.dropped_before, dropped);
        if new > 0 {
            tracing::warn!(dropped = new, "the log is read too slowly: lines of requests were dropped");
        }
        Ok(())
    }
}

impl<W: Write, D> BatchWriter<W, D> {
    fn write_batch(&mut self) {
        // As for every other line, there is nowhere to report that the log can't be written.
        let _ = self.log.write_all(&self.lines);
        self.lines.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    fn access() -> AccessLine<'static> {
        AccessLine {
            request_id: "r-1",
            client: "127.0.0.1:4000",
            tenant: Some("acme"),
            token: None,
            method: "GET",
            route: None,
            status: 404,
            duration_ms: 0.5,
            bytes: Some(23),
            remaining: Some(59),
            database_ms: None,
            cut: None,
        }
    }

    fn line() -> Vec<u8> {
        let mut line = Vec::new();
        access().write_to(&mut line);
        line
    }

    #[test]
    fn a_line_is_one_json_object_with_the_known_fields() {
        let text = String::from_utf8(line()).unwrap();
        let (timestamp, rest) = text.split_at(r#"{"timestamp":"2026-01-01T00:00:00.000000Z""#.len());
        assert!(timestamp.ends_with("Z\""), "{timestamp}");
        assert_eq!(
            rest,
            concat!(
                r#","level":"INFO","message":"request","request_id":"r-1","client":"127.0.0.1:4000","tenant":"acme","#,
                r#""method":"GET","status":404,"duration_ms":0.5,"bytes":23,"remaining":59,"target":"formgate::access"}"#,
                "\n"
            )
        );
    }

    /// A log that reports each write and blocks it until the test releases it.
    struct BlockingLog(Sender<Vec<u8>>, Receiver<()>);

    impl Write for BlockingLog {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.0.send(lines.to_vec()).unwrap();
            // On an error, the test releases all writes.
            let _ = self.1.recv();
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_queue_while_the_log_blocks_and_overflow_is_dropped_and_counted() {
        const MAX_QUEUED: usize = 2 * BATCH_BYTES / 250;
        let ((seen, writes), (go_on, wait), reported) = (channel(), channel(), Arc::<AtomicUsize>::default());
        let report = Arc::clone(&reported);
        let counter = Arc::<OnceLock<NonBlocking>>::default();
        let counted = Arc::clone(&counter);
        let (mut lines, guard) = non_blocking(BlockingLog(seen, wait), MAX_QUEUED, move || {
            let dropped = counted.get().map_or(0, dropped);
            report.store(dropped, Ordering::Release);
            dropped
        });
        counter.set(lines.clone()).unwrap();
        lines.write_all(&line()).unwrap();
        assert_eq!(writes.recv().unwrap().len(), line().len());
        for _ in 0..MAX_QUEUED + 3 {
            lines.write_all(&line()).unwrap();
        }
        drop(go_on);
        let mut batches = Vec::new();
        while batches.iter().map(Vec::len).sum::<usize>() < MAX_QUEUED * line().len() {
            batches.push(writes.recv().unwrap());
        }
        drop(guard);
        assert!(batches.iter().all(|batch| batch.ends_with(b"\n")), "lines are whole");
        assert!(batches.len() > 1 && batches.iter().all(|batch| batch.len() < BATCH_BYTES + line().len()));
        assert_eq!(batches.concat().len(), MAX_QUEUED * line().len());
        assert_eq!(dropped(&lines), 3);
        while reported.load(Ordering::Acquire) != 3 {
            thread::yield_now();
        }
    }

    #[test]
    fn queued_lines_are_written_at_the_end() {
        let ((seen, writes), (go_on, wait)) = (channel(), channel());
        drop(go_on);
        let (mut lines, guard) = non_blocking(BlockingLog(seen, wait), 10, || 0);
        lines.write_all(&line()).unwrap();
        lines.write_all(&line()).unwrap();
        drop(guard);
        assert_eq!(writes.iter().collect::<Vec<_>>().concat().len(), 2 * line().len());
    }
}
