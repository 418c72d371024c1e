//! The output of commands: results go to standard output, everything else to standard error.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

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
