//! Inactive users: members of nothing, until they are active again.

use serde_json::{Value, json};

use super::{Scene, owned};
use crate::support::database::Database;
use crate::support::fixture::on_all_databases;

const ALL_USERS: &str = "/api/v1/group/grp_9007199254740991";

async fn set_active(scene: &Scene, user: &str, active: bool) {
    let operations = json!([{"op": "replace", "path": "active", "value": active}]);
    let patched = scene.patch(&format!("/Users/{user}"), &operations).await.json();
    assert_eq!(patched["active"], active);
}

async fn everybody(scene: &Scene) -> Vec<String> {
    let group = scene.acme.caller().get(ALL_USERS).send().await.json()["data"].clone();
    let members = group["members"].as_array().unwrap();
    assert_eq!(group["members_count"], members.len());
    let listed = scene.acme.caller().get("/api/v1/group").send().await.json();
    let listed = listed["data"].as_array().unwrap().iter().find(|listed| listed["id"] == group["id"]).cloned().unwrap();
    assert_eq!(listed["members_count"], members.len());
    let paged = scene.acme.caller().get(&format!("{ALL_USERS}?page=1")).send().await.json();
    assert_eq!(paged["data"]["members"], group["members"]);
    members.iter().map(|member| member["email"].as_str().unwrap().to_owned()).collect()
}

async fn rows(database: &Database, table: &str) -> usize {
    database.texts(&format!("SELECT CAST(user_id AS text) FROM {table}")).await.len()
}

