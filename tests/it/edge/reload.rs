//! A changed configuration is served without a restart, and a faulty one changes nothing.

use std::fs;
use std::time::Duration;

use crate::support::acme::Acme;
use crate::support::client::operator_get;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;

/// A change is noticed, read once the files are quiet, and served well within this.
const NOTICED: Duration = Duration::from_secs(10);

fn site() -> Site {
    Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000)
}

/// Waits for the line of the log with a text.
fn wait_for(node: &mut Node, text: &str) -> String {
    let line = node.wait_for_log(NOTICED, |line| line.contains(text).then(|| line.to_owned()));
    line.unwrap_or_else(|| panic!("no line has {text:?}:\n{}", node.log()))
}

#[tokio::test]
async fn a_tenant_that_is_added_is_served_from_its_first_handshake_on() {
    let Acme { site, mut node, token } = Acme::of(site());
    let globex = node.client().to("globex.example.test");
    assert!(globex.get("/api/v1/me").try_send().await.is_err(), "no tenant has the name");

    let site = site.tenant("globex", Engine::Sqlite).write();
    site.migrate();
    wait_for(&mut node, "the configuration is reloaded");
    let globex = globex.with(&site.token("globex", "tests"));
    assert_eq!(globex.get("/api/v1/me").send().await.status, 200);
    let acme = node.client().to(&site.host("acme")).with(&token);
    assert_eq!(acme.get("/api/v1/me").send().await.status, 200);
}

#[tokio::test]
async fn a_tenant_that_goes_on_keeps_its_window_and_gets_its_new_limit() {
    let Acme { site, mut node, token } = Acme::of(site());
    let acme = node.client().to(&site.host("acme")).with(&token);
    for _ in 0..5 {
        acme.get("/api/v1/me").send().await;
    }
    let _site = site.requests_per_minute(7).write();
    wait_for(&mut node, "the configuration is reloaded");
    let answer = acme.get("/api/v1/me").send().await;
    assert_eq!((answer.number("x-ratelimit-limit"), answer.number("x-ratelimit-remaining")), (Some(7), Some(1)));
}

#[tokio::test]
async fn a_faulty_configuration_is_refused_whole_logged_and_counted() {
    let Acme { site, mut node, token } = Acme::of(site());
    let sound = fs::read_to_string(&site.config_path).expect("a configuration");
    let faulty = sound.replace("\"Acme\"", "\"Another name\"") + "\n[[tenant]]\nslug = \"x\"\n";
    fs::write(&site.config_path, faulty).expect("the site's folder can be written");
    let line = wait_for(&mut node, "is refused");
    assert!(line.contains("tenants.toml:") && line.contains("missing key `address`"), "{line}");
    let acme = node.client().to(&site.host("acme")).with(&token);
    assert_eq!(acme.get("/api/v1/me").send().await.json()["account"]["name"], "Acme");
    let metrics = operator_get(node.operator_address(), "/metrics").await;
    let metrics = String::from_utf8(metrics.body).expect("text");
    assert!(metrics.contains(r#"formgate_config_reloads_total{result="refused"} 1"#), "{metrics}");

    fs::write(&site.config_path, sound.replace("\"Acme\"", "\"Another name\"")).expect("it can be written");
    wait_for(&mut node, "the configuration is reloaded");
    assert_eq!(acme.get("/api/v1/me").send().await.json()["account"]["name"], "Another name");
}

#[tokio::test]
async fn a_hangup_reloads_and_writing_to_a_database_does_not() {
    let Acme { site, mut node, token } = Acme::of(site());
    let acme = node.client().to(&site.host("acme")).with(&token);
    for round in 0..5 {
        let group = serde_json::json!({"name": format!("Group {round}"), "members": []});
        assert_eq!(acme.put("/api/v1/group").json(&group).send().await.status, 201);
    }
    tokio::time::sleep(Duration::from_millis(600)).await; // longer than files must be quiet
    assert!(!node.log().contains("reloaded"), "the database lies beside the configuration:\n{}", node.log());
    node.signal("HUP");
    wait_for(&mut node, "the configuration is reloaded");
    assert_eq!(acme.get("/api/v1/me").send().await.status, 200);
}

#[tokio::test]
async fn what_waits_for_a_restart_is_named() {
    let Acme { site, mut node, token: _ } = Acme::of(site());
    let _site = site.gateway("drain_seconds", 1).write();
    assert!(wait_for(&mut node, "waits for a restart").contains("drain_seconds"));
}
