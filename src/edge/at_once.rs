//! What can go on is not put off: a connection that woke itself is polled again, and with it its answers.
//!
//! Left to the runtime, either comes back as a task in a queue, for which another thread is woken that mostly finds
//! nothing. On a node that is not busy this is a good part of what a request costs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

use super::answers::{Answers, Asked};

/// How often a connection that keeps waking itself is polled in a row. More, and it keeps others of its thread waiting;
/// fewer, and the parts of a body come through the queue.
const IN_A_ROW: usize = 8;

/// Polls a connection, and the answers that it asks for, where they were woken; and again at once where that was while they
/// were polled, as hyper's connections are by themselves: for each part of a body that a handler asks for, one half wakes
/// the other.
pub(super) struct Poller {
    state: Arc<State>,
    of_connection: Waker,
    answers: Option<Answers>,
}

/// Who is to be polled, by the bits below.
#[derive(Default)]
struct State {
    task: AtomicWaker,
    due: AtomicU8,
}

const CONNECTION: u8 = 1;
const ANSWERS: u8 = 2;
/// Nobody polls; who wakes has to wake the task.
const RESTS: u8 = 4;

impl State {
    /// Has one of them polled: now if nobody polls, else next.
    fn note_due(&self, who: u8) {
        if self.due.fetch_or(who, Ordering::AcqRel) == RESTS {
            self.task.wake();
        }
    }
}

/// Wakes the connection.
impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.note_due(CONNECTION);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.note_due(CONNECTION);
    }
}

struct OfAnswers(Arc<State>);

impl Wake for OfAnswers {
    fn wake(self: Arc<Self>) {
        self.0.note_due(ANSWERS);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.note_due(ANSWERS);
    }
}

impl Poller {
    /// Polls a connection, which is due, and what it asks for, if it does. Boxed, as the connection is: it is handed on, and
    /// a future keeps the place of what passed through it.
    pub(super) fn new(asked: Option<Asked>) -> Box<Self> {
        let state = Arc::new(State { due: AtomicU8::new(CONNECTION), ..State::default() });
        let answers = asked.map(|asked| Answers::new(asked, Arc::new(OfAnswers(Arc::clone(&state))).into()));
        Box::new(Self { of_connection: Arc::clone(&state).into(), state, answers })
    }

    /// What has to be called after the connection was told something, which does not wake it.
    pub(super) fn told(&self) {
        self.state.note_due(CONNECTION);
    }

