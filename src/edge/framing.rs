//! Finds where the heads of an HTTP/1.1 connection begin and end, and which of them are refused before hyper reads
//! them.
//!
//! hyper accepts what two parsers may read differently, such as a length together with a transfer coding, or a
//! length twice. Request smuggling is built on that (RFC 9112, section 6.3). hyper also answers what it can't
//! parse without a body, and does not report where a head begins, which the head timeout needs. So the bytes are
//! scanned on their way to hyper: heads are parsed with the parser that hyper uses, and bodies are only counted.
//! The rules are hyper's or stricter, and bytes that break them never reach hyper, so the two can't disagree about
//! where the next request begins.
//!
//! It only inspects bytes and knows no sockets: `head_filter` holds bytes back, passes them on and replaces them.

use std::mem::MaybeUninit;

use httparse::{Header, Request, Status};
use memchr::memchr_iter;

use crate::config::ConnectionLimits;
use crate::gate::HeadFault;

/// The maximum number of bytes of chunk extensions and trailers in one body; hyper has the same limit.
///
/// Larger: a body carries more that is never used. Smaller: trailers of honest clients (checksums) break their
/// requests.
const MAX_CHUNK_OVERHEAD: u64 = 16 * 1024;

/// Scans the bytes of one connection.
#[derive(Debug)]
pub(super) struct Framing {
    position: Position,
    head_bytes: usize,
    /// Whether a line may end with a bare line feed (RFC 9112, section 2.2).
    takes_bare_line_feeds: bool,
    /// How many bytes of the current head were searched for its end.
    searched: usize,
    /// The length at which an incomplete head is parsed again, to find faults before its end arrives. It doubles,
    /// so that a head sent byte by byte costs little more than one sent at once.
    parse_at: usize,
}

/// The position of the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// In a head, or before one.
    Head,
    /// In a body with this many bytes to come.
    Length(u64),
    /// In a chunked body. `overhead` counts the bytes of extensions and trailers.
    Chunks { at: ChunkPosition, overhead: u64 },
}

/// The position within a chunked body (RFC 9112, section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkPosition {
    SizeBegin,
    Size(u64),
    /// After whitespace that follows the size.
    SizeBlank(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// At the start of a trailer field, or of the blank line that ends the body.
    TrailerBegin,
    Trailer,
    TrailerLf,
    EndLf,
}

/// What the scanned bytes contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scanned {
    /// How many bytes pass.
    pub(super) passed: usize,
    /// How many of them belong to heads and bodies; the others are chunk framing.
    pub(super) payload: usize,
    /// How many heads are complete among them.
    pub(super) heads: usize,
}

/// Why the scan stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// All bytes pass.
    End,
    /// A head has begun, and its end has not arrived.
    Partial,
    /// A head is preceded by this many bytes of blank lines (RFC 9112, section 2.2).
    Blank(usize),
    /// The next head is refused.
    Refused(InvalidHead),
    /// The chunks break their grammar.
    BadChunk,
}

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidHead {
    pub(super) fault: HeadFault,
    /// Whether the method is HEAD, so that the response has no body.
    pub(super) to_head: bool,
}

impl Framing {
    pub(super) fn new(head_bytes: usize) -> Self {
        Self { position: Position::Head, head_bytes, takes_bare_line_feeds: true, searched: 0, parse_at: 0 }
    }

    /// Refuses heads with a bare line feed, which parsers may read as the end of a line or as a part of it.
    pub(super) fn without_bare_line_feeds(self) -> Self {
        Self { takes_bare_line_feeds: false, ..self }
    }

