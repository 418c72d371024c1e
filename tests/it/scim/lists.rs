//! Lists: filters, pages, order and attributes.

use serde_json::{Value, json};

use super::{GROUP, Scene, USER, listed, refusal};
use crate::support::fixture::{Engine, on_both_databases};

fn query(filter: &str) -> String {
    form_urlencoded::Serializer::new(String::new()).append_pair("filter", filter).finish()
}

/// Five users, as they are named.
async fn users(scene: &Scene) {
    for body in [
        json!({"userName": "Ana@example.com", "displayName": "Ana Berg", "externalId": "A-1", "name": {"familyName": "Berg"}}),
        json!({"userName": "ben", "emails": ["ben@example.org"], "displayName": "Ben 100%", "active": false}),
        json!({"userName": "ÇIĞDEM@example.com", "displayName": "çiğdem", "externalId": "a-1"}),
        json!({"userName": "d_x@example.com", "displayName": "say \"hi\" \\ ☃"}),
    ] {
        scene.create("/Users", &body).await;
    }
    scene.database().await.execute("INSERT INTO users (id, email) VALUES (1000, 'Product@example.com')").await;
}

on_both_databases! {
    async fn users_are_found_by_filters(engine: Engine) {
        let scene = Scene::start(engine);
        users(&scene).await;
        let [ana, ben, cig, dx, product] = ["Ana@example.com", "ben", "ÇIĞDEM@example.com", "d_x@example.com", "Product@example.com"];
        for (filter, expected) in [
            ("userName eq \"ana@EXAMPLE.com\"", vec![ana]),
            ("USERNAME EQ \"product@example.com\"", vec![product]),
            ("userName eq \"çiğdem@example.com\"", vec![cig]),
            ("userName eq \"ben@example.org\"", vec![]),
            ("urn:ietf:params:scim:schemas:core:2.0:User:userName sw \"D_\"", vec![dx]),
            ("userName co \"%\"", vec![]),
            ("userName co \"_\"", vec![dx]),
            ("userName co \"EXAMPLE.COM\"", vec![ana, cig, dx, product]),
            ("emails eq \"BEN@example.org\"", vec![ben]),
            ("emails.value co \"@example.org\"", vec![ben]),
            ("emails[type eq \"work\"].value eq \"ben@example.org\"", vec![ben]),
            ("emails[type eq \"home\"].value eq \"ben@example.org\"", vec![]),
            ("emails[primary eq true and value sw \"ben\"]", vec![ben]),
            ("externalId eq \"A-1\"", vec![ana]),
            ("externalId eq \"a-1\"", vec![cig]),
            ("externalId sw \"a\" or externalId sw \"A\"", vec![ana, cig]),
            ("not (externalId co \"1\")", vec![ben, dx, product]),
            ("displayName eq \"ANA BERG\"", vec![ana]),
            ("displayName co \"100%\"", vec![ben]),
            ("displayName eq \"say \\\"hi\\\" \\\\ ☃\"", vec![dx]),
            ("name.familyName eq \"berg\"", vec![ana]),
            ("active eq false", vec![ben]),
            ("active eq \"True\" and not (userName eq \"ben\" or emails co \"example.com\")", vec![]),
            ("not (not (userName eq \"ben\"))", vec![ben]),
            ("id eq \"usr_1000\"", vec![product]),
            ("id eq \"1000\"", vec![]),
            ("id eq null", vec![]),
            ("meta.resourceType eq \"User\" and active eq false", vec![ben]),
            ("meta.resourceType eq \"Group\"", vec![]),
            ("(userName eq \"ben\") or (id eq \"usr_1000\" and active eq true)", vec![ben, product]),
        ] {
            let list = scene.read(&format!("/Users?{}", query(filter))).await;
            assert_eq!((listed(&list, "userName"), &list["totalResults"]), (expected.iter().map(ToString::to_string).collect(), &json!(expected.len())), "{filter}");
            let searched = scene.send("POST", "/Users/.search", &json!({"filter": filter})).await;
            assert_eq!((searched.status.as_u16(), searched.json()), (200, list), "{filter}");
        }
        for filter in ["title eq \"x\"", "userName", "userName gt \"a\"", "active co true", "id co \"usr\"", "meta.created eq \"x\"", "members eq \"usr_1\"", "active eq 7", "emails.primary eq \"x\""] {
            assert_eq!(refusal(&scene.get(&format!("/Users?{}", query(filter))).await), (400, "invalidFilter".to_owned()), "{filter}");
        }
    }

    async fn groups_are_found_by_filters(engine: Engine) {
        let scene = Scene::start(engine);
        let (ana, ben) = (scene.user("ana@example.com").await, scene.user("ben@example.com").await);
        let sales = scene.create("/Groups", &json!({"displayName": "Sales", "externalId": "g-1", "members": [{"value": ana}]})).await;
        let id = sales["id"].as_str().unwrap();
        scene.group("sales EU", &[&ana, &ben]).await;
        for (filter, expected) in [
            ("displayName eq \"SALES\"".to_owned(), vec!["Sales"]),
            ("displayName sw \"sales\"".to_owned(), vec!["Sales", "sales EU"]),
            ("externalId eq \"g-1\"".to_owned(), vec!["Sales"]),
            ("externalId eq \"G-1\"".to_owned(), vec![]),
            (format!("id eq \"{id}\" and members eq \"{ana}\""), vec!["Sales"]),
            (format!("id eq \"{id}\" and members eq \"{ben}\""), vec![]),
            (format!("members.value eq \"{ben}\""), vec!["sales EU", "All Users"]),
            (format!("members[value eq \"{ben}\"]"), vec!["sales EU", "All Users"]),
            ("members eq \"usr_999\"".to_owned(), vec![]),
            ("members eq \"nobody\"".to_owned(), vec![]),
        ] {
            let list = scene.read(&format!("/Groups?{}", query(&filter))).await;
            assert_eq!(listed(&list, "displayName"), expected, "{filter}");
        }
        for filter in ["members co \"usr\"", "userName eq \"x\"", "displayName ne \"x\""] {
            assert_eq!(refusal(&scene.get(&format!("/Groups?{}", query(filter))).await), (400, "invalidFilter".to_owned()), "{filter}");
        }
    }

    async fn a_list_is_read_in_pages_and_in_order(engine: Engine) {
        let scene = Scene::start(engine);
        users(&scene).await;
        for (parameters, expected) in [
            ("count=2", vec!["Ana@example.com", "ben"]),
            ("startIndex=3&count=2", vec!["ÇIĞDEM@example.com", "d_x@example.com"]),
            ("startIndex=5&count=7", vec!["Product@example.com"]),
            ("startIndex=6", vec![]),
            ("count=0", vec![]),
            ("startIndex=-4&count=1", vec!["Ana@example.com"]),
            ("sortBy=userName&count=2", vec!["Ana@example.com", "ben"]),
            ("sortBy=userName&sortOrder=descending&count=2", vec!["ÇIĞDEM@example.com", "Product@example.com"]),
            ("sortBy=emails&count=2", vec!["Ana@example.com", "ben"]),
            ("sortBy=emails.value&sortOrder=descending&count=2", vec!["ÇIĞDEM@example.com", "Product@example.com"]),
            ("sortBy=displayName&count=2", vec!["Ana@example.com", "ben"]),
            ("sortBy=displayName&startIndex=5", vec!["Product@example.com"]),
            ("sortBy=displayName&sortOrder=descending&count=1", vec!["Product@example.com"]),
            ("sortBy=externalId&count=3", vec!["Ana@example.com", "ÇIĞDEM@example.com", "ben"]),
            ("sortBy=externalId&sortOrder=descending&startIndex=4", vec!["ÇIĞDEM@example.com", "Ana@example.com"]),
            ("sortBy=name.familyName&count=1", vec!["Ana@example.com"]),
            ("sortBy=active&count=1", vec!["ben"]),
            ("sortBy=title&count=2", vec!["Ana@example.com", "ben"]),
            ("sortBy=id&sortOrder=descending&count=1", vec!["Product@example.com"]),
        ] {
            let list = scene.read(&format!("/Users?{parameters}")).await;
            assert_eq!((listed(&list, "userName"), &list["totalResults"]), (expected.iter().map(ToString::to_string).collect(), &json!(5)), "{parameters}");
        }
        assert_eq!(scene.read("/Users?startIndex=3&count=2").await["startIndex"], 3);
        for (parameters, refused) in [("count=x", "invalidValue"), ("startIndex=1.5", "invalidValue"), ("sortBy=meta.created", "invalidValue"), ("sortBy=schemas", "invalidValue")] {
            assert_eq!(refusal(&scene.get(&format!("/Users?{parameters}")).await), (400, refused.to_owned()), "{parameters}");
        }
    }

    async fn a_response_has_the_attributes_that_are_asked_for(engine: Engine) {
        let scene = Scene::start(engine);
        let body = json!({"userName": "ana@example.com", "displayName": "Ana", "name": {"givenName": "A", "familyName": "B"}});
        let ana = scene.create("/Users?attributes=userName", &body).await;
        assert_eq!(ana, json!({"schemas": [USER], "id": ana["id"], "userName": "ana@example.com"}));
        let id = ana["id"].as_str().unwrap();
        let shown = scene.read(&format!("/Users/{id}?attributes=NAME.givenName,emails.value")).await;
        let expected = json!({"schemas": [USER], "id": id, "name": {"givenName": "A"}, "emails": [{"value": "ana@example.com"}]});
        assert_eq!(shown, expected);
        let shown = scene.read(&format!("/Users/{id}?excludedAttributes=meta,emails,name,id")).await;
        assert_eq!(shown, json!({"schemas": [USER], "id": id, "userName": "ana@example.com", "displayName": "Ana", "active": true}));
        let group = scene.group("Sales", &[id]).await;
        for (parameters, expected) in [
            ("excludedAttributes=members,meta", json!({"schemas": [GROUP], "id": group, "displayName": "Sales"})),
            ("attributes=members", json!({"schemas": [GROUP], "id": group, "members": [{"value": id, "$ref": scene.url(&format!("/Users/{id}")), "display": "Ana"}]})),
            ("attributes=members.value", json!({"schemas": [GROUP], "id": group, "members": [{"value": id}]})),
            ("attributes=displayName&excludedAttributes=members", json!({"schemas": [GROUP], "id": group, "displayName": "Sales"})),
        ] {
            assert_eq!(scene.read(&format!("/Groups/{group}?{parameters}")).await, expected, "{parameters}");
            let list = scene.read(&format!("/Groups?{parameters}&{}", query("displayName eq \"Sales\""))).await;
            assert_eq!(list["Resources"], json!([expected]), "{parameters}");
        }
    }

    async fn the_members_of_a_list_are_whole_or_absent(engine: Engine) {
        let scene = Scene::start(engine);
        let numbers = |count: u32| match engine {
            Engine::Sqlite => format!("(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT n FROM s)"),
            Engine::Postgres | Engine::PostgresOn(_) => format!("generate_series(1, {count})"),
        };
        scene.database().await.execute(&format!(
            "INSERT INTO users (id, email) SELECT n, 'u' || n || '@example.com' FROM {many} AS numbers (n); \
             INSERT INTO groups (id, name) VALUES (1, 'A'), (2, 'B'), (3, 'C'); \
             INSERT INTO group_members (group_id, user_id) SELECT 1, n FROM {some} AS numbers (n); \
             INSERT INTO group_members (group_id, user_id) SELECT 2, n FROM {many} AS numbers (n); \
             INSERT INTO group_members (group_id, user_id) SELECT 3, n FROM {some} AS numbers (n)",
            many = numbers(15_000), some = numbers(6_000),
        ).replace("AS numbers (n)", if engine == Engine::Sqlite { "AS numbers" } else { "AS numbers (n)" })).await;
        let list = scene.read("/Groups").await;
        let counts: Vec<_> = list["Resources"].as_array().unwrap().iter().map(|group| group["members"].as_array().map(Vec::len)).collect();
        assert_eq!(counts, [Some(6_000), None, Some(6_000), None], "the last one is the built-in group");
        let whole: Value = scene.read("/Groups/grp_2").await;
        assert_eq!(whole["members"].as_array().unwrap().len(), 15_000);
    }
}
