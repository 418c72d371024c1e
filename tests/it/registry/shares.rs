//! Nodes divide the tenants of a registry between them, and deliver webhooks whichever of them goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use formgate::store::Registry;
use formgate::store::registry::SubscribedTenant;
use http::Method;
use serde_json::{Value, json};
use toml::Table;

use super::scene::{LIMIT, Scene, client};
use crate::support::certificate;
use crate::support::client::{operator_count, operator_get};
use crate::support::database::Database;
use crate::support::dns::{DnsServer, Lookup};
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::process::Node;
use crate::support::receiver::{Act, HOST, Received, Receiver};

const SLUGS: [&str; 6] = ["acme", "bolt", "core", "dune", "echo", "fern"];

/// Nodes that find nothing by looking at each tenant now and then.
async fn scene(engine: Engine) -> (Scene, DnsServer) {
    let dns = DnsServer::start().await;
    dns.answer(HOST, &[Lookup::of(&["127.0.0.1"])]);
    let scene = Scene::new(engine);
    let mut webhooks = Table::new();
    webhooks.insert("ca_file".into(), certificate::authority(scene.folder()).display().to_string().into());
    webhooks.insert("dns_servers".into(), vec![dns.address.to_string()].into());
    webhooks.insert("allow_targets".into(), vec!["127.0.0.0/8"].into());
    webhooks.insert("sweep_seconds".into(), 3600.into());
    (scene.gateway("webhooks", webhooks), dns)
}

async fn share(node: &mut Node) -> Value {
    operator_get(node.operator_address(), "/readyz").await.json()["share"].clone()
}

