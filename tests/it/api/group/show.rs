//! `GET /group/{id}`.

use serde_json::json;

use super::{GROUPS, emails, members, show, write};
use crate::api::account::account;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn members_come_by_address_whatever_its_case(engine: Engine) {
        let client = &account(engine, "").client;
        let list = ["zoe@x.example", "Ben@x.example", "_@x.example", "ana@x.example", "Zoe@a.example", "éa@x.example", "10@x.example", "9@x.example"];
        let written = write(client, &json!({"name": "Sales", "members": members(list)})).await;
        let group = show(client, written["data"]["id"].as_str().unwrap()).await;
        let mut sorted = list;
        sorted.sort_by_key(|email| email.to_lowercase());
        assert_eq!(emails(&group), sorted);
    }

    async fn both_forms_of_an_id_find_a_group_and_others_are_not_found(engine: Engine) {
        let client = &account(engine, "").client;
        let group = write(client, &json!({"name": "Sales"})).await["data"]["id"].as_str().unwrap().to_owned();
        let bare = group.trim_start_matches("grp_");
        assert_eq!(show(client, bare).await, show(client, &group).await);
        for id in ["grp_77", "77", "for_1", "grp_", "0", "-1", "x", "1.0", "9223372036854775808", "9007199254740990", "%00"] {
            let path = format!("{GROUPS}/{id}");
            for answer in [client.get(&path).send().await, client.delete(&path).send().await] {
                let message = answer.json()["message"].clone();
                assert_eq!((answer.status.as_u16(), message), (404, "Group not found".into()), "{id}");
            }
        }
    }
}
