//! HTTP/2: several callers share a connection, and open another one when the server says that it goes away.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::bail;
use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::sync::Mutex;
use tokio::task::spawn_local;

use super::{Caller, Turn};
use crate::order::Request;

/// So much may be under way: no answer waits for leave to be sent.
const WINDOW: u32 = 16 * 1024 * 1024;

/// How often a request is sent anew when the connection went away before it was looked at.
const ATTEMPTS: usize = 3;

/// A connection, once there is one; clones share it.
#[derive(Clone, Default)]
pub(super) struct Http2(Rc<Shared>);

#[derive(Default)]
struct Shared {
    open: RefCell<Option<SendRequest<Bytes>>>,
    opening: Mutex<()>,
}

impl Caller for Http2 {
    async fn ask(&mut self, turn: &Turn, request: usize) -> anyhow::Result<u16> {
        let request = &turn.order.requests[request];
        for _ in 0..ATTEMPTS {
            let sender = self.sender(turn, &request.host).await?;
            match exchange(sender, request).await {
                Ok(status) => return Ok(status),
                Err(error) if was_not_looked_at(&error) => self.close(),
                Err(error) => return Err(error.into()),
            }
        }
        bail!("{ATTEMPTS} connections went away")
    }

    fn close(&mut self) {
        *self.0.open.borrow_mut() = None;
    }
}

impl Http2 {
    async fn sender(&self, turn: &Turn, host: &str) -> anyhow::Result<SendRequest<Bytes>> {
        let open = || self.0.open.borrow().clone();
        if let Some(sender) = open() {
            return Ok(sender);
        }
        let _opening = self.0.opening.lock().await;
        if let Some(sender) = open() {
            return Ok(sender);
        }
        let stream = turn.dialer.dial(host).await?;
        let mut builder = Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW).enable_push(false);
        let (sender, connection) = builder.handshake(stream).await?;
        spawn_local(async move {
            // What it ends with, its callers are told.
            let _ = connection.await;
        });
        *self.0.open.borrow_mut() = Some(sender.clone());
        Ok(sender)
    }
}

async fn exchange(sender: SendRequest<Bytes>, request: &Request) -> Result<u16, h2::Error> {
    let mut head = http::Request::builder()
        .method(request.method.as_str())
        .uri(format!("https://{}{}", request.host, request.path))
        .version(http::Version::HTTP_2);
    if let Some(token) = &request.token {
        head = head.header("authorization", format!("Bearer {token}"));
    }
    if request.body.is_some() {
        head = head.header("content-type", "application/json");
    }
    let head = head.body(()).expect("the bench's own requests are well formed");
    let (answer, mut body) = sender.ready().await?.send_request(head, request.body.is_none())?;
    if let Some(text) = &request.body {
        body.send_data(Bytes::copy_from_slice(text.as_bytes()), true)?;
    }
    let answer = answer.await?;
    let status = answer.status().as_u16();
    let mut body = answer.into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    Ok(status)
}

/// Whether the server said that it goes away, and did nothing for this request.
fn was_not_looked_at(error: &h2::Error) -> bool {
    let reason = error.reason();
    error.is_go_away() && reason == Some(h2::Reason::NO_ERROR) || reason == Some(h2::Reason::REFUSED_STREAM)
}
