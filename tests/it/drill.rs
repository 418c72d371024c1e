//! `formgate serve --drill`: a copy of the configuration answers requests, and acts on nothing else.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use toml::Table;

use crate::registry::scene::{Scene, client, me, me_becomes};
use crate::support::answer::Answer;
use crate::support::certificate;
use crate::support::client::operator_get;
use crate::support::database::Database;
use crate::support::dns::{DnsServer, Lookup};
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::process::{self, Node};
use crate::support::receiver::{Act, HOST, Receiver};

/// How long a node may take on a machine that others load heavily.
const LIMIT: Duration = Duration::from_secs(60);

/// A service that a drill must not connect to.
struct Untouched(TcpListener);

impl Untouched {
    fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket can be non-blocking");
        Self(listener)
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.0.local_addr().expect("a bound socket has an address"))
    }

    /// A connection is queued in the kernel before its client sees it open.
    fn assert_untouched(&self, what: &str) {
        let error = self.0.accept().expect_err(what);
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{what}: {error}");
    }
}

/// The `[gateway.webhooks]` table with which receivers of the test are reached.
fn webhooks(site: &Site, dns: &DnsServer) -> Table {
    let mut webhooks = Table::new();
    webhooks.insert("ca_file".into(), certificate::authority(site.folder()).display().to_string().into());
    webhooks.insert("dns_servers".into(), vec![dns.address.to_string()].into());
    webhooks.insert("allow_targets".into(), vec!["127.0.0.0/8"].into());
    webhooks.insert("settle_ms".into(), 0.into());
    webhooks
}

/// Adds a submission of the form 1.
async fn insert(database: &Database, engine: Engine, id: i64) {
    let at = if engine == Engine::Sqlite { "1772366400000000" } else { "'2026-03-01T12:00:00Z'" };
    let values = format!("({id}, 1, 'pending', {at}, {at})");
    database
        .execute(&format!("INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES {values}"))
        .await;
}

