//! `DELETE /group/{id}`.

use serde_json::{Value, json};

use super::{ALL_USERS, GROUPS, everything, members, show, write};
use crate::api::account::account;
use crate::support::client::Client;
use crate::support::fixture::on_both_databases;

async fn delete(client: &Client, id: &str) -> (u16, Value) {
    let answer = client.delete(&format!("{GROUPS}/{id}")).send().await;
    (answer.status.as_u16(), answer.json())
}

on_both_databases! {
    async fn a_deleted_group_is_gone_and_its_members_stay_users(engine: Engine) {
        let client = &account(engine, "").client;
        let body = json!({"name": "Sales", "external_id": "x1", "members": members(["a@x.example", "b@x.example"])});
        let first = write(client, &body).await["data"]["id"].as_str().unwrap().to_owned();
        let other = write(client, &json!({"name": "Other", "members": members(["a@x.example"])})).await;
        assert_eq!(delete(client, &first).await, (200, json!({"deleted": true, "detached": 2})));
        assert_eq!(delete(client, &first).await, (404, json!({"message": "Group not found"})));
        assert_eq!(client.get(&format!("{GROUPS}/{first}")).send().await.status, 404);
        let groups = everything(client).await;
        let counts: Vec<_> = groups.iter().map(|group| (&group["name"], &group["members_count"])).collect();
        assert_eq!(counts, [(&other["data"]["name"], &json!(1)), (&json!("All Users"), &json!(2))]);
        let again = write(client, &body).await;
        assert_eq!((&again["result"], super::counts(&again)), (&json!("created"), [2, 0, 0]));
    }

    async fn a_group_that_a_workflow_step_uses_is_emptied_but_not_deleted(engine: Engine) {
        let account = account(engine, "");
        let client = &account.client;
        let body = json!({"name": "Sales", "external_id": "x1", "members": members(["a@x.example", "b@x.example"])});
        let id = write(client, &body).await["data"]["id"].as_str().unwrap().to_owned();
        let database = account.database().await;
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;
        database.execute("INSERT INTO flow_steps (id, form_id, name) VALUES (11, 1, 'Approval')").await;
        database.execute(&format!("INSERT INTO flow_step_groups VALUES (11, {})", id.trim_start_matches("grp_"))).await;
        let kept = |detached| (200, json!({"deleted": false, "reason": "used_in_flows", "detached": detached}));
        assert_eq!(delete(client, &id).await, kept(2));
        assert_eq!(delete(client, &id).await, kept(0));
        let group = show(client, &id).await;
        assert_eq!(group, json!({"id": id, "name": "Sales", "external_id": "x1", "managed": true, "managed_by": "api", "members_count": 0, "members": []}));
        assert_eq!(super::counts(&write(client, &body).await), [2, 0, 0], "it can be written as before");
        database.execute("DELETE FROM flow_step_groups").await;
        assert_eq!(delete(client, &id).await, (200, json!({"deleted": true, "detached": 2})));
    }

    async fn the_built_in_group_cannot_be_deleted(engine: Engine) {
        let client = &account(engine, "").client;
        write(client, &json!({"name": "Sales", "members": members(["a@x.example"])})).await;
        let before = everything(client).await;
        for id in [ALL_USERS, ALL_USERS.trim_start_matches("grp_")] {
            assert_eq!(delete(client, id).await, (403, json!({"message": "The All Users group cannot be deleted"})));
        }
        assert_eq!(everything(client).await, before);
    }
}
