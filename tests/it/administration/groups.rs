//! Group syncs on their pages: who came and who went, and undoing.

use serde_json::json;

use super::scene::{Administrator, Scene, text};
use crate::support::client::Client;
use crate::support::fixture::on_both_databases;

/// Writes a group through the API.
async fn sync(api: &Client, name: &str, emails: &[&str]) {
    let members: Vec<_> = emails.iter().map(|email| json!({ "email": email })).collect();
    let answer = api.put("/api/v1/group").json(&json!({ "name": name, "members": members })).send().await;
    assert!([200, 201].contains(&answer.status.as_u16()), "{answer:?}");
}

async fn members(api: &Client) -> Vec<String> {
    let id = api.get("/api/v1/group").send().await.json()["data"][0]["id"].as_str().expect("a group").to_owned();
    let group = api.get(&format!("/api/v1/group/{id}")).send().await.json();
    let members = group["data"]["members"].as_array().expect("members").clone();
    members.iter().map(|member| member["email"].as_str().expect("an address").to_owned()).collect()
}

async fn page(administrator: &Administrator, path: &str) -> String {
    let answer = administrator.get(path).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    text(&answer)
}

on_both_databases! {
    async fn a_sync_is_listed_shown_and_undone(engine: Engine) {
        let scene = Scene::start(engine);
        let (own, viewer) = (scene.sign_in("acme", "admin").await, scene.sign_in("acme", "viewer").await);
        assert!(page(&own, "/admin/groups").await.contains("No group was synced yet"));
        let (_, token) = own.generate("directory").await;
        let api = own.caller.with(&token);
        sync(&api, "<i>Sales</i>", &["ana@acme.example", "ben@acme.example"]).await;
        sync(&api, "<i>Sales</i>", &["ben@acme.example", "cleo@acme.example"]).await;
        sync(&api, "<i>Sales</i>", &["ben@acme.example", "cleo@acme.example"]).await;

        let list = page(&viewer, "/admin/groups").await;
        assert_eq!(list.matches("data-sync=").count(), 2, "a write that changed nothing is none");
        assert!(list.contains("&#60;i&#62;Sales") && !list.contains("<i>") && list.contains("directory"), "{list}");
        let shown = page(&own, "/admin/groups/2").await;
        let [came, went, again] = ["Became members (1)", "Stopped being members (1)", "Would become members (1)"];
        assert!([came, went, again].iter().all(|heading| shown.contains(heading)), "{shown}");
        assert!(!page(&viewer, "/admin/groups/2").await.contains("Undo this sync</button>"));
        assert!(page(&own, "/admin/groups/1").await.contains("Sync 2 touched some of the same members later"));
        assert_eq!(viewer.post("/admin/groups/2", &[]).await.status, 403);
        assert_eq!(own.post("/admin/groups/1", &[]).await.status, 409);
        assert_eq!(members(&api).await, ["ben@acme.example", "cleo@acme.example"]);

        let answer = own.post("/admin/groups/2", &[]).await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (303, Some("/admin/groups")));
        assert_eq!(members(&api).await, ["ana@acme.example", "ben@acme.example"]);
        assert_eq!(own.post("/admin/groups/2", &[]).await.status, 409, "once");
        assert!(page(&own, "/admin/groups/2").await.contains("It was undone already, by sync 3."));
        assert!(page(&own, "/admin/groups").await.contains("undoes sync 2"));
        assert!(page(&own, "/admin/audit?action=group.undo").await.contains("admin@acme.example"));
        for unknown in ["0", "-1", "01", "x", "4711", "9223372036854775808"] {
            assert_eq!(own.get(&format!("/admin/groups/{unknown}")).await.status, 404, "{unknown}");
            assert_eq!(own.post(&format!("/admin/groups/{unknown}"), &[]).await.status, 404, "{unknown}");
        }
    }

    async fn syncs_are_paged_and_filtered_by_group(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let (_, token) = own.generate("directory").await;
        let api = own.caller.with(&token);
        for n in 0..27 {
            sync(&api, "One", &[&format!("user-{n}@acme.example")]).await;
            sync(&api, "Two", &[&format!("user-{n}@acme.example")]).await;
        }
        let first = page(&own, "/admin/groups").await;
        assert_eq!(first.matches("data-sync=").count(), 50);
        assert!(first.contains("/admin/groups?before=5\"") && first.contains("data-sync=\"54\""), "{first}");
        let second = page(&own, "/admin/groups?before=5").await;
        assert!(second.matches("data-sync=").count() == 4 && !second.contains("Older syncs"));
        let group = first.split("/admin/groups?group=").nth(1).expect("a link").split('"').next().expect("a number");
        let of_one = page(&own, &format!("/admin/groups?group={group}")).await;
        assert_eq!(of_one.matches("data-sync=").count(), 27);
        assert!(page(&own, "/admin/groups?group=4711").await.contains("No group was synced yet"));
    }
}
