//! The received part of a body, decoded. It is bounded, and memory is reserved before it is used.
//!
//! A buffer has the declared length from its first byte on, so that it never moves; untouched pages take no memory.
//! So memory is reserved for the bytes that arrived rather than for those declared: a client that declares 16 MiB and
//! sends nothing takes nothing from others.
//!
//! Gzip is decoded member by member, since each member has a fixed cost whatever it contains: [`GzipMembers`] bounds
//! their number.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::write::GzDecoder;

use super::coding::Coding;
use crate::error::{Faults, Refusal};
use crate::memory::{MemoryPermit, MemoryShare};

/// The memory for serving a body, as a multiple of its size. Reading it takes the body and the columns made from it,
/// which are up to 1.3 times as large if addresses are in mixed case. Then the body is dropped, and the Postgres
/// driver copies the columns twice: into its arguments and into its send buffer. SQLite gets them in chunks.
///
/// Larger: fewer bodies are served at once than would fit. Smaller: bodies take more than is reserved for them.
const MEMORY_FACTOR: usize = 4;

/// Bodies up to this size are not reserved.
///
/// Larger: requests in flight hold more uncounted memory. Smaller: ordinary bodies pay for counting.
const UNCOUNTED: usize = 16 * 1024;

/// The step in which memory is reserved, in bytes of body.
///
/// Larger: a stalled body reserves more than it uses. Smaller: the counters are written more often.
const STEP: usize = 64 * 1024;

/// How much of a body is decoded before the task yields, in bytes of output.
///
/// Larger: one body holds up a thread. Smaller: bodies are decoded more slowly.
pub(super) const YIELD_AFTER: usize = 256 * 1024;

/// The work of one byte of gzip input, in bytes of output. Empty members cost it too.
///
/// Larger: ordinary gzip is decoded more slowly. Smaller: empty members hold up a thread.
const INPUT_WORK: usize = 16;

/// How many bytes a gzip body may be larger than its output, beyond the eighth that is always allowed.
///
/// Larger: clients can waste more CPU time on bodies that decode to nothing. Smaller: ordinary bodies of a few
/// members are refused.
const GZIP_OVERHEAD: usize = 64 * 1024;

/// How many bytes of input each gzip member counts as, in addition to its own.
///
/// Larger: ordinary bodies of small members are refused. Smaller: tiny members, which cost microseconds each, pass.
const MEMBER_COST: usize = 1024;

/// A completely read body.
#[derive(Debug, Default)]
pub(crate) struct ReceivedBody {
    /// The decoded bytes.
    pub(crate) bytes: Bytes,
    /// The reservation for serving it.
    pub(crate) permit: Option<MemoryPermit>,
}

/// The decoded bytes so far.
#[derive(Debug)]
pub(super) struct BoundedBuffer<'m> {
    bytes: Vec<u8>,
    /// The declared length.
    declared: Option<usize>,
    limit: usize,
    share: &'m MemoryShare,
    permit: Option<MemoryPermit>,
}

impl BoundedBuffer<'_> {
    /// Reserves the memory for a body of which this many bytes have arrived.
    fn reserve(&mut self, length: usize) -> Result<(), Refusal> {
        if length <= UNCOUNTED {
            return Ok(());
        }
        // No more than the whole body costs: the budget may be no larger.
        let most = self.declared.unwrap_or(self.limit).max(length);
        let bytes = length.next_multiple_of(STEP).min(most).saturating_mul(MEMORY_FACTOR);
        match &mut self.permit {
            Some(permit) if permit.bytes() >= bytes => {}
            Some(permit) => permit.resize(bytes)?,
            None => self.permit = Some(self.share.reserve(bytes)?),
        }
        Ok(())
    }

    fn push(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        let (length, capacity) = (self.bytes.len() + piece.len(), self.bytes.capacity());
        if length > self.limit {
            return Err(Refusal::BodyTooLarge);
        }
        self.reserve(length)?;
        if length > capacity {
            let doubled = capacity.saturating_mul(2).min(self.limit);
            let capacity = self.declared.unwrap_or(doubled).max(length);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

/// The destination of a body's pieces.
#[derive(Debug)]
pub(super) enum BodyBuffer<'m> {
    Identity(BoundedBuffer<'m>),
    Gzip(Box<GzipMembers<'m>>),
}

/// The members of a gzip body.
///
/// Gzip never makes data an eighth larger. Only empty or tiny members and blocks do, which take CPU time and decode
/// to nothing.
#[derive(Debug)]
pub(super) struct GzipMembers<'m> {
    /// The current member's decoder; `None` after a failure.
    decoder: Option<GzDecoder<GzipOutput<'m>>>,
    /// How many members ended before it.
    ended: usize,
    /// Input bytes so far.
    taken: usize,
}

impl<'m> GzipMembers<'m> {
    fn new(output: GzipOutput<'m>) -> Self {
        Self { decoder: Some(GzDecoder::new(output)), ended: 0, taken: 0 }
    }

    fn decoded(&self) -> usize {
        self.decoder.as_ref().map_or(0, |decoder| decoder.get_ref().buffer.bytes.len())
    }

    fn push(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        let mut rest = piece;
        while !rest.is_empty() {
            let decoder = self.decoder.as_mut().ok_or_else(not_gzip)?;
            match decoder.write(rest) {
                // The member has ended.
                Ok(0) => self.begin_next()?,
                Ok(taken) => rest = &rest[taken..],
                Err(_) => return Err(self.fail()),
            }
        }
        self.taken += piece.len();
        let decoded = self.decoded();
        if self.taken + self.ended * MEMBER_COST > decoded + decoded / 8 + GZIP_OVERHEAD {
            return Err(Faults::single(
                "body",
                "The body must not consist of so many empty or tiny gzip members: compress it as a whole.",
            ));
        }
        Ok(())
    }

    fn begin_next(&mut self) -> Result<(), Refusal> {
        let output = self.finish()?;
        self.decoder = Some(GzDecoder::new(output));
        self.ended += 1;
        Ok(())
    }

    /// Ends the current member.
    fn finish(&mut self) -> Result<GzipOutput<'m>, Refusal> {
        let decoder = self.decoder.as_mut().ok_or_else(not_gzip)?;
        if decoder.try_finish().is_err() {
            return Err(self.fail());
        }
        self.decoder.take().and_then(|decoder| decoder.finish().ok()).ok_or_else(not_gzip)
    }

    /// Why the decoder failed: its output was refused, or its input is invalid.
    fn fail(&mut self) -> Refusal {
        let decoder = self.decoder.take();
        decoder.and_then(|mut decoder| decoder.get_mut().refused.take()).unwrap_or_else(not_gzip)
    }
}

/// The output of a decoder.
#[derive(Debug)]
pub(super) struct GzipOutput<'m> {
    buffer: BoundedBuffer<'m>,
    /// Why a piece was refused.
    refused: Option<Refusal>,
}

