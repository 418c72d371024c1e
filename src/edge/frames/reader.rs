//! Reads the frame headers of one direction of an HTTP/2 connection, however its bytes are split.
//!
//! Reads the nine bytes of each frame header (RFC 9113, section 4.1) and the length of padding, and skips
//! payloads. It validates nothing: hyper rejects malformed frames.

const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
const HEADER: usize = 9;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const PING: u8 = 6;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
const PADDED: u8 = 0x8;

/// Reads the frames of one direction.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    /// Bytes to skip before the next frame header: the preface, then the rest of a payload.
    skip: usize,
    header: [u8; HEADER],
    filled: usize,
    /// A frame that is reported once the next byte, the length of its padding, has arrived.
    padded: Option<FrameHeader>,
}

/// What the header of a frame says, and the length of its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    /// The length of its payload without padding.
    pub(super) content: usize,
}

impl FrameReader {
    pub(super) fn after_preface() -> Self {
        Self { skip: PREFACE, ..Self::default() }
    }

    /// Whether the next byte begins a frame.
    pub(super) fn is_between_frames(&self) -> bool {
        self.skip == 0 && self.filled == 0
    }

    /// Reads bytes and reports every frame whose header is complete.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut on_frame: impl FnMut(FrameHeader)) {
        while !bytes.is_empty() {
            if let Some(mut frame) = self.padded.take() {
                // The first byte of the payload is the length of the padding. It is skipped with the rest.
                frame.content = frame.content.saturating_sub(1 + usize::from(bytes[0]));
                on_frame(frame);
            }
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = (HEADER - self.filled).min(bytes.len());
            self.header[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == HEADER {
                self.filled = 0;
                let frame = FrameHeader::read(self.header);
                self.skip = frame.content;
                if frame.is_padded() && frame.content > 0 {
                    self.padded = Some(frame);
                } else {
                    on_frame(frame);
                }
            }
        }
    }
}

impl FrameHeader {
    fn read([a, b, c, kind, flags, stream @ ..]: [u8; HEADER]) -> Self {
        let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
        Self { kind, flags, stream, content: u32::from_be_bytes([0, a, b, c]) as usize }
    }

    fn is_padded(self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & PADDED != 0
    }

    pub(super) fn is_of_message(self) -> bool {
        matches!(self.kind, DATA | HEADERS | CONTINUATION)
    }

    pub(super) fn is_ping_ack(self) -> bool {
        self.kind == PING && self.flags & ACK != 0
    }

    pub(super) fn ends(self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    fn read_all(reader: &mut FrameReader, pieces: &[&[u8]]) -> Vec<FrameHeader> {
        let mut frames = Vec::new();
        pieces.iter().for_each(|piece| reader.read(piece, |frame| frames.push(frame)));
        frames
    }

    #[test]
    fn frames_are_the_same_however_their_bytes_are_split() {
        let bytes = [
            vec![b'p'; PREFACE],
            frame(4, 0, 0, &[0; 12]),
            frame(HEADERS, PADDED | END_STREAM, 1, b"\x03headpad"),
            frame(DATA, PADDED, 1, &[200, 1, 2]),
            frame(DATA, END_STREAM, 1, b""),
            frame(DATA, PADDED, 1, b""),
            frame(RST_STREAM, 0, 0x8000_0003, &[0; 4]),
        ]
        .concat();
        let whole = read_all(&mut FrameReader::after_preface(), &[&bytes]);
        let expected = [(4, 0, 12), (HEADERS, 1, 4), (DATA, 1, 0), (DATA, 1, 0), (DATA, 1, 0), (RST_STREAM, 3, 4)];
        assert_eq!(whole.iter().map(|frame| (frame.kind, frame.stream, frame.content)).collect::<Vec<_>>(), expected);
        for size in 1..bytes.len() {
            let pieces: Vec<_> = bytes.chunks(size).collect();
            assert_eq!(read_all(&mut FrameReader::after_preface(), &pieces), whole, "in pieces of {size}");
        }
    }
}
