//! Tests of a ClientHello in many records: TLS allows them (RFC 8446, section 5.1), so the reader of its name must
//! collect them.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::soon;
use super::fixture::Fixture;
use crate::config::ConnectionLimits;

/// Puts each byte of a record into a record of its own.
fn byte_by_byte(record: &[u8]) -> Vec<u8> {
    let (header, payload) = record.split_at(5);
    assert_eq!(usize::from(u16::from_be_bytes([header[3], header[4]])), payload.len(), "one record");
    payload.iter().flat_map(|byte| [header[0], header[1], header[2], 0, 1, *byte]).collect()
}

#[tokio::test]
async fn a_client_hello_in_one_byte_records_is_answered_with_the_certificate_of_its_name() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(Arc::clone(&fixture.roots))
        .with_no_client_auth();
    let name = ServerName::try_from("forms.acme.org").unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    stream.write_all(&byte_by_byte(&hello)).await.unwrap();
    tls.writer().write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();

    let mut answer = String::new();
    while !answer.ends_with("forms.acme.org") {
        let mut came = [0; 4096];
        let length = soon(stream.read(&mut came)).await.unwrap();
        assert!(length > 0, "the answer is whole before the end: {answer}");
        let mut came = &came[..length];
        while !came.is_empty() {
            tls.read_tls(&mut came).unwrap();
            tls.process_new_packets().expect("the certificate is the name's");
        }
        let mut ours = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut ours).unwrap();
        }
        stream.write_all(&ours).await.unwrap();
        // Returns `WouldBlock` while there is no more text.
        let _ = tls.reader().read_to_string(&mut answer);
    }
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
