//! A group belongs to who writes it.

use serde_json::{Value, json};

use super::{Scene, patch_of, refusal};
use crate::support::fixture::on_both_databases;

const CONFLICT: &str = "A directory maintains the group through SCIM; it can only be changed there";

on_both_databases! {
    async fn the_api_only_reads_a_group_of_scim(engine: Engine) {
        let scene = Scene::start(engine);
        let ana = scene.user("ana@example.com").await;
        let body = json!({"displayName": "Sales", "externalId": "x1", "members": [{"value": ana}]});
        let group = scene.create("/Groups", &body).await["id"].as_str().unwrap().to_owned();
        let plain = scene.group("Plain", &[&ana]).await;
        let caller = scene.acme.caller();
        for body in [
            json!({"name": "Sales", "external_id": "x1", "members": []}),
            json!({"name": "Renamed", "external_id": "x1"}),
            json!({"name": "Sales", "members": []}),
            json!({"name": "Plain", "members": [{"email": "ben@example.com"}]}),
            json!({"name": "Plain", "external_id": "x2"}),
        ] {
            for query in ["", "?dry_run=1", "?report=members"] {
                let answer = caller.put(&format!("/api/v1/group{query}")).json(&body).send().await;
                assert_eq!((answer.status.as_u16(), &answer.json()["message"]), (409, &json!(CONFLICT)), "{body} {query}");
            }
        }
        for id in [&group, &plain] {
            let answer = caller.delete(&format!("/api/v1/group/{id}")).send().await;
            assert_eq!((answer.status.as_u16(), &answer.json()["message"]), (409, &json!(CONFLICT)));
            assert_eq!(scene.members(id).await, [&*ana]);
        }
        assert_eq!(scene.read("/Users").await["totalResults"], 1, "no user was created");
        let other = caller.put("/api/v1/group").json(&json!({"name": "Sales", "external_id": "x3"})).send().await;
        assert_eq!((other.status.as_u16(), &other.json()["data"]["managed_by"]), (201, &json!("api")));
    }

    async fn scim_reads_all_groups_and_writes_its_own(engine: Engine) {
        let scene = Scene::start(engine);
        let ana = scene.user("ana@example.com").await;
        scene.database().await.execute("INSERT INTO groups (id, name) VALUES (4, 'Product')").await;
        let put = json!({"name": "Api", "members": [{"email": "ana@example.com"}]});
        let api = scene.acme.caller().put("/api/v1/group").json(&put).send().await.json();
        let own = scene.group("Own", &[&ana]).await;
        let all = scene.read("/Groups?sortBy=displayName").await;
        assert_eq!(super::listed(&all, "displayName"), ["All Users", "Api", "Own", "Product"]);
        for id in ["grp_4", api["data"]["id"].as_str().unwrap(), "grp_9007199254740991"] {
            let path = format!("/Groups/{id}");
            let before = scene.read(&path).await;
            let operations = patch_of(&json!([{"op": "remove", "path": "members"}]));
            for answer in [
                scene.send("PATCH", &path, &operations).await,
                scene.send("PUT", &path, &json!({"displayName": "Mine", "members": []})).await,
                scene.directory.delete(&format!("/scim/v2{path}")).send().await,
            ] {
                assert_eq!(refusal(&answer), (409, String::new()), "{id}");
            }
            assert_eq!(scene.read(&path).await, before);
        }
        let listed = scene.acme.caller().get("/api/v1/group").send().await.json();
        let managers: Vec<_> = listed["data"].as_array().unwrap().iter().map(|group| group["managed_by"].clone()).collect();
        assert_eq!(managers, [json!(null), json!("api"), json!("scim"), json!(null)]);
        assert_eq!(scene.members(&own).await, [ana]);
    }

    async fn a_group_is_given_to_scim_and_taken_back(engine: Engine) {
        let scene = Scene::start(engine);
        let ana = scene.user("ana@example.com").await;
        scene.database().await.execute("INSERT INTO groups (id, name) VALUES (4, 'Sales')").await;
        let caller = scene.acme.caller();
        let give = async |id: &str, to: &Value| {
            let answer = caller.post(&format!("/api/v1/group/{id}/managed_by")).json(&json!({ "managed_by": to })).send().await;
            assert_eq!(answer.status, 200, "{answer:?}");
            let shown = caller.get(&format!("/api/v1/group/{id}")).send().await.json();
            let group = answer.json()["data"].clone();
            assert_eq!((&group["managed_by"], &group["managed"]), (to, &json!(!to.is_null())));
            assert_eq!((&shown["data"]["managed_by"], &shown["data"]["members_count"]), (to, &group["members_count"]));
        };
        let add = json!([{"op": "add", "path": "members", "value": ana}]);
        let put = json!({"name": "Sales", "members": [{"email": "ana@example.com"}]});
        for (to, of_scim, of_api) in [
            (json!("scim"), 204, 409),
            (json!("scim"), 204, 409),
            (json!("api"), 409, 200),
            (json!("scim"), 204, 409),
            (json!(null), 409, 200),
        ] {
            give("grp_4", &to).await;
            assert_eq!(scene.send("PATCH", "/Groups/grp_4", &patch_of(&add)).await.status, of_scim, "{to}");
            assert_eq!(caller.put("/api/v1/group?dry_run=1").json(&put).send().await.status, of_api, "{to}");
        }
        assert_eq!(scene.members("grp_4").await, [ana], "its members do not change");
        for (id, body, status) in [
            ("grp_4", json!({}), 422),
            ("grp_4", json!({"managed_by": "entra"}), 422),
            ("grp_4", json!({"managed_by": 7}), 422),
            ("grp_9007199254740991", json!({"managed_by": "scim"}), 422),
            ("grp_5", json!({"managed_by": "scim"}), 404),
            ("x", json!({}), 404),
        ] {
            let answer = caller.post(&format!("/api/v1/group/{id}/managed_by")).json(&body).send().await;
            assert_eq!(answer.status, status, "{id} {body}");
            if status == 422 {
                assert!(answer.json()["errors"]["managed_by"].is_array(), "{answer:?}");
            }
        }
        let directory = scene.directory.post("/api/v1/group/grp_4/managed_by").json(&json!({"managed_by": "scim"})).send().await;
        assert_eq!(directory.status, 403, "a directory takes no group by itself");
    }

    async fn a_change_of_scim_is_a_sync_that_can_be_undone(engine: Engine) {
        let scene = Scene::start(engine);
        let (ana, ben) = (scene.user("ana@example.com").await, scene.user("ben@example.com").await);
        let group = scene.group("Sales", &[&ana]).await;
        let operations = json!([{"op": "add", "path": "members", "value": ben}, {"op": "remove", "path": "members", "value": ana}]);
        scene.patch(&format!("/Groups/{group}"), &operations).await;
        scene.patch(&format!("/Groups/{group}"), &operations).await;
        let kept = "SELECT actor || ' ' || group_name || ' ' || attached || ' ' || detached FROM group_syncs ORDER BY id";
        let [ana, ben] = [&ana, &ben].map(|user| user.strip_prefix("usr_").unwrap());
        let database = scene.database().await;
        let expected = [format!("Directory Sales [{ana}] []"), format!("Directory Sales [{ben}] [{ana}]")];
        assert_eq!(database.texts(kept).await, expected, "the second time, nothing changed");
    }
}
