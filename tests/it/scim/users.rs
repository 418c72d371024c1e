//! `/Users`: created, read, changed and deleted.

use serde_json::{Value, json};

use super::{Scene, USER, refusal};
use crate::support::fixture::{Engine, on_both_databases};

on_both_databases! {
    async fn a_user_reads_as_it_was_written(engine: Engine) {
        let scene = Scene::start(engine);
        let body = json!({"schemas": [USER], "userName": "Ana@Example.com", "externalId": "a-1", "displayName": "Führung ☃",
            "name": {"givenName": "Ana", "familyName": "Ö", "formatted": "Ana Ö"}, "active": true, "title": "ignored",
            "emails": [{"value": "other@example.com", "type": "home"}]});
        let answer = scene.send("POST", "/Users", &body).await;
        assert_eq!(answer.status, 201);
        let mut user = answer.json();
        let (id, location) = (user["id"].as_str().unwrap().to_owned(), user["meta"]["location"].as_str().unwrap().to_owned());
        assert!(id.strip_prefix("usr_").unwrap().parse::<u64>().is_ok());
        assert_eq!((answer.header("location"), answer.header("etag")), (Some(&*location), user["meta"]["version"].as_str()));
        assert!(location.starts_with(&format!("https://{}", scene.acme.host())) && location.ends_with(&format!("/scim/v2/Users/{id}")));
        assert_eq!(scene.read(&format!("/Users/{id}")).await, user);
        let meta = user.as_object_mut().unwrap().remove("meta").unwrap();
        assert_eq!(meta["resourceType"], "User");
        for instant in [&meta["created"], &meta["lastModified"]] {
            let instant = instant.as_str().unwrap();
            assert!(instant.len() == "2026-01-01T00:00:00.000000Z".len() && instant.ends_with('Z'), "{instant}");
        }
        let expected = json!({"schemas": [USER], "id": id, "externalId": "a-1", "userName": "Ana@Example.com",
            "name": {"formatted": "Ana Ö", "familyName": "Ö", "givenName": "Ana"}, "displayName": "Führung ☃",
            "emails": [{"value": "Ana@Example.com", "type": "work", "primary": true}], "active": true});
        assert_eq!(user, expected);
    }

    async fn a_user_name_that_is_no_address_needs_one(engine: Engine) {
        let scene = Scene::start(engine);
        let body = json!({"userName": "anab", "emails": [{"value": "x@example.com", "type": "home"}, {"value": "ana@example.com", "primary": true}]});
        let user = scene.create("/Users", &body).await;
        assert_eq!((&user["userName"], &user["emails"][0]["value"]), (&json!("anab"), &json!("ana@example.com")));
        for body in [json!({"userName": "other"}), json!({"userName": "other", "emails": []}), json!({"userName": "other", "emails": ["none"]}), json!({})] {
            assert_eq!(refusal(&scene.send("POST", "/Users", &body).await), (400, "invalidValue".to_owned()), "{body}");
        }
    }

    async fn names_addresses_and_identifiers_are_unique(engine: Engine) {
        let scene = Scene::start(engine);
        scene.create("/Users", &json!({"userName": "Ana@example.com", "externalId": "1"})).await;
        scene.create("/Users", &json!({"userName": "ben", "emails": [{"value": "ben@example.com"}]})).await;
        scene.database().await.execute("INSERT INTO users (email) VALUES ('cleo@bücher.example')").await;
        for body in [
            json!({"userName": "ana@EXAMPLE.com"}),
            json!({"userName": "dora@example.com", "externalId": "1"}),
            json!({"userName": "BEN", "emails": ["new@example.com"]}),
            json!({"userName": "ben@example.com"}),
            json!({"userName": "Cleo@Bücher.example"}),
            json!({"userName": "cleo@xn--bcher-kva.example"}),
            json!({"userName": "cleo", "emails": ["cleo@bücher.example"]}),
        ] {
            assert_eq!(refusal(&scene.send("POST", "/Users", &body).await), (409, "uniqueness".to_owned()), "{body}");
        }
        let dora = scene.create("/Users", &json!({"userName": "dora@example.com", "externalId": "2"})).await;
        let path = format!("/Users/{}", dora["id"].as_str().unwrap());
        for value in [json!({"userName": "ANA@example.com"}), json!({"externalId": "1"}), json!({"userName": "ben"})] {
            let patch = super::patch_of(&json!([{"op": "replace", "value": value}]));
            assert_eq!(refusal(&scene.send("PATCH", &path, &patch).await), (409, "uniqueness".to_owned()), "{value}");
        }
        assert_eq!(scene.read(&path).await, dora, "nothing was changed");
        let same = super::patch_of(&json!([{"op": "replace", "value": {"userName": "Dora@Example.com", "externalId": "2"}}]));
        assert_eq!(scene.send("PATCH", &path, &same).await.json()["userName"], "Dora@Example.com");
    }

    async fn users_of_the_api_and_of_products_are_found_and_taken_over(engine: Engine) {
        let scene = Scene::start(engine);
        let put = json!({"name": "Sales", "members": [{"email": "ana@example.com", "name": "Ana"}]});
        scene.acme.caller().put("/api/v1/group").json(&put).send().await;
        let found = scene.read("/Users?filter=userName%20eq%20%22ANA@example.com%22").await;
        assert_eq!((&found["totalResults"], &found["Resources"][0]["displayName"]), (&json!(1), &json!("Ana")));
        assert_eq!(found["Resources"][0]["meta"].get("created"), None);
        let path = format!("/Users/{}", found["Resources"][0]["id"].as_str().unwrap());
        let patched = scene.patch(&path, &json!([{"op": "Add", "path": "externalId", "value": "7"}])).await.json();
        assert_eq!((&patched["externalId"], &patched["userName"]), (&json!("7"), &json!("ana@example.com")));
        assert!(patched["meta"]["created"].is_string(), "{patched}");
    }

    async fn a_put_replaces_what_it_names_and_clears_the_rest_but_not_active(engine: Engine) {
        let scene = Scene::start(engine);
        let body = json!({"userName": "ana@example.com", "externalId": "1", "displayName": "Ana", "name": {"givenName": "A"}, "active": false});
        let user = scene.create("/Users", &body).await;
        let path = format!("/Users/{}", user["id"].as_str().unwrap());
        let put = scene.send("PUT", &path, &json!({"userName": "ana.b@example.com", "displayName": "Ana B"})).await.json();
        assert_eq!((&put["userName"], &put["displayName"], &put["active"]), (&json!("ana.b@example.com"), &json!("Ana B"), &json!(false)));
        assert_eq!((put.get("externalId"), put.get("name")), (None, None));
        assert_eq!(put["emails"][0]["value"], "ana.b@example.com");
        assert_eq!(refusal(&scene.send("PUT", &path, &json!({"displayName": "x"})).await), (400, "invalidValue".to_owned()));
        assert_eq!(scene.read(&path).await, put);
    }

    async fn a_patch_is_carried_out_in_the_order_of_its_operations_or_not_at_all(engine: Engine) {
        let scene = Scene::start(engine);
        let id = scene.user("ana@example.com").await;
        let path = format!("/Users/{id}");
        let patched = scene.patch(&path, &json!([
            {"op": "Replace", "path": "active", "value": "False"},
            {"op": "Add", "path": "name.givenName", "value": "Ana"},
            {"op": "replace", "value": {"displayName": "Ana B", "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User": {"department": "X"}}},
        ])).await.json();
        assert_eq!((&patched["active"], &patched["name"]["givenName"], &patched["displayName"]), (&json!(false), &json!("Ana"), &json!("Ana B")));
        let removal = json!([{"op": "remove", "path": "userName"}]);
        assert_eq!(refusal(&scene.send("PATCH", &path, &super::patch_of(&removal)).await), (400, "mutability".to_owned()));
        let half = json!([{"op": "replace", "path": "displayName", "value": "Other"}, {"op": "replace", "path": "active", "value": "maybe"}]);
        assert_eq!(refusal(&scene.send("PATCH", &path, &super::patch_of(&half)).await), (400, "invalidValue".to_owned()));
        assert_eq!(scene.read(&path).await, patched);
    }

    async fn a_user_is_deleted_unless_a_submission_needs_it(engine: Engine) {
        let scene = Scene::start(engine);
        let (ana, ben) = (scene.user("ana@example.com").await, scene.user("ben@example.com").await);
        let group = scene.group("Sales", &[&ana, &ben]).await;
        let number = ben.strip_prefix("usr_").unwrap();
        let instant = if engine == Engine::Sqlite { "1" } else { "now()" };
        scene.database().await.execute(&format!(
            "INSERT INTO forms (id, name) VALUES (1, 'F'); INSERT INTO submissions (id, form_id, status, submitter_id, created_at, \
             updated_at) VALUES (1, 1, 'pending', {number}, {instant}, {instant})"
        )).await;
        for id in [&ana, &ben] {
            let answer = scene.directory.delete(&format!("/scim/v2/Users/{id}")).send().await;
            assert_eq!((answer.status.as_u16(), answer.body.len()), (204, 0));
        }
        assert_eq!(refusal(&scene.get(&format!("/Users/{ana}")).await).0, 404);
        assert_eq!(scene.read(&format!("/Users/{ben}")).await["active"], false);
        assert_eq!(scene.members(&group).await, [""; 0]);
        scene.patch(&format!("/Users/{ben}"), &json!([{"op": "replace", "value": {"active": true}}])).await;
        assert_eq!(scene.members(&group).await, [""; 0], "its memberships are gone");
        for (method, id) in [("DELETE", &*ana), ("PUT", "usr_99"), ("PATCH", "usr_99"), ("GET", "7"), ("GET", "grp_1"), ("DELETE", "usr_0")] {
            let body = json!({"userName": "x@example.com", "Operations": []});
            assert_eq!(refusal(&scene.send(method, &format!("/Users/{id}"), &body).await), (404, String::new()), "{method} {id}");
        }
    }

    async fn a_new_user_skips_ids_that_a_product_assigned(engine: Engine) {
        let scene = Scene::start(engine);
        scene.database().await.execute("INSERT INTO users (id, email) VALUES (1, 'a@x.example'), (2, 'b@x.example')").await;
        let user: Value = scene.create("/Users", &json!({"userName": "ana@example.com"})).await;
        assert_eq!(scene.read("/Users").await["totalResults"], 3);
        assert_eq!(user["userName"], "ana@example.com");
    }
}
