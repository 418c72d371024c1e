//! Documents of a service that the operator configured: requests whose answers are read whole.
//!
//! Owns how large such an answer may be. Redirects are answers like all others, and are not followed; everything else
//! is as for a webhook receiver.

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Request, Response, StatusCode, request};
use http_body_util::{BodyExt, Full};

use super::client::{AGENT, Client, fault_of};
use super::error::{Phase, ProtocolFault, SendError};
use super::target::Target;
use crate::deadline;

/// How large a document may be.
///
/// Larger: a faulty service costs more memory. Smaller: the key sets of some providers, which contain certificates, are
/// refused.
pub const MAX_DOCUMENT_BYTES: usize = 256 * 1024;

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Document {
    /// The status.
    pub status: StatusCode,
    /// The whole body.
    pub body: Bytes,
}

impl Client {
    /// Reads a document.
    ///
    /// # Errors
    /// [`SendError`]; [`ProtocolFault::TooMuch`] if it is longer than [`MAX_DOCUMENT_BYTES`].
    pub async fn get(&self, target: &Target) -> Result<Document, SendError> {
        self.fetch(Request::get(target.uri().clone()), Bytes::new()).await
    }

    /// Sends a form, and reads the answer.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub async fn post_form(
        &self,
        target: &Target,
        form: String,
        authorization: Option<HeaderValue>,
    ) -> Result<Document, SendError> {
        let request = Request::post(target.uri().clone()).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let request = authorization.into_iter().fold(request, |request, value| request.header(AUTHORIZATION, value));
        self.fetch(request, form.into()).await
    }

    async fn fetch(&self, request: request::Builder, body: Bytes) -> Result<Document, SendError> {
        let request = request.header(ACCEPT, "application/json").body(body);
        let (head, body) = self.read(request.expect("a target's URI and these headers are valid")).await?.into_parts();
        Ok(Document { status: head.status, body })
    }

    /// Sends a request to a target, whatever its URI is, and reads the answer with its headers.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub async fn exchange_document(
        &self,
        target: &Target,
        mut request: Request<Bytes>,
    ) -> Result<Response<Bytes>, SendError> {
        *request.uri_mut() = target.uri().clone();
        self.read(request).await
    }

    async fn read(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, SendError> {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let mut phase = Phase::Head;
        let exchange = async {
            let (head, mut body, connection) = self.open(request.map(Full::new), &mut phase).await?;
            let mut received = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| fault_of(&error, Some(head.status), &connection))?;
                let Ok(bytes) = frame.into_data() else { continue };
                if received.len() + bytes.len() > MAX_DOCUMENT_BYTES {
                    return Err(ProtocolFault::TooMuch.into());
                }
                received.extend_from_slice(&bytes);
            }
            Ok(Response::from_parts(head, received.freeze()))
        };
        let outcome = deadline::within(self.timeout, deadline::ONCE_MORE, exchange).await;
        outcome.unwrap_or(Err(SendError::Timeout(phase)))
    }
}
