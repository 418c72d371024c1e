//! `PUT /group`: what is refused, named by where it stands, all at once.

use serde_json::{Value, json};

use super::{GROUPS, everything, faulty_fields, put, write};
use crate::api::account::account;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn every_fault_is_reported_at_its_position(engine: Engine) {
        let client = &account(engine, "").client;
        let long = "ü".repeat(256);
        let long_email = format!("{}@x.example", "a".repeat(320));
        for (body, fields) in [
            (json!({}), vec!["name"]),
            (json!({"name": null}), vec!["name"]),
            (json!({"name": ""}), vec!["name"]),
            (json!({"name": long}), vec!["name"]),
            (json!({"name": "a\0b"}), vec!["name"]),
            (json!({"name": 7}), vec!["name"]),
            (json!({"name": ["Sales"]}), vec!["name"]),
            (json!({"name": "S", "external_id": ""}), vec!["external_id"]),
            (json!({"name": "S", "external_id": long}), vec!["external_id"]),
            (json!({"name": "S", "external_id": "\0"}), vec!["external_id"]),
            (json!({"name": "S", "external_id": 7}), vec!["external_id"]),
            (json!({"name": "S", "members": {}}), vec!["members"]),
            (json!({"name": "S", "members": "a@x.example"}), vec!["members"]),
            (json!({"name": "S", "members": ["a@x.example", null]}), vec!["members.0", "members.1"]),
            (json!({"name": "S", "members": [{}, {"email": null}]}), vec!["members.0.email", "members.1.email"]),
            (json!({"name": "S", "members": [{"email": ""}]}), vec!["members.0.email"]),
            (json!({"name": "S", "members": [{"email": 7}]}), vec!["members.0.email"]),
            (json!({"name": "S", "members": [{"email": "a\0@x.example"}]}), vec!["members.0.email"]),
            (json!({"name": "S", "members": [{"email": long_email}]}), vec!["members.0.email"]),
            (json!({"name": "S", "members": [{"email": "a@x.example", "name": 7}]}), vec!["members.0.name"]),
            (json!({"name": "S", "members": [{"email": "a@x.example", "name": "\0"}]}), vec!["members.0.name"]),
            (json!({"name": "S", "members": [{"email": "a@x.example", "name": "ü".repeat(1001)}]}), vec!["members.0.name"]),
            (json!({"name": "S", "members": [{"email": "a@x.example", "name": "n".repeat(500_000)}]}), vec!["members.0.name"]),
        ] {
            let answer = put(client, "", &body).await;
            assert_eq!(faulty_fields(&answer), fields, "{body}");
            let first = answer.json()["errors"][fields[0]][0].clone();
            assert!(answer.json()["message"].as_str().unwrap().starts_with(first.as_str().unwrap()));
        }
        for email in ["ana", "@x.example", "ana@", "a@b@c", "a b@x.example", "a@x..example", "a@.", "\u{7f}@x.example", "a@x.example\n"] {
            let body = json!({"name": "S", "members": [{"email": "fine@x.example"}, {"email": email}]});
            assert_eq!(faulty_fields(&put(client, "", &body).await), ["members.1.email"], "{email:?}");
        }
        assert_eq!(everything(client).await.len(), 1, "nothing was made");
    }

    async fn all_faults_are_reported_together_in_the_order_of_the_body(engine: Engine) {
        let client = &account(engine, "").client;
        let body = json!({
            "members": [
                {"email": "fine@x.example"},
                {"name": 1, "email": "x"},
                7,
                {"name": "Ana"},
                {"email": "", "name": false},
            ],
            "external_id": [],
            "name": "",
        });
        let fields = [
            "members.1.name", "members.1.email", "members.2", "members.3.email", "members.4.email", "members.4.name",
            "external_id", "name",
        ];
        let answer = put(client, "", &body).await;
        assert_eq!(faulty_fields(&answer), fields);
        assert!(answer.json()["message"].as_str().unwrap().ends_with("(and 7 more errors)"), "{answer:?}");
        let answer = put(client, "?dry_run=maybe&confirm=2&report=all", &body).await;
        assert_eq!(faulty_fields(&answer)[..3], ["dry_run", "confirm", "report"]);
        assert_eq!(faulty_fields(&answer)[3..], fields);
    }

    async fn very_many_faults_are_reported_up_to_64_kib(engine: Engine) {
        let client = &account(engine, "").client;
        let answer = put(client, "", &json!({"name": 7, "members": vec![1; 400_000]})).await;
        let (fields, length) = (faulty_fields(&answer), answer.body.len());
        assert_eq!((&*fields[0], &*fields[1]), ("name", "members.0"));
        assert!((48 * 1024..=64 * 1024).contains(&length), "{length} bytes");
        let more = format!(" (and at least {} more errors)", fields.len());
        assert!(answer.json()["message"].as_str().unwrap().ends_with(&more), "{}", answer.json()["message"]);
    }

    async fn the_longest_allowed_value_is_stored_whole(engine: Engine) {
        let client = &account(engine, "").client;
        let long = "𐐀".repeat(255);
        let email = format!("{}@x.example", "ü".repeat(310));
        let body = json!({"name": long, "external_id": long, "members": [{"email": email, "name": "ü".repeat(1000)}]});
        let written = write(client, &body).await;
        assert_eq!((&written["data"]["name"], &written["data"]["external_id"]), (&json!(long), &json!(long)));
        assert_eq!(everything(client).await[0]["members"], body["members"]);
    }

    async fn a_body_that_is_no_json_object_is_refused(engine: Engine) {
        let client = &account(engine, "").client;
        for body in [&b"{\"name\": \"S\""[..], b"[{}]", b"7", b"{\"name\": \"\\ud800\"}", b"{\"name\": \"\xff\"}", b"name=S"] {
            let answer = client.put(GROUPS).body(body.to_vec()).send().await;
            assert_eq!(faulty_fields(&answer), ["body"], "{}", String::from_utf8_lossy(body));
        }
        for body in ["", "null", "[]"] {
            let answer = client.put(GROUPS).body(body).send().await;
            assert_eq!(faulty_fields(&answer), ["name"], "{body} is an empty object");
        }
        assert_eq!(everything(client).await.len(), 1, "nothing was made");
    }

    async fn a_fault_leaves_a_group_as_it_was(engine: Engine) {
        let client = &account(engine, "").client;
        write(client, &json!({"name": "Sales", "external_id": "x", "members": [{"email": "a@x.example"}]})).await;
        let before: Vec<Value> = everything(client).await;
        let body = json!({"name": "Renamed", "external_id": "x", "members": [{"email": "new@x.example"}, {"email": "faulty"}]});
        assert_eq!(faulty_fields(&put(client, "", &body).await), ["members.1.email"]);
        assert_eq!(everything(client).await, before);
    }
}
