//! Tests of when the connection and its responses are polled. The tests poll the tasks by hand.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

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

/// A task's waker, and the count of its wake-ups.
fn task() -> (Arc<Counter>, Waker) {
    let counter = Arc::<Counter>::default();
    (Arc::clone(&counter), counter.into())
}

#[test]
fn a_connection_that_wakes_itself_is_polled_again_without_its_task() {
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
fn a_connection_that_always_wakes_itself_yields_to_others() {
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
fn a_waiting_connection_is_woken_once_and_polled_only_then() {
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
    poller.poll_soon();
    assert!(poller.poll(connection.as_mut(), &mut context).is_pending());
    assert_eq!((polls.get(), counter.times()), (3, 2));
}

/// A connection that passes on responses at its first poll, and records at each poll how many have ended.
fn connection<'a>(
    executor: &'a Http2Executor,
    responses: Vec<Awaited>,
    seen: &'a Mutex<Vec<usize>>,
) -> impl Future<Output = ()> + 'a {
    let (ended, mut responses) = (Arc::<AtomicUsize>::default(), responses);
    poll_fn(move |context| {
        seen.lock().unwrap().push(ended.load(Ordering::Relaxed));
        for told in responses.drain(..) {
            let (ended, waker) = (Arc::clone(&ended), context.waker().clone());
            executor.execute(async move {
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

/// What a response waits for, if anything.
type Awaited = Option<oneshot::Receiver<()>>;

#[test]
fn responses_that_are_ready_at_once_wake_their_connection_once() {
    let ((counter, waker), executor, seen) = (task(), Http2Executor::default(), Mutex::default());
    let mut poller = Poller::new(Some(executor.clone()));
    let mut connection = pin!(connection(&executor, vec![None, None, None], &seen));
    assert!(poller.poll(connection.as_mut(), &mut Context::from_waker(&waker)).is_pending());
    assert_eq!((seen.lock().unwrap().as_slice(), counter.times()), (&[0, 3][..], 0));
}

#[test]
fn responses_that_wait_once_wake_their_connection_once() {
    let ((counter, waker), executor, seen) = (task(), Http2Executor::default(), Mutex::default());
    let mut poller = Poller::new(Some(executor.clone()));
    let (tell, told): (Vec<_>, Vec<_>) =
        (0..3).map(|_| oneshot::channel()).map(|(tell, told)| (tell, Some(told))).unzip();
    let mut connection = pin!(connection(&executor, told, &seen));
    let mut context = Context::from_waker(&waker);
    assert!(poller.poll(connection.as_mut(), &mut context).is_pending());
    assert_eq!((seen.lock().unwrap().as_slice(), counter.times()), (&[0][..], 0));
    tell.into_iter().for_each(|tell| tell.send(()).unwrap());
    assert_eq!(counter.times(), 1);
    assert!(poller.poll(connection.as_mut(), &mut context).is_pending());
    assert_eq!((seen.lock().unwrap().as_slice(), counter.times()), (&[0, 3][..], 1));
}

fn setup() -> (Http2Executor, Responses) {
    let executor = Http2Executor::default();
    (executor.clone(), Responses::new(executor, Waker::noop().clone()))
}

#[test]
fn a_response_that_is_ready_is_done_at_its_first_poll() {
    let ((executor, mut responses), done) = (setup(), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&done);
    executor.execute(async move {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(!executor.is_empty());
    responses.run();
    assert_eq!((!executor.is_empty(), done.load(Ordering::Relaxed)), (false, 1));
}

#[test]
fn a_panic_ends_only_its_own_response() {
    struct Stream(Arc<AtomicUsize>);
    impl Drop for Stream {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let ((executor, mut responses), ended) = (setup(), Arc::<AtomicUsize>::default());
    // The second one panics after it was woken.
    for polls in [1, 3] {
        let (stream, mut left) = (Stream(Arc::clone(&ended)), polls);
        executor.execute(poll_fn(move |context| {
            let _stream = &stream;
            left -= 1;
            assert!(left > 0, "of a response");
            context.waker().wake_by_ref();
            Poll::Pending
        }));
    }
    let beside = Stream(Arc::clone(&ended));
    executor.execute(async move { drop(beside) });
    responses.run();
    assert_eq!(ended.load(Ordering::Relaxed), 2);
    responses.run();
    assert_eq!(ended.load(Ordering::Relaxed), 3);
}

#[test]
fn a_response_that_was_never_polled_ends_with_its_connection() {
    let (executor, responses) = setup();
    let (held, place) = (Arc::new(()), executor.clone());
    let response = Arc::clone(&held);
    executor.execute(async move { drop((response, place)) });
    drop((executor, responses));
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test]
async fn a_response_that_waits_once_ends_with_its_connection() {
    let (executor, mut responses) = setup();
    let ((tell, told), (done, mut end)) = (oneshot::channel(), oneshot::channel());
    executor.execute(async move { done.send(told.await).unwrap() });
    responses.run();
    tell.send("told").unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(end.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    responses.run();
    assert_eq!(end.try_recv(), Ok(Ok("told")));
}

#[tokio::test]
async fn a_response_that_waits_again_becomes_a_task() {
    let (executor, mut responses) = setup();
    let ((tell, told), (done, end)) = (oneshot::channel(), oneshot::channel());
    executor.execute(async move {
        let heard: &str = told.await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        done.send(heard).unwrap();
    });
    responses.run();
    tell.send("told").unwrap();
    responses.run();
    assert_eq!(end.await, Ok("told"));
}
