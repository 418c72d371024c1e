//! Requests that emptied or corrupted groups elsewhere, retold from what was reported there.
//!
//! After each, the members are those that the directory has. Where it removes most of a group at once, they may also be held
//! back, and the group says how many (`held`).

use serde_json::{Value, json};

use super::{GROUP, Scene, USER, owned, patch_of, refusal};
use crate::support::fixture::{Engine, on_both_databases};

/// An account with users and a group of all of them.
async fn group_of(engine: Engine, count: usize) -> (Scene, Vec<String>, String) {
    let scene = Scene::start(engine);
    let mut users = Vec::new();
    for number in 0..count {
        users.push(scene.user(&format!("u{number:02}@example.com")).await);
    }
    let members: Vec<&str> = users.iter().map(String::as_str).collect();
    let group = scene.group("Sales", &members).await;
    (scene, users, format!("/Groups/{group}"))
}

async fn members(scene: &Scene, path: &str) -> Vec<String> {
    scene.members(path.strip_prefix("/Groups/").unwrap()).await
}

/// How many removals of a group are held back.
async fn held(scene: &Scene, path: &str) -> usize {
    let id = path.strip_prefix("/Groups/").unwrap();
    let group = scene.acme.caller().get(&format!("/api/v1/group/{id}")).send().await.json();
    group["data"]["held"].as_u64().unwrap_or(0).try_into().unwrap()
}

