//! Browsers of other sites are given nothing: a token is an administrator's credential and does not belong in a page.

use http::Method;

use crate::support::acme::Acme;
use crate::support::connection::Protocol;

#[tokio::test]
async fn no_answer_lets_a_page_of_another_site_read_it() {
    let acme = Acme::start();
    for client in [acme.caller(), acme.stranger()] {
        for (method, path) in [
            (Method::OPTIONS, "/api/v1/submission"),
            (Method::OPTIONS, "/api/v1/nowhere"),
            (Method::OPTIONS, "/"),
            (Method::GET, "/api/v1/me"),
            (Method::HEAD, "/api/v1/me"),
            (Method::POST, "/api/v1/submission"),
            (Method::POST, "/api/v1/me"),
            (Method::GET, "/api/v1/form/for_9"),
            (Method::GET, "/"),
        ] {
            for protocol in [Protocol::Http1, Protocol::Http2] {
                for origin in ["https://app.example", "null"] {
                    let call = client.over(protocol).method(method.clone(), path).header("origin", origin);
                    let call = call.header("access-control-request-method", "POST");
                    let answer = call.header("access-control-request-headers", "authorization").send().await;
                    // A preflight without an allowing answer, and of another status than 2xx, makes a browser give up.
                    assert!(method != Method::OPTIONS || !answer.status.is_success(), "{path}: {answer:?}");
                    let mut names = answer.headers.keys().map(http::HeaderName::as_str);
                    let allowing = names.find(|name| name.starts_with("access-control-"));
                    assert_eq!(allowing, None, "{method} {path}");
                }
            }
        }
    }
}
