//! Two tenants never share a SQLite file, whatever it is called.

use std::fs;
use std::os::unix::fs::symlink;

use http::Method;
use serde_json::json;

use super::scene::{Answer, Scene, me};
use crate::support::fixture::Engine;
use crate::support::folder;

/// Adds a tenant with a database in the folder of the scene.
async fn put(scene: &Scene, slug: &str, path: &str, migrate: bool) -> Answer {
    let mut tenant = scene.tenant(slug);
    tenant["database"] = json!(format!("sqlite:{path}"));
    let target = format!("/v1/tenants/{slug}{}", if migrate { "?migrate=1&token=x&wait=60" } else { "" });
    scene.call(0, Method::PUT, &target, Some(&tenant)).await
}

#[tokio::test]
async fn a_file_of_another_tenant_or_of_the_gateway_is_refused_under_every_name() {
    let scene = Scene::new(Engine::Sqlite);
    let node = scene.start(0);
    let token = put(&scene, "acme", "acme.db", true).await.body["token"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(me(&node, "acme", &token).await, 200);
    assert_eq!(put(&scene, "initech", "later/initech.db", false).await.status, 201, "its folder does not exist yet");
    let at = |name: &str| scene.folder().join(name);
    let registry = scene.registry_url.strip_prefix("sqlite:").expect("a file").to_owned();
    fs::hard_link(at("acme.db"), at("hard.db")).unwrap();
    fs::hard_link(at("acme.db-wal"), at("log.db")).unwrap();
    fs::hard_link(&registry, at("hard-registry.db")).unwrap();
    fs::hard_link(format!("{registry}-wal"), at("log-of-registry.db")).unwrap();
    symlink(&registry, at("link-to-registry.db")).unwrap();
    symlink(scene.snapshot(0), at("link-to-snapshot.db")).unwrap();
    symlink("later/initech.db", at("link-to-later.db")).unwrap();
    symlink("acme.db", at("link.db")).unwrap();
    symlink("link.db", at("chain.db")).unwrap();
    symlink("acme.db-wal", at("link-to-log.db")).unwrap();
    symlink(".", at("folder")).unwrap();
    folder::make_pipe(&at("pipe.db"));
    for (path, status) in [
        ("link.db", 409),
        ("chain.db", 409),
        ("folder/folder/acme.db", 409),
        ("none/../acme.db", 409),
        ("/proc/self/cwd/../../../../../../../..", 409),
        ("hard.db", 409),
        ("log.db", 409),
        ("link-to-later.db", 409),
        ("folder/later/initech.db", 409),
        ("later/none/../initech.db", 409),
        ("acme.db-wal", 422),
        ("acme.db-shm", 422),
        ("acme.db-journal", 422),
        ("none/../acme.db-wal", 422),
        ("link-to-log.db", 422),
        ("link-to-registry.db", 422),
        ("hard-registry.db", 422),
        ("log-of-registry.db", 422),
        ("link-to-snapshot.db", 422),
        ("none/../0-snapshot.db", 422),
        ("pipe.db", 422),
        ("folder", 422),
    ] {
        let path =
            if path.starts_with('/') { format!("{path}{}/acme.db", scene.folder().display()) } else { path.into() };
        let answer = put(&scene, "evil", &path, true).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(answer.body["errors"]["database"].is_array(), "{path}: {answer:?}");
        assert_eq!(me(&node, "evil", &token).await, 404, "{path}");
    }
    let mut both = [scene.tenant("one"), scene.tenant("two")];
    fs::write(at("one.db"), "").unwrap();
    fs::hard_link(at("one.db"), at("two.db")).unwrap();
    (both[0]["database"], both[1]["database"]) = (json!("sqlite:one.db"), json!("sqlite:two.db"));
    let [one, two] = both;
    let operations = json!({ "operations": [{ "put": "one", "tenant": one }, { "put": "two", "tenant": two }] });
    let batch = scene.call(0, Method::POST, "/v1/batch", Some(&operations)).await;
    assert!(batch.status == 409 && batch.body["errors"]["operations.1.database"].is_array(), "{batch:?}");
    let hard = format!("sqlite:{}", at("hard.db").display());
    let added = scene.run(&["tenant", "add", "evil", "--address", "evil.example.test", "--database", &hard]);
    assert!(added.code == 1 && added.stderr.contains("acme"), "{added:?}");
    let again = put(&scene, "acme", "acme.db", true).await;
    assert_eq!(again.status, 200, "its own file is no other one: {again:?}");
}
