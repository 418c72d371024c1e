//! Files that callers name: a pipe, a device and a file of any size hold up nothing.

use std::fs::File;
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use super::scene::{LIMIT, Scene, me};
use crate::support::fixture::Engine;
use crate::support::folder;

/// More than the operator API has connections.
const CALLERS: usize = 80;

fn with_certificate(scene: &Scene, file: &str) -> Value {
    let mut tenant = scene.tenant("globex");
    tenant["tls"] = json!({ "globex.example.test": { "certificate": file, "private_key": file } });
    tenant
}

#[tokio::test]
async fn what_is_no_regular_file_of_a_sensible_size_is_a_fault_that_names_it() {
    let scene = Scene::new(Engine::Sqlite);
    let mut node = scene.start(0);
    let token = scene.add(0, "acme").await;
    let (pipe, large) = (scene.folder().join("pipe"), scene.folder().join("large"));
    folder::make_pipe(&pipe);
    File::create(&large).and_then(|file| file.set_len(600 * 1024 * 1024)).expect("the folder can be written");
    let [pipe, large] = [pipe, large].map(|path| path.display().to_string());

    let by_pipe = with_certificate(&scene, &pipe);
    let call = || scene.send(0, Method::PUT, "/v1/tenants/globex", by_pipe.to_string(), &[]);
    for answer in join_all((0..CALLERS).map(|_| call())).await.into_iter().flatten() {
        assert_eq!(answer.status, 422, "{answer:?}");
    }
    for (file, fault) in
        [(&*pipe, "not a regular file"), (&*large, "larger than 4 MiB"), ("/dev/zero", "not a regular file")]
    {
        let answer = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&with_certificate(&scene, file))).await;
        for key in ["certificate", "private_key"] {
            let shown = answer.body["errors"][format!("tls.globex.example.test.{key}")].to_string();
            assert!(answer.status == 422 && shown.contains(fault) && shown.contains(file), "{answer:?}");
        }
        let mut tenant = scene.tenant("globex");
        tenant["oidc"] = json!({
            "issuer": "https://login.example.test", "client_id": "formgate", "client_secret": "secret",
            "role_claim": "roles", "admin_values": ["admin"], "ca_file": file,
        });
        let answer = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&tenant)).await;
        let shown = answer.body["errors"]["oidc.ca_file"].to_string();
        assert!(answer.status == 422 && shown.contains(fault) && shown.contains(file), "{answer:?}");
        for parameter in ["sslrootcert", "sslcert", "sslkey"] {
            let mut tenant = scene.tenant("globex");
            tenant["database"] = json!(format!("postgres://u:p@127.0.0.1:1/x?sslmode=require&{parameter}={file}"));
            let answer = scene.call(0, Method::PUT, "/v1/tenants/globex?migrate=1", Some(&tenant)).await;
            let shown = answer.body["errors"]["database"].to_string();
            assert!(answer.status == 422 && shown.contains(fault) && shown.contains(file), "{answer:?}");
        }
    }
    assert_eq!(me(&node, "acme", &token).await, 200);
    assert_eq!(node.stop(LIMIT).await, 0);
}

#[tokio::test]
async fn files_are_read_again_while_the_registry_hangs() {
    let mut server = crate::support::postgres::Postgres::start();
    let mut scene = Scene::new(Engine::Sqlite).gateway("registry", server.new_database());
    let mut node = scene.start(0);
    let token = scene.add(0, "acme").await;
    server.hang(true);
    let text = scene.text("filed");
    scene.write_files(&text, 1);
    let reloaded = node.wait_for_log(LIMIT, |line| line.contains("the configuration is reloaded").then_some(()));
    assert!(reloaded.is_some(), "{}", node.log());
    assert_eq!(me(&node, "acme", &token).await, 200);
    server.hang(false);
    tokio::time::timeout(Duration::from_secs(60), async { while me(&node, "filed", "x").await != 401 {} })
        .await
        .expect("the tenant of the file is served");
}
