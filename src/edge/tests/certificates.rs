//! Tests of the name in a ClientHello, the certificate that is served, and the protocol that ALPN selects.

use http::Version;
use rustls::{AlertDescription, Error};
use tokio_rustls::client::TlsStream;

use super::client::{BOTH, Caller, Hello, exchange};
use super::fixture::Fixture;
use crate::config::ConnectionLimits;

const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

fn alpn<IO>(stream: &TlsStream<IO>) -> Option<&[u8]> {
    stream.get_ref().1.alpn_protocol()
}

#[tokio::test]
async fn each_version_is_served_when_alpn_chooses_it() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    for version in BOTH {
        let mut caller = Caller::connect(&fixture, version).await;
        let (head, body) = caller.send("/").await.unwrap();
        assert_eq!((head.version(), body.as_str()), (version, "acme.example.com"));
        let label = if version == Version::HTTP_2 { "h2" } else { "http/1.1" };
        assert_eq!(fixture.open(label), 1);
    }
    assert_eq!(fixture.handshakes("done"), 2);
    assert_eq!(fixture.metrics.edge.connections_accepted.get(), 2);
}

#[tokio::test]
async fn http_2_is_preferred_and_a_client_without_alpn_speaks_http_1() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let both = Hello::to("acme.example.com").offering(&["http/1.1", "h2"]).shake(&fixture).await.unwrap();
    assert_eq!(alpn(&both), Some(&b"h2"[..]));
    let mut none = Hello::to("acme.example.com").offering(&[]).shake(&fixture).await.unwrap();
    assert_eq!(alpn(&none), None);
    assert!(exchange(&mut none, GET).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn the_name_chooses_the_certificate_in_any_case() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    for (name, covered) in [
        ("acme.example.com", "acme.example.com"),
        ("forms.acme.org", "forms.acme.org"),
        ("Forms.ACME.org", "forms.acme.org"),
    ] {
        let mut stream = Hello::to(name).shake(&fixture).await.unwrap();
        assert!(exchange(&mut stream, GET).await.ends_with(covered), "{name}");
    }
}

#[tokio::test]
async fn an_unknown_name_is_refused_with_unrecognized_name() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    for name in ["nobody.example.com", "acme.org", "a_b.test"] {
        let error = Hello::to(name).shake(&fixture).await.unwrap_err();
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
        assert_eq!(cause, Some(&Error::AlertReceived(AlertDescription::UnrecognisedName)), "{name}");
    }
    while fixture.handshakes("unknown_name") < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fixture.handshakes("done"), 0);
}

#[tokio::test]
async fn a_handshake_without_a_name_gets_the_sign_in_certificate() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let mut stream = Hello::to("any.example.com").without_sni().shake(&fixture).await.unwrap();
    assert!(exchange(&mut stream, GET).await.ends_with("acme.example.com"));
}
