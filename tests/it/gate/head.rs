//! Heads that are larger than a request needs.

use http::Method;

use crate::support::acme::Acme;
use crate::support::connection::Protocol;

const ME: &str = "/api/v1/me";

#[tokio::test]
async fn a_target_of_up_to_8_kib_is_accepted() {
    let acme = Acme::start();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for (length, status) in [(8192, 200), (8193, 414), (14_000, 414)] {
            let target = format!("{ME}?x={}", "y".repeat(length - ME.len() - "?x=".len()));
            let answer = acme.caller().over(protocol).get(&target).send().await;
            assert_eq!(answer.status, status, "{length} bytes over {protocol:?}");
        }
        let path = format!("/api/v1/form/{}", "1".repeat(8000));
        assert_eq!(acme.caller().over(protocol).get(&path).send().await.status, 404);
        assert_eq!(acme.caller().over(protocol).get(ME).send().await.status, 200, "the connection goes on");
    }
}

#[tokio::test]
async fn header_fields_within_the_limits_are_accepted() {
    let acme = Acme::start();
    for (protocol, taken, refused) in [(Protocol::Http1, 31 * 1024, 33 * 1024), (Protocol::Http2, 15 * 1024, 17 * 1024)]
    {
        let caller = acme.caller().over(protocol);
        for (length, status) in [(taken, 200), (refused, 431)] {
            let answer = caller.get(ME).header("x-long", &"x".repeat(length)).send().await;
            assert_eq!(answer.status, status, "{length} bytes over {protocol:?}");
        }
        for (number, status) in [(90, 200), (110, 431)] {
            let call = (0..number).fold(caller.get(ME), |call, _| call.header("x-many", "x"));
            assert_eq!(call.send().await.status, status, "{number} fields over {protocol:?}");
        }
        assert_eq!(caller.get(ME).send().await.status, 200, "the connection goes on");
    }
}

#[tokio::test]
async fn a_large_head_is_refused_before_its_token_is_looked_at() {
    let acme = Acme::start();
    for call in [acme.stranger().method(Method::DELETE, "/nowhere"), acme.caller().get(ME)] {
        let answer = call.header("x-long", &"x".repeat(40_000)).send().await;
        assert_eq!(answer.status, 431);
        assert_eq!(answer.header("x-ratelimit-remaining"), Some("100000"));
    }
}

#[tokio::test]
async fn an_absurd_head_is_refused_by_its_status_at_least() {
    let acme = Acme::start();
    let request =
        |target: &str, fields: &str| format!("GET {target} HTTP/1.1\r\nHost: acme.example.test\r\n{fields}\r\n");
    for (request, status) in [
        (request(ME, &format!("X-Long: {}\r\n", "x".repeat(500_000))), 431),
        (request(ME, &"X-Many: x\r\n".repeat(300)), 431),
        (request(&format!("/{}", "x".repeat(100_000)), ""), 414),
    ] {
        let answer = acme.raw(&request).await;
        assert!([status, 431].contains(&answer.status.as_u16()), "{}… got {}", &request[..60], answer.status);
    }
    assert_eq!(acme.caller().get(ME).send().await.status, 200);
}
