//! What is called served is served: the database of an account can be opened.

use std::net::{SocketAddr, TcpListener};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::connections::{SOON, ask, call_over_tcp, operator_tcp, operator_token};
use super::scene::{Answer, Scene, me};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};

/// The names of the nodes that do not serve a change, and why.
fn waiting_for(answer: &Answer) -> Vec<&Value> {
    answer.body["waiting_for"].as_array().map(|nodes| nodes.iter().collect()).unwrap_or_default()
}

/// Fails unless `check` reports a reason, which has a cause and the remedy.
fn assert_words_of_check(scene: &Scene, reason: &Value) {
    let (cause, remedy) = reason.as_str().and_then(|reason| reason.split_once("; ")).expect("a cause and a remedy");
    let checked = scene.run(&["check"]);
    assert_eq!(checked.code, 1, "{checked:?}");
    assert!(checked.stdout.contains(cause) && checked.stdout.contains(remedy), "{reason}: {}", checked.stdout);
}

on_both_databases! {
    async fn waiting_opens_the_database_on_the_node_that_answers(engine: Engine) {
        let scene = Scene::new(engine);
        let nodes = [scene.start(0), scene.start(1)];
        let put = "/v1/tenants/acme?wait=60";
        for _ in 0..2 {
            let added = scene.call(1, Method::PUT, put, Some(&scene.tenant("acme"))).await;
            assert_eq!(added.status, 202, "{added:?}");
            let [node] = waiting_for(&added)[..] else { panic!("one node answers: {added:?}") };
            assert!(node["name"].as_str().unwrap().ends_with(&nodes[1].id().to_string()), "{node}");
            assert_words_of_check(&scene, &node["reason"]);
        }
        assert_eq!(scene.call(0, Method::GET, "/v1/tenants/acme", None).await.status, 200, "it is written");
        let batch = json!({ "operations": [{ "put": "globex", "tenant": scene.tenant("globex") }] });
        let batch = scene.call(0, Method::POST, "/v1/batch?wait=60", Some(&batch)).await;
        assert_eq!(batch.status, 200, "a batch opens none: {batch:?}");
        let migrated = scene.call(0, Method::PUT, "/v1/tenants/acme?migrate=1&wait=60", Some(&scene.tenant("acme"))).await;
        assert_eq!(migrated.status, 200, "{migrated:?}");
        assert_eq!(scene.call(1, Method::PUT, put, Some(&scene.tenant("acme"))).await.status, 200);
    }

    async fn a_command_that_waits_opens_the_database(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        let tenant = scene.tenant("acme");
        let database = tenant["database"].as_str().unwrap();
        let add = ["tenant", "add", "acme", "--address", "acme.example.test", "--database", database, "--wait", "60"];
        let added = scene.run(&add);
        assert!(added.code == 1 && added.stderr.contains("the change is written"), "{added:?}");
        assert!(added.stderr.contains("formgate migrate --tenant acme"), "{added:?}");
        scene.succeed(&[&add[..], &["--migrate"]].concat());
        scene.succeed(&add);
    }

    async fn nothing_is_added_if_the_database_can_not_give_what_is_asked_for(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        for asked in ["token=First", "link=ana@acme.example", "token=First&link=ana@acme.example&wait=60"] {
            let target = format!("/v1/tenants/acme?{asked}");
            let refused = scene.call(0, Method::PUT, &target, Some(&scene.tenant("acme"))).await;
            assert_eq!(refused.status, 422, "{asked}: {refused:?}");
            let fault = refused.body["errors"]["database"][0].as_str().expect("a fault of the database");
            assert!(fault.contains("formgate migrate --tenant acme"), "{fault}");
            assert_eq!(scene.call(0, Method::GET, "/v1/tenants/acme", None).await.status, 404, "{asked}");
        }
        let token = scene.add(0, "acme").await;
        assert_eq!(me(&node, "acme", &token).await, 200);
    }

    async fn what_fails_after_the_row_was_written_says_so(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        assert_eq!(scene.call(0, Method::DELETE, "/v1/tenants/acme?wait=60", None).await.status, 200);
        let tenant = scene.tenant("acme");
        let database = Database::connect(tenant["database"].as_str().unwrap()).await;
        database
            .execute(match engine {
                Engine::Sqlite => {
                    "CREATE TRIGGER refused BEFORE INSERT ON tokens BEGIN SELECT RAISE(ABORT, 'marker-5d1e'); END"
                }
                _ => "ALTER TABLE tokens ADD CONSTRAINT refused CHECK (name <> 'Second')",
            })
            .await;
        let target = "/v1/tenants/acme?token=Second&wait=60";
        let failed = scene.call(0, Method::PUT, target, Some(&tenant)).await;
        assert_eq!((failed.status.as_u16(), &failed.body["written"]), (503, &json!(true)), "{failed:?}");
        assert!(failed.headers.contains_key("retry-after"), "{failed:?}");
        assert_eq!(scene.call(0, Method::GET, "/v1/tenants/acme", None).await.status, 200, "it is written");
        database
            .execute(match engine {
                Engine::Sqlite => "DROP TRIGGER refused",
                _ => "ALTER TABLE tokens DROP CONSTRAINT refused",
            })
            .await;
        let again = scene.call(0, Method::PUT, target, Some(&tenant)).await;
        assert!(again.status == 200 && again.body["token"]["token"].is_string(), "{again:?}");
    }
}

/// A server that accepts connections and never answers.
fn silent_server() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn databases_that_hang_take_a_share_of_their_caller_and_no_more() {
    let scene = Scene::new(Engine::Sqlite);
    let mut node = scene.start(0);
    let tcp = operator_tcp(&mut node);
    let [hanging, other] = ["hanging", "other"].map(|name| operator_token(&scene, name));
    let (_listener, silent) = silent_server();
    scene.add(0, "acme").await;
    for asked in ["migrate=1", "token=First"] {
        let calls: FuturesUnordered<_> = (0..60)
            .map(|number| {
                let mut tenant = scene.tenant(&format!("t{number}"));
                tenant["database"] = json!(format!("postgres://u:p@{silent}/t{number}?sslmode=disable"));
                call_over_tcp(tcp, hanging.clone(), "PUT", format!("/v1/tenants/t{number}?{asked}"), tenant.to_string())
            })
            .collect();
        let calls = tokio::spawn(calls.collect::<Vec<u16>>());
        let others = async {
            for _ in 0..5 {
                assert_eq!(ask(tcp, &other, "/v1/nodes").await, 200);
                assert_eq!(scene.call(0, Method::GET, "/v1/nodes", None).await.status, 200);
            }
        };
        timeout(SOON, others).await.expect("others are answered");
        let statuses = timeout(SOON, calls).await.expect("each ends").unwrap();
        let refused = statuses.iter().filter(|status| **status == 429).count();
        assert!(refused > 0, "{asked}: more than a share of a caller's calls wait at once: {statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 422).count(), 60 - refused, "{asked}: {statuses:?}");
    }
    assert_eq!(scene.call(0, Method::GET, "/v1/tenants/t1", None).await.status, 404, "nothing was added");
}
