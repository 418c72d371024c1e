//! The executor of an HTTP/2 connection: polls the connection and its responses in one task.
//!
//! hyper passes the executor a future for each request that it reads, and writes what is ready whenever the
//! connection is polled. With a task per response, every response would be a write of its own: four requests that
//! arrive in one read would leave in four writes, and a 429 would cost 1.5 times the CPU. Here the responses are
//! polled once the connection has read everything, so that responses that are ready together are written together.
//!
//! An HTTP/1.1 connection has no futures to execute and needs only the [`Poller`], which polls a connection again
//! immediately if it woke itself, as hyper's do for each part of a body. The runtime would queue it instead, and
//! wake another thread, which mostly finds the queue empty.

#[cfg(test)]
mod tests;

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use hyper::rt::Executor;

/// How often in a row a connection that keeps waking itself is polled.
///
/// Larger: it keeps the other connections of its thread waiting. Smaller: parts of a body go through the runtime's
/// queue.
const IN_A_ROW: usize = 8;

type ResponseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes the response futures of one connection from hyper, and keeps them until the [`Poller`] polls them.
#[derive(Clone, Default)]
pub(super) struct Http2Executor(Arc<Mutex<Vec<ResponseFuture>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Http2Executor {
    fn execute(&self, response: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(response));
    }
}

impl Http2Executor {
    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn take(&self) -> Vec<ResponseFuture> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Polls a connection and its responses, whichever was woken, and again immediately if one was woken meanwhile.
pub(super) struct Poller {
    state: Arc<PollState>,
    waker: Waker,
    responses: Option<Responses>,
}

/// What has to be polled, as the bits below.
struct PollState {
    task: AtomicWaker,
    due: AtomicU8,
}

const CONNECTION: u8 = 1;
const RESPONSES: u8 = 2;
/// The task is not polling: setting another bit has to wake it.
const IDLE: u8 = 4;

/// A waker that sets a bit, and wakes the task unless it is polling.
struct SetDue<const BIT: u8>(Arc<PollState>);

impl<const BIT: u8> SetDue<BIT> {
    fn waker(state: &Arc<PollState>) -> Waker {
        Arc::new(Self(Arc::clone(state))).into()
    }
}

impl<const BIT: u8> Wake for SetDue<BIT> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let PollState { task, due } = &*self.0;
        if due.fetch_or(BIT, Ordering::AcqRel) == IDLE {
            task.wake();
        }
    }
}

impl Poller {
    /// Polls a connection, and the responses that it passes to its executor, if it has one. Boxed, like the
    /// connection: it is passed on, and a future keeps space for what was moved through it.
    pub(super) fn new(executor: Option<Http2Executor>) -> Box<Self> {
        let state = Arc::new(PollState { task: AtomicWaker::new(), due: AtomicU8::new(CONNECTION) });
        let waker = SetDue::<CONNECTION>::waker(&state);
        let responses = executor.map(|executor| Responses::new(executor, SetDue::<RESPONSES>::waker(&state)));
        Box::new(Self { state, waker, responses })
    }

    /// Has the connection polled. To be called after a method of the connection, because that does not wake it.
    pub(super) fn poll_soon(&self) {
        self.waker.wake_by_ref();
    }

    /// Polls a connection until it waits for something other than itself and its responses.
    pub(super) fn poll<F: Future>(
        &mut self,
        mut connection: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let PollState { task, due } = &*self.state;
        task.register(context.waker());
        let mut now = due.swap(0, Ordering::AcqRel);
        for _ in 0..IN_A_ROW {
            if let Some(responses) = &mut self.responses
                && now & RESPONSES != 0
            {
                responses.run();
                // Those that are ready have woken the connection, which is polled below.
                now |= due.fetch_and(!CONNECTION, Ordering::AcqRel) & CONNECTION;
            }
            if now & CONNECTION != 0 {
                if let Poll::Ready(output) = connection.as_mut().poll(&mut Context::from_waker(&self.waker)) {
                    return Poll::Ready(output);
                }
                if self.responses.as_ref().is_some_and(|responses| !responses.executor.is_empty()) {
                    due.fetch_or(RESPONSES, Ordering::AcqRel);
                }
            }
            if due.compare_exchange(0, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Poll::Pending;
            }
            now = due.swap(0, Ordering::AcqRel);
        }
        due.fetch_or(now | IDLE, Ordering::AcqRel);
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The responses that run in the task of their connection: those that never wait, or wait once. They mostly wait
/// for the admission, which several responses of a connection share. Responses that wait again, for a database,
/// become tasks.
///
/// Nothing else tracks these tasks: a connection waits for them, and they end if it is dropped.
struct Responses {
    executor: Http2Executor,
    waiting: FuturesUnordered<WaitingResponse>,
    waker: Waker,
}

impl Responses {
    fn new(executor: Http2Executor, waker: Waker) -> Self {
        Self { executor, waiting: FuturesUnordered::new(), waker }
    }

    /// Polls the new responses and those that were woken.
    fn run(&mut self) {
        for mut response in self.executor.take() {
            // Most wait for nothing and need no waker. The others are polled once more, with the waker that
            // `FuturesUnordered` has for each.
            if poll(&mut response, &mut Context::from_waker(Waker::noop())).is_pending() {
                self.waiting.push(WaitingResponse::new(response));
            }
        }
        let mut context = Context::from_waker(&self.waker);
        while let Poll::Ready(Some(())) = self.waiting.poll_next_unpin(&mut context) {}
    }
}

/// Breaks a cycle: hyper gives each response a clone of the executor, which holds the responses that were never
/// polled.
impl Drop for Responses {
    fn drop(&mut self) {
        drop(self.executor.take());
    }
}

/// Polls a response. A panic ends only its own stream, as it would in a task.
fn poll(response: &mut ResponseFuture, context: &mut Context<'_>) -> Poll<()> {
    catch_unwind(AssertUnwindSafe(|| response.as_mut().poll(context))).unwrap_or(Poll::Ready(()))
}

/// A response that was polled and waits; `response` is None once it has become a task.
struct WaitingResponse {
    response: Option<ResponseFuture>,
    was_woken: bool,
}

impl WaitingResponse {
    fn new(response: ResponseFuture) -> Self {
        Self { response: Some(response), was_woken: false }
    }
}

impl Future for WaitingResponse {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(response) = &mut self.response else { return Poll::Ready(()) };
        if poll(response, context).is_ready() {
            return Poll::Ready(());
        }
        if mem::replace(&mut self.was_woken, true) {
            self.response.take().map(tokio::spawn);
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
