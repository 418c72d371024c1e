//! Tests of the PROXY protocol, from balancers and from other peers.

use std::net::SocketAddr;
use std::time::Duration;

use ppp::v2::{Addresses, Builder, Command, Protocol, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::client::{Hello, exchange, soon};
use super::fixture::Fixture;
use crate::config::ConnectionLimits;
use crate::config::{ListenConfig, ListenProtocol};
use crate::systemd::InheritedSockets;

const SHORT: Duration = Duration::from_millis(200);
const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
const V1: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 443\r\n";

async fn behind(network: &str, protocol: ListenProtocol, limits: ConnectionLimits) -> Fixture {
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let entry = ListenConfig { address, protocol, proxies: vec![network.parse().unwrap()] };
    Fixture::listening(entry, limits, &mut InheritedSockets::default()).await
}

/// A header of version 2.
fn v2(command: Command, source: &str, extra: &[u8]) -> Vec<u8> {
    let source: SocketAddr = source.parse().unwrap();
    let destination = if source.is_ipv4() { "198.51.100.1:443" } else { "[2001:db8::1]:443" };
    let addresses: Addresses = (source, destination.parse().unwrap()).into();
    let header = Builder::with_addresses(Version::Two | command, Protocol::Stream, addresses);
    let header = if extra.is_empty() { header } else { header.write_tlv(0xE0, extra).unwrap() };
    header.build().unwrap()
}

/// Writes the pieces one by one, and reads until the edge closes the connection.
async fn say(fixture: &Fixture, pieces: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for piece in pieces {
        let _ = stream.write_all(piece).await;
        if pieces.len() > 1 {
            sleep(Duration::from_millis(2)).await;
        }
    }
    let mut bytes = Vec::new();
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

fn refused(fixture: &Fixture) -> u64 {
    fixture.metrics.edge.connections_refused.with_label_values(&["proxy"]).get()
}

#[tokio::test]
async fn the_client_is_the_one_that_the_balancer_names() {
    let fixture = behind("127.0.0.0/8", ListenProtocol::Http1, ConnectionLimits::default()).await;
    let long =
        b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    for (header, client) in [
        (V1.to_vec(), "192.0.2.7"),
        (long.to_vec(), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"),
        (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n".to_vec(), "192.0.2.7"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (v2(Command::Proxy, "192.0.2.7:1", b""), "192.0.2.7"),
        (v2(Command::Proxy, "[2001:db8::7]:1", b""), "2001:db8::7"),
        (v2(Command::Proxy, "192.0.2.7:1", &[7; 4000]), "192.0.2.7"),
        (v2(Command::Local, "192.0.2.7:1", b""), "127.0.0.1"),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0".to_vec(), "127.0.0.1"),
    ] {
        let whole = [header.as_slice(), GET.as_bytes()].concat();
        let bytes: Vec<&[u8]> = header.chunks(1).take(200).collect();
        let rest = &whole[bytes.len()..];
        for pieces in [vec![whole.as_slice()], [bytes, vec![rest]].concat()] {
            let answer = say(&fixture, &pieces).await;
            assert!(answer.ends_with(&format!("\r\n\r\n{client} Balancer")), "{header:?}: {answer}");
        }
    }
    assert_eq!(refused(&fixture), 0);
}

#[tokio::test]
async fn a_balancer_without_a_valid_header_is_closed_and_counted() {
    let fixture = behind("127.0.0.1/32", ListenProtocol::Http1, ConnectionLimits::default()).await;
    let mut wrong_version = v2(Command::Proxy, "192.0.2.7:1", b"");
    wrong_version[12] = 0x31;
    let mut short = v2(Command::Proxy, "192.0.2.7:1", b"");
    short[15] = 8;
    let headers = [
        GET.as_bytes().to_vec(),
        b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 443\n".to_vec(),
        b"PROXY TCP4 192.0.2.777 198.51.100.1 40000 443\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 66000\r\n".to_vec(),
        b"PROXY UDP4 192.0.2.7 198.51.100.1 40000 443\r\n".to_vec(),
        [b"PROXY UNKNOWN ", "x".repeat(200).as_bytes(), b"\r\n"].concat(),
        v2(Command::Proxy, "192.0.2.7:1", &[7; 5000]),
        wrong_version,
        short,
    ];
    for (before, header) in headers.iter().enumerate() {
        assert_eq!(say(&fixture, &[&[header.as_slice(), GET.as_bytes()].concat()]).await, "", "{header:?}");
        assert_eq!(refused(&fixture), before as u64 + 1);
    }
}

/// A header of version 2 with a checksum between two other fields; `wrong` flips bits of the checksum.
fn summed(command: Command, wrong: u32) -> Vec<u8> {
    let header = v2(command, "192.0.2.7:1", b"before");
    let at = header.len();
    let mut header = [&header[..], &[3, 0, 4, 0, 0, 0, 0], &[4, 0, 3, 0, 0, 0]].concat();
    let rest = u16::try_from(header.len() - 16).unwrap();
    header[14..16].copy_from_slice(&rest.to_be_bytes());
    let sum = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(&header) ^ wrong;
    header[at + 3..at + 7].copy_from_slice(&sum.to_be_bytes());
    header
}

#[tokio::test]
async fn a_checksum_that_a_balancer_adds_must_be_right() {
    let check = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(b"123456789");
    assert_eq!(check, 0xE306_9283, "CRC32C, as RFC 3720 has it");
    let fixture = behind("127.0.0.1/32", ListenProtocol::Http1, ConnectionLimits::default()).await;
    for (command, client) in [(Command::Proxy, "192.0.2.7"), (Command::Local, "127.0.0.1")] {
        let answer = say(&fixture, &[&[&summed(command, 0), GET.as_bytes()].concat()]).await;
        assert!(answer.ends_with(&format!("{client} Balancer")), "{answer}");
    }
    let mut altered = summed(Command::Proxy, 0);
    altered[19] ^= 1;
    let mut short = v2(Command::Proxy, "192.0.2.7:1", b"x");
    let end = short.len();
    short[end - 4] = 3;
    for header in [summed(Command::Proxy, 1), summed(Command::Local, 1 << 31), altered, short] {
        let before = refused(&fixture);
        assert_eq!(say(&fixture, &[&[header.as_slice(), GET.as_bytes()].concat()]).await, "", "{header:?}");
        assert_eq!(refused(&fixture), before + 1);
    }
}

#[tokio::test]
async fn a_missing_header_is_awaited_only_for_the_handshake_limit() {
    let limits = ConnectionLimits { handshake: SHORT, ..ConnectionLimits::default() };
    let fixture = behind("127.0.0.1/32", ListenProtocol::Http1, limits).await;
    for begin in [&b""[..], &V1[..20], &v2(Command::Proxy, "192.0.2.7:1", b"")[..20]] {
        let began = Instant::now();
        assert_eq!(say(&fixture, &[begin]).await, "");
        assert!(began.elapsed() >= SHORT, "after {:?}", began.elapsed());
    }
    assert_eq!(refused(&fixture), 3);
}

#[tokio::test]
async fn a_header_from_a_peer_that_is_not_a_balancer_is_garbage() {
    let fixture = behind("192.0.2.0/24", ListenProtocol::Http1, ConnectionLimits::default()).await;
    let answer = say(&fixture, &[&[V1, GET.as_bytes()].concat()]).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(say(&fixture, &[GET.as_bytes()]).await.ends_with("127.0.0.1 Balancer"));

    let fixture = behind("192.0.2.0/24", ListenProtocol::Tls, ConnectionLimits::default()).await;
    assert!(!say(&fixture, &[V1]).await.contains("HTTP"));
    assert_eq!((fixture.handshakes("failed"), refused(&fixture)), (1, 0));
}

#[tokio::test]
async fn tls_begins_with_the_byte_after_the_header() {
    let fixture = behind("127.0.0.1/32", ListenProtocol::Tls, ConnectionLimits::default()).await;
    for header in [V1.to_vec(), v2(Command::Proxy, "192.0.2.7:1", b"more")] {
        let mut stream = Hello::to("acme.example.com").after(&header).shake(&fixture).await.unwrap();
        assert!(exchange(&mut stream, GET).await.ends_with("acme.example.com"));
    }
    assert!(Hello::to("acme.example.com").shake(&fixture).await.is_err(), "a ClientHello is no header");
    assert_eq!(refused(&fixture), 1);
}
