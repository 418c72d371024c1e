//! An answer before it becomes a response: status, body and the few headers of this answer.
//!
//! A long answer has only its first part as its body, and produces the others while the client reads.
//!
//! The request path adds what every answer carries: request id, rate headers, encoding.

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::Serialize;

use crate::memory::{MemoryPermit, RowMemory};

/// Capacity for an answer's header fields, including those that every answer carries.
///
/// Larger: each answer allocates more. Smaller: the map is reallocated when it grows.
const FIELDS: usize = 10;

/// Answers up to this size are built whole, with a length in their head; longer ones are streamed.
///
/// Larger: an answer that is not read holds more memory. Smaller: more answers have no `Content-Length`.
pub(crate) const WHOLE_BYTES: usize = 1024 * 1024;

/// Why a part of an answer could not be produced.
pub type PartsError = Box<dyn std::error::Error + Send + Sync>;

/// A submission that an answer contains, for the ledger of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSubmission {
    /// The bare id.
    pub id: i64,
    /// Its form, if that is known.
    pub form: Option<i64>,
}

/// A part of an answer.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// What is sent.
    pub bytes: Bytes,
    /// The submissions that begin in it.
    pub read: Vec<ReadSubmission>,
}

impl From<Bytes> for Part {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, read: Vec::new() }
    }
}

/// The parts of an answer behind its first one.
pub type Parts = BoxStream<'static, Result<Part, PartsError>>;

/// The rest of a streamed answer.
pub struct Rest {
    /// Its parts.
    pub parts: Parts,
    /// Where the rows of each part are reserved.
    pub rows: Option<RowMemory>,
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rest").finish_non_exhaustive()
    }
}

/// What the body of an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// Every answer of the API.
    Json,
    /// An answer to a SCIM client.
    Scim,
    /// A page of the administration area.
    Html,
    /// Its style sheet.
    Css,
    /// Its icon.
    Svg,
    /// An export: JSON values, one a line.
    Ndjson,
    /// An export: a table as text.
    Csv,
    /// An export: a table in columns, which are compressed.
    Parquet,
    /// What a certificate authority reads to verify a host.
    Octets,
}

impl ContentType {
    /// The value of `Content-Type`.
    #[must_use]
    pub fn header(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Json => "application/json",
            Self::Scim => "application/scim+json",
            Self::Html => "text/html; charset=utf-8",
            Self::Css => "text/css; charset=utf-8",
            Self::Svg => "image/svg+xml",
            Self::Ndjson => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8; header=present",
            Self::Parquet => "application/vnd.apache.parquet",
            Self::Octets => "application/octet-stream",
        })
    }

    /// Whether such a body may be compressed. A page contains a secret, the form token, next to texts that others may
    /// have chosen: its compressed length would reveal it little by little (BREACH).
    #[must_use]
    pub fn may_be_compressed(self) -> bool {
        !matches!(self, Self::Html | Self::Parquet)
    }
}

/// An answer: JSON, unless it is of the administration area or of SCIM.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// What the body is.
    pub content: ContentType,
    /// Headers of this answer only.
    pub headers: HeaderMap,
    /// The body, or the first part of it.
    pub body: Bytes,
    /// The submissions that this body contains.
    pub read: Vec<ReadSubmission>,
    /// The parts behind the first one, if it is streamed.
    pub rest: Option<Rest>,
    /// The memory reserved for the body until it is sent.
    pub held: Option<MemoryPermit>,
    /// How many rows it has, for the log of requests: the length of a list, or 1. None: it has no data.
    pub rows: Option<u32>,
}

impl Reply {
    /// An answer with a value as JSON.
    #[must_use]
    pub fn json(status: StatusCode, value: &impl Serialize) -> Self {
        let body = serde_json::to_vec(value).expect("what formgate answers with has text keys and no failing parts");
        Self::of_json(status, body)
    }

    /// An answer with serialized JSON.
    #[must_use]
    pub(crate) fn of_json(status: StatusCode, body: Vec<u8>) -> Self {
        Self::of_type(status, ContentType::Json, body.into())
    }

    /// An answer of any type.
    #[must_use]
    pub(crate) fn of_type(status: StatusCode, content: ContentType, body: Bytes) -> Self {
        let (headers, read) = (HeaderMap::with_capacity(FIELDS), Vec::new());
        Self { status, content, headers, body, read, rest: None, held: None, rows: None }
    }

    /// The same answer, whose body contains submissions.
    #[must_use]
    pub(crate) fn with_read(mut self, read: Vec<ReadSubmission>) -> Self {
        self.read = read;
        self
    }

    /// The same answer, followed by more parts, without submissions.
    #[must_use]
    pub(crate) fn with_rest(self, parts: BoxStream<'static, Result<Bytes, PartsError>>) -> Self {
        self.with_parts(Box::pin(parts.map_ok(Part::from)))
    }

    /// The same answer, followed by more parts.
    #[must_use]
    pub(crate) fn with_parts(mut self, parts: Parts) -> Self {
        self.rest = Some(Rest { parts, rows: None });
        self
    }

    /// The same answer, which has this many rows.
    #[must_use]
    pub(crate) fn with_rows(mut self, rows: usize) -> Self {
        self.rows = Some(u32::try_from(rows).unwrap_or(u32::MAX));
        self
    }

    /// The same answer with one more header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }
}
