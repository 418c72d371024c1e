//! The output of commands: results go to standard output, everything else to standard error.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::Value;

/// Writes a result. A broken pipe, as with `head`, is not an error.
///
/// # Errors
/// Standard output can't be written, for example on a full disk.
pub(super) fn print(text: &str) -> Result<()> {
    match write(text) {
        Err(failure) if failure.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context(UNWRITTEN),
    }
}

/// Writes a result as it is, without a line end.
///
/// # Errors
/// As [`print`].
pub(super) fn print_verbatim(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(failure) if failure.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context(UNWRITTEN),
    }
}

/// Writes a result that can't be shown again, so a broken pipe is an error too.
///
/// # Errors
/// Standard output can't be written or is closed.
pub(super) fn print_secret(text: &str) -> Result<()> {
    write(text).context(UNWRITTEN)
}

/// Writes to standard error. Ignores errors: the command has done its work regardless.
pub(super) fn print_stderr(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

const UNWRITTEN: &str = "standard output can't be written";

fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{text}")?;
    output.flush()
}

/// An instant in a table, to the minute.
pub(super) fn shown(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M").to_string())
}

/// JSON for people and scripts.
pub(super) fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value is JSON")
}

/// Rows with aligned columns, without a blank at the end of a line.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