on_both_databases! {
    /// fleetdm/fleet #50724: a PATCH wrote back the list of members that it had read before, so that of two at once one lost its
    /// members, and those that a stale read did not show were deleted.
    async fn patches_at_once_and_a_rename_lose_no_member(engine: Engine) {
        let (scene, users, path) = group_of(engine, 6).await;
        let mut all = users.clone();
        for number in 0..8 {
            all.push(scene.user(&format!("new{number}@example.com")).await);
        }
        let adds = all[6..].iter().map(|user| json!([{"op": "add", "path": "members", "value": [{"value": user}]}]));
        let renames = ["A", "B"].map(|name| json!([{"op": "replace", "value": {"displayName": name}}]));
        let requests: Vec<Value> = adds.chain(renames).collect();
        let other = scene.acme.site.start();
        let second = other.client().to(&scene.acme.host()).with(&scene.acme.token);
        let sent = requests.iter().enumerate().map(async |(number, operations)| {
            let client = if number % 2 == 0 { &scene.directory } else { &second };
            let call = client.method("PATCH".parse().unwrap(), &format!("/scim/v2{path}"));
            let answer = call.body(serde_json::to_vec(&patch_of(operations)).unwrap()).send().await;
            assert_eq!(answer.status, 204, "{operations}: {answer:?}");
        });
        futures_util::future::join_all(sent).await;
        assert_eq!(members(&scene, &path).await, all);
    }

    /// fleetdm/fleet #52600: one unknown member, as of a user that is not provisioned yet, had the whole request refused, and
    /// the directory does not send it again. #52593: the same as a 500 in POST and PUT.
    async fn one_unknown_member_does_not_lose_the_others(engine: Engine) {
        let (scene, users, path) = group_of(engine, 2).await;
        let new = scene.user("new@example.com").await;
        let list = json!([{"value": users[0]}, {"value": users[1]}, {"value": "usr_999999"}, {"value": new}]);
        let added = scene.patch(&path, &json!([{"op": "add", "path": "members", "value": list}])).await;
        assert_eq!(added.header("formgate-skipped-members"), Some("usr_999999"));
        assert_eq!(members(&scene, &path).await, [&*users[0], &*users[1], &*new]);
        let put = scene.send("PUT", &path, &json!({"schemas": [GROUP], "displayName": "Sales", "members": list})).await;
        assert_eq!((put.status.as_u16(), put.header("formgate-skipped-members")), (200, Some("usr_999999")));
        let body = json!({"schemas": [GROUP], "displayName": "Other", "members": list});
        let created = scene.create("/Groups", &body).await;
        assert_eq!(created["members"].as_array().unwrap().len(), 3, "{created}");
        assert_eq!(members(&scene, &path).await, [&*users[0], &*users[1], &*new]);
    }

    /// goauthentik/authentik #25686: the removal with a filter was answered with 200 and not carried out, so that everybody who
    /// left a group of Okta stayed in it.
    async fn a_removal_with_a_filter_is_carried_out_and_no_other(engine: Engine) {
        let (scene, users, path) = group_of(engine, 4).await;
        for (at, spelling) in ["members[value eq \"{}\"]", "Members[Value EQ \"{}\"]", "members[ value eq \"{}\" ]"].iter().enumerate() {
            let path_of_member = spelling.replace("{}", &users[at]);
            scene.patch(&path, &json!([{"op": "remove", "path": path_of_member}])).await;
            assert_eq!(members(&scene, &path).await, users[at + 1..], "{spelling}");
        }
    }

    /// goauthentik/authentik #24173: after such a removal, an add of the same member did nothing, because one of two records
    /// still had it.
    async fn a_member_that_was_removed_can_be_added_again(engine: Engine) {
        let (scene, users, path) = group_of(engine, 3).await;
        let filter = format!("/Groups?filter={}", "members%20eq%20%22{}%22".replace("{}", &users[1]));
        for _ in 0..3 {
            scene.patch(&path, &json!([{"op": "remove", "path": format!("members[value eq \"{}\"]", users[1])}])).await;
            assert_eq!(members(&scene, &path).await, owned(vec![&users[0], &users[2]]));
            assert_eq!(super::listed(&scene.read(&filter).await, "displayName"), ["All Users"]);
            scene.patch(&path, &json!([{"op": "add", "path": "members", "value": [{"value": users[1]}]}])).await;
            assert_eq!(members(&scene, &path).await, users);
            assert_eq!(super::listed(&scene.read(&filter).await, "displayName"), ["Sales", "All Users"]);
        }
    }

    /// langwatch/langwatch #7136: every replace but that of the path displayName was taken for one of the members, and without
    /// members in it the group was emptied; afterwards, what was not understood was answered with success.
    async fn a_replace_that_names_no_members_leaves_them(engine: Engine) {
        let (scene, users, path) = group_of(engine, 4).await;
        for operation in [
            json!({"op": "replace", "value": {"displayName": "Renamed"}}),
            json!({"op": "Replace", "value": {"id": path.strip_prefix("/Groups/").unwrap(), "displayName": "Again"}}),
            json!({"op": "replace", "path": "externalId", "value": "g-1"}),
            json!({"op": "replace", "value": {"externalId": "g-2"}}),
            json!({"op": "replace", "path": "description", "value": "x"}),
            json!({"op": "replace", "path": "urn:example:2.0:Group:owner", "value": {"value": users[0]}}),
            json!({"op": "replace", "value": {}}),
            json!({"op": "replace", "value": {"members": null, "displayName": "Last"}}),
        ] {
            scene.patch(&path, &json!([operation])).await;
            assert_eq!(members(&scene, &path).await, users, "{operation}");
        }
        let shown = scene.read(&path).await;
        assert_eq!((&shown["displayName"], &shown["externalId"]), (&json!("Last"), &json!("g-2")));
        for operation in [
            json!({"op": "replace", "path": "members"}),
            json!({"op": "replace", "path": "members", "value": null}),
            json!({"op": "replace", "path": "members", "value": {"display": "x"}}),
            json!({"op": "replace", "value": {"members": [{}]}}),
            json!({"op": "replace", "value": {"members": true}}),
            json!({"op": "replace"}),
        ] {
            let answer = scene.send("PATCH", &path, &patch_of(&json!([operation]))).await;
            assert_eq!(refusal(&answer), (400, "invalidValue".to_owned()), "{operation}");
            assert_eq!(members(&scene, &path).await, users, "{operation}");
        }
    }

    /// AzureAD/SCIMReferenceCode #10: a removal whose value was not where it was looked for removed all members; and a member
    /// could be added twice.
    async fn a_removal_without_a_readable_value_is_refused_and_a_member_is_one_once(engine: Engine) {
        let (scene, users, path) = group_of(engine, 3).await;
        for value in [json!(null), json!([null]), json!([{"value": null}]), json!([{"Value": [users[0]]}]), json!({}), json!([{}]), json!([[users[0]]])] {
            let operations = json!([{"op": "remove", "path": "members", "value": value}]);
            let answer = scene.send("PATCH", &path, &patch_of(&operations)).await;
            assert_eq!(refusal(&answer), (400, "invalidValue".to_owned()), "{operations}");
            assert_eq!(members(&scene, &path).await, users, "{operations}");
        }
        for value in [json!({"value": users[0]}), json!([{"$ref": null, "value": users[0]}]), json!(users[0])] {
            scene.patch(&path, &json!([{"op": "Remove", "path": "members", "value": value}])).await;
            assert_eq!(members(&scene, &path).await, users[1..], "{value}");
            let twice = json!([{"value": users[0]}, {"value": users[0]}]);
            scene.patch(&path, &json!([{"op": "Add", "path": "members", "value": twice}, {"op": "Add", "path": "members", "value": twice}])).await;
            scene.patch(&path, &json!([{"op": "Add", "path": "members", "value": twice}])).await;
            assert_eq!(members(&scene, &path).await, users, "{value}");
        }
    }

    /// Captain-P-Goldfish/SCIM-SDK #757: what Okta sends when it pushes a group that has become empty was refused, so that the
    /// last members stayed.
    async fn a_group_that_became_empty_is_emptied(engine: Engine) {
        let (scene, users, path) = group_of(engine, 5).await;
        let all: Vec<Value> = users.iter().map(|user| json!({ "value": user })).collect();
        for operation in [json!({"op": "replace", "path": "members", "value": []}), json!({"op": "replace", "value": {"members": []}})] {
            scene.patch(&path, &json!([operation])).await;
            assert_eq!(members(&scene, &path).await, [""; 0], "{operation}");
            scene.patch(&path, &json!([{"op": "replace", "path": "members", "value": all}])).await;
            assert_eq!(members(&scene, &path).await, users);
        }
    }

    /// firezone/firezone #9194: the directory answered with half of its data and no error, and whoever was missing was deleted.
    async fn a_directory_that_lost_most_of_a_group_removes_it_or_is_held_back(engine: Engine) {
        let (scene, users, path) = group_of(engine, 40).await;
        let (left, gone) = users.split_at(3);
        let all: Vec<Value> = users.iter().map(|user| json!({ "value": user })).collect();
        let removed: Vec<Value> = gone.iter().map(|user| json!({ "value": user })).collect();
        for operation in [
            json!({"op": "replace", "path": "members", "value": all[..3]}),
            json!({"op": "Remove", "path": "members", "value": removed}),
            json!({"op": "remove", "path": "members"}),
        ] {
            scene.patch(&path, &json!([operation])).await;
            let expected = if operation.get("value").is_some() { left } else { &[] };
            match held(&scene, &path).await {
                0 => assert_eq!(members(&scene, &path).await, expected, "{operation}"),
                held => {
                    assert_eq!(held, users.len() - expected.len(), "{operation}");
                    assert_eq!(members(&scene, &path).await, users, "{operation}");
                }
            }
            // The directory has its data again, and says so.
            scene.patch(&path, &json!([{"op": "add", "path": "members", "value": all}])).await;
            assert_eq!((members(&scene, &path).await, held(&scene, &path).await), (users.clone(), 0), "{operation}");
        }
    }

    /// msaad00/agent-bom #3533: an add replaced the members, and a removal with a filter removed all. #3534: the id in a body
    /// overwrote the user that has it.
    async fn an_add_adds_and_an_id_in_a_body_overwrites_nobody(engine: Engine) {
        let (scene, users, path) = group_of(engine, 2).await;
        let body = json!({"schemas": [USER], "id": users[0], "userName": "new@example.com"});
        let new = scene.create("/Users", &body).await["id"].as_str().unwrap().to_owned();
        assert!(!users.contains(&new));
        assert_eq!(scene.read(&format!("/Users/{}", users[0])).await["userName"], "u00@example.com");
        scene.patch(&path, &json!([{"op": "add", "path": "members", "value": [{"value": new}]}])).await;
        assert_eq!(members(&scene, &path).await, owned(vec![&users[0], &users[1], &new]));
        scene.patch(&path, &json!([{"op": "remove", "path": format!("members[value eq \"{}\"]", users[0])}])).await;
        assert_eq!(members(&scene, &path).await, owned(vec![&users[1], &new]));
    }

    /// slashdevops/idp-scim-sync #70: a program that synchronizes deleted every group that its source does not have, also those
    /// that others maintain.
    async fn a_program_that_deletes_what_it_does_not_know_deletes_its_own_groups_only(engine: Engine) {
        let (scene, users, _) = group_of(engine, 2).await;
        scene.database().await.execute("INSERT INTO groups (id, name) VALUES (1000, 'Product')").await;
        let number = users[0].strip_prefix("usr_").unwrap();
        scene.database().await.execute(&format!("INSERT INTO group_members (group_id, user_id) VALUES (1000, {number})")).await;
        let put = json!({"name": "Api", "members": [{"email": "u01@example.com"}]});
        scene.acme.caller().put("/api/v1/group").json(&put).send().await;
        let listed = scene.read("/Groups").await;
        let mut deleted = Vec::new();
        for group in listed["Resources"].as_array().unwrap() {
            let path = format!("/Groups/{}", group["id"].as_str().unwrap());
            let answer = scene.directory.delete(&format!("/scim/v2{path}")).send().await;
            match answer.status.as_u16() {
                204 => deleted.push(group["displayName"].as_str().unwrap()),
                status => {
                    assert_eq!((status, &scene.read(&path).await), (409, group));
                }
            }
        }
        assert_eq!(deleted, ["Sales"]);
        assert_eq!(scene.read("/Users").await["totalResults"], 2);
    }
}
