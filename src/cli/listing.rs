//! Lists that are read page by page, and printed as a table or as lines of JSON.

use anyhow::{Result, bail};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::output::{print, table};

/// How many rows are read at a time.
///
/// Larger: more memory. Smaller: more statements for a long list.
pub(super) const ROWS_A_PAGE: u32 = 1000;

/// A list that is being printed.
pub(super) struct Listing<const N: usize> {
    is_json: bool,
    /// Of the table, with its head.
    rows: Vec<[String; N]>,
}

impl<const N: usize> Listing<N> {
    pub(super) fn new(is_json: bool, head: [&str; N]) -> Self {
        Self { is_json, rows: vec![head.map(str::to_owned)] }
    }

    /// Takes the next page. Returns whether another one may follow.
    pub(super) fn take<T>(
        &mut self,
        page: Vec<T>,
        as_json: impl Fn(&T) -> String,
        as_row: impl Fn(T) -> [String; N],
    ) -> Result<bool> {
        let is_full = page.len() == ROWS_A_PAGE as usize;
        if !self.is_json {
            self.rows.extend(page.into_iter().map(as_row));
        } else if !page.is_empty() {
            print(&page.iter().map(as_json).collect::<Vec<_>>().join("\n"))?;
        }
        Ok(is_full)
    }

    /// Prints the table, unless the rows were printed as JSON.
    pub(super) fn end(self) -> Result<()> {
        if self.is_json { Ok(()) } else { print(&table(&self.rows)) }
    }
}

/// The instant of an option such as `--since`: `parse` reads a day as one of its ends.
pub(super) fn bound(
    text: Option<&str>,
    timezone: &TimeZone,
    parse: fn(&str, &TimeZone) -> Option<Timestamp>,
) -> Result<Option<Timestamp>> {
    let Some(text) = text else { return Ok(None) };
    match parse(text, timezone) {
        Some(instant) => Ok(Some(instant)),
        None => bail!("`{text}` is neither a day such as 2026-05-01, nor an RFC 3339 date-time"),
    }
}
