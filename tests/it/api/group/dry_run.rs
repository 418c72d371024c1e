//! `PUT /group?dry_run=1` answers what the call would answer, and changes nothing.

use rand::RngExt;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::model::Writes;
use super::{GROUPS, everything, members, put, write};
use crate::api::account::{account, account_with};
use crate::support::fixture::on_both_databases;

const STEPS: usize = 80;

/// A write at random, some with faults.
fn body(writes: &mut Writes) -> Value {
    let mut body = writes.next();
    if writes.random.random_bool(0.15) {
        let faults = [json!({"name": ""}), json!({"external_id": 7}), json!({"members": [{"email": "x"}, 1]})];
        let fault = faults.choose(&mut writes.random).unwrap();
        body.as_object_mut().unwrap().extend(fault.as_object().unwrap().clone());
    }
    body
}

on_both_databases! {
    async fn a_dry_run_answers_what_the_call_then_answers(engine: Engine) {
        let guard = toml::Table::from_iter([("max_detached_percent".to_owned(), toml::Value::from(50))]);
        let account = account_with(engine, "", |tenant| tenant.set("group_guard", guard));
        let client = &account.client;
        let mut writes = Writes::new(11);
        let (mut before, mut seen) = (everything(client).await, [0; 3]);
        for step in 0..STEPS {
            let body = body(&mut writes);
            let others = ["", "&report=members", "&confirm=1", "&confirm=true&report=members"].choose(&mut writes.random).unwrap();
            for _ in 0..writes.random.random_range(1..=2) {
                let tried = put(client, &format!("?dry_run=1{others}"), &body).await;
                assert_eq!(everything(client).await, before, "step {step}: {body} changed something");
                let done = put(client, &format!("?dry_run=0{others}"), &body).await;
                assert_eq!(tried.status, done.status, "step {step}: {body}: {tried:?} {done:?}");
                assert_eq!(tried.header("x-ignored-parameters"), done.header("x-ignored-parameters"));
                let mut answer = tried.json();
                let said = answer.as_object_mut().unwrap().remove("dry_run");
                assert_eq!(said, (done.status != 422).then_some(json!(true)), "step {step}: {body}");
                assert_eq!(answer, done.json(), "step {step}: {body}{others}");
                seen[match done.status.as_u16() { 201 => 0, 200 => 1, _ => 2 }] += 1;
                before = everything(client).await;
            }
            if writes.random.random_bool(0.1) && before.len() > 1 {
                let group = before[..before.len() - 1].choose(&mut writes.random).unwrap();
                client.delete(&format!("{GROUPS}/{}", group["id"].as_str().unwrap())).send().await;
                before = everything(client).await;
            }
        }
        assert!(seen.iter().all(|&times| times > 8), "{seen:?} created, updated, refused: they prove little");
    }

    async fn dry_runs_are_right_about_rows_of_another_writer(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        database.execute("INSERT INTO groups (id, name) VALUES (1, 'Managers'), (5, 'Others')").await;
        database.execute("INSERT INTO users (id, email) VALUES (1, 'one@x.example'), (2, 'two@x.example')").await;
        let client = &account.client;
        for body in [
            json!({"name": "Managers", "external_id": "x1", "members": members(["ONE@x.example", "new@x.example"])}),
            json!({"name": "New", "external_id": "x2", "members": members(["two@x.example", "new@x.example"])}),
        ] {
            let before = everything(client).await;
            let mut tried = put(client, "?dry_run=1", &body).await.json();
            assert_eq!(everything(client).await, before);
            assert_eq!(tried.as_object_mut().unwrap().remove("dry_run"), Some(json!(true)));
            assert_eq!(tried, write(client, &body).await);
        }
    }

    async fn a_dry_run_writes_no_row(engine: Engine) {
        let account = account(engine, "");
        let client = &account.client;
        write(client, &json!({"name": "Sales", "members": members(["a@x.example", "b@x.example"])})).await;
        let database = account.database().await;
        database.count_row_writes().await;
        for body in [
            json!({"name": "New", "members": members(["a@x.example", "c@x.example"])}),
            json!({"name": "Sales", "external_id": "x", "members": members(["c@x.example"])}),
        ] {
            put(client, "?dry_run=true&report=members", &body).await;
        }
        assert_eq!(database.row_writes().await, 0);
        write(client, &json!({"name": "Sales", "external_id": "x", "members": members(["c@x.example"])})).await;
        assert_eq!(database.row_writes().await, 5, "a group, a user, two memberships gone and one new");
    }
}