    /// Scans bytes. Pass those that did not pass again, with more bytes after them or without the blank lines.
    pub(super) fn scan(&mut self, bytes: &[u8]) -> (Scanned, Stop) {
        let mut scanned = Scanned::default();
        loop {
            let rest = &bytes[scanned.passed..];
            if rest.is_empty() {
                return (scanned, Stop::End);
            }
            match self.position {
                Position::Head => match self.scan_head(rest) {
                    Ok(length) => {
                        scanned.passed += length;
                        scanned.payload += length;
                        scanned.heads += 1;
                    }
                    Err(stop) => return (scanned, stop),
                },
                Position::Length(left) => {
                    let taken = take(left, rest);
                    scanned.passed += taken;
                    scanned.payload += taken;
                    self.position = body(left - taken as u64);
                }
                Position::Chunks { at: ChunkPosition::Data(left), overhead } => {
                    let taken = take(left, rest);
                    scanned.passed += taken;
                    scanned.payload += taken;
                    let left = left - taken as u64;
                    let at = if left == 0 { ChunkPosition::DataCr } else { ChunkPosition::Data(left) };
                    self.position = Position::Chunks { at, overhead };
                }
                Position::Chunks { at, overhead } => {
                    let Some(next) = at.next(rest[0]) else { return (scanned, Stop::BadChunk) };
                    let overhead = overhead
                        + u64::from(matches!(
                            at,
                            ChunkPosition::Extension(_) | ChunkPosition::TrailerBegin | ChunkPosition::Trailer
                        ));
                    if overhead > MAX_CHUNK_OVERHEAD {
                        return (scanned, Stop::BadChunk);
                    }
                    scanned.passed += 1;
                    self.position = next.map_or(Position::Head, |at| Position::Chunks { at, overhead });
                }
            }
        }
    }

    /// The length of the head at the start of `bytes`, if it is complete and valid.
    fn scan_head(&mut self, bytes: &[u8]) -> Result<usize, Stop> {
        let malformed = Stop::Refused(InvalidHead { fault: HeadFault::Malformed, to_head: false });
        let end = end_of_head(bytes, self.searched);
        if !self.takes_bare_line_feeds && has_bare_line_feed(&bytes[..end.unwrap_or(bytes.len())], self.searched) {
            return Err(malformed);
        }
        let blank = blank_lines(bytes);
        if blank > 0 {
            self.searched = 0;
            return Err(Stop::Blank(blank));
        }
        let Some(length) = end else {
            self.searched = bytes.len();
            if bytes.len() > self.head_bytes {
                return Err(Stop::Refused(too_large(bytes)));
            }
            if bytes.len() >= self.parse_at {
                self.parse_at = 2 * bytes.len();
                parse(bytes).map_err(Stop::Refused)?;
            }
            return Err(Stop::Partial);
        };
        (self.searched, self.parse_at) = (0, 0);
        if length > self.head_bytes {
            return Err(Stop::Refused(too_large(bytes)));
        }
        // The end of the head has arrived. If the parser still finds the head incomplete, no other parser may
        // complete it.
        let head = parse(&bytes[..length]).map_err(Stop::Refused)?.ok_or(malformed)?;
        if head.length != length {
            return Err(malformed);
        }
        self.position = head.position;
        Ok(length)
    }
}

fn take(left: u64, bytes: &[u8]) -> usize {
    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
}

fn body(length: u64) -> Position {
    if length == 0 { Position::Head } else { Position::Length(length) }
}

/// The length of the blank lines at the start of `bytes`.
fn blank_lines(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let [b'\n', behind @ ..] | [b'\r', b'\n', behind @ ..] = rest {
        rest = behind;
    }
    bytes.len() - rest.len()
}

/// The length of a head, found by the blank line that ends it. A line may end with a bare line feed.
fn end_of_head(bytes: &[u8], searched: usize) -> Option<usize> {
    let from = searched.saturating_sub(2);
    let ends = |&at: &usize| matches!(&bytes[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]);
    let end = memchr_iter(b'\n', &bytes[from..]).map(|at| from + at).find(ends)?;
    Some(end + if bytes[end + 1] == b'\n' { 2 } else { 3 })
}

fn has_bare_line_feed(head: &[u8], searched: usize) -> bool {
    let found = memchr_iter(b'\n', head.get(searched..).unwrap_or_default());
    found.map(|at| searched + at).any(|at| at == 0 || head[at - 1] != b'\r')
}

/// Which part of a head is too large.
fn too_large(bytes: &[u8]) -> InvalidHead {
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let fault = if 2 * line > bytes.len() { HeadFault::TargetTooLong } else { HeadFault::TooLarge };
    InvalidHead { fault, to_head: bytes.starts_with(b"HEAD ") }
}

