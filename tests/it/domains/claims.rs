//! Who gets a domain that several want: the first proof and the operator's tables, never the first who adds it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use toml::Table;

use super::api::{call, scene, state_becomes};
use crate::registry::scene::{LIMIT, Scene};
use crate::support::answer::Answer;
use crate::support::connection::exchange;
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;

const HOST: &str = "forms.globex.test";

fn domain(slug: &str, host: &str) -> String {
    format!("/v1/tenants/{slug}/domains/{host}")
}

/// Adds a domain that nobody has proved. Returns the text that proves it.
async fn add(scene: &Scene, slug: &str, host: &str) -> String {
    let added = call(scene, Method::PUT, &domain(slug, host)).await;
    assert_eq!(added.status, 201, "{added:?}");
    added.body["data"]["proof"]["value"].as_str().expect("a text").to_owned()
}

/// Waits until a domain of a tenant is gone for a reason.
async fn goes(scene: &Scene, slug: &str, host: &str, reason: &str) -> Value {
    let began = Instant::now();
    loop {
        let answer = call(scene, Method::GET, &domain(slug, host)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let data = &answer.body["data"];
        if (&data["state"], &data["reason"]) == (&json!("gone"), &json!(reason)) {
            return data.clone();
        }
        assert!(began.elapsed() < LIMIT, "{data}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Lets the claims to a host be older by some hours.
async fn age(scene: &Scene, host: &str, hours: i64) {
    let registry = Database::connect(&scene.registry_url).await;
    let earlier = match scene.registry_url.starts_with("sqlite") {
        true => format!("created_at - {hours} * 3600000000"),
        false => format!("created_at - interval '{hours} hours'"),
    };
    registry.execute(&format!("UPDATE registry_domains SET created_at = {earlier} WHERE host = '{host}'")).await;
    registry.close().await;
}

/// The status of a request to a listener without TLS.
async fn plain(address: SocketAddr, host: &str, token: &str) -> u16 {
    let request = format!(
        "GET /api/v1/me HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    let stream = TcpStream::connect(address).await.expect("a connection");
    let bytes = exchange(stream, request.as_bytes(), LIMIT).await;
    Answer::read(&bytes).expect("an answer").status.as_u16()
}

on_both_databases! {
    async fn a_proof_moves_a_domain_at_once_from_a_tenant_without_one(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        scene.add(0, "globex").await;
        add(&scene, "acme", HOST).await;
        state_becomes(&scene, HOST, "dns").await;
        // The owner's records are right before it adds the domain.
        zones.serve("globex.test", &[], "forms CNAME globex.edge.test");
        let added = call(&scene, Method::PUT, &format!("{}?wait=60", domain("globex", HOST))).await;
        assert_eq!((added.status.as_u16(), &added.body["data"]["state"]), (201, &json!("verified")), "{added:?}");
        let lost = goes(&scene, "acme", HOST, "taken").await;
        assert_eq!(lost["next_step"], "Another account has this domain. If it is yours, add it again");
        let owner = call(&scene, Method::GET, "/v1/tenants/globex").await;
        assert_eq!(owner.body["data"]["added_domains"], json!([HOST]));
    }

    async fn the_txt_record_alone_proves_a_domain_that_leads_elsewhere(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        scene.add(0, "globex").await;
        zones.serve("globex.test", &[], "forms A 192.0.2.77");
        let squatted = add(&scene, "acme", HOST).await;
        let proof = add(&scene, "globex", HOST).await;
        let check = async |slug: &str| {
            let target = format!("/v1/domains/{HOST}/check?wait=60&tenant={slug}");
            call(&scene, Method::POST, &target).await.body["data"].clone()
        };
        zones.serve("globex.test", &[], &format!("forms A 192.0.2.77\n_formgate.forms TXT {proof}"));
        let proved = check("globex").await;
        assert_eq!((&proved["state"], &proved["reason"]), (&json!("dns"), &json!("elsewhere")), "{proved}");
        assert_eq!((&proved["proof"]["action"], &proved["proof"]["value"]), (&json!("keep"), &json!(proof)), "{proved}");
        goes(&scene, "acme", HOST, "taken").await;
        // Between two that have proved it, the record starts and keeps the 72 hours.
        assert_eq!(call(&scene, Method::PUT, &domain("acme", HOST)).await.status, 409);
        let contested = check("acme").await;
        let step = contested["next_step"].as_str().unwrap();
        assert!(step.contains("add this record: TXT record `_formgate.forms.globex.test`"), "{step}");
        let both = format!("forms A 192.0.2.77\n_formgate.forms TXT {proof}\n_formgate.forms TXT {squatted}");
        zones.serve("globex.test", &[], &both);
        let contested = check("acme").await;
        let step = contested["next_step"].as_str().unwrap();
        assert!(step.contains("Keep this record: TXT record") && step.contains("The domain moves at "), "{step}");
        assert_eq!((&contested["records"], &contested["proof"]["action"]), (&json!([]), &json!("keep")), "{contested}");
        zones.serve("globex.test", &[], &format!("forms CNAME globex.edge.test\n_formgate.forms TXT {squatted}"));
        assert_eq!(check("globex").await["state"], "verified");
        let proof = check("globex").await["proof"].clone();
        assert_eq!((&proof["type"], &proof["action"], &proof["value"]), (&json!("CNAME"), &json!("keep"), &json!("globex.edge.test")));
    }

    async fn a_table_of_the_operator_wins_over_claims_without_a_proof(engine: Engine) {
        let (mut scene, _zones) = scene(engine).await;
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        let (address, of_file) = ("initech.example.test", "filed.example.test");
        for host in [address, of_file, "extra.acme.test"] {
            add(&scene, "acme", host).await;
        }
        let mut initech = scene.tenant("initech");
        initech["domains"] = json!(["extra.acme.test"]);
        let put = scene.call(0, Method::PUT, "/v1/tenants/initech?migrate=1&wait=60", Some(&initech)).await;
        assert_eq!((put.status.as_u16(), &put.body["data"]["tenant"]["address"]), (201, &json!(address)), "{put:?}");
        let text = scene.text("filed");
        scene.write_files(&text, 1);
        for host in [address, of_file, "extra.acme.test"] {
            goes(&scene, "acme", host, "taken").await;
        }
        let again = call(&scene, Method::PUT, &domain("acme", address)).await;
        assert_eq!((again.status.as_u16(), &again.body["data"]), (409, &Value::Null), "{again:?}");
        assert_eq!(call(&scene, Method::DELETE, &domain("acme", address)).await.status, 200, "it is no longer shown");
        assert_eq!(call(&scene, Method::GET, &domain("acme", address)).await.status, 404);
    }

    async fn a_claim_without_a_proof_ends_after_a_week(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        let proof = add(&scene, "acme", HOST).await;
        age(&scene, HOST, 7 * 24 - 1).await;
        assert_eq!(state_becomes(&scene, HOST, "dns").await["reason"], "no_records");
        age(&scene, HOST, 1).await;
        let ended = state_becomes(&scene, HOST, "gone").await;
        assert_eq!((&ended["reason"], &ended["records"]), (&json!("claim_expired"), &json!([])), "{ended}");
        // A record that is set too late changes nothing until the domain is added again, with the same proof.
        zones.serve("globex.test", &[], &format!("forms A 192.0.2.10\n_formgate.forms TXT {proof}"));
        assert_eq!(state_becomes(&scene, HOST, "gone").await["reason"], "claim_expired");
        assert_eq!(add(&scene, "acme", HOST).await, proof);
        state_becomes(&scene, HOST, "verified").await;
        // What is proved does not end.
        age(&scene, HOST, 30 * 24).await;
        zones.serve("globex.test", &[], "");
        assert_eq!(state_becomes(&scene, HOST, "dns").await["reason"], "no_records");
        let tenant = call(&scene, Method::GET, "/v1/tenants/acme").await;
        assert_eq!(tenant.body["data"]["added_domains"], json!([HOST]));
    }

    async fn a_listener_without_tls_serves_a_domain_once_it_is_proved(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let entry: Table =
            [("address".to_owned(), "127.0.0.1:0".into()), ("tls".to_owned(), false.into())].into_iter().collect();
        let scene = scene.gateway("listen", vec![toml::Value::from("127.0.0.1:0"), toml::Value::from(entry)]);
        let mut node = scene.start(0);
        let [_, address] = node.addresses()[..] else { panic!("two listeners") };
        let mut listed = scene.tenant("acme");
        listed["domains"] = json!(["listed.acme.test"]);
        let put = scene.call(0, Method::PUT, "/v1/tenants/acme?migrate=1&wait=60&token=tests", Some(&listed)).await;
        let token = put.body["token"]["token"].as_str().expect("a token").to_owned();
        for host in ["acme.example.test", "listed.acme.test"] {
            assert_eq!(plain(address, host, &token).await, 200, "{host} is in the table");
        }
        let proof = add(&scene, "acme", HOST).await;
        state_becomes(&scene, HOST, "dns").await;
        assert_eq!(plain(address, HOST, &token).await, 404);
        zones.serve("globex.test", &[], &format!("forms A 192.0.2.10\n_formgate.forms TXT {proof}"));
        state_becomes(&scene, HOST, "verified").await;
        let began = Instant::now();
        while plain(address, HOST, &token).await != 200 {
            assert!(began.elapsed() < LIMIT, "a proved domain is served");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(call(&scene, Method::DELETE, &format!("{}?wait=60", domain("acme", HOST))).await.status, 200);
        assert_eq!(plain(address, HOST, &token).await, 404);
    }
}
