//! Users who leave the account beyond the guard are held as users.

use serde_json::json;

use super::Scene;
use super::guard::{end_window, number};
use crate::support::fixture::on_both_databases;

const ALL_USERS: &str = "grp_9007199254740991";

impl Scene {
    /// Says whether a user is active, and returns what the response says.
    async fn say_active(&self, user: &str, active: bool) -> bool {
        let operations = json!([{"op": "Replace", "path": "active", "value": active}]);
        self.patch(&format!("/Users/{user}"), &operations).await.json()["active"].as_bool().unwrap()
    }

    async fn delete_user(&self, user: &str) {
        assert_eq!(self.directory.delete(&format!("/scim/v2/Users/{user}")).send().await.status, 204);
    }

    /// How many users are active, and how many of those are held.
    async fn active(&self) -> (u64, u64) {
        let shown = self.read("/Users?filter=active%20eq%20true&count=0").await;
        (shown["totalResults"].as_u64().unwrap(), self.standing(ALL_USERS).await.0)
    }
}

on_both_databases! {
    async fn a_directory_that_deactivates_everybody_is_held_and_single_leavers_leave_at_once(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(24).await;
        let group = scene.group("Sales", &users.iter().map(String::as_str).collect::<Vec<_>>()).await;
        assert!(!scene.say_active(&users[0], false).await);
        assert_eq!(scene.members(&group).await.len(), 23);
        for (at, user) in users.iter().enumerate().skip(1) {
            if at % 3 == 0 {
                scene.delete_user(user).await;
            } else {
                assert_eq!(scene.say_active(user, false).await, at >= 12, "{at}");
            }
        }
        assert_eq!(scene.active().await, (12, 12));
        assert_eq!(scene.members(&group).await, users[12..]);
        let changed = json!([{"op": "replace", "value": {"active": "False", "displayName": "Held"}}]);
        let shown = scene.patch(&format!("/Users/{}", users[13]), &changed).await.json();
        assert_eq!((&shown["active"], &shown["displayName"]), (&json!(true), &json!("Held")), "everything else is applied");
        assert!(scene.say_active(&users[13], true).await);
        assert_eq!(scene.active().await, (12, 11), "an active user is no longer held");
        scene.patch(&format!("/Users/{}", users[14]), &json!([{"op": "replace", "value": {"displayName": "Other"}}])).await;
        assert_eq!(scene.active().await, (12, 11), "another attribute says nothing of that");

        scene.decide(ALL_USERS, true).await;
        assert_eq!(scene.active().await, (1, 0));
        assert_eq!(scene.members(&group).await, [users[13].clone()]);
        let exists = scene.get(&format!("/Users/{}", users[15])).await;
        assert_eq!(exists.status, 404, "a deletion is carried out as one");
    }

    async fn dropped_leavers_stay_and_their_next_ten_minutes_begin(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(21).await;
        for user in &users {
            scene.say_active(user, false).await;
        }
        assert_eq!(scene.active().await, (11, 11));
        assert_eq!(scene.decide(ALL_USERS, false).await["members_count"], 11);
        assert_eq!(scene.active().await, (11, 0));
        for user in &users[10..] {
            scene.say_active(user, false).await;
        }
        assert_eq!(scene.active().await, (1, 1), "10 of the others");
        end_window(&scene.database().await).await;
        assert!(scene.say_active(&users[20], false).await, "held until somebody decides");
        let held = scene.database().await.texts("SELECT kind || ' ' || actor FROM directory_held").await;
        assert_eq!(held, ["deactivated Directory"]);
    }

    async fn the_share_of_a_group_holds_leavers_as_users(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(60).await;
        let members: Vec<&str> = users[..16].iter().map(String::as_str).collect();
        let group = scene.group("Sales", &members).await;
        for user in &users[..5] {
            scene.remove(&group, user).await;
        }
        for user in &users[5..10] {
            assert!(!scene.say_active(user, false).await);
        }
        assert!(scene.say_active(&users[10], false).await, "the eleventh of sixteen");
        assert!(!scene.say_active(&users[50], false).await, "members of other groups leave");
        assert_eq!((scene.standing(&group).await.0, scene.standing(ALL_USERS).await.0), (1, 0));
        scene.remove(&group, &users[11]).await;
        assert_eq!((scene.members(&group).await, scene.standing(&group).await.0), (users[10..16].to_vec(), 2));
        scene.delete_user(&users[10]).await;
        assert_eq!(scene.standing(&group).await.0, 2, "a deletion takes the place of the deactivation");
        let give = scene.acme.caller().post(&format!("/api/v1/group/{group}/managed_by")).json(&json!({"managed_by": "api"})).send().await;
        assert_eq!(give.status, 200);
        assert_eq!((scene.standing(&group).await.0, scene.standing(ALL_USERS).await.0), (0, 1), "the account decides about the user");
        scene.decide(ALL_USERS, true).await;
        assert_eq!(scene.get(&format!("/Users/{}", users[10])).await.status, 404);
        assert_eq!(scene.members(&group).await, users[11..16]);
    }

    async fn a_decision_about_a_group_settles_the_leavers_that_it_holds(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(60).await;
        let members: Vec<&str> = users[..12].iter().map(String::as_str).collect();
        let (sales, it) = (scene.group("Sales", &members).await, scene.group("IT", &members[10..]).await);
        for user in &users[..12] {
            scene.say_active(user, false).await;
        }
        assert_eq!((scene.members(&sales).await.len(), scene.standing(&sales).await.0), (2, 2));
        scene.decide(&sales, true).await;
        assert_eq!((scene.members(&sales).await.len(), scene.members(&it).await.len(), scene.active().await), (0, 0, (48, 0)));
        let database = scene.database().await;
        let last = database.texts("SELECT group_name || ' ' || detached FROM group_syncs ORDER BY id DESC LIMIT 1").await;
        assert_eq!(last, [format!("All Users [{},{}]", number(&users[10]), number(&users[11]))]);
        for user in &users[..12] {
            scene.say_active(user, true).await;
        }
        assert_eq!((scene.members(&sales).await.len(), scene.members(&it).await.len()), (12, 2), "their memberships return");
    }
}
