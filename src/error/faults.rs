//! The faults in a request's parameters, by field.
//!
//! Owns the limit on their size: a response quotes little of the request ([`abbreviate`]) and has at most
//! [`MAX_BYTES`] of faults, so its size never depends on the request. Parsers stop once [`Faults::is_full`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::Refusal;

/// The maximum size of the faults in a response, as JSON.
///
/// Larger: the response to a body of nothing but faults is many times its size. Smaller: fixing the faults of a large
/// group takes more attempts.
const MAX_BYTES: usize = 64 * 1024;

/// Space for the rest of the response: the keys, the count, and the first fault repeated as the message.
///
/// Larger: fewer faults are listed. Smaller than the longest fault: a response can exceed [`MAX_BYTES`].
const MESSAGE_BYTES: usize = 2 * 1024;

/// The maximum number of characters that a fault quotes from the request.
///
/// Larger: fewer faults fit into a response. Smaller: clients can't recognize their input.
const MAX_QUOTED_CHARS: usize = 64;

/// The faults of a request in the order in which they were found: the path of a field, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    listed: Vec<(String, String)>,
    /// The size of the listed ones as JSON.
    bytes: usize,
    /// How many did not fit.
    unlisted: usize,
}

/// A position in the list of faults to return to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    listed: usize,
    bytes: usize,
    unlisted: usize,
}

impl Faults {
    /// Adds a fault of a field, or only counts it if there is no space.
    pub fn add(&mut self, field: impl Display, text: impl Display) {
        if self.is_full() {
            self.unlisted += 1;
            return;
        }
        let (field, text) = (field.to_string(), text.to_string());
        let bytes = json_bytes(&field) + json_bytes(&text) + r#""":[""],"#.len();
        if self.bytes + bytes > MAX_BYTES - MESSAGE_BYTES {
            self.unlisted += 1;
        } else {
            self.bytes += bytes;
            self.listed.push((field, text));
        }
    }

    /// Whether a fault did not fit. Reading further would not change the response.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.unlisted > 0
    }

    /// The current end of the list.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark { listed: self.listed.len(), bytes: self.bytes, unlisted: self.unlisted }
    }

    /// Removes the faults added since a mark.
    pub fn truncate_to(&mut self, mark: Mark) {
        self.listed.truncate(mark.listed);
        (self.bytes, self.unlisted) = (mark.bytes, mark.unlisted);
    }

    /// Returns the value if there is no fault.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] with the faults.
    pub fn into_result<T>(self, value: T) -> Result<T, Refusal> {
        if self.listed.is_empty() && !self.is_full() { Ok(value) } else { Err(Refusal::Invalid(self)) }
    }

    /// A refusal with a single fault.
    pub fn single(field: impl Display, text: impl Display) -> Refusal {
        let mut faults = Self::default();
        faults.add(field, text);
        Refusal::Invalid(faults)
    }

    /// The faults grouped by field.
    fn by_field(&self) -> Vec<(&str, Vec<&str>)> {
        let mut fields: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut positions: HashMap<&str, usize> = HashMap::new();
        for (field, text) in &self.listed {
            let position = *positions.entry(field).or_insert(fields.len());
            match fields.get_mut(position) {
                Some((_, texts)) => texts.push(text),
                None => fields.push((field, vec![text])),
            }
        }
        fields
    }
}

/// The beginning of a text from the request, as quoted in a fault.
#[must_use]
pub fn abbreviate(text: &str) -> Cow<'_, str> {
    if text.chars().nth(MAX_QUOTED_CHARS).is_none() {
        return text.into();
    }
    text.chars().take(MAX_QUOTED_CHARS - 1).chain(['…']).collect::<String>().into()
}

/// An upper bound of a text's size as JSON, without quotes.
fn json_bytes(text: &str) -> usize {
    let bytes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => r"\u0000".len(),
        _ => 1,
    });
    bytes.sum()
}

/// The response body: a summary, and the faults by field.
impl Serialize for Faults {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Errors<'a>(&'a Faults);
        impl Serialize for Errors<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.by_field())
            }
        }
        let first = self.listed.first().map_or("", |(_, text)| text.as_str());
        // Reading stopped here, so the number of further faults is unknown.
        let at_least = if self.is_full() { "at least " } else { "" };
        let message = match (self.listed.len() + self.unlisted).saturating_sub(1) {
            0 => first.to_owned(),
            1 => format!("{first} (and {at_least}1 more error)"),
            more => format!("{first} (and {at_least}{more} more errors)"),
        };
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("message", &message)?;
        map.serialize_entry("errors", &Errors(self))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_keep_their_order_and_gather_by_field() {
        let mut faults = Faults::default();
        faults.add("start", "S.");
        faults.add("forms.1", "F.");
        faults.add("start", "T.");
        assert_eq!(
            serde_json::to_string(&faults).unwrap(),
            r#"{"message":"S. (and 2 more errors)","errors":{"start":["S.","T."],"forms.1":["F."]}}"#
        );
    }

    #[test]
    fn the_faults_of_an_answer_fill_64_kib_whatever_they_consist_of() {
        for field in ["members", "\"\\\u{1}", "é"] {
            let mut faults = Faults::default();
            let mut added = 0;
            while !faults.is_full() {
                faults.add(format_args!("{field}.{added}"), format_args!("The {field} must be an array."));
                added += 1;
            }
            let body = serde_json::to_vec(&faults).unwrap();
            assert!(body.len() <= MAX_BYTES && body.len() > MAX_BYTES / 2, "{} bytes", body.len());
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["errors"].as_object().unwrap().len(), added - 1);
            let message = body["message"].as_str().unwrap();
            assert!(message.ends_with(&format!(" (and at least {} more errors)", added - 1)), "{message}");
        }
    }

    #[test]
    fn one_fault_that_is_too_long_is_still_a_fault() {
        let mut faults = Faults::default();
        let mark = faults.mark();
        faults.add("x", "y".repeat(2 * MAX_BYTES));
        assert!(faults.clone().into_result(()).is_err());
        faults.truncate_to(mark);
        assert_eq!(faults, Faults::default());
    }

    #[test]
    fn a_quoted_text_has_at_most_64_characters() {
        assert_eq!(abbreviate(&"é".repeat(64)), "é".repeat(64));
        assert_eq!(abbreviate(&"é".repeat(65)), format!("{}…", "é".repeat(63)));
    }
}
