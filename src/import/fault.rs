//! What is wrong with a line, and where: its number, the column of the value and the value's key.
//!
//! Columns are looked for only when there is a fault, by reading the line once more down to the value.

use std::collections::HashMap;
use std::fmt;

use serde_json::value::RawValue;

use crate::store::import::check::{PathStep, RecordFault};

/// A line that can't be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line's number, from 1.
    pub line: u64,
    /// The column where the faulty value begins, in characters from 1.
    pub column: u64,
    /// The way to the value, as in `answers[2].element_id`; empty for the line as a whole.
    pub key: String,
    /// The condition, without a full stop.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, ", `{}`", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl Fault {
    /// A fault of the line as a whole.
    pub(super) fn of_line(line: u64, message: impl Into<String>) -> Self {
        Self { line, column: 1, key: String::new(), message: message.into() }
    }

    /// A fault of a value that can be found by its path.
    pub(super) fn of_value(line: u64, text: &str, path: &[PathStep], message: impl Into<String>) -> Self {
        Self { line, column: column(text, offset_of(text, path)), key: key(path), message: message.into() }
    }

    /// A refusal of a line that was parsed.
    pub(super) fn of_refusal(line: u64, text: &str, refusal: &RecordFault) -> Self {
        Self::of_value(line, text, &refusal.path, &*refusal.message)
    }
}

/// A path as people write it.
pub(super) fn key(path: &[PathStep]) -> String {
    let mut key = String::new();
    for step in path {
        match step {
            PathStep::Key(name) => {
                if !key.is_empty() {
                    key.push('.');
                }
                key.push_str(name);
            }
            PathStep::Index(index) => key.push_str(&format!("[{index}]")),
        }
    }
    key
}

/// The column of a byte, in characters from 1.
pub(super) fn column(text: &str, offset: usize) -> u64 {
    let before = text.get(..offset).unwrap_or(text).chars().count();
    u64::try_from(before).expect("memory is smaller than 2^64 bytes") + 1
}

/// Where the value of a path begins; where the path leaves the line, the last value on the way.
fn offset_of(text: &str, path: &[PathStep]) -> usize {
    let Ok(mut value) = serde_json::from_str::<&RawValue>(text) else { return 0 };
    for step in path {
        let inner = match step {
            PathStep::Key(name) => serde_json::from_str::<HashMap<String, &RawValue>>(value.get())
                .ok()
                .and_then(|mut object| object.remove(&**name)),
            PathStep::Index(index) => {
                serde_json::from_str::<Vec<&RawValue>>(value.get()).ok().and_then(|list| list.get(*index).copied())
            }
        };
        match inner {
            Some(inner) => value = inner,
            None => break,
        }
    }
    // A raw value borrows from the line.
    value.get().as_ptr() as usize - text.as_ptr() as usize
}
