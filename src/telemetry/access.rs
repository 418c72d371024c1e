//! The access log: one line a request.
//!
//! On a terminal it is text among the rest of the log. Elsewhere a line is JSON like all others, but goes by a way of its
//! own: nothing costs a request as much as a line that is put together field by field and written by itself. Lines are
//! gathered, and a thread writes them some times a second, and whenever there are enough. So whoever reads the log slowly
//! never holds up a request: past [`MOST`] bytes lines are left out, and how many is logged. A process that is killed loses
//! the lines of the last moment; one that stops by itself writes them.

use std::cell::RefCell;
use std::io::{Write, stderr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use serde::Serialize;
use tracing::Level;

/// What `FORMGATE_LOG` calls it.
macro_rules! target {
    () => {
        "formgate::access"
    };
}

/// The name of a field, as a line has it: names need no escaping.
macro_rules! name {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

/// How long lines are gathered before they are written. Longer, and `tail -f` stutters and a crash loses more; shorter
/// costs more writes.
const GATHERING: Duration = Duration::from_millis(50);

/// How many bytes are no longer waited with. More, and they leave the core's cache before they are written; fewer, and a busy
/// gateway wakes who writes too often.
const ENOUGH: usize = 128 * 1024;

/// How many bytes wait at most: some seconds of a busy gateway. More costs memory while the log is not read; less leaves
/// out lines sooner.
const MOST: usize = 8 * 1024 * 1024;

/// How much memory is kept for the lines to come after a burst. More is never given back; less is asked for again and again
/// by a gateway that is always as busy.
const KEPT: usize = 256 * 1024;

/// What one line says.
#[derive(Debug)]
pub struct Access<'r> {
    /// The id of the request.
    pub request_id: &'r str,
    /// Where the caller connected from.
    pub client: &'r str,
    /// The slug of the tenant, where the host is one's.
    pub tenant: Option<&'r str>,
    /// The name of the token, where it was good.
    pub token: Option<&'r str>,
    /// The method.
    pub method: &'r str,
    /// The route, where one was reached.
    pub route: Option<&'static str>,
    /// The answer's status.
    pub status: u16,
    /// Milliseconds from the head to the answer.
    pub duration_ms: f64,
    /// Bytes of the answer's body.
    pub bytes: Option<u64>,
    /// What is left of the account's budget.
    pub remaining: Option<u32>,
    /// Milliseconds that were spent waiting for statements, of a slow request.
    pub database_ms: Option<f64>,
}

impl Access<'_> {
    /// Logs the line, unless the log's filter leaves it out.
    pub fn log(&self) {
        if !tracing::enabled!(target: target!(), Level::INFO) {
            return;
        }
        match LINES.get() {
            Some(lines) => lines.add(self),
            None => self.log_as_text(),
        }
    }

    /// Appends the line, with what all lines of the log have in the places where they have it.
    fn write_to(&self, draft: &mut Vec<u8>) {
        let mut line = Line(draft);
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
            "request"
        );
    }
}

/// How the time stands in all lines.
static TIMES: DateTimePrinter = DateTimePrinter::new().precision(Some(6));

/// A line that is put together field by field. Derived, it would have each name escaped with each request.
struct Line<'d>(&'d mut Vec<u8>);

impl Line<'_> {
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

    /// A text that is made of characters which need no escaping.
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

static LINES: OnceLock<Arc<Lines>> = OnceLock::new();

/// Lines that wait to be written.
#[derive(Debug, Default)]
struct Lines {
    waiting: Mutex<Waiting>,
    /// The first of them, or enough.
    came: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    left_out: u64,
    ended: bool,
}