impl Write for GzipOutput<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        match self.buffer.push(piece) {
            Ok(()) => Ok(piece.len()),
            Err(refusal) => {
                self.refused = Some(refusal);
                Err(io::ErrorKind::Other.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'m> BodyBuffer<'m> {
    /// For a body whose declared length, if any, is within the limit.
    ///
    /// # Errors
    /// [`Refusal::MemorySpent`] if there is not enough memory for it now.
    pub(super) fn begin(
        coding: Coding,
        declared: Option<usize>,
        limit: usize,
        share: &'m MemoryShare,
    ) -> Result<Self, Refusal> {
        if let Some(length) = declared.filter(|length| *length > UNCOUNTED) {
            share.check_room(length.saturating_mul(MEMORY_FACTOR))?;
        }
        let mut buffer = BoundedBuffer { bytes: Vec::new(), declared, limit, share, permit: None };
        Ok(match coding {
            Coding::Identity => Self::Identity(buffer),
            Coding::Gzip => {
                buffer.declared = None;
                Self::Gzip(Box::new(GzipMembers::new(GzipOutput { buffer, refused: None })))
            }
        })
    }

    /// Takes the next piece. Returns the work that it took, to compare with [`YIELD_AFTER`].
    ///
    /// # Errors
    /// [`Refusal::BodyTooLarge`], [`Refusal::MemorySpent`], and [`Refusal::Invalid`] on `body` for invalid gzip or
    /// more members than such a body needs.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<usize, Refusal> {
        match self {
            Self::Identity(buffer) => buffer.push(piece).map(|()| piece.len()),
            Self::Gzip(members) => {
                let before = members.decoded();
                members.push(piece)?;
                Ok(members.decoded() - before + piece.len() * INPUT_WORK)
            }
        }
    }

    /// The whole body.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] on `body` if gzip ends early.
    pub(super) fn end(self) -> Result<ReceivedBody, Refusal> {
        let buffer = match self {
            Self::Identity(buffer) => buffer,
            Self::Gzip(mut members) => members.finish()?.buffer,
        };
        Ok(ReceivedBody { bytes: buffer.bytes.into(), permit: buffer.permit })
    }
}

pub(super) fn not_gzip() -> Refusal {
    Faults::single("body", "The body must be valid gzip, as its Content-Encoding says.")
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn decode(pieces: &[&[u8]], limit: usize) -> Result<Bytes, Refusal> {
        let share = MemoryShare::unlimited();
        let mut buffer = BodyBuffer::begin(Coding::Gzip, None, limit, &share)?;
        for piece in pieces {
            buffer.push(piece)?;
        }
        buffer.end().map(|received| received.bytes)
    }

    #[test]
    fn gzip_is_decoded_whatever_pieces_and_members_it_comes_in() {
        let (whole, two) = (gzip(b"{\"a\": 1}"), [gzip(b"{\"a\":"), gzip(b" 1}")].concat());
        for bytes in [whole, two] {
            let pieces: Vec<&[u8]> = bytes.chunks(3).collect();
            assert_eq!(&*decode(&pieces, 8).unwrap(), b"{\"a\": 1}");
            assert_eq!(&*decode(&[&bytes], 8).unwrap(), b"{\"a\": 1}");
        }
    }

    #[test]
    fn invalid_or_truncated_gzip_is_a_fault_of_the_body() {
        let whole = gzip(b"{}");
        let broken = [whole.as_slice(), b"x"].concat();
        let mut corrupt = whole.clone();
        corrupt[whole.len() - 5] ^= 1;
        let corrupt_first = [corrupt.as_slice(), &whole].concat();
        for bytes in [b"{}".as_slice(), &whole[..whole.len() - 1], &whole[..5], &broken, &corrupt, &corrupt_first] {
            assert!(matches!(decode(&[bytes], 100), Err(Refusal::Invalid(_))), "{bytes:?}");
        }
    }

    #[test]
    fn a_bomb_is_given_up_at_the_first_byte_too_many() {
        let bomb = gzip(&vec![b' '; 1 << 20]);
        assert!(bomb.len() < 2000);
        assert!(matches!(decode(&[&bomb], (1 << 20) - 1), Err(Refusal::BodyTooLarge)));
        assert_eq!(decode(&[&bomb], 1 << 20).unwrap().len(), 1 << 20);
    }

    #[test]
    fn members_and_blocks_that_decode_to_nearly_nothing_are_refused_and_all_others_accepted() {
        let noise: Vec<u8> = (0_u32..100_000).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let stored = {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
            encoder.write_all(&noise).unwrap();
            encoder.finish().unwrap()
        };
        for bytes in [gzip(&noise), stored, noise.chunks(10_000).flat_map(gzip).collect(), gzip(b"").repeat(50)] {
            let pieces: Vec<&[u8]> = bytes.chunks(4096).collect();
            decode(&pieces, 1 << 20).unwrap();
        }
        let empty_blocks = [&gzip(b"")[..10], &b"\0\0\0\xff\xff".repeat(20_000), &gzip(b"")[10..]].concat();
        // A file name and a comment in the header.
        let texts = [&[b'n'; 60_000][..], b"\0", &[b'c'; 60_000], b"\0"].concat();
        let long_head = [&b"\x1f\x8b\x08\x18\0\0\0\0\0\x03"[..], &texts, &gzip(b"")[10..]].concat();
        for bytes in [gzip(b"").repeat(100), gzip(&[b' '; 40]).repeat(1000), empty_blocks, long_head] {
            let pieces: Vec<&[u8]> = bytes.chunks(4096).collect();
            let Err(Refusal::Invalid(faults)) = decode(&pieces, 1 << 20) else { panic!("{} bytes", bytes.len()) };
            assert!(format!("{faults:?}").contains("tiny gzip members"), "{faults:?}");
        }
    }

    #[test]
    fn input_is_work_even_where_it_decodes_to_nothing() {
        let share = MemoryShare::unlimited();
        let mut buffer = BodyBuffer::begin(Coding::Gzip, None, 1 << 20, &share).unwrap();
        let work = buffer.push(&gzip(b"").repeat(50)).unwrap();
        assert_eq!(work, 50 * 20 * INPUT_WORK);
    }

    #[test]
    fn a_body_reserves_four_times_its_size_as_it_arrives() {
        let share = MemoryShare::unlimited();
        let mut buffer = BodyBuffer::begin(Coding::Identity, Some(1 << 20), 1 << 20, &share).unwrap();
        let reserved = |buffer: &BodyBuffer<'_>| {
            let BodyBuffer::Identity(buffer) = buffer else { panic!("{buffer:?}") };
            assert_eq!(buffer.bytes.capacity(), 1 << 20, "it never moves");
            buffer.permit.as_ref().map(MemoryPermit::bytes)
        };
        buffer.push(&[b' '; 100]).unwrap();
        assert_eq!(reserved(&buffer), None);
        buffer.push(&[b' '; UNCOUNTED]).unwrap();
        assert_eq!(reserved(&buffer), Some(4 * STEP));
        buffer.push(&vec![b' '; STEP]).unwrap();
        assert_eq!(reserved(&buffer), Some(8 * STEP));
        let mut buffer = BodyBuffer::begin(Coding::Identity, Some(100_000), 1 << 20, &share).unwrap();
        buffer.push(&[b' '; 90_000]).unwrap();
        assert_eq!(buffer.end().unwrap().permit.map(|permit| permit.bytes()), Some(400_000), "not of a whole step");

        let mut buffer = BodyBuffer::begin(Coding::Identity, Some(1 << 20), 1 << 20, &share).unwrap();
        buffer.push(&[b' '; 100]).unwrap();
        for piece in repeat_n([b' '; 4096], 255) {
            buffer.push(&piece).unwrap();
        }
        let received = buffer.end().unwrap();
        assert_eq!(
            (received.bytes.len(), received.permit.map(|permit| permit.bytes())),
            (255 * 4096 + 100, Some(4 << 20))
        );
        let small = BodyBuffer::begin(Coding::Identity, Some(UNCOUNTED), 1 << 20, &share).unwrap().end().unwrap();
        assert!(small.permit.is_none());
    }
}
