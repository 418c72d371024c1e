//! One database of Postgres at two addresses is that of one tenant only.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::scene::{Answer, LIMIT, Scene, me, me_becomes};
use crate::support::client::operator_get;
use crate::support::fixture::Engine;
use crate::support::postgres::Postgres;
use crate::support::process::Node;

/// Other addresses of the test's server.
const HOSTS: [&str; 3] = ["localhost", "127.1", "LOCALHOST"];

/// A tenant with the database of another one, at another address.
fn twin(scene: &Scene, slug: &str, of: &str, host: &str) -> Value {
    let mut twin = scene.tenant(slug);
    twin["database"] = json!(elsewhere(&scene.tenant(of), host));
    twin
}

fn elsewhere(tenant: &Value, host: &str) -> String {
    tenant["database"].as_str().expect("a URL").replace("@127.0.0.1:", &format!("@{host}:"))
}

/// Fails unless a call was refused because another tenant has the database.
fn assert_taken(answer: &Answer, key: &str, owner: &str) {
    let fault = answer.body["errors"][key][0].as_str().unwrap_or_default();
    assert!(answer.status == 409 && fault.contains(&format!("the tenant `{owner}`")), "{answer:?}");
}

/// Waits until readiness says of a tenant that another one has its database.
async fn is_refused(node: &mut Node, slug: &str, owner: &str) {
    let began = Instant::now();
    loop {
        let ready = operator_get(node.operator_address(), "/readyz").await.json();
        if ready["tenants"][slug].to_string().contains(&format!("this is the database of the tenant `{owner}` too")) {
            assert!(ready["ready"] == true && ready["parts"]["databases"] == "1 does not work", "{ready}");
            return;
        }
        assert!(began.elapsed() < LIMIT, "{ready}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_call_that_opens_the_database_of_another_tenant_is_refused_and_adds_nothing() {
    let scene = Scene::new(Engine::Postgres);
    let node = scene.start(0);
    let token = scene.add(0, "acme").await;
    for (host, asked) in HOSTS.into_iter().zip(["migrate=1", "token=x", "wait=60"]) {
        let target = format!("/v1/tenants/evil?{asked}");
        let put = scene.call(0, Method::PUT, &target, Some(&twin(&scene, "evil", "acme", host))).await;
        assert_taken(&put, "database", "acme");
        assert_eq!(scene.call(0, Method::GET, "/v1/tenants/evil", None).await.status, 404, "{asked}");
    }
    let twins = [twin(&scene, "other", "globex", "localhost"), twin(&scene, "evil", "acme", "localhost")];
    let [other, evil] = twins;
    let operations = json!({ "operations": [
        { "put": "globex", "tenant": scene.tenant("globex") }, { "put": "evil", "tenant": evil },
    ] });
    let batch = scene.call(0, Method::POST, "/v1/batch?migrate=1", Some(&operations)).await;
    assert_taken(&batch, "operations.1.database", "acme");
    let operations = json!({ "operations": [
        { "put": "globex", "tenant": scene.tenant("globex") }, { "put": "other", "tenant": other },
    ] });
    let batch = scene.call(0, Method::POST, "/v1/batch?migrate=1", Some(&operations)).await;
    assert_taken(&batch, "operations.1.database", "globex");
    let url = elsewhere(&scene.tenant("acme"), "localhost");
    let added =
        scene.run(&["tenant", "add", "evil", "--address", "evil.example.test", "--database", &url, "--migrate"]);
    assert!(added.code == 1 && added.stderr.contains("belongs to the tenant `acme`"), "{added:?}");
    let again = scene.call(0, Method::PUT, "/v1/tenants/acme?token=y&wait=60", Some(&scene.tenant("acme"))).await;
    assert_eq!(again.status, 200, "its own database is no other one: {again:?}");
    assert_eq!(me(&node, "acme", &token).await, 200);
    // It moves to another address of the same database, and another tenant gets it once it is gone.
    let moved = twin(&scene, "acme", "acme", "localhost");
    let moved = scene.call(0, Method::PUT, "/v1/tenants/acme?wait=60", Some(&moved)).await;
    assert_eq!(moved.status, 200, "{moved:?}");
    let evil = twin(&scene, "evil", "acme", "127.1");
    let put = scene.call(0, Method::PUT, "/v1/tenants/evil?token=x", Some(&evil)).await;
    assert_taken(&put, "database", "acme");
    assert_eq!(scene.call(0, Method::DELETE, "/v1/tenants/acme?wait=60", None).await.status, 200);
    let put = scene.call(0, Method::PUT, "/v1/tenants/evil?token=x&wait=60", Some(&evil)).await;
    assert_eq!(put.status, 201, "{put:?}");
    me_becomes(&node, "evil", &token, 200).await;
}

#[tokio::test]
async fn a_tenant_whose_database_turns_out_to_be_that_of_another_one_is_served_by_no_node() {
    let scene = Scene::new(Engine::Postgres);
    let mut nodes = [scene.start(0), scene.start(1)];
    let token = scene.add(0, "acme").await;
    let evil = twin(&scene, "evil", "acme", "localhost");
    assert_eq!(scene.call(0, Method::PUT, "/v1/tenants/evil", Some(&evil)).await.status, 201, "nothing is opened");
    // The first request opens it.
    while me(&nodes[1], "evil", &token).await == 404 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for node in &mut nodes {
        is_refused(node, "evil", "acme").await;
        // A request in flight may hold the database open for a moment.
        me_becomes(node, "evil", &token, 503).await;
        assert_eq!(me(node, "acme", &token).await, 200);
    }
    let logged =
        nodes[0].wait_for_log(LIMIT, |line| line.contains("another one has its database").then(|| line.to_owned()));
    assert!(logged.is_some_and(|line| line.contains("\"tenant\":\"evil\"") && line.contains("\"owner\":\"acme\"")));
    for call in ["tokens", "links"] {
        let body = json!({ "name": "x", "email": "a@example.test" });
        let body = match call {
            "tokens" => json!({ "name": body["name"] }),
            _ => json!({ "email": body["email"] }),
        };
        let asked = scene.call(1, Method::POST, &format!("/v1/tenants/evil/{call}"), Some(&body)).await;
        assert_taken(&asked, "database", "acme");
    }
    let [first, second] = nodes;
    drop((first, second));
    let mut node = scene.start(0);
    is_refused(&mut node, "evil", "acme").await;
    assert_eq!([me(&node, "evil", &token).await, me(&node, "acme", &token).await], [503, 200], "after a restart too");
    assert_eq!(scene.call(0, Method::DELETE, "/v1/tenants/acme?wait=60", None).await.status, 200);
    me_becomes(&node, "evil", &token, 200).await;
}

#[tokio::test]
async fn of_two_tenants_of_files_with_one_database_one_is_served() {
    let mut scene = Scene::new(Engine::Postgres);
    let [acme, mut evil] = ["acme", "evil"].map(|slug| scene.text(slug));
    let url = scene.tenant("acme")["database"].as_str().expect("a URL").to_owned();
    evil = evil.replace(
        scene.tenant("evil")["database"].as_str().expect("a URL"),
        &elsewhere(&scene.tenant("acme"), "localhost"),
    );
    scene.write_files(&format!("{acme}{evil}"), 1);
    scene.succeed(&["migrate", "--tenant", "acme"]);
    let token = scene.succeed(&["token", "create", "--tenant", "acme", "--name", "x"]).trim().to_owned();
    let mut node = scene.start(0);
    assert_eq!(me(&node, "acme", &token).await, 200);
    is_refused(&mut node, "evil", "acme").await;
    assert_eq!([me(&node, "evil", &token).await, me(&node, "acme", &token).await], [503, 200]);
    // One of the registry gets it neither.
    let mut third = scene.tenant("third");
    third["database"] = json!(url.replace("@127.0.0.1:", "@127.1:"));
    let put = scene.call(0, Method::PUT, "/v1/tenants/third?wait=60", Some(&third)).await;
    assert_taken(&put, "database", "acme");
    scene.write_files(&evil, 1);
    node.signal("HUP");
    me_becomes(&node, "evil", &token, 200).await;
}

/// Two accounts may begin as copies of one.
#[tokio::test]
async fn a_copy_of_a_database_is_another_one() {
    let scene = Scene::new(Engine::Postgres);
    let template = scene.tenant("acme")["database"].as_str().expect("a URL").to_owned();
    let copy = format!("{template}_copy");
    let node = scene.start(0);
    let put = scene
        .call(0, Method::PUT, "/v1/tenants/globex?migrate=1", Some(&twin(&scene, "globex", "acme", "127.0.0.1")))
        .await;
    assert_eq!(put.status, 201, "{put:?}");
    assert_eq!(scene.call(0, Method::DELETE, "/v1/tenants/globex?wait=60", None).await.status, 200);
    let [from, to] = [&template, &copy].map(|url| url.rsplit('/').next().expect("a name"));
    let server = Postgres::shared();
    server.execute(&format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{from}'"));
    server.execute(&format!("CREATE DATABASE \"{to}\" TEMPLATE \"{from}\""));
    let token = scene.add(0, "acme").await;
    let mut globex = scene.tenant("globex");
    globex["database"] = json!(copy);
    let put = scene.call(0, Method::PUT, "/v1/tenants/globex?token=x&wait=60", Some(&globex)).await;
    assert_eq!(put.status, 201, "{put:?}");
    let own = put.body["token"]["token"].as_str().expect("a token");
    assert_eq!([me(&node, "acme", &token).await, me(&node, "globex", own).await], [200, 200]);
}
