//! The input as chunks: parsed on a thread of its own while the database takes the chunk before.
//!
//! A plain thread and not one of the runtime's: it may wait for a terminal's input for ever, and the program must be
//! able to end while it does.

use std::io::{self, BufRead};
use std::{mem, thread};

use tokio::sync::mpsc;

use super::fault::{self, LineFault};
use super::lines::{Line, Lines};
use super::{OnFault, Progress, parse};
use crate::store::import::batch::Batch;
use crate::store::import::record::Record;

/// How many lines are loaded together. More, and the rows of a batch fill memory and a progress bar jumps; fewer, and the
/// statements' own cost counts.
const MAX_CHUNK_LINES: usize = 1_000;

/// How much text is loaded together, whatever the number of lines.
const MAX_CHUNK_BYTES: usize = 4 << 20;

/// How many chunks wait for the database.
const MAX_QUEUED_CHUNKS: usize = 2;

/// Lines that are loaded together.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) batch: Batch,
    /// The numbers and texts of the batch's lines.
    pub(super) lines: Vec<(u64, String)>,
    /// The lines among them that could not be parsed.
    pub(super) faults: Vec<LineFault>,
    /// How far the input was read for it.
    pub(super) progress: Progress,
    bytes: usize,
}

impl Chunk {
    fn is_full(&self) -> bool {
        self.lines.len() + self.faults.len() >= MAX_CHUNK_LINES || self.bytes >= MAX_CHUNK_BYTES
    }

    /// Adds a line, or gives its record back where the chunk must be loaded before it.
    fn push(&mut self, number: u64, text: &str, record: Record) -> Result<(), Record> {
        self.batch.push(record)?;
        self.bytes += text.len();
        self.lines.push((number, text.to_owned()));
        Ok(())
    }
}

/// What the reading thread says. A channel that closes without an end or an error means that the thread has died.
#[derive(Debug)]
pub(super) enum ReaderMessage {
    Chunk(Chunk),
    /// The input could not be read on.
    Unreadable {
        line: u64,
        source: io::Error,
    },
    End(Progress),
}

/// Begins to read an input. With [`OnFault::Stop`] nothing is read behind the chunk with the first faulty line.
pub(super) fn start(input: impl BufRead + Send + 'static, on_fault: OnFault) -> mpsc::Receiver<ReaderMessage> {
    let (sender, receiver) = mpsc::channel(MAX_QUEUED_CHUNKS);
    thread::spawn(move || {
        let mut lines = Lines::new(input);
        let end = match read(&mut lines, on_fault, &sender) {
            Ok(()) => ReaderMessage::End(lines.progress()),
            Err(source) => ReaderMessage::Unreadable { line: lines.progress().lines + 1, source },
        };
        // Nobody listens any more where the load has failed.
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
    // Nobody listening is no error of the input.
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
