//! What `/readyz` says of tenants whose database does not work.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::acme::Acme;
use crate::support::client::{operator_get, wait_for_count};
use crate::support::fixture::{Engine, Site, Tenant, on_both_databases};
use crate::support::postgres::Postgres;

/// Far longer than a round through a few databases takes.
const LIMIT: Duration = Duration::from_secs(30);

on_both_databases! {
    async fn a_tenant_that_does_not_work_is_named_and_the_node_stays_ready(engine: Engine) {
        let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000);
        let mut acme = Acme::of(site);
        let operator = acme.node.operator_address();
        let readiness = async || {
            let answer = operator_get(operator, "/readyz").await;
            (answer.status.as_u16(), answer.json())
        };
        let all_well = json!({
            "ready": true,
            "parts": {"edge": "ok", "config": "ok", "databases": "ok", "certificates": "ok"},
            "tenants": {},
        });
        assert_eq!(readiness().await, (200, all_well.clone()));

        // Its database was not migrated.
        acme.site = acme.site.tenant_with("globex", engine, Tenant::unmigrated).write();
        if engine == Engine::Sqlite {
            std::fs::write(acme.site.folder().join("globex.db"), b"").expect("the site's folder can be written");
        }
        let globex = acme.node.client().to(&acme.site.host("globex")).with(&acme.token);
        let since = Instant::now();
        while readiness().await.1["tenants"]["globex"] == Value::Null {
            // The new tenant is there as soon as the change is taken up.
            assert!(since.elapsed().as_secs() < 30, "{:?}", readiness().await);
            let _ = globex.get("/api/v1/me").try_send().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (status, body) = readiness().await;
        assert_eq!((status, &body["ready"], &body["parts"]["databases"]), (200, &json!(true), &json!("1 does not work")));
        let fault = body["tenants"]["globex"][0].as_str().expect("what is wrong");
        assert!(fault.contains("schema version 0"), "{fault}");

        acme.site.migrate();
        let token = acme.site.token("globex", "tests");
        let since = Instant::now();
        while globex.with(&token).get("/api/v1/me").send().await.status != 200 {
            assert!(since.elapsed().as_secs() < 30, "it heals by itself");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(readiness().await, (200, all_well));
    }
}

/// Waits until `/readyz` says something of a tenant that has not had a request.
async fn fault_of(operator: SocketAddr, tenant: &str) -> String {
    let since = Instant::now();
    loop {
        let readiness = operator_get(operator, "/readyz").await;
        assert_eq!(readiness.status, 200, "the node serves others");
        if let Some(fault) = readiness.json()["tenants"][tenant][0].as_str() {
            return fault.to_owned();
        }
        assert!(since.elapsed() < LIMIT, "{}", readiness.json());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

on_both_databases! {
    async fn an_unmigrated_database_is_reported_before_its_first_request(engine: Engine) {
        let site = Site::new().tenant("acme", Engine::Sqlite).write();
        let site = site.tenant_with("globex", engine, Tenant::unmigrated).write();
        if engine == Engine::Sqlite {
            std::fs::write(site.folder().join("globex.db"), b"").expect("the site's folder can be written");
        }
        let mut node = site.start();
        let operator = node.operator_address();
        let fault = fault_of(operator, "globex").await;
        assert!(fault.contains("schema version 0"), "{fault}");
        wait_for_count(operator, "formgate_databases_faulty", 1).await;
        let said = |log: &str| log.lines().filter(|line| line.contains("a database can't be used")).count();
        assert_eq!(said(&node.log()), 1, "{}", node.log());

        site.migrate();
        // Every change has the databases inspected.
        node.signal("HUP");
        wait_for_count(operator, "formgate_databases_faulty", 0).await;
        assert_eq!(operator_get(operator, "/readyz").await.json()["tenants"], json!({}));
        assert_eq!(said(&node.log()), 1, "{}", node.log());
    }
}

#[tokio::test]
async fn a_wrong_password_is_reported_before_anybody_calls() {
    let server = Postgres::start();
    server.execute("CREATE ROLE keeper SUPERUSER LOGIN PASSWORD 'marker-right'");
    server.demand_password_of("keeper");
    let url = server.new_database().replace("postgres@", "keeper:marker-wrong@");
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let site = site.tenant_with("globex", Engine::Sqlite, |tenant| tenant.set("database", url)).write();
    let mut node = site.start();
    let fault = fault_of(node.operator_address(), "globex").await;
    for said in [fault, node.log()] {
        assert!(said.contains("password authentication failed"), "{said}");
        assert!(!said.contains("marker-"), "{said}");
    }
}

#[tokio::test]
async fn a_refused_change_is_reported_until_it_is_fixed() {
    let mut acme = Acme::start();
    let operator = acme.node.operator_address();
    let sound = std::fs::read_to_string(&acme.site.config_path).expect("it was written");
    for (text, state) in
        [("nonsense", "the last change was refused; the one before it is served"), (sound.as_str(), "ok")]
    {
        std::fs::write(&acme.site.config_path, text).expect("the site's folder can be written");
        let since = Instant::now();
        loop {
            let answer = operator_get(operator, "/readyz").await;
            assert_eq!(answer.status, 200);
            if answer.json()["parts"]["config"] == state {
                break;
            }
            assert!(since.elapsed().as_secs() < 30, "{state}: {}", answer.json());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
