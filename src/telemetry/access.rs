//! The access log: one line per request.
//!
//! On a terminal it is text like the rest of the log. Otherwise a line is JSON like all others, but is built without
//! `tracing`'s fields: building and writing it was the largest cost of a request.

use std::cell::RefCell;
use std::sync::OnceLock;

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use serde::Serialize;
use tracing::Level;

use super::log_queue::LogQueue;

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

    fn write_into(&self, lines: &LogQueue) {
        THREAD_BUFFER.with_borrow_mut(|draft| {
            draft.clear();
            self.write_to(draft);
            lines.push(draft);
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
static LINES: OnceLock<LogQueue> = OnceLock::new();

thread_local! {
    /// Each thread's buffer for a line.
    static THREAD_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Logs requests as JSON from now on. Once per process.
pub(super) fn write_json_to(lines: LogQueue) {
    LINES.set(lines).expect("the log is set up once");
}

#[cfg(test)]
mod tests {
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
}
