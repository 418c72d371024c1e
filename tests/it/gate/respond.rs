//! What every answer carries.

use super::form;
use crate::support::acme::Acme;
use crate::support::answer::decoded;
use crate::support::connection::Protocol;

const ME: &str = "/api/v1/me";

#[tokio::test]
async fn a_valid_request_id_is_kept_and_any_other_is_replaced() {
    let mut acme = Acme::start();
    let longest = "x".repeat(128);
    let too_long = "x".repeat(129);
    let mut given = Vec::new();
    for (sent, kept) in [
        ("a-1", true),
        ("!~{}<>\"'\\", true),
        (&longest, true),
        (&too_long, false),
        ("a b", false),
        ("ä", false),
        ("", false),
    ] {
        for path in [ME, "/", "/api/v1/nowhere"] {
            let answer = acme.caller().get(path).header("x-request-id", sent).send().await;
            let id = answer.header("x-request-id").expect("every answer has one").to_owned();
            assert_eq!(id == sent, kept, "{sent:?} became {id:?}");
            given.push(id);
        }
    }
    let missing = acme.caller().get(ME).send().await.header("x-request-id").expect("one is made").to_owned();
    assert!(!given.contains(&missing), "no two requests are given the same");
    let log = acme.stop().await;
    let logged = format!("\"request_id\":\"{missing}\"");
    assert!(log.lines().any(|line| line.contains(&logged) && line.contains("\"status\":200")), "{log}");
    assert!(!log.contains(&acme.token), "a token is never logged");
}

#[tokio::test]
async fn a_long_response_uses_the_clients_preferred_encoding() {
    let acme = Acme::start();
    acme.site.import("acme", &form(1, &"Leave & Söhne ".repeat(400)));
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let call = || acme.caller().over(protocol).get("/api/v1/form");
        let plain = call().send().await;
        assert_eq!((plain.header("content-encoding"), plain.header("vary")), (None, Some("accept-encoding")));
        for (accepted, encoding) in [
            ("gzip", Some("gzip")),
            ("br", Some("br")),
            ("zstd", Some("zstd")),
            ("gzip;q=0.9, br;q=1.0", Some("br")),
            ("GZIP, deflate", Some("gzip")),
            ("deflate", None),
            ("identity", None),
            ("gzip;q=0", None),
            ("gzip; Q=0", None),
            ("gzip;q=", None),
        ] {
            let answer = call().header("accept-encoding", accepted).send().await;
            assert_eq!(answer.header("content-encoding"), encoding, "{accepted}");
            assert_eq!(answer.header("vary"), Some("accept-encoding"), "{accepted}");
            assert_eq!(answer.number("content-length"), Some(answer.body.len() as u64));
            let body = encoding.map_or_else(|| answer.body.clone(), |encoding| decoded(encoding, &answer.body));
            assert_eq!(body, plain.body, "{accepted}");
            assert!(encoding.is_none() || answer.body.len() < plain.body.len() / 4, "{accepted} made it smaller");
        }
    }
}

#[tokio::test]
async fn bodies_are_compressed_from_one_kibibyte_on() {
    let acme = Acme::start();
    let show = |id: u32| acme.caller().get(&format!("/api/v1/form/{id}"));
    acme.site.import("acme", &form(1, ""));
    let shortest = show(1).send().await.body.len();
    for (id, length, compressed) in [(2, 1023, false), (3, 1024, true)] {
        acme.site.import("acme", &form(id, &"a".repeat(length - shortest)));
        let plain = show(id).send().await;
        assert_eq!(plain.body.len(), length);
        let answer = show(id).header("accept-encoding", "gzip, br, zstd").send().await;
        assert_eq!(answer.header("content-encoding").is_some(), compressed, "{length} bytes");
        assert_eq!(answer.header("vary").is_some(), compressed, "{length} bytes");
    }
}

#[tokio::test]
async fn no_cache_on_the_way_keeps_an_accounts_data() {
    let acme = Acme::start();
    for (path, expected) in [
        (ME, "no-store"),
        ("/api/v1/form", "private, no-cache"),
        ("/api/v1/form/9", "no-store"),
        ("/api/v1/nowhere", "no-store"),
        ("/", "no-store"),
    ] {
        assert_eq!(acme.caller().get(path).send().await.header("cache-control"), Some(expected), "{path}");
    }
}
