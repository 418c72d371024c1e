//! What a command writes: its result to standard output, everything else to standard error.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// Writes a command's result. A reader that went away, as `head` does, is no failure.
///
/// # Errors
/// Standard output can't be written, as on a full disk.
pub(super) fn print(text: &str) -> Result<()> {
    match write(text) {
        Err(failure) if failure.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context(UNWRITTEN),
    }
}

/// Writes a result that can't be had again: that nobody reads it is a failure, too.
///
/// # Errors
/// Standard output can't be written, or its reader went away.
pub(super) fn print_secret(text: &str) -> Result<()> {
    write(text).context(UNWRITTEN)
}

/// Writes to standard error, if anybody listens there: what a command did stands without it.
pub(super) fn print_stderr(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

const UNWRITTEN: &str = "standard output can't be written";

fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{text}")?;
    output.flush()
}
