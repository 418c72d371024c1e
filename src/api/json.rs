//! JSON that is written piece by piece into a body: for answers of thousands of texts, where a serializer's look at every
//! byte of a text and every key is most of what they cost.
//!
//! Keys and brackets are text of the program's own, so that each shape stands where it is written; whatever comes from
//! elsewhere is escaped or serialized.

use std::io::Write as _;
use std::ops::Range;

use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use super::id::Id;
use super::time::Rfc3339Micros;
use crate::reply::Reply;

/// A body in the making.
#[derive(Debug)]
pub(super) struct Json {
    body: Vec<u8>,
    /// The instant that was written last, and where. A submission and its answers mostly have the same one.
    last_instant: Option<(Timestamp, Range<usize>)>,
}

impl Json {
    /// A body that has so many bytes or some more.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { body: Vec::with_capacity(bytes), last_instant: None }
    }

    /// Adds JSON that stands in the program: brackets, keys, words.
    pub(super) fn raw(&mut self, json: &'static str) -> &mut Self {
        self.body.extend_from_slice(json.as_bytes());
        self
    }

    /// Adds JSON that was written before.
    pub(super) fn copy(&mut self, written: &Json, range: &Range<usize>) -> &mut Self {
        self.body.extend_from_slice(&written.body[range.clone()]);
        self
    }

    /// How much is written so far: where what comes next begins.
    pub(super) fn position(&self) -> usize {
        self.body.len()
    }

    /// Adds a text, escaped.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        json_escape_simd::escape_into(text, &mut self.body);
        self
    }

    /// Adds an id with its prefix, in which nothing is to be escaped.
    pub(super) fn id(&mut self, id: Id) -> &mut Self {
        write!(self.body, "\"{id}\"").expect("memory takes it");
        self
    }

    /// Adds an instant as answers show it.
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

    /// Adds any other value.
    pub(super) fn value(&mut self, value: &impl Serialize) -> &mut Self {
        serde_json::to_writer(&mut self.body, value)
            .expect("it has text keys and no failing parts, and memory takes it");
        self
    }

    /// Adds a list of what is written for each item.
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

    /// Makes it the body of an answer.
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
    fn every_text_reads_as_it_was() {
        let every: String = ('\0'..='\u{2fff}').chain(['\u{d7ff}', '\u{e000}', '\u{ffff}', '\u{10ffff}']).collect();
        // Whatever stands where in the blocks that are looked at together.
        for text in (0..80).map(|before| "ä".repeat(before) + &every).chain(every.chars().map(|one| one.to_string())) {
            let json = written(|json| _ = json.text(&text));
            assert_eq!(serde_json::from_str::<Value>(&json).expect("it is JSON"), text);
        }
        assert_eq!(written(|json| _ = json.text("")), "\"\"");
    }

    #[test]
    fn an_instant_is_written_as_a_serializer_does_it_when_it_comes_again_too() {
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
    fn pieces_stand_side_by_side() {
        let json = written(|json| {
            json.raw("{\"id\":").id(IdKind::Form.id(7)).raw(",\"of\":").list([1, 2], |json, n| _ = json.value(&n));
            json.raw(",\"none\":").list([0; 0], |json, n| _ = json.value(&n)).raw("}");
        });
        assert_eq!(json, r#"{"id":"for_7","of":[1,2],"none":[]}"#);
    }
}
