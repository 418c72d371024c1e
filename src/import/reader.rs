//! Parses the input in chunks on its own thread, while the database loads the previous chunk.
//!
//! Uses a plain thread, not one of the runtime: it may wait forever for input from a terminal, and the program must be
//! able to exit meanwhile.

use std::io::{self, BufRead};
use std::{mem, thread};

use tokio::sync::mpsc;

use super::fault::{self, LineFault};
use super::lines::{Line, Lines};
use super::{OnFault, Progress, parse};
use crate::store::import::batch::Batch;
use crate::store::import::record::Record;

/// The maximum number of lines in a chunk. Larger: the rows of a batch fill memory, and progress is reported in jumps.
/// Smaller: the overhead of each statement dominates.
const MAX_CHUNK_LINES: usize = 1_000;

/// The maximum size of a chunk in bytes, whatever its number of lines. Larger: chunks of long lines fill memory.
/// Smaller: as for [`MAX_CHUNK_LINES`].
const MAX_CHUNK_BYTES: usize = 4 << 20;

/// How many chunks may wait for the database. Larger: more memory. Smaller: parsing and loading wait for each other.
const MAX_QUEUED_CHUNKS: usize = 2;

/// Lines that are loaded in one batch.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) batch: Batch,
    /// The number and text of each line of the batch.
    pub(super) lines: Vec<(u64, String)>,
    /// The faults of lines that failed to parse.
    pub(super) faults: Vec<LineFault>,
    /// The progress after this chunk.
    pub(super) progress: Progress,
    bytes: usize,
}

impl Chunk {
    fn is_full(&self) -> bool {
        self.lines.len() + self.faults.len() >= MAX_CHUNK_LINES || self.bytes >= MAX_CHUNK_BYTES
    }

    /// Adds a line, or returns its record if the chunk must be loaded first.
    fn push(&mut self, number: u64, text: &str, record: Record) -> Result<(), Record> {
        self.batch.push(record)?;
        self.bytes += text.len();
        self.lines.push((number, text.to_owned()));
        Ok(())
    }
}

/// A message of the reading thread. A channel that closes without `End` or `Unreadable` means that the thread
/// panicked.
#[derive(Debug)]
pub(super) enum ReaderMessage {
    Chunk(Chunk),
    /// The input could not be read.
    Unreadable {
        line: u64,
        source: io::Error,
    },
    End(Progress),
}

/// Starts to read an input. With [`OnFault::Stop`], stops after the chunk with the first faulty line.
pub(super) fn start(input: impl BufRead + Send + 'static, on_fault: OnFault) -> mpsc::Receiver<ReaderMessage> {
    let (sender, receiver) = mpsc::channel(MAX_QUEUED_CHUNKS);
    thread::spawn(move || {
        let mut lines = Lines::new(input);
        let end = match read(&mut lines, on_fault, &sender) {
            Ok(()) => ReaderMessage::End(lines.progress()),
            Err(source) => ReaderMessage::Unreadable { line: lines.progress().lines + 1, source },
        };
        // The receiver is gone if loading has failed.
        sender.blocking_send(end).ok();
    });
    receiver
}

fn read<R: BufRead>(lines: &mut Lines<R>, on_fault: OnFault, sender: &mpsc::Sender<ReaderMessage>) -> io::Result<()> {
    let mut chunk = Chunk::default();
    loop {
        let line = lines.next()?;
        let number = lines.progress().lines;
        match line {
            Line::End => break,
            Line::TooLong => chunk.faults.push(LineFault::of_line(number, "the line is longer than 16 MiB")),
            Line::Text(bytes) if bytes.trim_ascii().is_empty() => {}
            Line::Text(bytes) => match parse_line(number, &bytes) {
                Ok((text, record)) => {
                    if let Err(record) = chunk.push(number, text, record) {
                        if sender.blocking_send(ReaderMessage::Chunk(mem::take(&mut chunk))).is_err() {
                            return Ok(());
                        }
                        chunk.push(number, text, record).expect("an empty batch takes any line");
                    }
                }
                Err(fault) => chunk.faults.push(fault),
            },
        }
        chunk.progress = lines.progress();
        if on_fault == OnFault::Stop && !chunk.faults.is_empty() {
            break;
        }
        if chunk.is_full() && sender.blocking_send(ReaderMessage::Chunk(mem::take(&mut chunk))).is_err() {
            return Ok(());
        }
    }
    // A missing receiver is not an error of the input.
    sender.blocking_send(ReaderMessage::Chunk(chunk)).ok();
    Ok(())
}

fn parse_line(number: u64, bytes: &[u8]) -> Result<(&str, Record), LineFault> {
    let text = match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            return Err(LineFault {
                column: fault::column(&good, good.len()),
                ..LineFault::of_line(number, "the text is not UTF-8")
            });
        }
    };
    parse::record(number, text).map(|record| (text, record))
}