thread_local! {
    /// Where a thread puts a line together.
    static DRAFT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Lines {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, access: &Access<'_>) {
        DRAFT.with_borrow_mut(|draft| {
            draft.clear();
            access.write_to(draft);
            let mut waiting = self.waiting();
            if waiting.lines.len() + draft.len() > MOST {
                waiting.left_out += 1;
                return;
            }
            let before = waiting.lines.len();
            waiting.lines.extend_from_slice(draft);
            let are_enough = before < ENOUGH && waiting.lines.len() >= ENOUGH;
            drop(waiting);
            if before == 0 || are_enough {
                self.came.notify_one();
            }
        });
    }

    /// Takes what waits, after some has for so long, or enough does; nothing when there will be no more.
    fn gather(&self, room: Vec<u8>, gathering: Duration) -> Option<(Vec<u8>, u64)> {
        let nothing = |waiting: &mut Waiting| waiting.lines.is_empty() && !waiting.ended;
        let waiting = self.came.wait_while(self.waiting(), nothing).unwrap_or_else(PoisonError::into_inner);
        let few = |waiting: &mut Waiting| waiting.lines.len() < ENOUGH && !waiting.ended;
        let waited = self.came.wait_timeout_while(waiting, gathering, few);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if waiting.lines.is_empty() {
            return None;
        }
        Some((std::mem::replace(&mut waiting.lines, room), std::mem::take(&mut waiting.left_out)))
    }

    fn write_until_the_end(&self) {
        let mut room = Vec::new();
        while let Some((mut lines, left_out)) = self.gather(room, GATHERING) {
            // As with every other line, nobody is left to be told that the log can't be written.
            let _ = stderr().lock().write_all(&lines);
            if left_out > 0 {
                tracing::warn!(left_out, "the log is read too slowly: lines of requests were left out");
            }
            lines.clear();
            lines.shrink_to(KEPT);
            room = lines;
        }
    }
}

/// The thread that writes. Dropping it writes what is left.
#[derive(Debug)]
pub(super) struct Writer(Option<JoinHandle<()>>);

impl Writer {
    /// Begins to gather lines. Once a process.
    pub(super) fn start() -> std::io::Result<Self> {
        let lines = Arc::clone(LINES.get_or_init(Arc::default));
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        Ok(Self(Some(thread.spawn(move || lines.write_until_the_end())?)))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let (Some(lines), Some(thread)) = (LINES.get(), self.0.take()) {
            lines.waiting().ended = true;
            lines.came.notify_one();
            // It does not panic; and if it did, the stop goes on.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn access() -> Access<'static> {
        Access {
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
        }
    }

    #[test]
    fn a_line_is_one_object_with_what_is_known() {
        let lines = Lines::default();
        lines.add(&access());
        let (text, _) = lines.gather(Vec::new(), GATHERING).expect("a line");
        let text = String::from_utf8(text).unwrap();
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

    #[test]
    fn past_the_most_lines_are_left_out_and_counted() {
        let lines = Lines::default();
        lines.waiting().lines = vec![b'x'; MOST - 10];
        lines.add(&access());
        lines.add(&access());
        let (text, left_out) = lines.gather(Vec::new(), GATHERING).expect("lines");
        assert_eq!((text.len(), left_out), (MOST - 10, 2));
    }

    #[test]
    fn enough_lines_are_not_waited_with() {
        const LIMIT: Duration = Duration::from_secs(20);
        let (lines, began) = (Lines::default(), Instant::now());
        std::thread::scope(|threads| {
            let gathered = threads.spawn(|| lines.gather(Vec::new(), LIMIT));
            lines.add(&access());
            let line = lines.waiting().lines.len();
            for _ in 0..ENOUGH / line {
                lines.add(&access());
            }
            let (text, _) = gathered.join().unwrap().expect("lines");
            assert!(text.len() >= ENOUGH, "{}", text.len());
        });
        assert!(began.elapsed() < LIMIT);
    }

    #[test]
    fn at_the_end_what_waits_is_written_and_then_nothing_comes() {
        let lines = Lines::default();
        lines.add(&access());
        lines.waiting().ended = true;
        assert!(lines.gather(Vec::new(), GATHERING).is_some());
        assert!(lines.gather(Vec::new(), GATHERING).is_none());
    }
}