/// Waits until each tenant has one keeper, and one deputy unless there is only one node.
async fn wait_until_divided(nodes: &mut [Node], tenants: u64) {
    let (count, began) = (nodes.len() as u64, Instant::now());
    loop {
        let mut shares = Vec::new();
        for node in nodes.iter_mut() {
            shares.push(share(node).await);
        }
        let sum = |of: &str| shares.iter().map(|share| share[of].as_u64().unwrap()).sum::<u64>();
        let deputies = if count == 1 { 0 } else { tenants };
        if shares.iter().all(|share| share["nodes"] == count) && (sum("keeper"), sum("deputy")) == (tenants, deputies) {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{shares:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What a tenant's own program does.
struct Product {
    database: Database,
    engine: Engine,
}

impl Product {
    async fn of(scene: &Scene, engine: Engine, slug: &str) -> Self {
        let database = Database::connect(scene.tenant(slug)["database"].as_str().unwrap()).await;
        let form = "INSERT INTO forms (id, name, graduated, parent_id) VALUES (1, 'Leave', FALSE, NULL)";
        database.execute(form).await;
        Self { database, engine }
    }

    /// Waits until no node is writing about what it delivered: one that is stopped then would keep the others from writing.
    async fn wait_until_written(&self) {
        let began = Instant::now();
        while self.database.integers("SELECT count(*) FROM subscriptions WHERE leased_by IS NOT NULL").await != [0] {
            assert!(began.elapsed() < LIMIT, "a lease does not end");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn insert(&self, id: i64) {
        let at = match self.engine {
            Engine::Sqlite => format!("{}", (1_772_366_400 + id) * 1_000_000),
            _ => format!("to_timestamp({})", 1_772_366_400 + id),
        };
        let columns = "(id, form_id, status, created_at, updated_at, draft)";
        let insert = format!("INSERT INTO submissions {columns} VALUES ({id}, 1, 'pending', {at}, {at}, FALSE)");
        self.database.execute(&insert).await;
    }
}

async fn subscribe(node: &Node, slug: &str, token: &str, receiver: &Receiver) {
    let body = json!({ "target_url": receiver.url("/hook"), "event": "submission.created" });
    let answer = client(node, slug, token).post("/api/v1/subscribe").json(&body).send().await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

fn body(request: &Received) -> Value {
    serde_json::from_slice(&request.body).expect("JSON")
}

/// Waits until every tenant's receiver has these submissions, in this order. The one in flight when a node died may come twice.
async fn wait_until_received(receiver: &Receiver, submissions: &[&str]) {
    let began = Instant::now();
    loop {
        let mut by_tenant: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for request in receiver.requests() {
            let event = body(&request);
            let (account, id) = (event["account"].as_str().unwrap(), event["data"]["id"].as_str().unwrap());
            if seen.insert(event["id"].to_string()) {
                by_tenant.entry(account.to_owned()).or_default().push(id.to_owned());
            }
        }
        if by_tenant.len() == SLUGS.len() && by_tenant.values().all(|ids| ids == submissions) {
            return;
        }
        assert!(began.elapsed() < 2 * LIMIT, "{by_tenant:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

on_both_databases! {
    async fn each_tenant_has_one_keeper_and_one_deputy_whichever_nodes_live(engine: Engine) {
        let (scene, _dns) = scene(engine).await;
        let mut nodes = vec![scene.start(0)];
        for slug in SLUGS {
            scene.add(0, slug).await;
        }
        let tenants = SLUGS.len() as u64;
        wait_until_divided(&mut nodes, tenants).await;
        nodes.extend([scene.start(1), scene.start(2)]);
        wait_until_divided(&mut nodes, tenants).await;
        for node in &mut nodes {
            let shown = share(node).await;
            for duty in ["keeper", "deputy"] {
                let series = format!("formgate_tenants_looked_after{{as=\"{duty}\"}}");
                assert_eq!(operator_count(node.operator_address(), &series).await, shown[duty].as_u64().unwrap());
            }
        }
        nodes[1].kill();
        nodes.remove(1);
        wait_until_divided(&mut nodes, tenants).await;
        nodes[0].signal("STOP");
        wait_until_divided(&mut nodes[1..], tenants).await;
        nodes[0].signal("CONT");
        wait_until_divided(&mut nodes, tenants).await;
        assert_eq!(nodes[0].stop(LIMIT).await, 0);
        wait_until_divided(&mut nodes[1..], tenants).await;
    }

    async fn webhooks_arrive_in_order_whichever_node_dies_or_hangs(engine: Engine) {
        let (scene, _dns) = scene(engine).await;
        let receiver = Receiver::always(Act::status(204)).await;
        let mut nodes = vec![scene.start(0)];
        let (mut tokens, mut products) = (Vec::new(), Vec::new());
        for slug in SLUGS {
            tokens.push(scene.add(0, slug).await);
            products.push(Product::of(&scene, engine, slug).await);
        }
        nodes.extend([scene.start(1), scene.start(2)]);
        wait_until_divided(&mut nodes, SLUGS.len() as u64).await;
        // Through a node that looks after some of them only.
        for (slug, token) in SLUGS.iter().zip(&tokens) {
            subscribe(&nodes[0], slug, token, &receiver).await;
        }
        let insert = async |id: i64| {
            for product in &products {
                product.insert(id).await;
            }
        };
        insert(1).await;
        wait_until_received(&receiver, &["sub_1"]).await;
        nodes[1].kill();
        insert(2).await;
        wait_until_received(&receiver, &["sub_1", "sub_2"]).await;
        for product in &products {
            product.wait_until_written().await;
        }
        nodes[2].signal("STOP");
        insert(3).await;
        wait_until_received(&receiver, &["sub_1", "sub_2", "sub_3"]).await;
        nodes[2].signal("CONT");
        insert(4).await;
        wait_until_received(&receiver, &["sub_1", "sub_2", "sub_3", "sub_4"]).await;
        assert_eq!(nodes[0].stop(LIMIT).await, 0);
        insert(5).await;
        wait_until_received(&receiver, &["sub_1", "sub_2", "sub_3", "sub_4", "sub_5"]).await;
    }

    async fn a_subscription_is_known_before_its_caller_has_the_answer(engine: Engine) {
        let (scene, _dns) = scene(engine).await;
        let receiver = Receiver::always(Act::status(204)).await;
        let mut node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let product = Product::of(&scene, engine, "acme").await;
        let registry = Database::connect(&scene.registry_url).await;
        let subscribed = "SELECT count(*) FROM registry_subscribed WHERE slug = 'acme' AND is_subscribed";
        assert_eq!(registry.integers(subscribed).await, [0]);
        subscribe(&node, "acme", &token, &receiver).await;
        node.kill();
        assert_eq!(registry.integers(subscribed).await, [1]);
        product.insert(1).await;
        let _other = scene.start(1);
        let began = Instant::now();
        while receiver.requests().is_empty() {
            assert!(began.elapsed() < LIMIT, "nothing arrived");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn that_there_is_no_subscription_is_not_written_while_one_may_be_created(engine: Engine) {
        let scene = Scene::new(engine);
        let location = formgate::store::DatabaseLocation::parse(&scene.registry_url, scene.folder()).unwrap();
        let registry = Registry::open(&location).await.unwrap();
        let database = Database::connect(&scene.registry_url).await;
        let write = async |place: &str, is_subscribed: bool| {
            let tenant = SubscribedTenant { slug: "acme".to_owned(), place: place.to_owned(), is_subscribed };
            registry.write_subscribed(&[tenant]).await.unwrap();
            let rows = registry.subscribed_after(0, 10).await.unwrap();
            (rows[0].0, rows[0].1.is_subscribed)
        };
        assert_eq!(write("a", false).await, (1, false));
        assert_eq!(write("a", true).await, (2, true));
        assert_eq!(write("a", false).await, (2, true), "it may be created at this moment");
        assert_eq!(write("a", true).await, (3, true), "everyone looks again");
        for hours in [-1, 1] {
            write("a", true).await;
            database.execute(&format!("UPDATE registry_subscribed SET changed_at = {}", database.in_hours(hours))).await;
            assert!(!write("a", false).await.1, "{hours}");
        }
        write("a", true).await;
        assert!(!write("b", false).await.1, "it has another database now");
        registry.close().await;
    }
}

#[tokio::test]
async fn a_tenant_in_a_file_belongs_to_a_node_that_has_the_file() {
    let (scene, _dns) = scene(Engine::Sqlite).await;
    let places = ["one", "two"].map(|name| scene.folder().join(name));
    let environment = |node: usize| {
        let place = &places[node];
        std::fs::create_dir_all(place).unwrap();
        let of = |slug: &str| {
            (format!("FORMGATE_TENANT_{}", slug.to_uppercase()), format!("sqlite:{}", place.join(slug).display()))
        };
        SLUGS.map(of)
    };
    let start = |node: usize| {
        let environment = environment(node);
        let environment = environment.each_ref().map(|(name, value)| (name.as_str(), value.as_str()));
        scene.start_in(node, &environment)
    };
    let mut nodes = vec![start(0)];
    for slug in SLUGS {
        let mut tenant = scene.tenant(slug);
        tenant["database"] = format!("${{FORMGATE_TENANT_{}}}", slug.to_uppercase()).into();
        let answer = scene.call(0, Method::PUT, &format!("/v1/tenants/{slug}?migrate=1"), Some(&tenant)).await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    nodes.push(start(1));
    let began = Instant::now();
    loop {
        let shares = [share(&mut nodes[0]).await, share(&mut nodes[1]).await];
        let counts = shares
            .each_ref()
            .map(|share| (share["nodes"].as_u64(), share["keeper"].as_u64(), share["deputy"].as_u64()));
        if counts == [(Some(2), Some(SLUGS.len() as u64), Some(0)), (Some(2), Some(0), Some(0))] {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{shares:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
