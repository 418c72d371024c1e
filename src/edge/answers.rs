//! The answers of an HTTP/2 connection: begun and ended together with others of it, where that is possible.
//!
//! hyper hands over an answer for each request that it reads, and writes what there is whenever it is polled. Begun while it
//! reads, or as a task each, every answer would be written by itself, which makes a refusal half as dear again.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;

type Answer = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where hyper asks for answers.
#[derive(Clone, Default)]
pub(super) struct Asked(Arc<Mutex<Vec<Answer>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Asked {
    fn execute(&self, answer: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(answer));
    }
}

impl Asked {
    fn take(&self) -> Vec<Answer> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The answers that are run with their connection: those that wait for nothing, or once. That once is mostly the admission,
/// which several of a connection share; those that wait again, for a database, become tasks.
///
/// Nobody else keeps track of these tasks: their connection ends after them, and they end with it.
pub(super) struct Answers {
    asked: Asked,
    waiting: FuturesUnordered<Waiting>,
    waker: Waker,
}

impl Answers {
    /// Runs what is asked for there. The waker is called when [`Self::run`] is to be.
    pub(super) fn new(asked: Asked, waker: Waker) -> Self {
        Self { asked, waiting: FuturesUnordered::new(), waker }
    }

    /// Whether there are some that were not begun.
    pub(super) fn are_asked_for(&self) -> bool {
        !self.asked.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Begins what was asked for, and goes on with what was woken.
    pub(super) fn run(&mut self) {
        for mut answer in self.asked.take() {
            // Most wait for nothing, and need no waker. Those that do are polled once more, and what they wait for hears of
            // that one.
            if poll(&mut answer, &mut Context::from_waker(Waker::noop())).is_pending() {
                self.waiting.push(Waiting::new(answer));
            }
        }
        let mut context = Context::from_waker(&self.waker);
        while let Poll::Ready(Some(())) = self.waiting.poll_next_unpin(&mut context) {}
    }
}

/// Those that were not begun when their connection ended hold what they are held by: hyper gives each the place to ask at.
impl Drop for Answers {
    fn drop(&mut self) {
        drop(self.asked.take());
    }
}

/// Polls an answer. One that panics ends its own stream, as it would in a task, and not those beside it.
fn poll(answer: &mut Answer, context: &mut Context<'_>) -> Poll<()> {
    catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context))).unwrap_or(Poll::Ready(()))
}

/// An answer that was begun; nothing once it is a task.
struct Waiting {
    answer: Option<Answer>,
    was_woken: bool,
}

impl Waiting {
    fn new(answer: Answer) -> Self {
        Self { answer: Some(answer), was_woken: false }
    }
}

impl Future for Waiting {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(answer) = &mut self.answer else { return Poll::Ready(()) };
        if poll(answer, context).is_ready() {
            return Poll::Ready(());
        }
        if mem::replace(&mut self.was_woken, true) {
            self.answer.take().map(tokio::spawn);
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    fn answers() -> (Asked, Answers) {
        let asked = Asked::default();
        (asked.clone(), Answers::new(asked, Waker::noop().clone()))
    }

    #[test]
    fn one_that_waits_for_nothing_is_done_at_once() {
        let ((asked, mut answers), done) = (answers(), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&done);
        asked.execute(async move {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(answers.are_asked_for());
        answers.run();
        assert_eq!((answers.are_asked_for(), done.load(Ordering::Relaxed)), (false, 1));
    }

    #[test]
    fn one_that_panics_is_given_up_and_no_other() {
        struct Stream(Arc<AtomicUsize>);
        impl Drop for Stream {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let ((asked, mut answers), ended) = (answers(), Arc::<AtomicUsize>::default());
        // The second panics once it was woken.
        for polls in [1, 3] {
            let (stream, mut left) = (Stream(Arc::clone(&ended)), polls);
            asked.execute(poll_fn(move |context| {
                let _stream = &stream;
                left -= 1;
                assert!(left > 0, "of an answer");
                context.waker().wake_by_ref();
                Poll::Pending
            }));
        }
        let beside = Stream(Arc::clone(&ended));
        asked.execute(async move { drop(beside) });
        answers.run();
        assert_eq!(ended.load(Ordering::Relaxed), 2);
        answers.run();
        assert_eq!(ended.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn one_that_was_not_begun_ends_with_its_connection() {
        let (asked, answers) = answers();
        let (held, place) = (Arc::new(()), asked.clone());
        let answer = Arc::clone(&held);
        asked.execute(async move { drop((answer, place)) });
        drop((asked, answers));
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn one_that_waits_once_ends_with_its_connection() {
        let (asked, mut answers) = answers();
        let ((tell, told), (done, mut end)) = (oneshot::channel(), oneshot::channel());
        asked.execute(async move { done.send(told.await).unwrap() });
        answers.run();
        tell.send("told").unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(end.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        answers.run();
        assert_eq!(end.try_recv(), Ok(Ok("told")));
    }

    #[tokio::test]
    async fn one_that_waits_again_goes_on_in_a_task() {
        let (asked, mut answers) = answers();
        let ((tell, told), (done, end)) = (oneshot::channel(), oneshot::channel());
        asked.execute(async move {
            let heard: &str = told.await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            done.send(heard).unwrap();
        });
        answers.run();
        tell.send("told").unwrap();
        answers.run();
        assert_eq!(end.await, Ok("told"));
    }
}
