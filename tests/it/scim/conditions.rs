//! `ETag`, `If-Match` and `If-None-Match`.

use serde_json::{Value, json};

use super::{Scene, patch_of, refusal};
use crate::support::answer::Answer;
use crate::support::fixture::on_both_databases;

async fn with(scene: &Scene, method: &str, path: &str, (name, value): (&str, &str), body: &Value) -> Answer {
    let call = scene.directory.method(method.parse().unwrap(), &format!("/scim/v2{path}"));
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
    call.header(name, value).body(body).send().await
}

on_both_databases! {
    async fn a_write_of_another_version_than_the_client_read_is_refused(engine: Engine) {
        let scene = Scene::start(engine);
        let (ana, ben) = (scene.user("ana@example.com").await, scene.user("ben@example.com").await);
        let group = scene.group("Sales", &[&ana]).await;
        let rename = |value: &str| patch_of(&json!([{"op": "replace", "path": "displayName", "value": value}]));
        for path in [format!("/Users/{ana}"), format!("/Groups/{group}")] {
            let old = scene.get(&path).await.header("etag").unwrap().to_owned();
            let changed = with(&scene, "PATCH", &path, ("if-match", &old), &rename("One")).await;
            assert!(changed.status.is_success(), "{changed:?}");
            let new = changed.header("etag").unwrap().to_owned();
            assert_ne!(old, new);
            for method in ["PATCH", "PUT", "DELETE"] {
                let body = json!({"userName": "ana@example.com", "displayName": "Two", "Operations": []});
                assert_eq!(refusal(&with(&scene, method, &path, ("if-match", &old), &body).await).0, 412, "{method} {path}");
            }
            assert!(with(&scene, "PATCH", &path, ("if-match", &format!("\"x\", {new}")), &rename("One")).await.status.is_success());
            assert!(with(&scene, "PATCH", &path, ("if-match", "*"), &rename("One")).await.status.is_success());
            assert_eq!(scene.get(&path).await.header("etag"), Some(&*new), "nothing was changed");
        }
        let path = format!("/Groups/{group}");
        let before = scene.get(&path).await.header("etag").unwrap().to_owned();
        scene.patch(&path, &json!([{"op": "replace", "path": "members", "value": ben}])).await;
        let swapped = with(&scene, "DELETE", &path, ("if-match", &before), &Value::Null).await;
        assert_eq!(refusal(&swapped).0, 412, "as many members, but others");
        let version = scene.get(&path).await.header("etag").unwrap().to_owned();
        let operations = patch_of(&json!([{"op": "add", "path": "members", "value": [{"value": ana}]}, {"op": "remove", "path": "members", "value": [{"value": ben}]}]));
        let patched = with(&scene, "PATCH", &path, ("if-match", &version), &operations).await;
        let shown = scene.read(&path).await;
        assert_eq!((patched.status.as_u16(), patched.header("etag")), (204, shown["meta"]["version"].as_str()));
        assert_eq!(with(&scene, "DELETE", &path, ("if-match", "*"), &Value::Null).await.status, 204);
    }

    async fn a_version_that_the_client_has_is_not_sent_again(engine: Engine) {
        let scene = Scene::start(engine);
        let ana = scene.user("ana@example.com").await;
        let group = scene.group("Sales", &[&ana]).await;
        for path in [format!("/Users/{ana}"), format!("/Groups/{group}"), format!("/Groups/{group}?excludedAttributes=members")] {
            let version = scene.get(&path).await.header("etag").unwrap().to_owned();
            let same = with(&scene, "GET", &path, ("if-none-match", &version), &Value::Null).await;
            assert_eq!((same.status.as_u16(), same.header("etag"), same.body.len()), (304, Some(&*version), 0));
            assert_eq!(with(&scene, "GET", &path, ("if-none-match", "W/\"other\""), &Value::Null).await.status, 200);
        }
    }
}
