//! A registry that was restored: whoever has read it before notices, although later changes took the same revisions.

use std::path::Path;
use std::time::Duration;

use formgate::store::registry::{Beat, RegistryMark};
use formgate::store::{DatabaseLocation, Registry};
use http::Method;
use jiff::Timestamp;
use serde_json::json;

use super::scene::{Answer, Scene, me, me_becomes};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::postgres::Postgres;
use crate::support::registry_backup::{back_up, restore};

#[tokio::test]
async fn a_node_that_started_from_its_snapshot_notices_that_the_registry_was_restored_and_has_passed_it() {
    let mut server = Postgres::start();
    let url = server.new_database();
    let scene = Scene::new(Engine::Sqlite).gateway("registry", url.clone());
    let (first, second) = (scene.start(0), scene.start(1));
    let kept = scene.add(0, "kept").await;
    let registry = Database::connect(&url).await;
    back_up(&registry).await;
    let lost = scene.add(0, "lost").await;
    scene.keeps(1, 2).await;
    drop(second);
    restore(&registry).await;
    me_becomes(&first, "lost", &lost, 404).await;
    let mut again = Vec::new();
    for slug in ["x", "y", "z"] {
        let answer = scene
            .call(0, Method::PUT, &format!("/v1/tenants/{slug}?migrate=1&wait=60&token=x"), Some(&scene.tenant(slug)))
            .await;
        assert_eq!(answer.status, 201, "{answer:?}");
        again.push((slug, answer.body["token"]["token"].as_str().expect("a token").to_owned()));
    }
    registry.close().await;
    server.crash();
    let second = scene.start(1);
    assert_eq!(me(&second, "lost", &lost).await, 200, "from the snapshot");
    server.recover();
    me_becomes(&second, "lost", &lost, 404).await;
    assert_eq!(me(&second, "kept", &kept).await, 200);
    for (slug, token) in &again {
        me_becomes(&second, slug, token, 200).await;
    }
    scene.keeps(1, 4).await;
}

on_both_databases! {
    async fn a_follower_of_changes_learns_that_the_registry_has_another_history(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        scene.add(0, "kept").await;
        let read = async |after: &str| scene.call(0, Method::GET, &format!("/v1/changes?after={after}"), None).await;
        let next = |answer: &Answer| answer.body["meta"]["next"].as_str().expect("a mark").to_owned();
        let before = next(&read("0").await);
        let registry = Database::connect(&scene.registry_url).await;
        back_up(&registry).await;
        let lost = scene.add(0, "lost").await;
        let after = next(&read(&before).await);
        assert_eq!(read(&after).await.body["data"], json!([]));
        restore(&registry).await;
        registry.close().await;
        me_becomes(&node, "lost", &lost, 404).await;
        for stage in ["behind", "past"] {
            for old in [&*after, after.split('.').next().expect("a revision")] {
                let answer = read(old).await;
                let is_plain = !old.contains('.');
                if stage == "past" && is_plain {
                    assert_eq!(answer.status, 200, "a revision alone does not tell: {answer:?}");
                    continue;
                }
                assert_eq!((answer.status.as_u16(), &answer.body["reason"]), (410, &json!("reset")), "{stage} {old}: {answer:?}");
            }
            let since = read(&before).await;
            assert_eq!(since.status, 200, "what was read before the backup is still so: {since:?}");
            for slug in ["x", "y"] {
                let put = scene.call(0, Method::PUT, &format!("/v1/tenants/{slug}?migrate=1&wait=60"), Some(&scene.tenant(slug))).await;
                assert!(put.status == 201 || put.status == 200, "{put:?}");
            }
        }
        let pages = read("0").await.body["data"].as_array().expect("changes").len();
        let mut seen = 0;
        let mut mark = "0".to_owned();
        loop {
            let page = read(&format!("{mark}&limit=1")).await;
            seen += page.body["data"].as_array().expect("changes").len();
            mark = next(&page);
            if page.body["meta"]["has_more"] == false {
                break;
            }
        }
        assert_eq!((seen, pages), (3, 3));
        for wrong in ["1.", "x.0000000000000000", "1.00"] {
            let answer = read(wrong).await;
            assert!(answer.status == 422 && answer.body["errors"]["after"].is_array(), "{wrong}: {answer:?}");
        }
    }

    async fn a_node_of_another_history_has_none_of_the_revisions(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        let location = DatabaseLocation::parse(&scene.registry_url, Path::new("")).expect("an address");
        let registry = Registry::open(&location).await.expect("it is there");
        let mut beat = Beat {
            id: "other".to_owned(),
            name: "other".to_owned(),
            version: "1",
            mark: registry.mark(1).await.unwrap(),
            refused: Vec::new(),
            reasons: Vec::new(),
            refused_count: 0,
            beat: "1".to_owned(),
            seal_keys: Vec::new(),
            closing: Vec::new(),
            started_at: Timestamp::now(),
        };
        registry.write_beat(&beat).await.unwrap();
        assert!(registry.wait_for_nodes(1, &["acme"], Duration::ZERO, |_| false).await.unwrap().is_empty());
        // It has read a registry that was restored since.
        beat.mark = RegistryMark { revision: 1_000, stamp: 1 };
        registry.write_beat(&beat).await.unwrap();
        let behind = registry.wait_for_nodes(1, &["acme"], Duration::ZERO, |_| false).await.unwrap();
        assert!(behind.len() == 1 && behind[0].id == "other" && behind[0].reason.contains("revision 0"), "{behind:?}");
        registry.close().await;
    }
}
