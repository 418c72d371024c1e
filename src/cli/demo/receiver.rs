//! The demo's own receiver of webhooks: it prints what arrives.
//!
//! Serves on loopback, with the demo's certificate, which `ca_file` in the demo's configuration makes formgate trust. It
//! is subscribed to every event of a tenant for as long as the demo runs.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::api::new_secret;
use crate::cli::output::print;
use crate::seal::Seals;
use crate::store::{Event, PageRequest, Store, StoreError, SubscriptionKey, Unsubscription};

/// The path of its URL, by which an earlier demo's subscription is recognized.
const PATH: &str = "/printed-by-the-demo";

/// How many characters of a body are printed.
///
/// Larger: one event fills the screen. Smaller: the end of an ordinary submission is cut.
const MAX_PRINTED: usize = 4_000;

/// A running receiver; it ends when it is dropped.
pub(super) struct DemoReceiver {
    url: String,
    _serving: AbortOnDropHandle<()>,
}

impl DemoReceiver {
    /// Listens on a free port of this machine.
    pub(super) async fn start(certificate: &Path, private_key: &Path) -> Result<Self> {
        let acceptor = TlsAcceptor::from(Arc::new(tls(certificate, private_key)?));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("the receiver can't listen")?;
        let url = format!("https://{}{PATH}", listener.local_addr()?);
        let serving = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(serve(acceptor.clone(), stream))),
                    // Out of descriptors: the next one may be accepted once others are closed.
                    Err(_) => sleep(Duration::from_millis(100)).await,
                }
            }
        });
        Ok(Self { url, _serving: AbortOnDropHandle::new(serving) })
    }

    /// Where it receives.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Subscribes it to every event, instead of the receiver of an earlier demo.
    pub(super) async fn subscribe(&self, store: &Store, seals: &Seals) -> Result<(), StoreError> {
        unsubscribe(store).await?;
        for event in Event::ALL {
            let key = SubscriptionKey { target_url: self.url.clone(), event, form: None };
            store.subscribe(&key, false, &seals.seal(&new_secret(), &self.url), Timestamp::now()).await?;
        }
        Ok(())
    }
}

/// Deletes the subscriptions of a demo's receiver.
pub(super) async fn unsubscribe(store: &Store) -> Result<(), StoreError> {
    let own = format!("https://{}:", Ipv4Addr::LOCALHOST);
    let page = PageRequest { number: NonZeroU64::MIN, size: 1_000 };
    for known in store.list_subscriptions(page).await?.items {
        if known.target_url.starts_with(&own) && known.target_url.ends_with(PATH) {
            store.unsubscribe(&Unsubscription::Id(known.id)).await?;
        }
    }
    Ok(())
}

fn tls(certificate: &Path, private_key: &Path) -> Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(private_key)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_no_client_auth().with_single_cert(chain, key)?)
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    let _ = http.serve_connection(TokioIo::new(stream), service_fn(receive)).await;
}

async fn receive(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let (status, body) = match body.collect().await {
        Ok(body) => (StatusCode::NO_CONTENT, body.to_bytes()),
        Err(_) => (StatusCode::BAD_REQUEST, Bytes::new()),
    };
    if status.is_success() {
        // A closed standard output does not end the demo.
        let _ = print(&shown(&head.headers, &body));
    }
    let mut answer = Response::new(Empty::new());
    *answer.status_mut() = status;
    Ok(answer)
}

/// A webhook in a few lines, between empty ones.
fn shown(headers: &HeaderMap, body: &[u8]) -> String {
    let body = String::from_utf8_lossy(body);
    let cut = body.char_indices().nth(MAX_PRINTED).map(|(at, _)| at);
    let (body, more) = cut.map_or((&*body, ""), |at| (&body[..at], "…"));
    let mut text = "\nA webhook arrived:\n".to_owned();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature", "formgate-attempt"] {
        let value = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        text += &format!("  {name}: {value}\n");
    }
    text + &format!("  {body}{more}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_body_is_cut_between_characters() {
        let text = shown(&HeaderMap::new(), "ü".repeat(MAX_PRINTED + 1).as_bytes());
        assert!(text.ends_with(&format!("  {}…\n", "ü".repeat(MAX_PRINTED))), "{text}");
        assert!(shown(&HeaderMap::new(), b"{}").ends_with("formgate-attempt: \n  {}\n"));
    }
}
