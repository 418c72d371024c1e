//! Tests of the number of writes: concurrent HTTP/2 requests are answered in one write.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::sync::Notify;

use super::client::soon;
use crate::edge::executor::{Http2Executor, Poller};
use crate::edge::pass_through::pass_through;

/// The gateway's end of a connection.
struct Counted {
    io: DuplexStream,
    writes: Arc<AtomicUsize>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    pass_through!(poll_write, is_write_vectored, poll_flush, poll_shutdown);

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}

/// How many requests are sent at once.
const TOGETHER: usize = 8;

/// How many writes the gateway needs to answer that many requests. With `/wait`, the responses wait and are woken
/// together.
async fn writes(path: &'static str) -> usize {
    let (near, far) = duplex(64 * 1024);
    let (writes, woken) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
    let (io, asked) = (Counted { io: far, writes: Arc::clone(&writes) }, Http2Executor::default());
    let waits = Arc::clone(&woken);
    let answer = service_fn(move |request: Request<Incoming>| {
        let woken = Arc::clone(&waits);
        async move {
            if request.uri().path() == "/wait" {
                woken.notified().await;
            }
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("answered")))
        }
    });
    let mut poller = Poller::new(Some(asked.clone()));
    tokio::spawn(async move {
        let mut connection = pin!(server::conn::http2::Builder::new(asked).serve_connection(TokioIo::new(io), answer));
        poll_fn(|context| poller.poll(connection.as_mut(), context)).await
    });
    let (mut sender, connection) =
        client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let mut send =
        |path| sender.send_request(Request::get(format!("http://acme{path}")).body(Empty::<Bytes>::new()).unwrap());
    // The first response comes after the exchange of settings.
    soon(send("/")).await.unwrap();
    let before = writes.load(Ordering::Relaxed);
    let answers = join_all((0..TOGETHER).map(|_| send(path)));
    let waking = async {
        loop {
            tokio::task::yield_now().await;
            woken.notify_waiters();
        }
    };
    let answers = soon(async {
        tokio::select! { answers = answers => answers, () = waking => unreachable!("it never ends") }
    });
    assert!(answers.await.iter().all(Result::is_ok));
    writes.load(Ordering::Relaxed) - before
}

// Like the gateway, a multi-threaded runtime, here with one thread: it runs next what a task woke last.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn responses_that_are_ready_at_once_are_written_together() {
    assert_eq!(tokio::spawn(writes("/")).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn responses_that_wait_for_the_same_event_are_written_together() {
    assert_eq!(tokio::spawn(writes("/wait")).await.unwrap(), 1);
}
