//! What can go on is not put off: a connection that woke itself is polled again, and an answer is begun where it was asked
//! for.
//!
//! Left to the runtime, either comes back as a task in a queue, for which another thread is woken that mostly finds
//! nothing. On a node that is not busy this is a good part of what a request costs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use hyper::rt::Executor;

/// How often a connection that keeps waking itself is polled in a row. More, and it keeps others of its thread waiting;
/// fewer, and the parts of a body come through the queue.
const IN_A_ROW: usize = 8;

/// Polls a future again at once where it was woken while it was polled, as hyper's connections are by themselves: for each
/// part of a body that a handler asks for, one half wakes the other.
#[derive(Debug)]
pub(super) struct Poller {
    state: Arc<State>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct State {
    task: AtomicWaker,
    stage: AtomicU8,
}

/// Nobody polls; who wakes has to wake the task.
const RESTS: u8 = 0;
/// It is polled, and was not woken since that began.
const POLLED: u8 = 1;
/// It was woken, and will be polled.
const WOKEN: u8 = 2;

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.stage.swap(WOKEN, Ordering::AcqRel) == RESTS {
            self.task.wake();
        }
    }
}

impl Poller {
    pub(super) fn new() -> Self {
        let state = Arc::<State>::default();
        Self { waker: Arc::clone(&state).into(), state }
    }

    /// Polls a future until it waits for something else than itself.
    pub(super) fn poll<F: Future>(&self, mut future: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        let State { task, stage } = &*self.state;
        task.register(context.waker());
        for _ in 0..IN_A_ROW {
            stage.store(POLLED, Ordering::Release);
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
                return Poll::Ready(output);
            }
            if stage.compare_exchange(POLLED, RESTS, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Poll::Pending;
            }
        }
        stage.store(RESTS, Ordering::Release);
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Runs HTTP/2 answers: one that waits for nothing is done at once, all others become tasks once they wait.
///
/// Nobody else keeps track of these tasks: their connection ends after them, and they end with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answers;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Answers {
    fn execute(&self, answer: F) {
        let mut answer = Box::pin(answer);
        // Who would be woken is not known yet: the task polls it once more, and what it waits for hears of that one.
        let begun = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(&mut Context::from_waker(Waker::noop()))));
        // One that panics ends its own stream, as it would in a task, and not those beside it.
        if begun.is_ok_and(|begun| begun.is_pending()) {
            tokio::spawn(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Counter {
        fn times(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn what_wakes_itself_goes_on_without_its_task() {
        let (task, poller) = (Arc::<Counter>::default(), Poller::new());
        let mut left = IN_A_ROW - 1;
        let mut future = pin!(poll_fn(|context| {
            if left == 0 {
                return Poll::Ready("done");
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        let waker = Waker::from(Arc::clone(&task));
        assert_eq!(poller.poll(future.as_mut(), &mut Context::from_waker(&waker)), Poll::Ready("done"));
        assert_eq!(task.times(), 0);
    }

    #[test]
    fn what_always_wakes_itself_lets_others_go_first() {
        let (task, poller, mut polls) = (Arc::<Counter>::default(), Poller::new(), 0);
        let mut future = pin!(poll_fn(|context| {
            polls += 1;
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        let waker = Waker::from(Arc::clone(&task));
        for turn in 1..=3 {
            assert!(poller.poll(future.as_mut(), &mut Context::from_waker(&waker)).is_pending());
            assert_eq!(task.times(), turn);
        }
        assert_eq!(polls, 3 * IN_A_ROW);
    }

    #[test]
    fn what_waits_is_woken_once() {
        let (task, poller, mut kept) = (Arc::<Counter>::default(), Poller::new(), None);
        let mut future = pin!(poll_fn(|context| {
            kept = Some(context.waker().clone());
            Poll::<()>::Pending
        }));
        let waker = Waker::from(Arc::clone(&task));
        assert!(poller.poll(future.as_mut(), &mut Context::from_waker(&waker)).is_pending());
        let inner = kept.take().unwrap();
        assert_eq!(task.times(), 0);
        inner.wake_by_ref();
        inner.wake();
        assert_eq!(task.times(), 1);
    }

    #[tokio::test]
    async fn an_answer_that_waits_for_nothing_is_done_at_once() {
        let done = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&done);
        Answers.execute(async move {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_answer_that_panics_is_given_up_and_no_other() {
        struct Stream(Arc<AtomicUsize>);
        impl Drop for Stream {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let ended = Arc::<AtomicUsize>::default();
        let stream = Stream(Arc::clone(&ended));
        Answers.execute(async move {
            let _stream = stream;
            panic!("of an answer");
        });
        assert_eq!(ended.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn an_answer_that_waits_goes_on_in_a_task() {
        let (tell, told) = tokio::sync::oneshot::channel();
        let (done, end) = tokio::sync::oneshot::channel();
        Answers.execute(async move {
            let heard: &str = told.await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            done.send(heard).unwrap();
        });
        tell.send("heard").unwrap();
        assert_eq!(end.await, Ok("heard"));
    }
}
