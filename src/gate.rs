//! The way of a request, once and in order.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;

use crate::tenant::host::CertificateNames;

/// What the edge knows of the connection that a request came on.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Where the caller connected from.
    pub client: SocketAddr,
    /// The names of the certificate that this connection was served.
    pub certificate: Arc<CertificateNames>,
}

/// The gate that every request passes.
#[derive(Debug)]
pub struct Gate {}

impl Gate {
    /// Leads one request through all steps. Never fails: a refusal is an answer too.
    pub async fn pass(&self, _connection: &Connection, _request: Request<Incoming>) -> Response<Full<Bytes>> {
        Response::new(Full::new(Bytes::new()))
    }
}