on_all_databases! {
    async fn an_inactive_user_is_a_member_of_nothing_and_comes_back_into_its_groups(engine: Engine) {
        let scene = Scene::start(engine);
        let (ana, ben) = (scene.user("ana@example.com").await, scene.user("ben@example.com").await);
        let (sales, it) = (scene.group("Sales", &[&ana, &ben]).await, scene.group("IT", &[&ana]).await);
        let put = json!({"name": "Api", "members": [{"email": "ana@example.com"}]});
        let api = scene.acme.caller().put("/api/v1/group").json(&put).send().await.json();
        let api = api["data"]["id"].as_str().unwrap().to_owned();
        let database = scene.database().await;

        set_active(&scene, &ana, false).await;
        for (group, members) in [(&sales, vec![&ben]), (&it, vec![]), (&api, vec![])] {
            assert_eq!(scene.members(group).await, owned(members));
        }
        assert_eq!(everybody(&scene).await, ["ben@example.com"]);
        assert_eq!((rows(&database, "group_members").await, rows(&database, "inactive_members").await), (1, 3));
        let found = scene.read("/Users?filter=active%20eq%20false").await;
        assert_eq!(super::listed(&found, "id"), [&*ana]);

        set_active(&scene, &ana, true).await;
        for (group, members) in [(&sales, vec![&ana, &ben]), (&it, vec![&ana]), (&api, vec![&ana])] {
            assert_eq!(scene.members(group).await, owned(members));
        }
        assert_eq!(everybody(&scene).await, ["ana@example.com", "ben@example.com"]);
        assert_eq!(rows(&database, "inactive_members").await, 0);
    }

    async fn what_a_directory_changes_while_a_user_is_inactive_holds_when_it_is_active_again(engine: Engine) {
        let scene = Scene::start(engine);
        let (ana, ben) = (scene.user("ana@example.com").await, scene.user("ben@example.com").await);
        let mut groups = Vec::new();
        for name in ["Kept", "Removed", "Emptied", "Replaced", "Added", "Put"] {
            let members = if name == "Added" { vec![] } else { vec![ana.as_str()] };
            groups.push(scene.group(name, &members).await);
        }
        set_active(&scene, &ana, false).await;
        let at = |number: usize| format!("/Groups/{}", groups[number]);
        scene.patch(&at(0), &json!([{"op": "add", "path": "members", "value": ben}])).await;
        scene.patch(&at(1), &json!([{"op": "remove", "path": format!("members[value eq \"{ana}\"]")}])).await;
        scene.patch(&at(2), &json!([{"op": "remove", "path": "members"}])).await;
        scene.patch(&at(3), &json!([{"op": "replace", "path": "members", "value": [ben]}])).await;
        let added = scene.patch(&at(4), &json!([{"op": "add", "path": "members", "value": ana}])).await;
        assert_eq!(added.header("formgate-skipped-members"), None, "the user exists");
        scene.send("PUT", &at(5), &json!({"displayName": "Put", "members": [{"value": ana}, {"value": ben}]})).await;
        for (group, members) in groups.iter().zip([vec![&ben], vec![], vec![], vec![&ben], vec![], vec![&ben]]) {
            assert_eq!(scene.members(group).await, owned(members));
        }
        set_active(&scene, &ana, true).await;
        for (group, members) in groups.iter().zip([vec![&ana, &ben], vec![], vec![], vec![&ben], vec![&ana], vec![&ana, &ben]]) {
            assert_eq!(scene.members(group).await, owned(members));
        }
    }

    async fn a_put_of_the_api_neither_activates_nor_shows_an_inactive_user(engine: Engine) {
        let scene = Scene::start(engine);
        let ana = scene.user("ana@example.com").await;
        let put = async |emails: &[&str]| -> Value {
            let members: Vec<_> = emails.iter().map(|email| json!({ "email": email })).collect();
            let answer = scene.acme.caller().put("/api/v1/group?report=members").json(&json!({"name": "Api", "members": members})).send().await;
            // The same by one call, without a report.
            let again = scene.acme.caller().put("/api/v1/group").json(&json!({"name": "Api", "members": members})).send().await;
            assert_eq!(again.json()["members"], json!({"attached": 0, "detached": 0, "created": 0}));
            assert_eq!(again.json()["data"], answer.json()["data"]);
            answer.json()
        };
        let group = put(&["ben@example.com"]).await["data"]["id"].as_str().unwrap().to_owned();
        set_active(&scene, &ana, false).await;
        let written = put(&["ana@example.com", "ben@example.com", "cleo@example.com"]).await;
        assert_eq!(written["members"], json!({"attached": 1, "detached": 0, "created": 1}));
        assert_eq!(written["report"], json!({"attached": ["cleo@example.com"], "detached": [], "created": ["cleo@example.com"]}));
        assert_eq!(written["data"]["members_count"], 2);
        assert_eq!(scene.members(&group).await.len(), 2);
        assert_eq!(scene.read(&format!("/Users/{ana}")).await["active"], false);
        set_active(&scene, &ana, true).await;
        assert_eq!(scene.members(&group).await.len(), 3);

        set_active(&scene, &ana, false).await;
        let written = put(&["ben@example.com"]).await;
        assert_eq!(written["members"], json!({"attached": 0, "detached": 1, "created": 0}));
        set_active(&scene, &ana, true).await;
        assert_eq!(scene.members(&group).await.len(), 1, "a list without the user ends the hidden membership");
    }

    async fn products_see_and_set_the_same(engine: Engine) {
        let scene = Scene::start(engine);
        let (ana, ben) = (scene.user("ana@example.com").await, scene.user("ben@example.com").await);
        let (sales, it) = (scene.group("Sales", &[&ana]).await, scene.group("IT", &[&ben]).await);
        let [ana_number, ben_number] = [&ana, &ben].map(|id| id.strip_prefix("usr_").unwrap().to_owned());
        let it_number = it.strip_prefix("grp_").unwrap();
        let database = scene.database().await;
        database.execute(&format!("UPDATE users SET active = FALSE WHERE id = {ana_number}")).await;
        assert_eq!(scene.members(&sales).await, [""; 0]);
        assert_eq!(scene.read(&format!("/Users/{ana}")).await["active"], false);
        database.execute(&format!("INSERT INTO group_members (group_id, user_id) VALUES ({it_number}, {ana_number})")).await;
        assert_eq!(scene.members(&it).await, [&*ben], "a product can't show an inactive member either");
        database.execute(&format!("UPDATE users SET active = TRUE WHERE id = {ana_number}")).await;
        assert_eq!(scene.members(&it).await, [ana.clone(), ben.clone()]);
        assert_eq!(scene.members(&sales).await, [ana]);
        database.execute(&format!("DELETE FROM users WHERE id = {ben_number}")).await;
        assert_eq!(scene.members(&it).await.len(), 1);
    }
}
