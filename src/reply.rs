//! An answer before it becomes a response: status, body and the few headers of this answer.
//!
//! The request path adds what every answer carries: request id, rate headers, encoding.

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::Serialize;

use crate::memory::MemoryPermit;

/// Capacity for an answer's header fields, including those that every answer carries.
///
/// Larger: each answer allocates more. Smaller: the map is reallocated when it grows.
const FIELDS: usize = 10;

/// An answer with a JSON body.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Headers of this answer only.
    pub headers: HeaderMap,
    /// JSON text.
    pub body: Bytes,
    /// The memory reserved for the body until it is sent.
    pub held: Option<MemoryPermit>,
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
        Self { status, headers: HeaderMap::with_capacity(FIELDS), body: body.into(), held: None }
    }

    /// The same answer with one more header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }
}
