//! Only a receiver with a valid certificate for its host is sent anything.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::scene::Scene;
use crate::support::receiver::{Act, HOST, Identity, Receiver};

fn tls(fault: &str) -> (&'static str, String) {
    ("tls", format!("the TLS handshake failed: {fault}"))
}

#[tokio::test]
async fn an_invalid_certificate_is_refused_and_the_text_says_why() {
    let scene = Scene::new().await;
    let untrusted =
        "the certificate was not issued by a trusted authority, or the chain lacks an intermediate certificate";
    for (identity, fault) in [
        (Identity::Expired, "the certificate has expired"),
        (Identity::Early, "the certificate is not valid yet"),
        (Identity::OfAnother, "the certificate is not for this host"),
        (Identity::OfClient, "the certificate is not valid"),
        (Identity::SelfSigned, untrusted),
    ] {
        let receiver = Receiver::identified(identity).await;
        assert_eq!(scene.failure(&receiver.url("/")).await, tls(fault), "{identity:?}");
        assert!(receiver.requests().is_empty(), "{identity:?}");
    }
    let receiver = Receiver::identified(Identity::Valid).await;
    assert_eq!(scene.status(&receiver.url("/")).await, 204);
}

#[tokio::test]
async fn an_authority_is_trusted_only_if_it_is_configured() {
    let receiver = Receiver::identified(Identity::Valid).await;
    let scene = Scene::with(&["127.0.0.0/8"], |settings| settings.authorities.clear()).await;
    let (kind, text) = scene.failure(&receiver.url("/")).await;
    assert!(kind == "tls" && text.contains("not issued by a trusted authority"), "{text}");
}

#[tokio::test]
async fn a_certificate_for_a_name_is_not_one_for_its_address() {
    let receiver = Receiver::always(Act::status(204)).await;
    let scene = Scene::new().await;
    let url = format!("https://127.0.0.1:{}/", receiver.address.port());
    assert_eq!(scene.failure(&url).await, tls("the certificate is not for this host"));
}

#[tokio::test]
async fn a_server_without_tls_is_recognized() {
    let scene = Scene::new().await;
    for (bytes, fault) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "the receiver does not speak TLS on this port"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the receiver does not speak TLS on this port"),
        (b"", "the receiver closed the connection"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{HOST}:{}/", listener.local_addr().unwrap().port());
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // All of the ClientHello, else closing would reset the connection.
            let mut hello = vec![0; 16 * 1024];
            let _ = stream.read(&mut hello).await;
            stream.write_all(bytes).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let (failure, ()) = tokio::join!(scene.failure(&url), answer);
        assert_eq!(failure, tls(fault), "{bytes:?}");
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    let scene = Scene::impatient(Duration::from_secs(3)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{HOST}:{}/", listener.local_addr().unwrap().port());
    let expected = ("timeout", "the time limit ended before the connection was established".to_owned());
    assert_eq!(scene.failure(&url).await, expected);
}

#[tokio::test]
async fn a_port_without_a_listener_is_refused() {
    let scene = Scene::new().await;
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let expected = ("connect", "no connection: connection refused".to_owned());
    assert_eq!(scene.failure(&format!("https://{HOST}:{port}/")).await, expected);
}
