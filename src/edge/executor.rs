//! The executor of an HTTP/2 connection: polls the connection and its responses in one task.
//!
//! hyper gives the executor a future for each request that it reads, and writes what is ready whenever the connection is
//! polled. With a task for each response, every response is a write of its own: four requests that arrive with one read
//! leave with four writes, and a 429 costs 1.5 times the CPU. Here the responses are polled once the connection has
//! read everything, so that those that are ready together are written together.
//!
//! An HTTP/1.1 connection has no futures to execute and needs only the [`Poller`], which polls a connection again at once
//! if it woke itself, as hyper's do for each part of a body. The runtime would put it in a queue instead, and wake another
//! thread, which mostly finds the queue empty.

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

/// How often a connection that keeps waking itself is polled in a row.
///
/// Larger: it keeps the other connections of its thread waiting. Smaller: the parts of a body come through the queue.
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

/// Polls a connection and its responses, whichever was woken; and again at once if one was woken meanwhile.
pub(super) struct Poller {
    state: Arc<State>,
    waker: Waker,
    responses: Option<Responses>,
}

/// What is to be polled, by the bits below.
struct State {
    task: AtomicWaker,
    due: AtomicU8,
}

const CONNECTION: u8 = 1;
const RESPONSES: u8 = 2;
/// The task does not poll: whoever sets another bit has to wake it.
const IDLE: u8 = 4;

/// Sets a bit, and wakes the task unless it is polling.
struct SetDue<const BIT: u8>(Arc<State>);

impl<const BIT: u8> SetDue<BIT> {
    fn waker(state: &Arc<State>) -> Waker {
        Arc::new(Self(Arc::clone(state))).into()
    }
}

impl<const BIT: u8> Wake for SetDue<BIT> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let State { task, due } = &*self.0;
        if due.fetch_or(BIT, Ordering::AcqRel) == IDLE {
            task.wake();
        }
    }
}

impl Poller {
    /// Polls a connection, and the responses that it gives to its executor, if it has one. Boxed, as the connection is: it is
    /// handed on, and a future keeps the place of what passed through it.
    pub(super) fn new(executor: Option<Http2Executor>) -> Box<Self> {
        let state = Arc::new(State { task: AtomicWaker::new(), due: AtomicU8::new(CONNECTION) });
        let waker = SetDue::<CONNECTION>::waker(&state);
        let responses = executor.map(|executor| Responses::new(executor, SetDue::<RESPONSES>::waker(&state)));
        Box::new(Self { state, waker, responses })
    }

    /// Has the connection polled: to be called after a method of it was, which does not wake it.
    pub(super) fn poll_soon(&self) {
        self.waker.wake_by_ref();
    }

    /// Polls a connection until it waits for something else than itself and its responses.
    pub(super) fn poll<F: Future>(
        &mut self,
        mut connection: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let State { task, due } = &*self.state;
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

/// The responses that run in the task of their connection: those that never wait, or once. That once is mostly the
/// admission, which several of a connection share; those that wait again, for a database, become tasks.
///
/// Nothing else keeps track of these tasks: their connection ends after them, and they end with it.
struct Responses {
    executor: Http2Executor,
    waiting: FuturesUnordered<Waiting>,
    waker: Waker,
}

impl Responses {
    fn new(executor: Http2Executor, waker: Waker) -> Self {
        Self { executor, waiting: FuturesUnordered::new(), waker }
    }

    /// Polls the new responses, and those that were woken.
    fn run(&mut self) {
        for mut response in self.executor.take() {
            // Most wait for nothing, and need no waker. Those that do are polled once more, with the waker that
            // `FuturesUnordered` has for each.
            if poll(&mut response, &mut Context::from_waker(Waker::noop())).is_pending() {
                self.waiting.push(Waiting::new(response));
            }
        }
        let mut context = Context::from_waker(&self.waker);
        while let Poll::Ready(Some(())) = self.waiting.poll_next_unpin(&mut context) {}
    }
}

/// Breaks a cycle: hyper gives each response a clone of the executor, which holds the responses that were never polled.
impl Drop for Responses {
    fn drop(&mut self) {
        drop(self.executor.take());
    }
}

/// Polls a response. One that panics ends its own stream, as it would in a task, and no other.
fn poll(response: &mut ResponseFuture, context: &mut Context<'_>) -> Poll<()> {
    catch_unwind(AssertUnwindSafe(|| response.as_mut().poll(context))).unwrap_or(Poll::Ready(()))
}

/// A response that was polled and waits; none once it is a task.
struct Waiting {
    response: Option<ResponseFuture>,
    was_woken: bool,
}

impl Waiting {
    fn new(response: ResponseFuture) -> Self {
        Self { response: Some(response), was_woken: false }
    }
}

impl Future for Waiting {
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
