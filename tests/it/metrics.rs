//! The metrics, as those who run formgate read them: by `promtool`, by a real Prometheus, and by the dashboard and the
//! alerts that come with the project.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use serde_json::json;

use crate::support::acme::Acme;
use crate::support::client::operator_get;
use crate::support::fixture::{Engine, Site};
use crate::support::prometheus::{Prometheus, deploy, lint};
use crate::support::redis::Redis;

/// A node whose every part was used: both databases, Redis, refusals.
async fn used(redis: &Redis) -> (Acme, SocketAddr) {
    let site = Site::new().tenant("acme", Engine::Postgres).tenant("globex", Engine::Sqlite);
    let mut acme = Acme::of(site.requests_per_minute(5).redis(redis).obtaining_certificates());
    let operator = acme.node.operator_address();
    let caller = acme.caller();
    for path in ["/api/v1/me", "/api/v1/form", "/api/v1/form/4711", "/api/v1/nothing"] {
        caller.get(path).send().await;
    }
    caller.post("/api/v1/submission").json(&json!({"search": "holiday"})).send().await;
    assert_eq!(caller.get("/api/v1/me").send().await.status, 429);
    assert_eq!(acme.stranger().get("/api/v1/me").send().await.status, 401);
    (acme, operator)
}

async fn exposition(operator: SocketAddr) -> String {
    String::from_utf8(operator_get(operator, "/metrics").await.body).expect("metrics are UTF-8")
}

/// Every `formgate_…` and `process_…` in a text, without what Prometheus itself adds to the name of a histogram.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let ours = words.filter(|word| word.starts_with("formgate_") || word.starts_with("process_"));
    let base = |name: &str| {
        let end = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        end.unwrap_or(name).to_owned()
    };
    ours.map(base).collect()
}

#[tokio::test]
async fn promtool_finds_no_fault() {
    let redis = Redis::start();
    let (_acme, operator) = used(&redis).await;
    assert_eq!(lint(&exposition(operator).await), "");
}

#[tokio::test]
async fn every_metric_in_the_dashboard_the_alerts_and_the_reference_exists() {
    let redis = Redis::start();
    let (_acme, operator) = used(&redis).await;
    let exposition = exposition(operator).await;
    let there: BTreeSet<_> =
        exposition.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let reference = include_str!("../../deploy/metrics.md");
    let rows: String = reference.lines().filter(|line| line.starts_with("| `formgate_")).collect::<Vec<_>>().join("\n");
    let mut texts = vec![("metrics.md".to_owned(), rows.clone())];
    for file in ["grafana/formgate.json", "prometheus/alerts.yml"] {
        texts.push((file.to_owned(), fs::read_to_string(deploy(file)).expect("the file is there")));
    }
    for (file, text) in &texts {
        let named = names(text);
        assert!(named.len() >= 10, "{file} names {named:?}");
        for name in named {
            assert!(there.contains(&*name), "{file} names {name}, which is not among {there:#?}");
        }
    }
    let documented = names(&rows);
    for name in there.iter().filter(|name| name.starts_with("formgate_")) {
        assert!(documented.contains(*name), "{name} has no row in deploy/metrics.md");
    }
}

#[tokio::test]
async fn a_prometheus_scrapes_a_node_and_evaluates_its_alerts() {
    let redis = Redis::start();
    let (acme, operator) = used(&redis).await;
    let prometheus = Prometheus::scraping(operator).await;
    assert_eq!(prometheus.query(r#"up{job="formgate"}"#).await, [1.0]);
    assert_eq!(prometheus.query(r#"formgate_requests_total{route="GET /me",status="200"}"#).await, [1.0]);
    assert_eq!(prometheus.query(r#"formgate_tenant_requests_total{tenant="acme",class="429"}"#).await, [1.0]);
    assert_eq!(prometheus.query(r#"process_open_fds > 0 and process_resident_memory_bytes > 1e6"#).await.len(), 1);
    assert_eq!(acme.stranger().get("/api/v1/me").send().await.status, 401);
    let since = std::time::Instant::now();
    while prometheus.query(r#"formgate_requests_total{status="401"}"#).await != [2.0] {
        assert!(since.elapsed().as_secs() < 30, "the next scrape sees the next request");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    let rules = prometheus.get("/api/v1/rules").await;
    let groups = rules["data"]["groups"].as_array().expect("groups of rules");
    let rules: Vec<_> = groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")).collect();
    assert!(rules.len() >= 10, "{rules:?}");
    for rule in rules {
        let (name, health) = (&rule["name"], &rule["health"]);
        assert!(health == "ok" || health == "unknown", "{name}: {rule}");
    }
}
