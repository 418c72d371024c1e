//! The PROXY protocol: a balancer names its client before the first byte of the client's connection.
//!
//! Owns which peers may do so, and that no byte after the header is read: it belongs to TLS or HTTP. The `ppp`
//! crate parses the header; this module finds its length. From a peer that is not a balancer nothing is read. Its
//! header is garbage to the next parser, so no client can choose the address that its limits apply to.
//!
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>

use std::io;
use std::net::{IpAddr, SocketAddr};

use crc::{CRC_32_ISCSI, Crc};
use ipnet::IpNet;
use ppp::{v1, v2};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;

/// The longest header of version 1, including its line end.
const LONGEST_V1: usize = 107;

/// How many bytes may follow the fixed part of a version 2 header: addresses, and fields that a balancer adds.
///
/// Larger: a compromised balancer makes the gateway buffer that much per connection, up to 64 KiB. Smaller:
/// balancers that pass on a client's certificate are refused.
const LONGEST_V2: usize = 4096;

/// The fixed part of version 2: signature, command, family, and the length of the rest.
const FIXED_V2: usize = 16;

/// The bytes before the value of a field that a balancer adds.
const TYPE_AND_LENGTH: usize = 3;

/// Why a balancer's connection is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadHeader {
    #[error("the PROXY header did not arrive in time")]
    TimedOut,
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    #[error("the PROXY header is too long")]
    TooLong,
    #[error("the PROXY header is malformed")]
    MalformedV1(#[source] v1::BinaryParseError),
    #[error("the PROXY header is malformed")]
    MalformedV2(#[source] v2::ParseError),
    #[error("the PROXY header has another checksum than it says")]
    Checksum,
    #[error("the connection broke within the PROXY header")]
    Broken(#[from] io::Error),
}

/// Whether the connections of a peer must begin with a header.
pub(super) fn is_expected(peer: IpAddr, proxies: &[IpNet]) -> bool {
    proxies.iter().any(|network| network.contains(&peer))
}

/// Reads the header and nothing more. Returns the client's address, or the peer's own if the balancer names no
/// client, as in its health checks.
pub(super) async fn read_client(stream: &mut TcpStream, peer: SocketAddr) -> Result<SocketAddr, BadHeader> {
    let mut header = Vec::with_capacity(LONGEST_V1);
    // Headers of both versions are at least this long.
    take(stream, &mut header, v2::PROTOCOL_PREFIX.len()).await?;
    if header == v2::PROTOCOL_PREFIX {
        take(stream, &mut header, FIXED_V2 - v2::PROTOCOL_PREFIX.len()).await?;
        let rest = u16::from_be_bytes([header[FIXED_V2 - 2], header[FIXED_V2 - 1]]).into();
        if rest > LONGEST_V2 {
            return Err(BadHeader::TooLong);
        }
        take(stream, &mut header, rest).await?;
        return client_v2(&header, peer);
    }
    if !header.starts_with(v1::PROTOCOL_PREFIX.as_bytes()) {
        return Err(BadHeader::Missing);
    }
    while header.last() != Some(&b'\n') {
        let mut ahead = [0; LONGEST_V1];
        let room = LONGEST_V1 - header.len();
        if room == 0 {
            return Err(BadHeader::TooLong);
        }
        // Peeked at and not consumed: only the line end shows how much of it belongs to the header.
        let seen = stream.peek(&mut ahead[..room]).await?;
        let line = ahead[..seen].iter().position(|byte| *byte == b'\n').map_or(seen, |end| end + 1);
        // At the end of the stream there is nothing to peek at, and reading a byte returns the error.
        take(stream, &mut header, line.max(1)).await?;
    }
    client_v1(&header, peer)
}

/// Appends exactly `count` bytes.
async fn take(stream: &mut (impl AsyncRead + Unpin), header: &mut Vec<u8>, count: usize) -> io::Result<()> {
    let begin = header.len();
    header.resize(begin + count, 0);
    stream.read_exact(&mut header[begin..]).await.map(|_| ())
}

fn client_v1(header: &[u8], peer: SocketAddr) -> Result<SocketAddr, BadHeader> {
    let header = v1::Header::try_from(header).map_err(BadHeader::MalformedV1)?;
    Ok(match header.addresses {
        v1::Addresses::Tcp4(tcp) => (tcp.source_address, tcp.source_port).into(),
        v1::Addresses::Tcp6(tcp) => (tcp.source_address, tcp.source_port).into(),
        v1::Addresses::Unknown => peer,
    })
}

fn client_v2(header: &[u8], peer: SocketAddr) -> Result<SocketAddr, BadHeader> {
    let header = v2::Header::try_from(header).map_err(BadHeader::MalformedV2)?;
    verify_checksum(&header)?;
    Ok(match (header.command, header.addresses) {
        (v2::Command::Proxy, v2::Addresses::IPv4(ip)) => (ip.source_address, ip.source_port).into(),
        (v2::Command::Proxy, v2::Addresses::IPv6(ip)) => (ip.source_address, ip.source_port).into(),
        (v2::Command::Local, _) | (_, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => peer,
    })
}

/// Verifies the checksum of a header that contains one, as a receiver must (section 2.2.3).
fn verify_checksum(header: &v2::Header<'_>) -> Result<(), BadHeader> {
    static CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
    let whole = header.as_bytes();
    let mut rest = header.tlv_bytes();
    for field in header.tlvs() {
        let field = field.map_err(BadHeader::MalformedV2)?;
        let value = whole.len() - rest.len() + TYPE_AND_LENGTH;
        if field.kind == v2::Type::CRC32C as u8 {
            let declared: [u8; 4] = field.value.as_ref().try_into().map_err(|_| BadHeader::Checksum)?;
            let mut sum = CRC32C.digest();
            sum.update(&whole[..value]);
            // The checksum is computed with its own field set to zero.
            sum.update(&[0; 4]);
            sum.update(&whole[value + 4..]);
            if sum.finalize() != u32::from_be_bytes(declared) {
                return Err(BadHeader::Checksum);
            }
        }
        rest = &rest[TYPE_AND_LENGTH + field.value.len()..];
    }
    Ok(())
}
