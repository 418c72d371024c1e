//! `POST /.search`: users and groups as one list.

use serde_json::{Value, json};

use super::{Scene, refusal};
use crate::support::fixture::{Engine, on_all_databases, on_both_databases};

/// The names of what a search finds, in its order, and how many there are in all.
async fn found(scene: &Scene, body: &Value) -> (Vec<String>, u64) {
    let answer = scene.send("POST", "/.search", body).await;
    assert_eq!(answer.status, 200, "{body}: {answer:?}");
    let list = answer.json();
    let name = |resource: &Value| {
        let name =
            if resource["meta"]["resourceType"] == "User" { &resource["userName"] } else { &resource["displayName"] };
        name.as_str().unwrap().to_owned()
    };
    let names: Vec<_> = list["Resources"].as_array().unwrap().iter().map(name).collect();
    assert_eq!(list["itemsPerPage"], names.len());
    (names, list["totalResults"].as_u64().unwrap())
}

/// Three users and three groups, the built-in one among them.
async fn scene_of(engine: Engine) -> Scene {
    let scene = Scene::start(engine);
    for body in [
        json!({"userName": "ana@example.com", "displayName": "Marketing", "externalId": "x-2"}),
        json!({"userName": "ben", "emails": ["aa@example.com"], "displayName": "Zoe", "active": false}),
        json!({"userName": "cleo@example.com"}),
    ] {
        scene.create("/Users", &body).await;
    }
    scene.create("/Groups", &json!({"displayName": "sales", "externalId": "x-1", "members": ["usr_1", "usr_3"]})).await;
    scene.create("/Groups", &json!({"displayName": "Board"})).await;
    scene
}

on_all_databases! {
    async fn a_search_finds_users_and_groups_in_pages_and_in_order(engine: Engine) {
        let scene = scene_of(engine).await;
        let [ana, ben, cleo, sales, board, everybody] =
            ["ana@example.com", "ben", "cleo@example.com", "sales", "Board", "All Users"];
        for (body, expected, total) in [
            (json!({}), vec![ana, ben, cleo, sales, board, everybody], 6),
            (json!({"count": 2}), vec![ana, ben], 6),
            (json!({"startIndex": 3, "count": 2}), vec![cleo, sales], 6),
            (json!({"startIndex": 6, "count": 10}), vec![everybody], 6),
            (json!({"startIndex": 7}), vec![], 6),
            (json!({"count": 0}), vec![], 6),
            (json!({"startIndex": i64::MAX, "count": i64::MAX}), vec![], 6),
            // A name that only some have is last, or first in descending order.
            (json!({"sortBy": "displayName"}), vec![everybody, board, ana, sales, ben, cleo], 6),
            (json!({"sortBy": "displayName", "sortOrder": "descending"}), vec![cleo, ben, sales, ana, board, everybody], 6),
            (json!({"sortBy": "displayName", "startIndex": 2, "count": 3}), vec![board, ana, sales], 6),
            (json!({"sortBy": "externalId", "count": 3}), vec![sales, ana, ben], 6),
            (json!({"sortBy": "userName", "sortOrder": "descending", "count": 4}), vec![everybody, board, sales, cleo], 6),
            (json!({"sortBy": "emails", "count": 2}), vec![ben, ana], 6),
            (json!({"sortBy": "title"}), vec![ana, ben, cleo, sales, board, everybody], 6),
            // An attribute that only one type has.
            (json!({"filter": "userName co \"example\""}), vec![ana, cleo], 2),
            (json!({"filter": "members eq \"usr_3\""}), vec![sales, everybody], 2),
            (json!({"filter": "active eq false or members eq \"usr_1\""}), vec![ben, sales, everybody], 3),
            (json!({"filter": "not (userName sw \"a\")"}), vec![ben, cleo, sales, board, everybody], 5),
            (json!({"filter": "displayName co \"a\" and not (members eq \"usr_1\")"}), vec![ana, board], 2),
            (json!({"filter": "externalId sw \"x\"", "sortBy": "externalId"}), vec![sales, ana], 2),
            (json!({"filter": "id eq \"usr_3\" or id eq \"grp_9007199254740991\""}), vec![cleo, everybody], 2),
            (json!({"filter": "meta.resourceType eq \"User\""}), vec![ana, ben, cleo], 3),
            (json!({"filter": "meta.resourceType eq \"group\"", "count": 1}), vec![sales], 3),
        ] {
            let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
            assert_eq!(found(&scene, &body).await, (expected, total), "{body}");
        }
    }
}

on_both_databases! {
    async fn what_a_search_finds_is_what_its_own_url_has(engine: Engine) {
        let scene = scene_of(engine).await;
        let list = scene.send("POST", "/.search", &json!({})).await.json();
        for resource in list["Resources"].as_array().unwrap() {
            let location = resource["meta"]["location"].as_str().unwrap();
            assert_eq!(scene.read(location.split_once("/scim/v2").unwrap().1).await, *resource);
        }
        let body = json!({"attributes": ["displayName", "members.value"], "filter": "displayName eq \"SALES\" or displayName eq \"Zoe\""});
        let list = scene.send("POST", "/.search", &body).await.json();
        let found: Vec<_> = list["Resources"].as_array().unwrap().iter().map(|found| (&found["displayName"], &found["members"])).collect();
        assert_eq!(found, [(&json!("Zoe"), &json!(null)), (&json!("sales"), &json!([{"value": "usr_1"}, {"value": "usr_3"}]))]);
        for (body, refused) in [
            (json!({"filter": "title eq \"x\""}), "invalidFilter"),
            (json!({"filter": "members co \"usr\""}), "invalidFilter"),
            (json!({"filter": "active co true"}), "invalidFilter"),
            (json!({"filter": "userName"}), "invalidFilter"),
            (json!({"sortBy": "meta.created"}), "invalidValue"),
            (json!({"sortBy": "members"}), "invalidValue"),
            (json!({"count": "x"}), "invalidValue"),
            (json!([]), "invalidSyntax"),
        ] {
            assert_eq!(refusal(&scene.send("POST", "/.search", &body).await), (400, refused.to_owned()), "{body}");
        }
    }

    async fn a_search_of_a_thousand_resources_reads_no_more(engine: Engine) {
        let scene = Scene::start(engine);
        let rows = "INSERT INTO users (id, email) SELECT n, 'u' || n || '@example.com' FROM";
        scene.database().await.execute(&match engine {
            Engine::Sqlite => format!(
                "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1500) {rows} numbers"
            ),
            Engine::Postgres | Engine::PostgresOn(_) => format!("{rows} generate_series(1, 1500) AS n"),
        }).await;
        for (start, expected) in [(1, 1_000), (501, 1_000), (1_001, 501), (1_501, 1)] {
            let (names, total) = found(&scene, &json!({"startIndex": start, "count": 5_000})).await;
            assert_eq!((names.len(), total), (expected, 1_501), "{start}");
        }
    }
}
