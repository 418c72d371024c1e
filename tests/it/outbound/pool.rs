//! Connections are used again, and there is a limit to how many are kept and to what each of them may carry.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::scene::Scene;
use crate::support::receiver::{Act, Receiver};

#[tokio::test]
async fn requests_one_after_the_other_share_a_connection() {
    let scene = Scene::new().await;
    let one = Receiver::always(Act::answer(200, &[], "ok")).await;
    let two = Receiver::http2(200).await;
    for receiver in [&one, &two] {
        for _ in 0..10 {
            assert_eq!(scene.status(&receiver.url("/")).await, 200);
        }
        assert_eq!((receiver.connections(), receiver.requests().len()), (1, 10));
    }
}

#[tokio::test]
async fn requests_at_once_share_a_connection_over_http_2() {
    let scene = Scene::new().await;
    let receiver = Receiver::http2(200).await;
    let url = receiver.url("/");
    assert_eq!(scene.status(&url).await, 200);
    assert_eq!(join_all((0..20).map(|_| scene.status(&url))).await, [200; 20]);
    assert_eq!((receiver.connections(), receiver.requests().len()), (1, 21));
}

#[tokio::test]
async fn requests_at_once_use_the_connections_of_those_before() {
    let scene = Scene::new().await;
    // Late, so that all requests of a wave are under way together.
    let late = [vec![Act::Pause(Duration::from_millis(100))], Act::status(204)].concat();
    let receiver = Receiver::always(late).await;
    let url = receiver.url("/");
    for _ in 0..10 {
        assert_eq!(join_all((0..20).map(|_| scene.status(&url))).await, [204; 20]);
    }
    // A few more than twenty: one that is given back just when the next wave begins may be missed.
    assert!(receiver.connections() < 80, "{} connections for 200 requests", receiver.connections());
}

#[tokio::test]
async fn a_kept_connection_that_breaks_is_replaced_within_the_attempt() {
    let scene = Scene::new().await;
    for broken in [vec![Act::Close], vec![Act::CutTls], vec![Act::Reset], vec![Act::send("HTTP/1.1 20"), Act::Close]] {
        let acts = broken.clone();
        let receiver = Receiver::start(move |nth| if nth == 1 { acts.clone() } else { Act::status(204) }).await;
        let url = receiver.url("/");
        assert_eq!([scene.status(&url).await, scene.status(&url).await], [204, 204], "{broken:?}");
        let requests = receiver.requests();
        assert_eq!((requests.len(), receiver.connections()), (3, 2), "{broken:?}");
        let of = |at: usize| (&requests[at].headers["webhook-signature"], &requests[at].headers["formgate-attempt"]);
        assert_eq!((of(2), &requests[2].body), (of(1), &requests[1].body), "{broken:?}");
    }
}

#[tokio::test]
async fn a_new_connection_that_breaks_is_a_failure() {
    let scene = Scene::new().await;
    let receiver = Receiver::start(|nth| if nth == 0 { Act::status(204) } else { vec![Act::Close] }).await;
    let url = receiver.url("/");
    assert_eq!(scene.status(&url).await, 204);
    // On the kept connection, and then on a new one.
    assert_eq!((scene.failure(&url).await.0, receiver.requests().len()), ("protocol", 3));
    assert_eq!((scene.failure(&url).await.0, receiver.requests().len()), ("protocol", 4));
}

#[tokio::test]
async fn no_more_connections_are_kept_than_the_limit() {
    let scene = Scene::with(&["127.0.0.0/8"], |settings| settings.in_flight = 1).await;
    let mut receivers = Vec::new();
    for _ in 0..6 {
        let receiver = Receiver::always(Act::status(204)).await;
        assert_eq!(scene.status(&receiver.url("/")).await, 204);
        receivers.push(receiver);
    }
    let open = || receivers.iter().map(Receiver::open).sum::<usize>();
    let began = Instant::now();
    while open() > 2 {
        // Idle connections are closed after half a minute in any case.
        assert!(began.elapsed() < Duration::from_secs(20), "{} connections are kept", open());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_connection_that_carried_much_is_replaced() {
    let scene = Scene::new().await;
    let body = "x".repeat(60_000);
    let receiver = Receiver::always(Act::answer(200, &[], &body)).await;
    for _ in 0..40 {
        assert_eq!(scene.status(&receiver.url("/")).await, 200);
    }
    // 2.4 MB, and a connection carries one and a bit.
    assert!((2..=4).contains(&receiver.connections()), "{} connections", receiver.connections());
}
