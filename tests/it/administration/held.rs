//! Held removals, the owners of groups and directories on the page of group syncs.

use serde_json::{Value, json};

use super::scene::{Administrator, Scene, between, text};
use crate::support::answer::Answer;
use crate::support::client::{Client, wait_for_count};
use crate::support::fixture::on_both_databases;

async fn page(administrator: &Administrator, path: &str) -> String {
    let answer = administrator.get(path).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    text(&answer)
}

async fn scim(directory: &Client, method: &str, path: &str, body: &Value) -> Answer {
    let call = directory.method(method.parse().unwrap(), &format!("/scim/v2{path}"));
    call.header("content-type", "application/scim+json").body(serde_json::to_vec(body).unwrap()).send().await
}

/// A group that a directory created, with this number of users.
async fn group_of(directory: &Client, count: usize) -> (String, Vec<String>) {
    let mut users = Vec::new();
    for number in 0..count {
        let user = scim(directory, "POST", "/Users", &json!({"userName": format!("u{number:02}@acme.example")})).await;
        users.push(user.json()["id"].as_str().expect("an id").to_owned());
    }
    let members: Vec<_> = users.iter().map(|user| json!({ "value": user })).collect();
    let group = scim(directory, "POST", "/Groups", &json!({"displayName": "Sales", "members": members})).await;
    (group.json()["id"].as_str().expect("an id").to_owned(), users)
}

async fn remove_each(directory: &Client, group: &str, users: &[String]) {
    for user in users {
        let operation = json!({"op": "remove", "path": format!("members[value eq \"{user}\"]")});
        let removed = scim(directory, "PATCH", &format!("/Groups/{group}"), &json!({"Operations": [operation]})).await;
        assert_eq!(removed.status, 204, "{removed:?}");
    }
}

async fn members(directory: &Client, group: &str) -> usize {
    let shown = scim(directory, "GET", &format!("/Groups/{group}"), &json!({})).await.json();
    shown["members"].as_array().expect("members").len()
}