/// A valid head: its length, and the framing of what follows it.
struct ValidHead {
    length: usize,
    position: Position,
}

/// Parses a head. Returns `None` if it is valid so far but incomplete.
fn parse(bytes: &[u8]) -> Result<Option<ValidHead>, InvalidHead> {
    let mut fields = [const { MaybeUninit::uninit() }; ConnectionLimits::HEAD_FIELDS];
    let mut request = Request::new(&mut []);
    let parsed = request.parse_with_uninit_headers(bytes, &mut fields);
    let refuse = |fault| InvalidHead { fault, to_head: bytes.starts_with(b"HEAD ") };
    match parsed {
        Ok(Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(refuse(HeadFault::TooLarge)),
        Err(_) => Err(refuse(HeadFault::Malformed)),
        Ok(Status::Complete(length)) => {
            check_target(request.path.unwrap_or_default()).map_err(refuse)?;
            let position = position_after(request.version == Some(0), request.headers).map_err(refuse)?;
            Ok(Some(ValidHead { length, position }))
        }
    }
}

fn check_target(target: &str) -> Result<(), HeadFault> {
    // `head_filter` sends hyper requests with this target in place of refused ones, so a client's own must not get
    // past.
    if target == "*" {
        return Err(HeadFault::Target);
    }
    match http::Uri::try_from(target) {
        Ok(_) => Ok(()),
        Err(_) => Err(HeadFault::Malformed),
    }
}

/// The framing of the body that follows a head.
fn position_after(is_http_10: bool, fields: &[Header<'_>]) -> Result<Position, HeadFault> {
    let all = |name: &'static str| fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    let (mut lengths, mut codings) = (all("content-length"), all("transfer-encoding"));
    match (lengths.next(), lengths.next(), codings.next(), codings.next()) {
        (None, _, None, _) => Ok(Position::Head),
        (Some(length), None, None, _) => read_length(length.value).map(body).ok_or(HeadFault::Length),
        (None, _, Some(coding), None) if !is_http_10 && coding.value.eq_ignore_ascii_case(b"chunked") => {
            Ok(Position::Chunks { at: ChunkPosition::SizeBegin, overhead: 0 })
        }
        _ => Err(HeadFault::Length),
    }
}

fn read_length(value: &[u8]) -> Option<u64> {
    // No sign and no list. The two largest numbers have a special meaning in hyper.
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok().filter(|length| *length < u64::MAX - 2)
}

impl ChunkPosition {
    /// The position after `byte`: `None` if it breaks the grammar, `Some(None)` if it ends the body.
    fn next(self, byte: u8) -> Option<Option<Self>> {
        let after_size = |size| if size == 0 { Self::TrailerBegin } else { Self::Data(size) };
        Some(Some(match (self, byte) {
            (Self::SizeBegin, byte) => Self::Size(digit(byte)?),
            (Self::Size(size) | Self::SizeBlank(size), b' ' | b'\t') => Self::SizeBlank(size),
            (Self::Size(size) | Self::SizeBlank(size), b';') => Self::Extension(size),
            (Self::Size(size) | Self::SizeBlank(size) | Self::Extension(size), b'\r') => Self::SizeLf(size),
            (Self::Size(size), byte) => Self::Size(size.checked_mul(16)?.checked_add(digit(byte)?)?),
            (Self::Extension(size), byte) if byte != b'\n' => Self::Extension(size),
            (Self::SizeLf(size), b'\n') => after_size(size),
            (Self::DataCr, b'\r') => Self::DataLf,
            (Self::DataLf, b'\n') => Self::SizeBegin,
            (Self::TrailerBegin, b'\r') => Self::EndLf,
            (Self::Trailer, b'\r') => Self::TrailerLf,
            (Self::TrailerBegin | Self::Trailer, _) => Self::Trailer,
            (Self::TrailerLf, b'\n') => Self::TrailerBegin,
            (Self::EndLf, b'\n') => return Some(None),
            _ => return None,
        }))
    }
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}
