//! Reads an input line by line, keeping at most one line of limited size in memory.
//!
//! Does not interpret lines. A byte order mark before the first line is skipped.

use std::io::{self, BufRead, Read};

use super::Progress;

/// The maximum size of a line in bytes. Larger: a file without line breaks is read into memory as a whole. Smaller: a
/// group of a million members does not fit.
const MAX_LINE_BYTES: usize = 16 << 20;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line, without its line break.
    Text(Vec<u8>),
    /// A line over the limit, which was skipped.
    TooLong,
    /// The end of the input.
    End,
}

/// Reads an input line by line.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    max_bytes: usize,
    progress: Progress,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, max_bytes: MAX_LINE_BYTES, progress: Progress::default() }
    }

    /// The progress so far: the number of the last line, from 1.
    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    pub(super) fn next(&mut self) -> io::Result<Line> {
        let mut line = Vec::new();
        let limit = u64::try_from(self.max_bytes).expect("a line's limit is small") + 1;
        let read = self.input.by_ref().take(limit).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(Line::End);
        }
        self.progress.bytes += u64::try_from(read).expect("memory is smaller than 2^64 bytes");
        self.progress.lines += 1;
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() > self.max_bytes {
            self.skip_line()?;
            return Ok(Line::TooLong);
        }
        if self.progress.lines == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(Line::Text(line))
    }

    fn skip_line(&mut self) -> io::Result<()> {
        self.progress.bytes += u64::try_from(self.input.skip_until(b'\n')?).expect("memory is smaller than 2^64 bytes");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8], max_bytes: usize) -> Vec<Line> {
        let mut lines = Lines { max_bytes, ..Lines::new(text) };
        let mut all = Vec::new();
        loop {
            match lines.next().unwrap() {
                Line::End => break,
                line => all.push(line),
            }
        }
        assert_eq!(lines.progress().bytes, u64::try_from(text.len()).unwrap());
        all
    }

    #[test]
    fn lines_end_with_a_line_break_or_the_input() {
        let line = |text: &str| Line::Text(text.as_bytes().to_vec());
        assert_eq!(all(b"a\n\nb", 9), [line("a"), line(""), line("b")]);
        assert_eq!(all("\u{feff}a\n\u{feff}".as_bytes(), 9), [line("a"), line("\u{feff}")]);
    }

    #[test]
    fn a_line_over_the_limit_is_skipped_and_counted() {
        let line = |text: &str| Line::Text(text.as_bytes().to_vec());
        assert_eq!(all(b"123\n1234\n12345678\n12", 3), [line("123"), Line::TooLong, Line::TooLong, line("12")]);
        assert_eq!(all(b"1234", 3), [Line::TooLong]);
    }
}