    /// Polls a connection until it waits for something else than itself and its answers.
    pub(super) fn poll<F: Future>(
        &mut self,
        mut connection: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let State { task, due } = &*self.state;
        task.register(context.waker());
        let mut now = due.swap(0, Ordering::AcqRel);
        for _ in 0..IN_A_ROW {
            if let Some(answers) = &mut self.answers
                && now & ANSWERS != 0
            {
                answers.run();
                // What they told the connection, it hears now.
                now |= due.fetch_and(!CONNECTION, Ordering::AcqRel) & CONNECTION;
            }
            if now & CONNECTION != 0 {
                if let Poll::Ready(output) = connection.as_mut().poll(&mut Context::from_waker(&self.of_connection)) {
                    return Poll::Ready(output);
                }
                if self.answers.as_ref().is_some_and(Answers::are_asked_for) {
                    due.fetch_or(ANSWERS, Ordering::AcqRel);
                }
            }
            if due.compare_exchange(0, RESTS, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Poll::Pending;
            }
            now = due.swap(0, Ordering::AcqRel);
        }
        due.fetch_or(now | RESTS, Ordering::AcqRel);
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use hyper::rt::Executor;
    use tokio::sync::oneshot;

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

    /// A task, and who counts how often it is woken.
    fn task() -> (Arc<Counter>, Waker) {
        let counter = Arc::<Counter>::default();
        (Arc::clone(&counter), counter.into())
    }

    #[test]
    fn what_wakes_itself_goes_on_without_its_task() {
        let ((counter, waker), mut poller) = (task(), Poller::new(None));
        let mut left = IN_A_ROW - 1;
        let mut connection = pin!(poll_fn(|context| {
            if left == 0 {
                return Poll::Ready("done");
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        assert_eq!(poller.poll(connection.as_mut(), &mut Context::from_waker(&waker)), Poll::Ready("done"));
        assert_eq!(counter.times(), 0);
    }

    #[test]
    fn what_always_wakes_itself_lets_others_go_first() {
        let ((counter, waker), mut poller) = (task(), Poller::new(None));
        let polls = Cell::new(0);
        let mut connection = pin!(poll_fn(|context| {
            polls.set(polls.get() + 1);
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        for turn in 1..=3 {
            assert!(poller.poll(connection.as_mut(), &mut Context::from_waker(&waker)).is_pending());
            assert_eq!(counter.times(), turn);
            assert_eq!(polls.get(), turn * IN_A_ROW);
        }
    }

    #[test]
    fn what_waits_is_woken_once_and_polled_only_then() {
        let ((counter, waker), mut poller) = (task(), Poller::new(None));
        let (kept, polls) = (Cell::new(None), Cell::new(0));
        let mut connection = pin!(poll_fn(|context| {
            polls.set(polls.get() + 1);
            kept.set(Some(context.waker().clone()));
            Poll::<()>::Pending
        }));
        let mut context = Context::from_waker(&waker);
        assert!(poller.poll(connection.as_mut(), &mut context).is_pending());
        assert!(poller.poll(connection.as_mut(), &mut context).is_pending());
        assert_eq!((polls.get(), counter.times()), (1, 0));
        let inner = kept.take().unwrap();
        inner.wake_by_ref();
        inner.wake();
        assert_eq!(counter.times(), 1);
        assert!(poller.poll(connection.as_mut(), &mut context).is_pending());
        poller.told();
        assert!(poller.poll(connection.as_mut(), &mut context).is_pending());
        assert_eq!((polls.get(), counter.times()), (3, 2));
    }

    /// A connection that asks for answers with its first poll, and notes how many have ended each time that it is polled.
    fn connection<'a>(
        asked: &'a Asked,
        answers: Vec<Told>,
        seen: &'a Mutex<Vec<usize>>,
    ) -> impl Future<Output = ()> + 'a {
        let (ended, mut answers) = (Arc::<AtomicUsize>::default(), answers);
        poll_fn(move |context| {
            seen.lock().unwrap().push(ended.load(Ordering::Relaxed));
            for told in answers.drain(..) {
                let (ended, waker) = (Arc::clone(&ended), context.waker().clone());
                asked.execute(async move {
                    if let Some(told) = told {
                        told.await.unwrap();
                    }
                    ended.fetch_add(1, Ordering::Relaxed);
                    waker.wake();
                });
            }
            Poll::Pending
        })
    }

    /// What an answer waits for, if for anything.
    type Told = Option<oneshot::Receiver<()>>;

    #[test]
    fn answers_that_wait_for_nothing_are_told_to_their_connection_together() {
        let ((counter, waker), asked, seen) = (task(), Asked::default(), Mutex::default());
        let mut poller = Poller::new(Some(asked.clone()));
        let mut connection = pin!(connection(&asked, vec![None, None, None], &seen));
        assert!(poller.poll(connection.as_mut(), &mut Context::from_waker(&waker)).is_pending());
        assert_eq!((seen.lock().unwrap().as_slice(), counter.times()), (&[0, 3][..], 0));
    }

    #[test]
    fn answers_that_wait_once_are_told_to_their_connection_together() {
        let ((counter, waker), asked, seen) = (task(), Asked::default(), Mutex::default());
        let mut poller = Poller::new(Some(asked.clone()));
        let (tell, told): (Vec<_>, Vec<_>) =
            (0..3).map(|_| oneshot::channel()).map(|(tell, told)| (tell, Some(told))).unzip();
        let mut connection = pin!(connection(&asked, told, &seen));
        let mut context = Context::from_waker(&waker);
        assert!(poller.poll(connection.as_mut(), &mut context).is_pending());
        assert_eq!((seen.lock().unwrap().as_slice(), counter.times()), (&[0][..], 0));
        tell.into_iter().for_each(|tell| tell.send(()).unwrap());
        assert_eq!(counter.times(), 1);
        assert!(poller.poll(connection.as_mut(), &mut context).is_pending());
        assert_eq!((seen.lock().unwrap().as_slice(), counter.times()), (&[0, 3][..], 1));
    }
}
