//! Server names and protocols.

use std::io;

use rustls::{AlertDescription, Error};

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::connection::{ServerNameIndication, exchange, shake};
use crate::support::fixture::{Engine, Site};

fn alert(error: &io::Error) -> Option<&AlertDescription> {
    match error.get_ref()?.downcast_ref::<Error>()? {
        Error::AlertReceived(alert) => Some(alert),
        _ => None,
    }
}

#[tokio::test]
async fn a_name_that_no_tenant_has_is_refused_with_the_alert_that_says_so() {
    let acme = Acme::of(Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.domain("forms.acme.test")));
    for name in ["nobody.example.test", "example.test", "acme.example.test.evil.test", "other.acme.test"] {
        let refused = shake(acme.node.address, name, ServerNameIndication::Sent, &[b"h2"]).await;
        let error = refused.err().unwrap_or_else(|| panic!("{name} was served"));
        assert_eq!(alert(&error), Some(&AlertDescription::UnrecognisedName), "{name}: {error}");
    }
    for name in ["acme.example.test", "ACME.example.test", "forms.acme.test"] {
        shake(acme.node.address, name, ServerNameIndication::Sent, &[b"h2"]).await.expect("a name of a tenant");
    }
}

#[tokio::test]
async fn a_handshake_without_a_name_gets_the_sign_in_certificate() {
    let acme = Acme::of(Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.domain("forms.acme.test")));
    for (host, status) in [("acme.example.test", 200), ("forms.acme.test", 421)] {
        let stream = shake(acme.node.address, "acme.example.test", ServerNameIndication::Withheld, &[]).await;
        let request = format!(
            "GET /api/v1/me HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
            acme.token
        );
        let bytes =
            exchange(stream.expect("the wildcard"), request.as_bytes(), std::time::Duration::from_secs(5)).await;
        assert_eq!(Answer::read(&bytes).expect("an answer").status, status, "{host}");
    }
    let other = shake(acme.node.address, "forms.acme.test", ServerNameIndication::Withheld, &[]).await;
    assert!(other.is_err(), "the certificate of another name was served");
}

#[tokio::test]
async fn the_protocol_is_http_2_if_the_client_supports_it() {
    let acme = Acme::start();
    for (offered, agreed) in [
        (&[b"h2".as_slice(), b"http/1.1"][..], Some(&b"h2"[..])),
        (&[b"http/1.1", b"h2"], Some(b"h2")),
        (&[b"http/1.1"], Some(b"http/1.1")),
        (&[b"h3", b"http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let stream = shake(acme.node.address, "acme.example.test", ServerNameIndication::Sent, offered).await;
        assert_eq!(stream.expect("a common protocol").get_ref().1.alpn_protocol(), agreed);
    }
    let refused = shake(acme.node.address, "acme.example.test", ServerNameIndication::Sent, &[b"spdy/3"]).await;
    let error = refused.expect_err("no common protocol");
    assert_eq!(alert(&error), Some(&AlertDescription::NoApplicationProtocol), "{error}");
}
