//! The first SETTINGS of an HTTP/2 peer, which reveal how it reacts to a GOAWAY.
//!
//! By RFC 9113 (section 6.8), a server announces its shutdown with a GOAWAY, answers the open requests, and
//! closes. Python's `h2`, and with it httpx, closes its side at the first GOAWAY: every response after it is lost,
//! and a PING after it is a protocol error (python-hyper/h2#1181, #1199). It does retry the requests that the
//! GOAWAY names as not processed. Node's `http2` is the opposite: it accepts the responses and retries nothing. No
//! single sequence suits both, and the protocol has only one hint: `h2` sends settings that have their default
//! value anyway. A peer that is mistaken for `h2` is still shut down as the RFC allows.

use super::goaway::GoawayReaction;

const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
const HEADER: usize = 9;
const SETTINGS: u8 = 4;

const HEADER_TABLE_SIZE: (u16, u32) = (1, 4096);
const MAX_FRAME_SIZE: (u16, u32) = (5, 16_384);

/// The longest payload that is inspected: a few entries more than there are settings.
///
/// Larger: a connection buffers more. Smaller: a peer that adds a few settings is not recognized.
const MAX_PAYLOAD: usize = 16 * 6;

/// Follows a connection until its first SETTINGS have come.
#[derive(Debug, Default)]
pub(super) struct FirstSettings {
    bytes: Vec<u8>,
}

impl FirstSettings {
    /// Reads the next bytes of a connection. Returns how the peer reacts to a GOAWAY once that is known.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Option<GoawayReaction> {
        let room = PREFACE + HEADER + MAX_PAYLOAD - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let frame = self.bytes.get(PREFACE..)?;
        let (&[a, b, c, kind, ..], payload) = frame.split_first_chunk::<HEADER>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind != SETTINGS || length > MAX_PAYLOAD {
            return Some(GoawayReaction::KeepsReading);
        }
        let entries = payload.get(..length)?.as_chunks::<6>().0.iter();
        let entries = entries.map(|&[a, b, c, d, e, f]| (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f])));
        let spelled_out = entries.filter(|entry| [HEADER_TABLE_SIZE, MAX_FRAME_SIZE].contains(entry)).count();
        Some(if spelled_out == 2 { GoawayReaction::StopsReading } else { GoawayReaction::KeepsReading })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A preface, SETTINGS with these entries, and bytes after them.
    fn first_settings(entries: &[(u16, u32)]) -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend([0, 0, u8::try_from(6 * entries.len()).unwrap(), SETTINGS, 0, 0, 0, 0, 0]);
        for (name, value) in entries {
            bytes.extend(name.to_be_bytes());
            bytes.extend(value.to_be_bytes());
        }
        bytes.extend([0; 300]);
        bytes
    }

    fn read(bytes: &[u8], size: usize) -> Option<GoawayReaction> {
        let mut first_settings = FirstSettings::default();
        bytes.chunks(size).find_map(|piece| first_settings.read(piece))
    }

    #[test]
    fn the_first_settings_reveal_the_peer_however_they_are_split() {
        let httpx = first_settings(&[(1, 4096), (2, 0), (4, 65_535), (5, 16_384), (3, 100), (6, 65_536)]);
        let h2 = first_settings(&[(1, 4096), (2, 1), (4, 65_535), (5, 16_384), (8, 0), (3, 100), (6, 65_536)]);
        let (node, curl) = (first_settings(&[]), first_settings(&[(3, 100), (4, 10_485_760), (2, 0)]));
        let java = first_settings(&[(1, 16_384), (2, 1), (3, 100), (4, 16_777_216), (5, 16_384)]);
        let many = first_settings(&[(1, 4096); 17]);
        for size in [1, 7, 33, 1000] {
            for (bytes, expected) in [
                (&httpx, GoawayReaction::StopsReading),
                (&h2, GoawayReaction::StopsReading),
                (&node, GoawayReaction::KeepsReading),
                (&curl, GoawayReaction::KeepsReading),
                (&java, GoawayReaction::KeepsReading),
                (&many, GoawayReaction::KeepsReading),
            ] {
                assert_eq!(read(bytes, size), Some(expected), "in pieces of {size}");
            }
        }
        assert_eq!(read(&httpx[..PREFACE + HEADER + 11], 5), None);
    }
}
