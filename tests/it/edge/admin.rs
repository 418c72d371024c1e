//! The operator's listener.

use std::net::SocketAddr;

use serde_json::json;

use crate::support::acme::Acme;
use crate::support::client::{operator_count, operator_get};
use crate::support::connection::{Protocol, ServerNameIndication, shake};
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;

/// The rows of a metric in deploy/metrics.md: `| \`formgate_…\` | …`.
fn documented() -> Vec<&'static str> {
    let rows = include_str!("../../../deploy/metrics.md").lines();
    rows.filter_map(|row| row.strip_prefix("| `formgate_")?.split('`').next()).collect()
}

async fn metrics(operator: SocketAddr) -> String {
    let answer = operator_get(operator, "/metrics").await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, Some("text/plain; version=0.0.4")));
    String::from_utf8(answer.body).expect("metrics are UTF-8")
}

#[tokio::test]
async fn health_and_readiness_are_reported() {
    let mut acme = Acme::start();
    let operator = acme.node.operator_address();
    let health = operator_get(operator, "/healthz").await;
    assert_eq!((health.status.as_u16(), health.json()), (200, json!({"status": "ok"})));
    let readiness = operator_get(operator, "/readyz").await;
    assert_eq!((readiness.status.as_u16(), readiness.json()["ready"].as_bool()), (200, Some(true)));
    for path in ["/", "/metrics/", "/api/v1/me"] {
        assert_eq!(operator_get(operator, path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn the_documented_metrics_exist_and_no_label_reveals_a_client() {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.domain("forms.acme.test"));
    // A slug is the operator's own word for a tenant; what callers send is in no label.
    let mut acme =
        Acme::of(site.requests_per_minute(100_000).obtaining_certificates().gateway("tenant_metrics", "none"));
    let operator = acme.node.operator_address();
    let caller = acme.caller();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let caller = caller.over(protocol);
        for (call, status) in [
            (caller.get("/api/v1/me"), 200),
            (caller.get("/api/v1/form/for_4711"), 404),
            (caller.get("/api/v1/secret-path?secret-query=1"), 404),
            (caller.get("/api/v1/me").host("forms.acme.test"), 200),
            (caller.get("/api/v1/me").host("secret-host.example.test").server_name("acme.example.test"), 404),
            (caller.method(http::Method::from_bytes(b"SECRETMETHOD").expect("a method"), "/api/v1/me"), 501),
        ] {
            assert_eq!(call.send().await.status, status);
        }
    }
    let unknown = shake(acme.node.address, "secret-name.example.test", ServerNameIndication::Sent, &[]).await;
    assert!(unknown.is_err());

    let text = metrics(operator).await;
    let documented = documented();
    assert!(documented.len() >= 6, "{documented:?}");
    for name in documented {
        let kind = format!("# TYPE formgate_{name} ");
        assert!(
            text.contains(&kind),
            "{name} in:
{text}"
        );
    }
    for secret in ["acme.", "example.test", "secret", "SECRET", "4711", "fg_", &acme.token[3..8], "127.0.0.1"] {
        assert!(!text.contains(secret), "{secret:?} in:\n{text}");
    }
    for (series, count) in [
        (r#"formgate_requests_total{method="GET",route="GET /me",status="200"}"#, 4),
        (r#"formgate_requests_total{method="GET",route="GET /form/{id}",status="404"}"#, 2),
        (r#"formgate_requests_total{method="GET",route="none",status="404"}"#, 4),
        (r#"formgate_requests_total{method="other",route="none",status="501"}"#, 2),
        (r#"formgate_request_duration_seconds_count{route="GET /me"}"#, 4),
        (r#"formgate_handshakes_total{result="unknown_name"}"#, 1),
        (r#"formgate_rate_decisions_total{by="embedded",decision="admitted"}"#, 8),
    ] {
        assert_eq!(operator_count(operator, series).await, count, "{series} in:\n{text}");
    }
    assert!(operator_count(operator, r#"formgate_connections_open{protocol="h2"}"#).await >= 1);
}

#[tokio::test]
async fn without_a_listener_of_the_operators_none_is_opened() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let text = std::fs::read_to_string(&site.config_path).expect("it was written");
    let without: String =
        text.lines().filter(|line| !line.starts_with("admin_listen")).map(|line| format!("{line}\n")).collect();
    std::fs::write(&site.config_path, without).expect("the site's folder can be written");
    let mut node = Node::spawn(&site.config_path);
    assert!(!node.log().contains("admin listening"));
}