async fn tasks(node: &mut Node) -> String {
    text(&operator_get(node.operator_address(), "/metrics").await)
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

on_both_databases! {
    async fn a_drill_answers_and_leaves_receivers_authorities_and_services_alone(engine: Engine) {
        let dns = DnsServer::start().await;
        dns.answer(HOST, &[Lookup::of(&["127.0.0.1"])]);
        let site = Site::new().tenant("acme", engine).obtaining_certificates();
        let table = webhooks(&site, &dns);
        let site = site.gateway("webhooks", table).gateway("administration", Table::new()).write();
        let database = Database::connect(site.database_url("acme")).await;
        let token = site.token("acme", "tests");
        let year_2020 = if engine == Engine::Sqlite { "1577836800000000" } else { "'2020-01-01T00:00:00Z'" };
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;

        // An event waits: the receiver is down when the backup is made.
        let down = Receiver::always(Act::status(503)).await;
        let mut node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        let body = json!({ "target_url": down.url("/hook") });
        let hook = client.post("/api/v1/subscribe").json(&body).send().await.json()["data"]["id"].clone();
        let hook = hook.as_str().expect("an id").to_owned();
        insert(&database, engine, 1).await;
        let sent = |receiver: &Receiver| receiver.requests().len();
        while sent(&down) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(node.stop(LIMIT).await, 0);
        let before = sent(&down);
        database.execute("UPDATE subscriptions SET next_attempt_at = created_at").await;
        database.execute(&format!("INSERT INTO token_hours (hour, counts) VALUES ({year_2020}, '[]')")).await;
        let old_hours = format!("SELECT count(*) FROM token_hours WHERE hour = {year_2020}");

        // The drill has the real configuration, with all that it would act on.
        let (redis, provider, collector) = (Untouched::listen(), Untouched::listen(), Untouched::listen());
        let mut oidc = Table::new();
        oidc.insert("issuer".into(), provider.url("https").into());
        oidc.insert("client_id".into(), "formgate".into());
        oidc.insert("client_secret".into(), "s3cret".into());
        oidc.insert("role_claim".into(), "groups".into());
        oidc.insert("admin_values".into(), vec!["admins"].into());
        let mut administration = Table::new();
        administration.insert("oidc".into(), oidc.into());
        let site = site
            .gateway("administration", administration)
            .gateway("redis", redis.url("redis"))
            .gateway("on_redis_failure", "deny")
            .write();
        let endpoint = collector.url("http");
        let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
        let mut drill = Node::spawn_drill(&site.config_path, &environment);
        let client = drill.client().to(&site.host("acme")).with(&token);
        for reloads in 0..2 {
            let found = client.post("/api/v1/submission").json(&json!({})).send().await.json();
            assert_eq!(found["meta"]["total"], 1, "{found}");
            assert_eq!(client.get("/admin/sign-in").send().await.status, 404);
            let tested = client.post(&format!("/api/v1/subscribe/{hook}/test")).send().await;
            assert_eq!(tested.status, 422, "{tested:?}");
            assert!(text(&tested).contains("this node is a drill"), "{tested:?}");
            let replayed =
                client.post(&format!("/api/v1/subscribe/{hook}/replay")).json(&json!({ "failed": true })).send().await;
            assert!(replayed.status.is_success(), "{replayed:?}");
            let ready = operator_get(drill.operator_address(), "/readyz").await;
            let parts = ready.json()["parts"].clone();
            assert_eq!((ready.status.as_u16(), &parts["redis"], &parts["registry"]), (200, &Value::Null, &"ok".into()));
            assert!(parts["drill"].as_str().is_some_and(|text| text.contains("webhooks")), "{parts}");
            let tasks = tasks(&mut drill).await;
            assert!(tasks.contains("task=\"databases\""), "{tasks}");
            assert!(!["webhooks", "domains"].iter().any(|task| tasks.contains(&format!("task=\"{task}\""))), "{tasks}");
            if reloads == 0 {
                drill.signal("HUP");
                drill.wait_for_lines(LIMIT, "the configuration is reloaded", 1);
            }
        }
        let log = drill.log();
        let line = log.lines().find(|line| line.contains("requests write to databases")).expect("a line");
        let line: Value = serde_json::from_str(line).unwrap();
        match engine {
            Engine::Sqlite => assert_eq!(line["folder"], site.folder().canonicalize().unwrap().to_str().unwrap()),
            _ => assert!(site.database_url("acme").contains(line["server"].as_str().unwrap()), "{line}"),
        }
        assert!(!log.contains("waits for a restart"), "{log}");
        assert_eq!(drill.stop(LIMIT).await, 0);
        assert_eq!((sent(&down), database.integers(&old_hours).await), (before, [1]));
        let leases = "SELECT count(*) FROM subscriptions WHERE leased_by IS NOT NULL";
        assert_eq!(database.integers(leases).await, [0]);
        for (service, what) in [(&redis, "Redis"), (&provider, "the provider"), (&collector, "the collector")] {
            service.assert_untouched(what);
        }

        // The same configuration without `--drill` does all of it.
        let site = site.gateway("on_redis_failure", "allow").write();
        let mut node = site.start();
        while sent(&down) == before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let client = node.client().to(&site.host("acme")).with(&token);
        assert_eq!(client.get("/api/v1/form").send().await.status, 200);
        let tasks = tasks(&mut node).await;
        assert!(tasks.contains("task=\"webhooks\"") && tasks.contains("task=\"domains\""), "{tasks}");
        assert_eq!(node.stop(LIMIT).await, 0);
        assert_eq!(database.integers(&old_hours).await, [0]);
    }

    async fn events_that_wait_in_a_restored_database_are_not_sent_if_the_operator_says_so(engine: Engine) {
        let dns = DnsServer::start().await;
        dns.answer(HOST, &[Lookup::of(&["127.0.0.1"])]);
        let site = Site::new().tenant("acme", engine);
        let table = webhooks(&site, &dns);
        let site = site.gateway("webhooks", table).write();
        let database = Database::connect(site.database_url("acme")).await;
        let token = site.token("acme", "tests");
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;
        let receiver = Receiver::start(|nth| Act::status(if nth == 0 { 503 } else { 204 })).await;
        let mut node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        let made = client.post("/api/v1/subscribe").json(&json!({ "target_url": receiver.url("/hook") })).send().await;
        assert_eq!(made.status, 201, "{made:?}");
        insert(&database, engine, 1).await;
        while receiver.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(node.stop(LIMIT).await, 0);
        // Written while no node runs, so it has no number yet.
        insert(&database, engine, 2).await;
        let reset = site.run_in_thread(&["changes", "reset", "--tenant", "acme", "--skip-webhooks"]).await;
        assert_eq!(reset.code, 0, "{}", reset.stderr);
        let mut node = site.start();
        insert(&database, engine, 3).await;
        while receiver.requests().len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(node.stop(LIMIT).await, 0);
        let sent = receiver.requests();
        let sent = sent.iter().map(|request| serde_json::from_slice(&request.body).unwrap());
        let ids: Vec<_> = sent.map(|event: Value| event["data"]["id"].clone()).collect();
        assert_eq!(ids, ["sub_1", "sub_3"]);
    }

    async fn a_drill_follows_a_registry_and_does_not_write_to_it(engine: Engine) {
        let scene = Scene::new(engine);
        let mut node = scene.start(0);
        let token = scene.add(0, "acme").await;
        scene.write(1);
        let mut drill = Node::spawn_drill(&scene.config(1), &[]);
        assert_eq!(me(&drill, "acme", &token).await, 200);
        // `wait` does not wait for the drill, which serves the tenant all the same.
        let of_globex = scene.add(0, "globex").await;
        me_becomes(&drill, "globex", &of_globex, 200).await;
        for at in [0, 1] {
            let nodes = scene.call(at, Method::GET, "/v1/nodes", None).await;
            assert_eq!((nodes.status.as_u16(), nodes.body["data"].as_array().unwrap().len()), (200, 1), "{nodes:?}");
        }

        let registry = Database::connect(&scene.registry_url).await;
        let state = "SELECT revision, (SELECT count(*) FROM registry_nodes), (SELECT count(*) FROM registry_tenants), \
            (SELECT count(*) FROM registry_claims) FROM registry_head";
        let before: [i64; 4] = registry.integers(state).await;
        let initech = scene.tenant("initech");
        let batch = json!({ "operations": [{ "remove": "acme" }] });
        for (method, target, body) in [
            (Method::PUT, "/v1/tenants/initech?migrate=1", Some(&initech)),
            (Method::DELETE, "/v1/tenants/acme", None),
            (Method::POST, "/v1/batch", Some(&batch)),
            (Method::PUT, "/v1/tenants/acme/domains/forms.acme.test", None),
        ] {
            let refused = scene.call(1, method, target, body).await;
            assert_eq!(refused.status, 409, "{target}: {refused:?}");
            assert!(refused.body["message"].as_str().unwrap().contains("this node is a drill"), "{target}: {refused:?}");
        }
        assert_eq!(registry.integers(state).await, before);
        // What belongs to a tenant is in its database.
        let created =
            scene.call(1, Method::POST, "/v1/tenants/acme/tokens", Some(&json!({ "name": "drill" }))).await;
        assert_eq!(created.status, 201, "{created:?}");
        let ready: Value = operator_get(drill.operator_address(), "/readyz").await.json();
        assert_eq!(ready["parts"]["registry"], "ok", "{ready}");
        assert_eq!(drill.stop(LIMIT).await, 0);
        assert_eq!(registry.integers(state).await, before);
        assert!(!scene.snapshot(1).exists());
        assert_eq!(client(&node, "acme", &token).get("/api/v1/me").send().await.status, 200);
        assert_eq!(node.stop(LIMIT).await, 0);
    }

    async fn a_drill_creates_no_registry(engine: Engine) {
        let scene = Scene::new(engine);
        scene.write(0);
        let config = scene.config(0).display().to_string();
        let output = process::formgate(&["serve", "--drill", "--config", &config]);
        assert_eq!(output.code, 1, "{}", output.stderr);
        assert!(output.stderr.contains("the registry can't be read, and a drill takes no snapshot"), "{}", output.stderr);
        match scene.registry_url.strip_prefix("sqlite:") {
            Some(file) => assert!(!std::path::Path::new(file).exists()),
            None => {
                let registry = Database::connect(&scene.registry_url).await;
                let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
                assert_eq!(registry.integers(tables).await, [0]);
            }
        }
    }
}
