//! Bodies in other forms than plain JSON in UTF-8: gzip is decoded, anything else is refused by name.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::connection::Protocol;

const SEARCH: &str = "/api/v1/submission";
const GROUP: &str = "/api/v1/group";
const LIMIT: usize = 1024 * 1024;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

fn is_unsupported(answer: &Answer, message: &str) {
    assert_eq!(answer.status, 415, "{answer:?}");
    assert!(answer.json()["message"].as_str().is_some_and(|text| text.contains(message)), "{answer:?}");
}

#[tokio::test]
async fn a_body_in_gzip_is_read_like_the_same_without() {
    let acme = Acme::start();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for name in ["gzip", "x-gzip", "GZIP"] {
            let call = acme.caller().over(protocol).post(SEARCH).header("content-encoding", name);
            let answer = call.body(gzip(br#"{"search": "x"}"#)).send().await;
            assert_eq!(answer.json()["errors"]["search"], json!(["The search must be at least 2 characters."]));
        }
        let body = gzip(json!({"name": "G", "members": [{"email": "a@x.example"}]}).to_string().as_bytes());
        let call = acme.caller().over(protocol).put(GROUP).header("content-encoding", "gzip");
        assert!([200, 201].contains(&call.body(body).send().await.status.as_u16()));
        let plain = acme.caller().over(protocol).post(SEARCH).header("content-encoding", "identity");
        assert_eq!(plain.body("{}").send().await.status, 200);
    }
    for body in [&b"{}"[..], &gzip(b"{}")[..8]] {
        let call = acme.caller().post(SEARCH).header("content-encoding", "gzip").body(body.to_vec());
        let answer = call.send().await;
        assert_eq!(answer.status, 422);
        assert!(answer.json()["errors"]["body"][0].as_str().is_some_and(|fault| fault.contains("gzip")), "{answer:?}");
    }
}

#[tokio::test]
async fn the_limit_of_a_body_is_that_of_its_decoded_bytes() {
    let acme = Acme::start();
    for (length, status) in [(LIMIT, 200), (LIMIT + 1, 413), (64 * LIMIT, 413)] {
        let body = gzip(&vec![b' '; length]);
        assert!(body.len() < LIMIT / 8);
        let call = acme.caller().post(SEARCH).header("content-encoding", "gzip").fresh();
        assert_eq!(call.body(body).send().await.status, status, "{length}");
    }
}

#[tokio::test]
async fn gzip_of_many_empty_or_tiny_members_is_refused_by_name() {
    let acme = Acme::start();
    let document = gzip(br#"{"name": "G"}"#);
    let send = async |body: Vec<u8>| {
        acme.caller().put(GROUP).header("content-encoding", "gzip").fresh().body(body).send().await
    };
    let empty_blocks = [&document[..10], &b"\0\0\0\xff\xff".repeat(100_000), &document[10..]].concat();
    for body in [gzip(b"").repeat(20_000), gzip(&[b' '; 40]).repeat(20_000), empty_blocks] {
        let answer = send([body, document.clone()].concat()).await;
        assert_eq!(answer.status, 422, "{answer:?}");
        let fault = answer.json()["errors"]["body"][0].clone();
        assert!(fault.as_str().is_some_and(|fault| fault.contains("gzip members")), "{fault}");
    }
    let large = gzip(&[b' '; 64 * 1024]).repeat(100);
    assert!([200, 201].contains(&send([large, document].concat()).await.status.as_u16()));
}

#[tokio::test]
async fn another_coding_charset_or_type_is_415_and_names_the_accepted_ones() {
    let acme = Acme::start();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for coding in ["br", "zstd", "deflate", "gzip, gzip", "compress"] {
            let call = acme.caller().over(protocol).post(SEARCH).header("content-encoding", coding).fresh();
            let answer = call.body("{}").send().await;
            is_unsupported(&answer, "gzip");
            assert_eq!(answer.header("accept-encoding"), Some("gzip"));
        }
        for (kind, message) in [
            ("application/json; charset=utf-16", "UTF-8"),
            ("application/json;charset=\"iso-8859-1\"", "UTF-8"),
            ("text/plain; charset=windows-1252", "UTF-8"),
            ("multipart/form-data; boundary=x", "multipart/form-data"),
        ] {
            let call = acme.caller().over(protocol).post(SEARCH).header("content-type", kind).fresh();
            is_unsupported(&call.body("{}").send().await, message);
        }
        for body in [
            &b"{\0\"\0s\0\"\0:\0\"\0x\0\"\0}\0"[..],
            b"{\0}\0",
            b"\0{\0}",
            b"\xff\xfe{\0}\0",
            b"\xfe\xff\0{\0}",
            b"{\0\0\0}\0\0\0",
            b"\0\0\xfe\xff\0\0\0{\0\0\0}",
        ] {
            is_unsupported(
                &acme.caller().over(protocol).post(SEARCH).fresh().body(body.to_vec()).send().await,
                "UTF-8",
            );
        }
        let form = |body: &'static str| {
            let call = acme.caller().over(protocol).post(SEARCH).fresh();
            call.header("content-type", "application/x-www-form-urlencoded").body(body)
        };
        is_unsupported(&form("search=abc").send().await, "x-www-form-urlencoded");
        assert_eq!(form("{\"search\": \"abc\"}").send().await.status, 200, "curl sends JSON so, too");
    }
}

#[tokio::test]
async fn json_is_accepted_under_any_other_type_and_without_a_body_the_type_does_not_matter() {
    let acme = Acme::start();
    for kind in ["application/json; charset=\"UTF-8\"", "application/json;charset=utf8", "text/plain", "nonsense"] {
        let answer = acme.caller().post(SEARCH).header("content-type", kind).body("{}").send().await;
        assert_eq!(answer.status, 200, "{kind}: {answer:?}");
    }
    for (name, value) in [("content-encoding", "br"), ("content-type", "application/json; charset=utf-16")] {
        assert_eq!(acme.caller().get("/api/v1/me").header(name, value).send().await.status, 200);
        assert_eq!(acme.caller().post(SEARCH).header(name, value).send().await.status, 200);
    }
    let unknown = acme.caller().post("/api/v1/nothing").header("content-encoding", "br").body("{}").send().await;
    assert_eq!(unknown.status, 404, "the route is looked for first");
}
