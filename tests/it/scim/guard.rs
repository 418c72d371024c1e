//! The guard: what a directory removes from a group beyond its share of ten minutes is held.

use serde_json::{Value, json};

use super::{Scene, patch_of};
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{on_all_databases, on_both_databases};

/// The number in an id.
pub(super) fn number(id: &str) -> &str {
    id.split_once('_').unwrap().1
}

fn ids(users: &[String]) -> Vec<&str> {
    users.iter().map(String::as_str).collect()
}

/// Ends the current ten minutes of all groups.
pub(super) async fn end_window(database: &Database) {
    database.execute(&format!("UPDATE directory_removals SET ends_at = {}", database.in_hours(-1))).await;
}

/// The actions of the audit log about groups, with their subjects.
async fn audited(database: &Database) -> Vec<String> {
    database.texts("SELECT action || ' ' || subject FROM audit_log WHERE action LIKE 'group.%' ORDER BY id").await
}

on_both_databases! {
    async fn exactly_the_share_of_a_group_may_go_one_by_one(engine: Engine) {
        for (percent, members, allowed) in [(None, 24, 12), (None, 21, 10), (None, 12, 10), (Some(0), 24, 10), (Some(75), 20, 15), (Some(100), 20, 20)] {
            let scene = Scene::with_guard(engine, percent);
            let users = scene.many_users(members).await;
            let group = scene.group("Sales", &ids(&users)).await;
            for user in &users {
                scene.remove(&group, user).await;
            }
            assert_eq!(scene.members(&group).await, users[allowed..], "{percent:?} of {members}");
            assert_eq!(scene.standing(&group).await, ((members - allowed) as u64, false));
            let held = if allowed < members { vec![format!("group.held group {}", number(&group))] } else { vec![] };
            assert_eq!(audited(&scene.database().await).await, held, "once");
        }
    }

    async fn a_call_that_goes_beyond_is_held_whole_and_what_it_adds_is_added(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(26).await;
        let list = |users: &[String]| json!(users.iter().map(|user| json!({ "value": user })).collect::<Vec<_>>());
        for (at, (method, body)) in [
            ("PATCH", patch_of(&json!([{"op": "remove", "path": "members"}, {"op": "add", "path": "members", "value": users[25]}]))),
            ("PATCH", patch_of(&json!([{"op": "Remove", "path": "members", "value": list(&users[..13])}, {"op": "Add", "path": "members", "value": users[25]}]))),
            ("PATCH", patch_of(&json!([{"op": "replace", "path": "members", "value": list(&users[25..])}]))),
            ("PUT", json!({"displayName": "Renamed", "members": list(&users[25..])})),
        ].into_iter().enumerate() {
            let group = scene.group(&format!("Group {at}"), &ids(&users[..24])).await;
            let answer = scene.send(method, &format!("/Groups/{group}"), &body).await;
            assert!(matches!(answer.status.as_u16(), 200 | 204), "{answer:?}");
            let expected = [&users[..24], &users[25..]].concat();
            assert_eq!(scene.members(&group).await, expected, "{body}");
            assert_eq!(scene.standing(&group).await.0, if at == 1 { 13 } else { 24 });
            if method == "PUT" {
                assert_eq!(scene.read(&format!("/Groups/{group}")).await["displayName"], "Renamed");
                assert_eq!(answer.json()["members"].as_array().unwrap().len(), 25, "a held member is a member");
            }
            scene.remove(&group, &users[25]).await;
            assert_eq!(scene.members(&group).await, expected, "later removals are held, however few");
            scene.patch(&format!("/Groups/{group}"), &json!([{"op": "add", "path": "members", "value": users[24]}])).await;
            assert_eq!(scene.members(&group).await.len(), 26, "adds go on");
        }
    }

    async fn those_who_were_added_in_the_ten_minutes_count_and_those_who_are_members_again_are_not_removed(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(30).await;
        let group = scene.group("Sales", &ids(&users[..20])).await;
        scene.remove(&group, &users[0]).await;
        let path = format!("/Groups/{group}");
        scene.patch(&path, &json!([{"op": "add", "path": "members", "value": &users[20..]}])).await;
        for _ in 0..20 {
            scene.patch(&path, &json!([{"op": "add", "path": "members", "value": users[0]}])).await;
            scene.remove(&group, &users[0]).await;
        }
        for user in &users[1..15] {
            scene.remove(&group, user).await;
        }
        assert_eq!((scene.members(&group).await, scene.standing(&group).await.0), (users[15..].to_vec(), 0), "15 of 30");
        scene.remove(&group, &users[15]).await;
        assert_eq!((scene.members(&group).await, scene.standing(&group).await.0), (users[15..].to_vec(), 1));
    }

    async fn a_new_ten_minutes_has_a_new_share_but_what_is_held_stays_held(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(24).await;
        let group = scene.group("Sales", &ids(&users)).await;
        let database = scene.database().await;
        for user in &users[..12] {
            scene.remove(&group, user).await;
        }
        end_window(&database).await;
        for user in &users[12..22] {
            scene.remove(&group, user).await;
        }
        assert_eq!((scene.members(&group).await, scene.standing(&group).await.0), (users[22..].to_vec(), 0), "10 of the other 12");
        scene.remove(&group, &users[22]).await;
        end_window(&database).await;
        scene.remove(&group, &users[23]).await;
        assert_eq!((scene.members(&group).await, scene.standing(&group).await.0), (users[22..].to_vec(), 2));
    }

    async fn who_is_added_again_or_named_by_a_whole_list_is_no_longer_held(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(24).await;
        let group = scene.group("Sales", &ids(&users)).await;
        let path = format!("/Groups/{group}");
        let put = async |users: &[String]| {
            let list: Vec<_> = users.iter().map(|user| json!({ "value": user })).collect();
            assert_eq!(scene.send("PUT", &path, &json!({"displayName": "Sales", "members": list})).await.status, 200);
        };
        scene.patch(&path, &json!([{"op": "remove", "path": "members"}])).await;
        scene.patch(&path, &json!([{"op": "add", "path": "members", "value": &users[..4]}])).await;
        assert_eq!(scene.standing(&group).await, (20, false));
        put(&users[..6]).await;
        assert_eq!((scene.members(&group).await, scene.standing(&group).await.0), (users.clone(), 18), "it says what is wanted");
        put(&users).await;
        assert_eq!((scene.members(&group).await, scene.standing(&group).await.0), (users.clone(), 0));
        scene.remove(&group, &users[0]).await;
        assert_eq!((scene.members(&group).await, scene.standing(&group).await.0), (users[1..].to_vec(), 0), "nothing is held any more");
        let held = "SELECT CAST(user_id AS text) FROM directory_held";
        assert_eq!(scene.database().await.texts(held).await, [""; 0]);
    }

    async fn what_is_held_is_applied_as_one_sync_or_dropped_until_the_directory_writes_all(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(24).await;
        let group = scene.group("Sales", &ids(&users)).await;
        let path = format!("/Groups/{group}");
        let empty = json!([{"op": "remove", "path": "members"}]);
        let database = scene.database().await;
        scene.patch(&path, &empty).await;
        let dropped = scene.decide(&group, false).await;
        assert_eq!((&dropped["held"], &dropped["diverged"], &dropped["members_count"]), (&json!(0), &json!(true), &json!(24)));
        assert_eq!((scene.members(&group).await, scene.standing(&group).await), (users.clone(), (0, true)));
        for user in &users[..12] {
            scene.remove(&group, user).await;
        }
        assert_eq!((scene.members(&group).await.len(), scene.standing(&group).await), (12, (0, true)), "a new ten minutes, still diverged");
        let list: Vec<_> = users.iter().map(|user| json!({ "value": user })).collect();
        scene.patch(&path, &json!([{"op": "replace", "path": "members", "value": list}])).await;
        assert_eq!((scene.members(&group).await.len(), scene.standing(&group).await), (24, (0, false)));

        scene.patch(&path, &empty).await;
        let count = "SELECT count(*) FROM group_syncs";
        let [before] = database.integers(count).await;
        let applied = scene.decide(&group, true).await;
        assert_eq!((&applied["held"], &applied["diverged"], &applied["members_count"]), (&json!(0), &json!(false), &json!(0)));
        assert_eq!(scene.members(&group).await, [""; 0]);
        assert_eq!(database.integers(count).await, [before + 1]);
        assert_eq!(database.texts("SELECT actor || ' ' || detached_count FROM group_syncs ORDER BY id DESC LIMIT 1").await, ["tests 24"]);
        let begun = format!("group.held group {0}|group.drop group {0}|group.held group {0}|group.apply group {0}", number(&group));
        assert_eq!(audited(&database).await.join("|"), begun);

        for apply in [true, false] {
            assert_eq!(scene.decide(&group, apply).await["held"], 0, "nothing is held");
        }
        assert_eq!((scene.standing(&group).await, audited(&database).await.len()), ((0, false), 4), "nothing was dropped either");
    }

    async fn a_decision_needs_its_scope_a_group_and_a_truth(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let group = scene.group("Sales", &[]).await;
        let post = async |caller: &Client, id: &str, body: &Value| caller.post(&format!("/api/v1/group/{id}/held")).json(body).send().await;
        let caller = scene.acme.caller();
        for body in [json!({}), json!({"apply": null}), json!({"apply": "true"}), json!({"apply": 1}), json!({"apply": [true]})] {
            let answer = post(&caller, &group, &body).await;
            assert_eq!(answer.status, 422, "{body}");
            assert!(answer.json()["errors"]["apply"].is_array(), "{answer:?}");
        }
        for id in ["grp_4711", "x"] {
            assert_eq!(post(&caller, id, &json!({"apply": true})).await.status, 404);
        }
        let reader = scene.acme.site.limited_token("acme", "Reader", &["--scopes", "groups:read"]);
        for caller in [scene.directory.clone(), scene.acme.stranger().with(&reader)] {
            assert_eq!(post(&caller, &group, &json!({"apply": true})).await.status, 403);
        }
        let writer = scene.acme.site.limited_token("acme", "Writer", &["--scopes", "groups:write"]);
        assert_eq!(post(&scene.acme.stranger().with(&writer), &group, &json!({"apply": true})).await.status, 200);
    }

    async fn hidden_members_are_held_with_the_others(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(24).await;
        let group = scene.group("Sales", &ids(&users)).await;
        let active = async |user: &str, active: bool| {
            scene.patch(&format!("/Users/{user}"), &json!([{"op": "replace", "path": "active", "value": active}])).await;
        };
        active(&users[0], false).await;
        scene.patch(&format!("/Groups/{group}"), &json!([{"op": "remove", "path": "members"}])).await;
        assert_eq!((scene.members(&group).await, scene.standing(&group).await.0), (users[1..].to_vec(), 23));
        active(&users[0], true).await;
        assert_eq!((scene.members(&group).await, scene.standing(&group).await.0), (users.clone(), 24));
        scene.decide(&group, true).await;
        assert_eq!(scene.members(&group).await, [""; 0]);
    }

    async fn what_products_and_owners_change_leaves_nothing_behind(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(24).await;
        let database = scene.database().await;
        let empty = json!([{"op": "remove", "path": "members"}]);
        let held = async |group: &str| {
            let sql = format!("SELECT CAST(user_id AS text) FROM directory_held WHERE group_id = {}", number(group));
            (database.texts(&sql).await.len(), scene.standing(group).await.0)
        };
        let group = scene.group("Sales", &ids(&users)).await;
        scene.patch(&format!("/Groups/{group}"), &empty).await;
        database.execute(&format!("DELETE FROM group_members WHERE group_id = {} AND user_id = {}", number(&group), number(&users[0]))).await;
        assert_eq!(held(&group).await.1, 23, "who is no member is not held");
        database.execute(&format!("{}DELETE FROM users WHERE id = {}", if matches!(database, Database::Sqlite(_)) { "PRAGMA foreign_keys = ON; " } else { "" }, number(&users[1]))).await;
        assert_eq!(held(&group).await, (23, 22));
        scene.send("PUT", &format!("/Groups/{group}"), &json!({"displayName": "Renamed", "externalId": "x"})).await;
        assert_eq!(held(&group).await, (23, 22), "a name changes nothing");
        scene.send("PUT", &format!("/Groups/{group}"), &json!({"displayName": "Renamed", "members": []})).await;
        assert_eq!(held(&group).await, (22, 22), "a whole list forgets who is no member");
        let give = scene.acme.caller().post(&format!("/api/v1/group/{group}/managed_by")).json(&json!({"managed_by": null})).send().await;
        assert_eq!(give.status, 200);
        assert_eq!((held(&group).await, scene.members(&group).await.len()), ((0, 0), 22), "the account keeps its members");

        let deleted = scene.group("IT", &ids(&users[2..])).await;
        scene.patch(&format!("/Groups/{deleted}"), &empty).await;
        assert_eq!(scene.directory.delete(&format!("/scim/v2/Groups/{deleted}")).send().await.status, 204);
        assert_eq!(database.texts("SELECT CAST(user_id AS text) FROM directory_held").await.len(), 0);
    }
}

on_all_databases! {
    async fn clients_at_two_nodes_cannot_get_beyond_the_share_together(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(40).await;
        let group = scene.group("Sales", &ids(&users)).await;
        let other = scene.acme.site.start();
        let token = scene.acme.site.limited_token("acme", "Second", &["--scopes", "scim"]);
        let directories = [scene.directory.clone(), other.client().to(&scene.acme.host()).with(&token)];
        let removals = users.iter().enumerate().map(async |(at, user)| {
            let operations = patch_of(&json!([{"op": "remove", "path": format!("members[value eq \"{user}\"]")}]));
            let call = directories[at % 2].method("PATCH".parse().unwrap(), &format!("/scim/v2/Groups/{group}"));
            let body = serde_json::to_vec(&operations).unwrap();
            let answer = call.header("content-type", "application/scim+json").body(body).send().await;
            assert_eq!(answer.status, 204, "{answer:?}");
        });
        futures_util::future::join_all(removals).await;
        assert_eq!((scene.members(&group).await.len(), scene.standing(&group).await.0), (20, 20));
        assert_eq!(audited(&scene.database().await).await.len(), 1, "it began once");
    }
}
