//! Writes JSON directly into a body, for responses with thousands of strings, where most of a serializer's cost is
//! checking every byte of each string and key.
//!
//! Keys and brackets are literals, so the code shows the shape of each response; every other value is escaped or
//! serialized.

use std::io::Write as _;
use std::ops::Range;

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use super::id::Id;
use crate::instant::Rfc3339Micros;
use crate::reply::Reply;

/// A response body under construction.
#[derive(Debug)]
pub(super) struct Json {
    body: Vec<u8>,
    /// The last timestamp and where it was written. A submission and its answers usually share one.
    last_instant: Option<(Timestamp, Range<usize>)>,
}

impl Json {
    /// A body with space for this many bytes; it grows if needed.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { body: Vec::with_capacity(bytes), last_instant: None }
    }

    /// Appends literal JSON: brackets, keys, constants.
    pub(super) fn raw(&mut self, json: &'static str) -> &mut Self {
        self.body.extend_from_slice(json.as_bytes());
        self
    }

    /// Appends a range of JSON that was written before.
    pub(super) fn copy(&mut self, written: &Json, range: &Range<usize>) -> &mut Self {
        self.body.extend_from_slice(&written.body[range.clone()]);
        self
    }

    /// The current length, which is the offset of whatever is appended next.
    pub(super) fn position(&self) -> usize {
        self.body.len()
    }

    /// Appends an escaped string.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        json_escape_simd::escape_into(text, &mut self.body);
        self
    }

    /// Appends an id with its prefix, which needs no escaping.
    pub(super) fn id(&mut self, id: Id) -> &mut Self {
        write!(self.body, "\"{id}\"").expect("memory takes it");
        self
    }

    /// Appends a timestamp in the format of the API.
    pub(super) fn instant(&mut self, instant: Timestamp) -> &mut Self {
        match &self.last_instant {
            Some((last, text)) if *last == instant => self.body.extend_from_within(text.clone()),
            _ => {
                let start = self.body.len();
                self.body.push(b'"');
                Rfc3339Micros(instant).write(&mut self.body);
                self.body.push(b'"');
                self.last_instant = Some((instant, start..self.body.len()));
            }
        }
        self
    }

    /// Appends any other value.
    pub(super) fn value(&mut self, value: &impl Serialize) -> &mut Self {
        serde_json::to_writer(&mut self.body, value)
            .expect("it has text keys and no failing parts, and memory takes it");
        self
    }

    /// Appends an array, writing each item with a function.
    pub(super) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) -> &mut Self {
        self.body.push(b'[');
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.body.push(b',');
            }
            write(self, item);
        }
        self.body.push(b']');
        self
    }

    /// Empties it and returns what was written, as a part of a streamed answer.
    pub(super) fn take_part(&mut self) -> Bytes {
        self.last_instant = None;
        std::mem::take(&mut self.body).into()
    }

    /// Turns it into a reply.
    pub(super) fn reply(self, status: StatusCode) -> Reply {
        Reply::of_json(status, self.body)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::api::id::IdKind;

    fn written(write: impl FnOnce(&mut Json)) -> String {
        let mut json = Json::with_capacity(0);
        write(&mut json);
        String::from_utf8(json.body).expect("it is text")
    }

    #[test]
    fn every_string_round_trips() {
        let every: String = ('\0'..='\u{2fff}').chain(['\u{d7ff}', '\u{e000}', '\u{ffff}', '\u{10ffff}']).collect();
        // At every offset within the blocks that SIMD checks together.
        for text in (0..80).map(|before| "ä".repeat(before) + &every).chain(every.chars().map(|one| one.to_string())) {
            let json = written(|json| _ = json.text(&text));
            assert_eq!(serde_json::from_str::<Value>(&json).expect("it is JSON"), text);
        }
        assert_eq!(written(|json| _ = json.text("")), "\"\"");
    }

    #[test]
    fn a_repeated_timestamp_is_written_as_by_a_serializer() {
        let instants: Vec<Timestamp> =
            ["2024-05-01T13:45:30Z", "-009999-01-02T01:59:59Z", "2024-05-01T13:45:30.000001Z"]
                .map(|text| text.parse().unwrap())
                .into_iter()
                .flat_map(|instant| [instant; 2])
                .collect();
        let json = written(|json| _ = json.list(&instants, |json, instant| _ = json.instant(*instant)));
        let serialized: Vec<Rfc3339Micros> = instants.into_iter().map(Rfc3339Micros).collect();
        assert_eq!(json, serde_json::to_string(&serialized).unwrap());
    }

    #[test]
    fn literals_and_values_are_concatenated() {
        let json = written(|json| {
            json.raw("{\"id\":").id(IdKind::Form.id(7)).raw(",\"of\":").list([1, 2], |json, n| _ = json.value(&n));
            json.raw(",\"none\":").list([0; 0], |json, n| _ = json.value(&n)).raw("}");
        });
        assert_eq!(json, r#"{"id":"for_7","of":[1,2],"none":[]}"#);
    }
}