on_both_databases! {
    async fn a_directory_that_empties_a_group_is_held_and_one_click_brings_back_every_member(engine: Engine) {
        let scene = Scene::start(engine);
        let (own, viewer) = (scene.sign_in("acme", "admin").await, scene.sign_in("acme", "viewer").await);
        let (token, value) = own.generate("Entra").await;
        let directory = own.caller.with(&value);
        let (group, users) = group_of(&directory, 30).await;
        // What follows is another run than the one that created the group.
        let database = scene.database("acme").await;
        database.execute(&format!("UPDATE group_syncs SET changed_at = {}", database.in_hours(-1))).await;
        remove_each(&directory, &group, &users).await;
        assert_eq!(members(&directory, &group).await, 15, "held at the guard");

        let list = page(&viewer, "/admin/groups").await;
        let number = group.strip_prefix("grp_").expect("an id");
        assert!(list.contains(&format!("data-group=\"{number}\" data-held=\"15\"")) && list.contains("15 removals"), "{list}");
        assert_eq!(list.matches("data-sync=").count(), 2, "one run");
        assert!(list.contains(&format!("data-directory=\"{token}\"")), "{list}");
        assert!(list.contains(&format!("<a href=\"/admin/groups/{}\">Sales</a>", between(&list, "data-sync=\"", "\""))), "{list}");
        assert!(list.contains("What directories last sent") && list.contains("Last request"), "{list}");
        let of_group = page(&own, &format!("/admin/groups?group={number}")).await;
        assert!(of_group.contains("data-held=\"15\"") && of_group.contains("u29@acme.example") && of_group.contains("Entra"), "{of_group}");
        let read_only = page(&viewer, &format!("/admin/groups?group={number}")).await;
        assert!(read_only.contains("Your role is viewer") && !read_only.contains("name=\"action\""), "{read_only}");

        let sync = between(&list, "data-sync=\"", "\"").to_owned();
        assert_eq!(own.post(&format!("/admin/groups/{sync}"), &[]).await.status, 303);
        assert_eq!(members(&directory, &group).await, 30, "one click");
        let undone = page(&own, &format!("/admin/groups?group={number}")).await;
        assert!(undone.contains("data-diverged") && undone.contains("data-held=\"15\""), "{undone}");
    }

    async fn held_removals_are_applied_and_dropped_on_the_page_of_their_group(engine: Engine) {
        let scene = Scene::start(engine);
        let (own, viewer) = (scene.sign_in("acme", "admin").await, scene.sign_in("acme", "viewer").await);
        let (_, value) = own.generate("Entra").await;
        let directory = own.caller.with(&value);
        let (group, users) = group_of(&directory, 20).await;
        let number = group.strip_prefix("grp_").expect("an id").to_owned();
        let decide = async |who: &Administrator, action: &str| who.post("/admin/groups", &[("group", &number), ("action", action)]).await;
        remove_each(&directory, &group, &users[..12]).await;
        assert_eq!(decide(&viewer, "apply").await.status, 403);
        assert_eq!(members(&directory, &group).await, 10);
        let dropped = decide(&own, "drop").await;
        assert_eq!((dropped.status.as_u16(), dropped.header("location")), (303, Some(&*format!("/admin/groups?group={number}"))));
        let shown = page(&own, &format!("/admin/groups?group={number}")).await;
        assert!(shown.contains("data-held=\"0\"") && shown.contains("data-diverged"), "{shown}");
        remove_each(&directory, &group, &users).await;
        assert_eq!(members(&directory, &group).await, 0, "a group of ten can be emptied");
        let list: Vec<_> = users.iter().map(|user| json!({ "value": user })).collect();
        scim(&directory, "PUT", &format!("/Groups/{group}"), &json!({"displayName": "Sales", "members": list})).await;
        scim(&directory, "PUT", &format!("/Groups/{group}"), &json!({"displayName": "Sales", "members": []})).await;
        assert_eq!(members(&directory, &group).await, 20);
        // Another node counts what is held when it starts.
        let mut other = scene.site.start();
        let operator = other.operator_address();
        wait_for_count(operator, "formgate_scim_held_removals{tenant=\"acme\"}", 20).await;
        assert_eq!(decide(&own, "apply").await.status, 303);
        assert_eq!(members(&directory, &group).await, 0);
        assert_eq!(own.post("/admin/groups/1", &[]).await.status, 409, "a later sync touched the same");
        let audit = page(&own, "/admin/audit").await;
        for action in ["Held removals applied", "Held removals dropped", "Removals held by the guard"] {
            assert!(audit.contains(action), "{action}: {audit}");
        }
        for (group, action) in [("4711", "apply"), ("x", "apply"), (&*number, ""), ("9007199254740991", "scim")] {
            assert_eq!(own.post("/admin/groups", &[("group", group), ("action", action)]).await.status, 404, "{group} {action}");
        }
    }

    async fn a_group_is_given_to_a_directory_and_taken_back_by_a_button(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let (_, value) = own.generate("Entra").await;
        let directory = own.caller.with(&value);
        scene.database("acme").await.execute("INSERT INTO groups (id, name) VALUES (4, '<b>Product')").await;
        let all = page(&own, "/admin/groups/all").await;
        assert!(all.contains("data-group=\"4\"") && all.contains("&#60;b&#62;Product") && all.contains("this account itself"), "{all}");
        assert!(page(&own, "/admin/groups/all?page=2").await.contains("There are no more groups"));
        for (action, status) in [("scim", 204), ("account", 409), ("scim", 204), ("api", 409)] {
            assert_eq!(own.post("/admin/groups", &[("group", "4"), ("action", action)]).await.status, 303);
            let add = json!({"Operations": [{"op": "add", "path": "members", "value": []}]});
            assert_eq!(scim(&directory, "PATCH", "/Groups/grp_4", &add).await.status, status, "{action}");
        }
        assert!(page(&own, "/admin/groups?group=4").await.contains("programs, with PUT /group"));
        assert_eq!(page(&own, "/admin/audit?action=group.give").await.matches("group 4").count(), 4);
        let built_in = page(&own, "/admin/groups?group=9007199254740991").await;
        assert!(built_in.contains("All active users are members") && !built_in.contains("name=\"action\""), "{built_in}");
    }
}
