//! `group_guard`: how many members one call may detach.

use serde_json::{Value, json};

use super::{counts, everything, faulty_fields, members, put, write, written};
use crate::api::account::{Account, account, account_with};
use crate::support::fixture::{Engine, on_both_databases};

fn guarded(engine: Engine, percent: i64) -> Account {
    let guard = toml::Table::from_iter([("max_detached_percent".to_owned(), toml::Value::from(percent))]);
    account_with(engine, "", |tenant| tenant.set("group_guard", guard))
}

/// The group with so many members, the first of a row of users.
fn body(many: usize) -> Value {
    json!({"name": "Sales", "external_id": "x", "members": members((0..many).map(|at| format!("user-{at}@x.example")))})
}

on_both_databases! {
    async fn detaching_more_than_the_guard_allows_is_refused_until_it_is_confirmed(engine: Engine) {
        let account = guarded(engine, 50);
        let client = &account.client;
        write(client, &body(10)).await;
        let before = everything(client).await;
        let mut renamed = body(4);
        renamed["name"] = "Renamed".into();
        for query in ["", "?confirm=0", "?dry_run=1", "?report=members"] {
            let answer = put(client, query, &renamed).await;
            assert_eq!(faulty_fields(&answer), ["members"], "{query}");
            let text = answer.json()["message"].as_str().unwrap().to_owned();
            assert!(text.contains(" 6 of ") && text.contains(" 10") && text.contains("?confirm=1"), "{text}");
            assert_eq!(everything(client).await, before, "{query}");
        }
        assert_eq!(counts(&written(&put(client, "?confirm=1&dry_run=1", &renamed).await)), [0, 6, 0]);
        assert_eq!(everything(client).await, before);
        assert_eq!(counts(&written(&put(client, "?confirm=1", &renamed).await)), [0, 6, 0]);
        assert_eq!(everything(client).await[0]["members_count"], 4);
    }

    async fn exactly_what_the_guard_allows_passes(engine: Engine) {
        let account = guarded(engine, 50);
        let client = &account.client;
        write(client, &body(10)).await;
        assert_eq!(counts(&write(client, &body(5)).await), [0, 5, 0]);
        assert_eq!(faulty_fields(&put(client, "", &body(2)).await), ["members"], "3 of 5 are 60 percent");
        assert_eq!(counts(&write(client, &body(3)).await), [0, 2, 0], "2 of 5 are 40 percent");
        let others = json!({"name": "Sales", "members": members(["1@x.example", "2@x.example", "3@x.example", "user-0@x.example"])});
        assert_eq!(faulty_fields(&put(client, "", &others).await), ["members"], "who comes does not make up for who goes");
        assert_eq!(faulty_fields(&put(client, "", &body(0)).await), ["members"]);
        write(client, &json!({"name": "Renamed", "external_id": "x"})).await;
        assert_eq!(counts(&write(client, &json!({"name": "Renamed", "members": members((0..90).map(|at| format!("user-{at}@x.example")))})).await), [87, 0, 80]);
    }

    async fn a_guard_of_nothing_lets_members_come_but_not_go(engine: Engine) {
        let account = guarded(engine, 0);
        let client = &account.client;
        assert_eq!(counts(&write(client, &body(0)).await), [0, 0, 0]);
        assert_eq!(counts(&write(client, &body(200)).await), [200, 0, 200]);
        assert_eq!(faulty_fields(&put(client, "", &body(199)).await), ["members"]);
        assert_eq!(counts(&write(client, &body(200)).await), [0, 0, 0]);
        let id = everything(client).await[0]["id"].as_str().unwrap().to_owned();
        let answer = client.delete(&format!("{}/{id}", super::GROUPS)).send().await;
        assert_eq!(answer.json(), json!({"deleted": true, "detached": 200}), "a deletion says itself what it does");
    }

    async fn without_a_guard_everybody_can_be_detached(engine: Engine) {
        let client = &account(engine, "").client;
        write(client, &body(10)).await;
        assert_eq!(counts(&write(client, &body(0)).await), [0, 10, 0]);
    }
}
