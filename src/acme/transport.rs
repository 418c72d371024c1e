//! The requests to a CA, over [`crate::outbound`].
//!
//! Owns what instant-acme does not keep: the `Retry-After` of a refusal, which becomes a [`Refusal`] here before the library
//! reads the response. Only a refused nonce is passed on, since the library repeats such a request with the nonce of the
//! response.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::CertificateDer;

use super::error::{AcmeError, Problem, Step};
use super::settings::AcmeSettings;
use crate::outbound::{AllowedTarget, AllowedTargets, Client, Guard, SendError, Settings, Target, retry_after};

/// How many requests to a CA are expected at once; the connections of more are closed after them.
///
/// Larger: more idle sockets. Smaller: more handshakes when many certificates are due.
const IN_FLIGHT: u32 = 32;

/// The longest `Retry-After` that is honored.
///
/// Larger: one mistaken response stops renewals for that long. Smaller: a CA with longer limits is asked too
/// early.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(8 * 24 * 60 * 60);

/// Sends the requests to one CA. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Transport(Arc<Client>);

/// A request without a successful response.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    /// The CA sent an invalid URL.
    #[error("sent an invalid URL")]
    Url,
    /// No response.
    #[error("{}", of_ca(*.0))]
    Send(#[from] SendError),
    /// An error status.
    #[error("refused with status {}", .0.status.as_u16())]
    Refused(Refusal),
}

/// A response with an error status.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// When to ask again.
    pub(super) until: Option<Timestamp>,
    /// The body, if it is a problem document.
    pub(super) problem: Option<Problem>,
}

impl Transport {
    /// Trusts the system's CAs and further ones.
    pub(super) fn new(settings: &AcmeSettings, roots: &[CertificateDer<'static>]) -> Self {
        let settings = Settings {
            timeout: settings.timeout,
            in_flight: IN_FLIGHT,
            per_host: IN_FLIGHT,
            allowed: everywhere(),
            authorities: roots.to_vec(),
            dns_servers: settings.dns_servers.clone(),
        };
        Self(Arc::new(Client::new(&settings, Arc::new(Guard::new(settings.allowed.clone())))))
    }

    /// Sends a request, whose response is a success or says that the nonce is invalid.
    pub(super) async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let target = Target::parse(&request.uri().to_string()).map_err(|_| TransportError::Url)?;
        let response = self.0.exchange_document(&target, request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let refusal = Refusal::of(&response);
        if refusal.is_of_nonce() { Ok(response) } else { Err(TransportError::Refused(refusal)) }
    }
}

impl Refusal {
    fn of(response: &Response<Bytes>) -> Self {
        let now = Timestamp::now();
        let wait = retry_after(response.headers(), now).map(|wait| wait.min(MAX_RETRY_AFTER));
        let until = wait.and_then(|wait| now.checked_add(SignedDuration::try_from(wait).ok()?).ok());
        Self { status: response.status(), until, problem: serde_json::from_slice(response.body()).ok() }
    }

    /// Whether the CA has nothing at the URL.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self.status, StatusCode::NOT_FOUND | StatusCode::GONE)
    }

    /// Whether it is the refusal of a nonce, which is repeated.
    fn is_of_nonce(&self) -> bool {
        self.status == StatusCode::BAD_REQUEST && self.problem.as_ref().is_some_and(Problem::is_bad_nonce)
    }
}

impl TransportError {
    /// What a failed request means.
    pub(super) fn during(self, step: Step) -> AcmeError {
        match self {
            Self::Refused(refusal) => refusal.during(step),
            Self::Url | Self::Send(_) => AcmeError::down(&self),
        }
    }
}

impl HttpClient for Transport {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let transport = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            match transport.send(Request::from_parts(head, body.to_bytes())).await {
                Ok(response) => {
                    let (parts, body) = response.into_parts();
                    Ok(BytesResponse { parts, body: Box::new(body) })
                }
                Err(error) => Err(instant_acme::Error::Other(Box::new(error))),
            }
        })
    }
}

/// The text of the client, which is about a receiver of webhooks, reworded for a CA. It contains nothing that the other side
/// chose.
fn of_ca(error: SendError) -> String {
    error.to_string().replace("the receiver", "the CA")
}

/// Every network. The guard still refuses link-local addresses and metadata services.
fn everywhere() -> AllowedTargets {
    ["0.0.0.0/0", "::/0"].iter().filter_map(|network| AllowedTarget::parse(network).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::{Phase, ProtocolFault};

    #[test]
    fn a_failure_names_the_ca_and_no_receiver() {
        let sent = SendError::Protocol(ProtocolFault::TooMuch);
        assert_eq!(TransportError::from(sent).to_string(), "no valid answer: the CA sent too much");
        let late = SendError::Timeout(Phase::Head);
        assert_eq!(TransportError::from(late).to_string(), "the time limit ended before the CA answered");
    }
}
