//! `/Groups`: created, read, changed by deltas and deleted.

use serde_json::{Value, json};

use super::{GROUP, Scene, owned, patch_of, refusal};
use crate::support::fixture::{Engine, on_both_databases};

/// The header that names skipped members.
const SKIPPED: &str = "formgate-skipped-members";

on_both_databases! {
    async fn a_group_reads_as_it_was_written(engine: Engine) {
        let scene = Scene::start(engine);
        let (ana, ben) = (scene.user("ana@example.com").await, scene.user("ben@example.com").await);
        scene.patch(&format!("/Users/{ben}"), &json!([{"op": "add", "path": "displayName", "value": "Ben"}])).await;
        let body = json!({"schemas": [GROUP], "displayName": "Führung", "externalId": "g-1", "members": [{"value": ben}, {"value": ana}, {"value": ana}]});
        let answer = scene.send("POST", "/Groups", &body).await;
        assert_eq!((answer.status.as_u16(), answer.header(SKIPPED)), (201, None));
        let mut group = answer.json();
        let id = group["id"].as_str().unwrap().to_owned();
        assert_eq!((answer.header("location"), answer.header("etag")), (group["meta"]["location"].as_str(), group["meta"]["version"].as_str()));
        assert_eq!(scene.read(&format!("/Groups/{id}")).await, group);
        group.as_object_mut().unwrap().remove("meta");
        let url = |id: &str| scene.url(&format!("/Users/{id}"));
        let members = json!([{"value": ana, "$ref": url(&ana)}, {"value": ben, "$ref": url(&ben), "display": "Ben"}]);
        assert_eq!(group, json!({"schemas": [GROUP], "id": id, "externalId": "g-1", "displayName": "Führung", "members": members}));
        let of_api = scene.acme.caller().get(&format!("/api/v1/group/{id}")).send().await.json();
        assert_eq!((&of_api["data"]["managed"], &of_api["data"]["managed_by"]), (&json!(true), &json!("scim")));
    }

    async fn members_come_and_go_in_every_spelling_of_directories(engine: Engine) {
        let scene = Scene::start(engine);
        let mut users = Vec::new();
        for number in 0..4 {
            users.push(scene.user(&format!("u{number}@example.com")).await);
        }
        let [a, b, c, d] = &users[..] else { unreachable!() };
        let group = scene.group("Sales", &[a]).await;
        let path = format!("/Groups/{group}");
        for (operations, members) in [
            (json!([{"op": "Add", "path": "members", "value": [{"value": b}, {"value": c}]}]), vec![a, b, c]),
            (json!([{"op": "Add", "path": "members", "value": [{"value": b}]}]), vec![a, b, c]),
            (json!([{"op": "Remove", "path": "members", "value": [{"value": a}]}]), vec![b, c]),
            (json!([{"op": "remove", "path": format!("members[value eq \"{b}\"]")}]), vec![c]),
            (json!([{"op": "add", "value": {"members": [{"value": a, "display": "A"}]}}]), vec![a, c]),
            (json!([{"op": "add", "path": "members", "value": d}]), vec![a, c, d]),
            (json!([{"op": "remove", "path": "members", "value": []}]), vec![a, c, d]),
            (json!([{"op": "add", "path": "members", "value": []}]), vec![a, c, d]),
            (json!([{"op": "replace", "path": "members", "value": [{"value": a}, {"value": b}]}]), vec![a, b]),
            (json!([{"op": "remove", "path": "members[value eq \"usr_999\"]"}]), vec![a, b]),
            (json!([{"op": "remove", "path": format!("members[value eq \"{a}\"]")}, {"op": "add", "path": "members", "value": a}]), vec![a, b]),
            (json!([{"op": "add", "path": "members", "value": c}, {"op": "remove", "path": "members", "value": c}]), vec![a, b]),
            (json!([{"op": "remove", "path": "members"}]), vec![]),
            (json!([{"op": "replace", "value": {"members": [{"value": d}]}}]), vec![d]),
        ] {
            let answer = scene.patch(&path, &operations).await;
            assert_eq!((answer.status.as_u16(), answer.header(SKIPPED)), (204, None), "{operations}");
            assert_eq!(scene.members(&group).await, owned(members), "{operations}");
        }
    }

    async fn unknown_members_are_skipped_and_named_and_the_others_written(engine: Engine) {
        let scene = Scene::start(engine);
        let ana = scene.user("ana@example.com").await;
        let group = scene.group("Sales", &[]).await;
        let path = format!("/Groups/{group}");
        let operations = json!([{"op": "add", "path": "members", "value": [{"value": "usr_77"}, {"value": ana}, {"value": "grp_5"}, {"value": "ö, x"}]}]);
        let answer = scene.patch(&path, &operations).await;
        assert_eq!((answer.status.as_u16(), answer.header(SKIPPED)), (204, Some("grp_5, ???x, usr_77")));
        assert_eq!(scene.members(&group).await, [&*ana]);
        let many: Vec<_> = (1_000..1_200).map(|number| json!({"value": format!("usr_{number}")})).collect();
        let answer = scene.send("PUT", &path, &json!({"displayName": "Sales", "members": many})).await;
        let header = answer.header(SKIPPED).unwrap();
        assert!(answer.status == 200 && header.starts_with("usr_1000, ") && header.ends_with(", and 150 more"), "{header}");
        assert_eq!(scene.members(&group).await, [""; 0]);
    }

    async fn a_faulty_request_changes_nothing(engine: Engine) {
        let scene = Scene::start(engine);
        let (ana, ben) = (scene.user("ana@example.com").await, scene.user("ben@example.com").await);
        let group = scene.group("Sales", &[&ana]).await;
        let before = scene.read(&format!("/Groups/{group}")).await;
        for (last, refused) in [
            (json!({"op": "remove"}), (400, "noTarget")),
            (json!({"op": "remove", "path": "members", "value": [{}]}), (400, "invalidValue")),
            (json!({"op": "remove", "path": "members[display eq \"x\"]"}), (400, "invalidFilter")),
            (json!({"op": "remove", "path": "members[value eq"}), (400, "invalidPath")),
            (json!({"op": "remove", "path": "members[value eq \"usr_1\"].value"}), (400, "invalidPath")),
            (json!({"op": "move", "path": "members"}), (400, "invalidSyntax")),
            (json!({"op": "replace", "path": "displayName", "value": ""}), (400, "invalidValue")),
            (json!({"op": "replace", "path": "displayName", "value": "x".repeat(256)}), (400, "invalidValue")),
            (json!({"op": "replace", "path": "displayName", "value": "All Users"}), (409, "uniqueness")),
            (json!({"op": "replace", "path": "displayName", "value": "aLL uSERS"}), (409, "uniqueness")),
            (json!({"op": "remove", "path": "displayName"}), (400, "mutability")),
        ] {
            let operations = json!([{"op": "add", "path": "members", "value": ben}, {"op": "remove", "path": "members", "value": ana}, last]);
            let answer = scene.send("PATCH", &format!("/Groups/{group}"), &patch_of(&operations)).await;
            assert_eq!(refusal(&answer), (refused.0, refused.1.to_owned()), "{last}");
            assert_eq!(scene.read(&format!("/Groups/{group}")).await, before, "{last}");
        }
    }

    async fn a_put_replaces_members_only_if_it_names_them(engine: Engine) {
        let scene = Scene::start(engine);
        let (ana, ben) = (scene.user("ana@example.com").await, scene.user("ben@example.com").await);
        let group = scene.group("Sales", &[&ana]).await;
        let path = format!("/Groups/{group}");
        for (members, expected) in [
            (json!({}), vec![&ana]),
            (json!({"members": null}), vec![&ana]),
            (json!({"members": [{"value": ben}]}), vec![&ben]),
            (json!({"members": []}), vec![]),
        ] {
            let mut body = members.clone();
            body["displayName"] = json!("Sales EU");
            let answer = scene.send("PUT", &path, &body).await;
            assert_eq!((answer.status.as_u16(), &answer.json()["displayName"]), (200, &json!("Sales EU")));
            assert_eq!(scene.members(&group).await, owned(expected), "{members}");
        }
    }

    async fn an_identifier_is_unique_and_a_name_unless_identifiers_differ(engine: Engine) {
        let scene = Scene::start(engine);
        scene.create("/Groups", &json!({"displayName": "Sales", "externalId": "1"})).await;
        scene.create("/Groups", &json!({"displayName": "IT"})).await;
        for (body, is_taken) in [
            (json!({"displayName": "Other", "externalId": "1"}), true),
            (json!({"displayName": "Sales", "externalId": "1"}), true),
            (json!({"displayName": "IT"}), true),
            (json!({"displayName": "All Users"}), true),
            (json!({"displayName": "All Users", "externalId": "9"}), true),
            (json!({"displayName": "ALL users"}), true),
            (json!({"displayName": "all users", "externalId": "9"}), true),
            (json!({"displayName": "sales"}), false),
            (json!({"displayName": "Sales", "externalId": "2"}), false),
            (json!({"displayName": "IT", "externalId": "3"}), false),
        ] {
            let answer = scene.send("POST", "/Groups", &body).await;
            if is_taken {
                assert_eq!(refusal(&answer), (409, "uniqueness".to_owned()), "{body}");
            } else {
                assert_eq!(answer.status, 201, "{body}");
            }
        }
    }

    async fn a_patch_answers_with_the_group_only_if_attributes_are_named(engine: Engine) {
        let scene = Scene::start(engine);
        let ana = scene.user("ana@example.com").await;
        let group = scene.group("Sales", &[&ana]).await;
        let operations = patch_of(&json!([{"op": "replace", "value": {"displayName": "IT"}}]));
        let answer = scene.send("PATCH", &format!("/Groups/{group}?attributes=displayName"), &operations).await;
        assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"schemas": [GROUP], "id": group, "displayName": "IT"})));
        let answer = scene.send("PATCH", &format!("/Groups/{group}"), &operations).await;
        assert_eq!((answer.status.as_u16(), answer.header("etag")), (204, None), "it named no version");
    }

    async fn a_group_is_deleted_unless_a_workflow_uses_it(engine: Engine) {
        let scene = Scene::start(engine);
        let ana = scene.user("ana@example.com").await;
        let (sales, it) = (scene.group("Sales", &[&ana]).await, scene.group("IT", &[&ana]).await);
        let number = it.strip_prefix("grp_").unwrap();
        scene.database().await.execute(&format!(
            "INSERT INTO forms (id, name) VALUES (1, 'F'); INSERT INTO flow_steps (id, form_id, name) VALUES (1, 1, 'S'); \
             INSERT INTO flow_step_groups (flow_step_id, group_id) VALUES (1, {number})"
        )).await;
        for id in [&sales, &it] {
            assert_eq!(scene.directory.delete(&format!("/scim/v2/Groups/{id}")).send().await.status, 204);
        }
        assert_eq!(refusal(&scene.get(&format!("/Groups/{sales}")).await).0, 404);
        assert_eq!(scene.members(&it).await, [""; 0]);
        assert_eq!(scene.read(&format!("/Users/{ana}")).await["active"], true);
    }

    async fn thousands_of_members_come_in_one_call_and_go_in_another(engine: Engine) {
        let scene = Scene::start(engine);
        let rows = "INSERT INTO users (id, email) SELECT n, 'u' || n || '@example.com' FROM";
        scene.database().await.execute(&match engine {
            Engine::Sqlite => format!(
                "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 5000) {rows} numbers"
            ),
            Engine::Postgres | Engine::PostgresOn(_) => format!("{rows} generate_series(1, 5000) AS n"),
        }).await;
        let group = scene.group("Sales", &[]).await;
        let path = format!("/Groups/{group}");
        let all: Vec<Value> = (1..=5_000).map(|number| json!({"value": format!("usr_{number}")})).collect();
        scene.patch(&path, &json!([{"op": "add", "path": "members", "value": all}])).await;
        assert_eq!(scene.members(&group).await.len(), 5_000);
        let one_by_one: Vec<Value> =
            (1..5_000).map(|number| json!({"op": "remove", "path": format!("members[value eq \"usr_{number}\"]")})).collect();
        scene.patch(&path, &json!(one_by_one)).await;
        assert_eq!(scene.members(&group).await, ["usr_5000"]);
        scene.send("PUT", &path, &json!({"displayName": "Sales", "members": all})).await;
        assert_eq!(scene.members(&group).await.len(), 5_000);
    }
}
