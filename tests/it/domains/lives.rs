//! Proofs, domains and certificates belong to one life of a tenant: its slug together with its database.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::api::{call, scene, state_becomes};
use crate::registry::scene::{LIMIT, Scene};
use crate::support::fixture::on_both_databases;
use crate::support::zones::Zones;

/// A host that is an alias of the label of `acme`.
const BY_LABEL: &str = "forms.globex.test";
/// A host with the TXT record.
const BY_TXT: &str = "hr.globex.test";

fn domain(host: &str) -> String {
    format!("/v1/tenants/acme/domains/{host}")
}

/// Puts the tenant `acme`.
async fn put(scene: &Scene, tenant: &Value) -> u16 {
    scene.call(0, Method::PUT, "/v1/tenants/acme?migrate=1&wait=60", Some(tenant)).await.status.as_u16()
}

/// The tenant `acme` has proved two domains. Returns the text that proves one of them.
async fn proved(scene: &Scene, zones: &Zones) -> String {
    assert_eq!(put(scene, &scene.tenant("acme")).await, 201);
    for host in [BY_LABEL, BY_TXT] {
        assert_eq!(call(scene, Method::PUT, &domain(host)).await.status, 201);
    }
    let shown = call(scene, Method::GET, &domain(BY_TXT)).await;
    let proof = shown.body["data"]["proof"]["value"].as_str().expect("a text").to_owned();
    let records = format!("forms CNAME acme.edge.test\nhr A 192.0.2.10\n_formgate.hr TXT {proof}");
    zones.serve("globex.test", &[], &records);
    for host in [BY_LABEL, BY_TXT] {
        state_becomes(scene, host, "verified").await;
    }
    proof
}

async fn added_domains(scene: &Scene) -> Value {
    let mut added = call(scene, Method::GET, "/v1/tenants/acme").await.body["data"]["added_domains"].clone();
    // In no order of their own.
    added.as_array_mut().expect("a list").sort_by_key(ToString::to_string);
    added
}

/// The tenant `acme` adds both domains, and has to prove each by a TXT record.
async fn proves_nothing(scene: &Scene, zones: &Zones, before: &str) {
    assert_eq!(added_domains(scene).await, json!([]));
    for host in [BY_LABEL, BY_TXT] {
        assert_eq!(call(scene, Method::GET, &domain(host)).await.status, 404, "{host}");
        let added = call(scene, Method::PUT, &format!("{}?wait=60", domain(host))).await;
        let data = &added.body["data"];
        assert_eq!((added.status.as_u16(), &data["reason"]), (201, &json!("proof_missing")), "{added:?}");
        let record = &data["records"][0];
        assert_eq!((&record["type"], &record["name"]), (&json!("TXT"), &json!(format!("_formgate.{host}"))), "{data}");
        assert_ne!(record["value"], before, "the proof of the account before");
    }
    let record = call(scene, Method::GET, &domain(BY_LABEL)).await.body["data"]["records"][0].clone();
    let proof = record["value"].as_str().expect("a text");
    zones.serve("globex.test", &[], &format!("forms CNAME acme.edge.test\n_formgate.forms TXT {proof}"));
    state_becomes(scene, BY_LABEL, "verified").await;
}

on_both_databases! {
    async fn a_slug_with_another_database_has_nothing_of_the_account_before(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let _node = scene.start(0);
        let before = proved(&scene, &zones).await;
        assert_eq!(call(&scene, Method::DELETE, "/v1/tenants/acme?wait=60").await.status, 200);
        let mut next = scene.tenant("globex");
        next["address"] = json!("acme.example.test");
        assert_eq!(put(&scene, &next).await, 201);
        proves_nothing(&scene, &zones, &before).await;
    }

    async fn a_tenant_that_gets_another_database_has_nothing_of_the_one_before(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let _node = scene.start(0);
        let before = proved(&scene, &zones).await;
        let mut next = scene.tenant("globex");
        next["address"] = json!("acme.example.test");
        assert_eq!(put(&scene, &next).await, 200);
        proves_nothing(&scene, &zones, &before).await;
    }

    async fn a_tenant_that_comes_back_with_its_database_has_its_domains(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let _node = scene.start(0);
        proved(&scene, &zones).await;
        assert_eq!(call(&scene, Method::DELETE, "/v1/tenants/acme?wait=60").await.status, 200);
        let began = Instant::now();
        while call(&scene, Method::GET, &domain(BY_LABEL)).await.status != 404 {
            assert!(began.elapsed() < LIMIT, "the domains of a removed tenant are removed");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Without `migrate`: its identity is read all the same.
        let back = scene.call(0, Method::PUT, "/v1/tenants/acme?wait=60", Some(&scene.tenant("acme"))).await;
        assert_eq!(back.status, 201, "{back:?}");
        assert_eq!(added_domains(&scene).await, json!([BY_LABEL, BY_TXT]));
        for host in [BY_LABEL, BY_TXT] {
            state_becomes(&scene, host, "verified").await;
        }
        // Another name of the tenant changes nothing.
        let mut renamed = scene.tenant("acme");
        renamed["name"] = json!("Acme, renamed");
        assert_eq!(put(&scene, &renamed).await, 200);
        assert_eq!(added_domains(&scene).await, json!([BY_LABEL, BY_TXT]));
    }

    async fn a_domain_that_another_tenant_has_proved_meanwhile_does_not_come_back(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let _node = scene.start(0);
        proved(&scene, &zones).await;
        scene.add(0, "globex").await;
        assert_eq!(call(&scene, Method::DELETE, "/v1/tenants/acme?wait=60").await.status, 200);
        zones.serve("globex.test", &[], "forms CNAME globex.edge.test\nhr CNAME acme.edge.test");
        let taken = call(&scene, Method::PUT, &format!("/v1/tenants/globex/domains/{BY_LABEL}?wait=60")).await;
        assert_eq!((taken.status.as_u16(), &taken.body["data"]["state"]), (201, &json!("verified")), "{taken:?}");
        assert_eq!(put(&scene, &scene.tenant("acme")).await, 201);
        assert_eq!(added_domains(&scene).await, json!([BY_TXT]));
        state_becomes(&scene, BY_TXT, "verified").await;
    }
}
