//! Changes of a group by one directory that follow each other are one sync, which is undone as a whole.

use formgate::store::{Actor, DatabaseLocation, Store, Undone};
use serde_json::json;

use super::guard::number;
use super::{Scene, patch_of};
use crate::support::fixture::on_both_databases;

impl Scene {
    async fn store(&self) -> Store {
        let location = DatabaseLocation::parse(self.acme.site.database_url("acme"), "/".as_ref()).unwrap();
        Store::open(&location, 2).await.unwrap()
    }

    /// The syncs as texts, the oldest first.
    async fn syncs(&self) -> Vec<String> {
        let sql =
            "SELECT actor || ' ' || group_name || ' ' || attached || ' ' || detached FROM group_syncs ORDER BY id";
        self.database().await.texts(sql).await
    }

    /// Undoes the newest sync.
    async fn undo(&self) -> Undone {
        let store = self.store().await;
        let newest = store.list_group_syncs(None, None, 1).await.unwrap().pop().unwrap();
        let undone = store.undo_group_sync(newest.id, &Actor::command("ana")).await.unwrap();
        store.close().await;
        undone
    }
}

on_both_databases! {
    async fn a_run_ends_with_a_pause_another_token_or_another_write(engine: Engine) {
        let scene = Scene::start(engine);
        let users = scene.many_users(6).await;
        let n: Vec<_> = users.iter().map(|user| number(user).to_owned()).collect();
        let group = scene.group("Sales", &[&users[0]]).await;
        let path = format!("/Groups/{group}");
        let add = async |user: &str| {
            scene.patch(&path, &json!([{"op": "add", "path": "members", "value": user}])).await;
        };
        add(&users[1]).await;
        scene.remove(&group, &users[0]).await;
        scene.remove(&group, &users[0]).await;
        let first = [format!("Directory Sales [{},{}] []", n[0], n[1]), format!("Directory Sales [] [{}]", n[0])];
        assert_eq!(scene.syncs().await, first, "with the first removal");

        let database = scene.database().await;
        database.execute(&format!("UPDATE group_syncs SET changed_at = {}", database.in_hours(-1))).await;
        add(&users[2]).await;
        let second = format!("Directory Sales [{}] []", n[2]);
        assert_eq!(scene.syncs().await[2..], [&*second], "after a pause");

        let token = scene.acme.site.limited_token("acme", "Second", &["--scopes", "scim"]);
        let body = serde_json::to_vec(&patch_of(&json!([{"op": "add", "path": "members", "value": users[3]}]))).unwrap();
        let call = scene.acme.stranger().with(&token).method("PATCH".parse().unwrap(), &format!("/scim/v2{path}"));
        assert_eq!(call.header("content-type", "application/scim+json").body(body).send().await.status, 204);
        add(&users[4]).await;
        let others = [format!("Second Sales [{}] []", n[3]), format!("Directory Sales [{}] []", n[4])];
        assert_eq!(scene.syncs().await[3..], others, "after another directory");

        assert!(matches!(scene.undo().await, Undone::Undone { detached, .. } if detached == ["u04@example.com"]));
        assert!(scene.store().await.find_directory_group(number(&group).parse().unwrap()).await.unwrap().unwrap().diverged);
        add(&users[5]).await;
        assert_eq!(scene.syncs().await[6..], [format!("Directory Sales [{}] []", n[5])], "after an undo");
        let renamed = scene.send("PUT", &path, &json!({"displayName": "Renamed"})).await;
        assert_eq!((renamed.status.as_u16(), scene.syncs().await.len()), (200, 7));
        assert_eq!(scene.syncs().await[6], format!("Directory Renamed [{}] []", n[5]));
    }

    async fn emptying_a_group_is_undone_without_what_filled_it(engine: Engine) {
        let scene = Scene::with_guard(engine, None);
        let users = scene.many_users(24).await;
        let (first, others) = (&users[0], users[1..].iter().map(String::as_str).collect::<Vec<_>>());
        let group = scene.group("Sales", &[first]).await;
        scene.patch(&format!("/Groups/{group}"), &json!([{"op": "add", "path": "members", "value": others.iter().map(|user| json!({"value": user})).collect::<Vec<_>>()}])).await;
        for user in &users {
            scene.remove(&group, user).await;
        }
        assert_eq!(scene.syncs().await.len(), 2);
        assert_eq!(scene.members(&group).await.len(), 12, "the others are held");
        assert!(matches!(scene.undo().await, Undone::Undone { attached, .. } if attached.len() == 12));
        assert_eq!(scene.members(&group).await.len(), 24);
    }

    async fn a_group_that_a_step_uses_is_filled_again_after_a_directory_deleted_it(engine: Engine) {
        let scene = Scene::start(engine);
        let users = scene.many_users(3).await;
        let group = scene.group("Sales", &users.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let database = scene.database().await;
        for statement in [
            "INSERT INTO forms (id, name) VALUES (900, 'Form')",
            "INSERT INTO flow_steps (id, form_id, name) VALUES (900, 900, 'Step')",
        ] {
            database.execute(statement).await;
        }
        database.execute(&format!("INSERT INTO flow_step_groups VALUES (900, {})", number(&group))).await;
        assert_eq!(scene.directory.delete(&format!("/scim/v2/Groups/{group}")).send().await.status, 204);
        assert_eq!(scene.members(&group).await.len(), 0);
        assert!(matches!(scene.undo().await, Undone::Undone { attached, .. } if attached.len() == 3));
        assert_eq!(scene.members(&group).await.len(), 3);
    }

    async fn undoing_a_run_of_users_brings_them_back_with_their_memberships(engine: Engine) {
        let scene = Scene::start(engine);
        let users = scene.many_users(4).await;
        let group = scene.group("Sales", &[&users[0], &users[1], &users[2]]).await;
        for user in &users[..2] {
            scene.patch(&format!("/Users/{user}"), &json!([{"op": "replace", "path": "active", "value": false}])).await;
        }
        let [a, b] = [number(&users[0]), number(&users[1])];
        assert_eq!(scene.syncs().await[1..], [format!("Directory All Users [] [{a},{b}]")]);
        assert!(matches!(scene.undo().await, Undone::Undone { attached, .. } if attached == ["u00@example.com", "u01@example.com"]));
        assert_eq!(scene.members(&group).await, users[..3]);
        assert!(matches!(scene.undo().await, Undone::Undone { detached, .. } if detached.len() == 2), "and again");
        assert_eq!(scene.members(&group).await, users[2..3]);
    }

    async fn the_memberships_of_a_user_that_submissions_keep_are_undone_group_by_group(engine: Engine) {
        let scene = Scene::start(engine);
        let users = scene.many_users(2).await;
        let (sales, it) = (scene.group("Sales", &[&users[0], &users[1]]).await, scene.group("IT", &[&users[0]]).await);
        let ana = number(&users[0]);
        let database = scene.database().await;
        let at = database.in_hours(0);
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;
        database.execute(&format!("INSERT INTO submissions (id, form_id, status, submitter_id, created_at, updated_at) VALUES (1, 1, 'pending', {ana}, {at}, {at})")).await;
        assert_eq!(scene.directory.delete(&format!("/scim/v2/Users/{}", users[0])).send().await.status, 204);
        assert_eq!((scene.members(&sales).await.len(), scene.members(&it).await.len()), (1, 0));
        let syncs = scene.syncs().await;
        assert!(syncs.contains(&format!("Directory All Users [] [{ana}]")), "{syncs:?}");
        let store = scene.store().await;
        let kept = store.list_group_syncs(Some(number(&it).parse().unwrap()), None, 10).await.unwrap();
        assert_eq!((kept.len(), kept[0].attached, kept[0].detached), (2, 0, 1), "without the run that created the group");
        scene.patch(&format!("/Users/{}", users[0]), &json!([{"op": "replace", "path": "active", "value": true}])).await;
        assert_eq!(scene.members(&it).await.len(), 0, "the memberships are gone");
    }

    async fn an_undo_sees_memberships_that_are_hidden(engine: Engine) {
        let scene = Scene::start(engine);
        let users = scene.many_users(2).await;
        let group = scene.group("Sales", &[&users[0]]).await;
        let set = async |active: bool| {
            scene.patch(&format!("/Users/{}", users[0]), &json!([{"op": "replace", "path": "active", "value": active}])).await;
        };
        set(false).await;
        let store = scene.store().await;
        let sync = store.list_group_syncs(Some(number(&group).parse().unwrap()), None, 1).await.unwrap().pop().unwrap();
        let undone = store.undo_group_sync(sync.id, &Actor::command("ana")).await.unwrap();
        assert!(matches!(undone, Undone::Undone { detached, .. } if detached == ["u00@example.com"]));
        set(true).await;
        assert_eq!(scene.members(&group).await, [""; 0], "a membership that was undone does not return");
    }
}
