//! A node whose role has only the rights that deploy/registry.md documents.

use std::time::{Duration, Instant};

use super::scene::{LIMIT, Scene};
use crate::registry::documented::{documented_grants, parts};
use crate::support::client::operator_get;
use crate::support::fixture::Engine;
use crate::support::postgres::Postgres;
use crate::support::process::Node;

/// Waits until readiness has this about domains.
async fn domains_become(node: &mut Node, is_meant: impl Fn(&str) -> bool) -> String {
    let began = Instant::now();
    loop {
        let ready = operator_get(node.operator_address(), "/readyz").await.json();
        let state = ready["parts"]["domains"].as_str().unwrap_or_default();
        if is_meant(state) {
            return state.to_owned();
        }
        assert!(began.elapsed() < LIMIT, "{ready}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn certificates_are_obtained_and_renewed_with_the_documented_rights_and_a_missing_one_is_shown() {
    let server = Postgres::start();
    let mut scene = Scene::new(Engine::Postgres).await;
    let url = server.new_database();
    scene.registry_url = url.clone();
    let created = scene.run(&["operator-token", "create", "--name", "product"]);
    assert_eq!(created.code, 0, "{created:?}");
    let grants = documented_grants(&url);
    let [of_all, of_operator, of_domains] = parts(&grants);
    Postgres::execute_in(&url, &format!("CREATE ROLE registry_node LOGIN; {of_all}"));
    scene.registry_url = url.replace("postgres@", "registry_node@");

    let mut node = scene.start(0);
    let state = domains_become(&mut node, |state| state.contains("lacks")).await;
    for missing in ["INSERT on registry_events", "UPDATE on registry_budgets", "INSERT on registry_acme_account"] {
        assert!(state.contains(missing), "{state}");
    }
    let checked = scene.run(&["check"]);
    assert!(checked.code == 1 && checked.stdout.contains("INSERT on registry_events"), "{checked:?}");

    Postgres::execute_in(&url, of_domains);
    let host = scene.host().to_owned();
    scene.goes_live(&host).await;
    scene.is_served(&node, &host).await;
    scene.renew_now(&host).await;
    let began = Instant::now();
    while scene.proxy.orders() < 2 {
        assert!(began.elapsed() < LIMIT, "it is not renewed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    domains_become(&mut node, |state| state == "ok").await;
    Postgres::execute_in(&url, of_operator);
    assert_eq!(scene.run(&["check"]).code, 0);

    // It would be noticed by nobody until the next renewal.
    Postgres::execute_in(&url, "REVOKE INSERT ON registry_events FROM registry_node");
    drop(node);
    let mut node = scene.start(0);
    domains_become(&mut node, |state| state.contains("lacks INSERT on registry_events")).await;
}
