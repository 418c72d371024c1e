//! What a client learns before it provisions anything.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{GROUP, Scene, USER, refusal};
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn the_service_says_what_it_supports(engine: Engine) {
        let scene = Scene::start(engine);
        let config = scene.read("/ServiceProviderConfig").await;
        let supported: Vec<_> = ["patch", "filter", "sort", "etag", "bulk", "changePassword"]
            .map(|feature| config[feature]["supported"].as_bool().unwrap())
            .into();
        assert_eq!(supported, [true, true, true, true, false, false]);
        assert_eq!(config["filter"]["maxResults"], 1_000);
        for (path, status) in [("GET /Me", 501), ("PATCH /Me", 501), ("POST /Bulk", 501), ("GET /Bulk", 501)] {
            let (method, path) = path.split_once(' ').unwrap();
            assert_eq!(refusal(&scene.send(method, path, &Value::Null).await).0, status, "{path}");
        }
    }

    async fn every_type_and_schema_is_at_its_location(engine: Engine) {
        let scene = Scene::start(engine);
        for (list, ids) in [("/ResourceTypes", ["User", "Group"]), ("/Schemas", [USER, GROUP])] {
            let listed = scene.read(list).await;
            assert_eq!(listed["totalResults"], 2);
            for (document, id) in listed["Resources"].as_array().unwrap().iter().zip(ids) {
                assert_eq!(document["id"], id);
                let location = document["meta"]["location"].as_str().unwrap();
                let path = location.split_once("/scim/v2").unwrap().1;
                assert_eq!(scene.read(path).await, *document);
            }
        }
        assert_eq!(refusal(&scene.get("/Schemas/other").await).0, 404);
        assert_eq!(refusal(&scene.get("/ResourceTypes/user").await).0, 404);
    }

    async fn resources_have_the_attributes_of_their_schemas_and_no_others(engine: Engine) {
        let scene = Scene::start(engine);
        let user = serde_json::json!({"userName": "ana@example.com", "displayName": "Ana", "externalId": "1",
            "name": {"givenName": "A", "familyName": "B", "formatted": "A B"}});
        let user = scene.create("/Users", &user).await;
        let group = serde_json::json!({"displayName": "Sales", "externalId": "2", "members": [{"value": user["id"]}]});
        let group = scene.create("/Groups", &group).await;
        for (resource, schema) in [(user, USER), (group, GROUP)] {
            let schema = scene.read(&format!("/Schemas/{schema}")).await;
            let described = schema["attributes"].as_array().unwrap().iter();
            let mut described: BTreeSet<_> = described.map(|attribute| attribute["name"].as_str().unwrap()).collect();
            described.extend(["schemas", "id", "externalId", "meta"]);
            let shown: BTreeSet<_> = resource.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(shown, described);
        }
    }
}
