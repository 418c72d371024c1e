//! A fault of a line: its number, and the column and key of the value.
//!
//! Columns are computed only for a fault, by reading the line again up to the value.

use std::collections::HashMap;
use std::fmt;

use serde_json::value::RawValue;

use crate::store::import::check::{PathStep, RecordFault};

/// A line that can't be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineFault {
    /// The line's number, from 1.
    pub line: u64,
    /// The column where the faulty value starts, in characters from 1.
    pub column: u64,
    /// The path of the value, such as `answers[2].element_id`; empty for the whole line.
    pub key: String,
    /// What is wrong, without a full stop.
    pub message: String,
}

impl fmt::Display for LineFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, ", `{}`", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl LineFault {
    /// A fault of the whole line.
    pub(super) fn of_line(line: u64, message: impl Into<String>) -> Self {
        Self { line, column: 1, key: String::new(), message: message.into() }
    }

    /// A fault of the value at a path.
    pub(super) fn of_value(line: u64, text: &str, path: &[PathStep], message: impl Into<String>) -> Self {
        Self { line, column: column(text, offset_of(text, path)), key: key(path), message: message.into() }
    }

    /// The fault of a parsed line that the store refuses.
    pub(super) fn of_refusal(line: u64, text: &str, refusal: &RecordFault) -> Self {
        Self::of_value(line, text, &refusal.path, &*refusal.message)
    }
}

/// Formats a path.
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

/// The offset of the value at a path, or of the last value that exists on it.
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
