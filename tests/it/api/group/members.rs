//! `PUT /group`: who is a member afterwards, and what is counted and reported.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{ALL_USERS, counts, emails, everything, members, put, show, write, written};
use crate::api::account::account;
use crate::support::fixture::on_both_databases;

async fn only_group(client: &crate::support::client::Client) -> Value {
    everything(client).await.remove(0)
}

/// A text in NFC: some letters are another spelling of a letter with its accent.
fn composed(text: &str) -> String {
    icu_normalizer::ComposingNormalizerBorrowed::new_nfc().normalize(text).into_owned()
}

on_both_databases! {
    async fn members_are_replaced_as_a_whole(engine: Engine) {
        let client = &account(engine, "").client;
        let body = |list: &[&str]| json!({"name": "Sales", "members": members(list)});
        let first = write(client, &body(&["a@x.example", "b@x.example"])).await;
        assert_eq!((counts(&first), &first["data"]["members_count"]), ([2, 0, 2], &json!(2)));
        let second = write(client, &body(&["b@x.example", "c@x.example", "d@x.example"])).await;
        assert_eq!((counts(&second), &second["data"]["members_count"]), ([2, 1, 2], &json!(3)));
        let third = write(client, &body(&["a@x.example"])).await;
        assert_eq!((counts(&third), &third["data"]["members_count"]), ([1, 3, 0], &json!(1)), "a user stays one");
        assert_eq!(emails(&only_group(client).await), ["a@x.example"]);
    }

    async fn members_left_out_are_untouched_and_an_empty_list_detaches_all(engine: Engine) {
        let client = &account(engine, "").client;
        write(client, &json!({"name": "Sales", "external_id": "x", "members": members(["a@x.example", "b@x.example"])})).await;
        for body in [json!({"name": "Vertrieb", "external_id": "x"}), json!({"name": "Vertrieb", "members": null})] {
            let untouched = write(client, &body).await;
            assert_eq!((counts(&untouched), &untouched["data"]["members_count"]), ([0, 0, 0], &json!(2)));
        }
        let emptied = write(client, &json!({"name": "Vertrieb", "members": []})).await;
        assert_eq!((counts(&emptied), &emptied["data"]["members_count"]), ([0, 2, 0], &json!(0)));
        assert_eq!(emails(&only_group(client).await), [""; 0]);
        assert_eq!(show(client, ALL_USERS).await["members_count"], 2);
    }

    async fn an_existing_user_keeps_name_and_spelling(engine: Engine) {
        let client = &account(engine, "").client;
        write(client, &json!({"name": "Sales", "members": [{"email": "Ana@example.com", "name": "Ana"}]})).await;
        let body = json!({"name": "Support", "members": [{"email": "ANA@EXAMPLE.COM", "name": "Somebody else"}]});
        assert_eq!(counts(&write(client, &body).await), [1, 0, 0]);
        for group in everything(client).await {
            assert_eq!(group["members"], json!([{"email": "Ana@example.com", "name": "Ana"}]), "{}", group["name"]);
        }
    }

    async fn a_member_listed_twice_counts_once_and_the_last_name_wins(engine: Engine) {
        let client = &account(engine, "").client;
        let body = json!({"name": "Sales", "members": [
            {"email": "ana@example.com", "name": "First"},
            {"email": "ben@example.com", "name": "Ben"},
            {"email": "ANA@example.com", "name": "Second"},
            {"email": "Ben@example.com"},
        ]});
        let written = write(client, &body).await;
        assert_eq!((counts(&written), &written["data"]["members_count"]), ([2, 0, 2], &json!(2)));
        let group = only_group(client).await;
        let names: Vec<&str> = group["members"].as_array().unwrap().iter().map(|member| member["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["Second", "Ben"], "a name that is left out does not win");
        assert_eq!(counts(&write(client, &body).await), [0, 0, 0]);
    }

    async fn addresses_are_compared_without_case_for_every_letter_there_is(engine: Engine) {
        let client = &account(engine, "").client;
        // Each letter that has a lower case, between others, at the end and alone: some fold by their neighbours.
        let letters = || ('\0'..=char::MAX).filter(|letter| !letter.to_lowercase().eq([*letter]));
        let shapes = [|letter: char| format!("a{letter}b@x.example"), |letter| format!("a{letter}@x.example"), |letter| format!("{letter}@x.example")];
        let upper: Vec<String> = letters().flat_map(|letter| shapes.map(|shape| shape(letter))).collect();
        let lower: BTreeSet<String> = upper.iter().map(|email| composed(&email.to_lowercase())).collect();
        let first = write(client, &json!({"name": "Upper", "members": members(&upper)})).await;
        let many = lower.len() as u64;
        assert!(many > 4000, "{many} addresses");
        assert_eq!(counts(&first), [many, 0, many]);
        let same = write(client, &json!({"name": "Upper", "members": members(&lower)})).await;
        assert_eq!(counts(&same), [0, 0, 0]);
        let other = write(client, &json!({"name": "Lower", "members": members(&lower)})).await;
        assert_eq!(counts(&other), [many, 0, 0]);
        assert_eq!(show(client, ALL_USERS).await["members_count"], many);
    }

    async fn a_report_names_the_users_behind_its_counts(engine: Engine) {
        let client = &account(engine, "").client;
        write(client, &json!({"name": "Other", "members": members(["Known@x.example", "Zoe@x.example"])})).await;
        write(client, &json!({"name": "Sales", "members": members(["stays@x.example", "Goes@x.example", "also-goes@x.example"])})).await;
        let body = json!({"name": "Sales", "members": members(["New@x.example", "known@X.example", "STAYS@x.example", "another@x.example"])});
        let report = json!({
            "attached": ["another@x.example", "Known@x.example", "New@x.example"],
            "detached": ["also-goes@x.example", "Goes@x.example"],
            "created": ["another@x.example", "New@x.example"],
        });
        let answer = written(&put(client, "?report=members&dry_run=1", &body).await);
        assert_eq!((&answer["report"], counts(&answer)), (&report, [3, 2, 2]));
        let answer = written(&put(client, "?report=members", &body).await);
        assert_eq!((&answer["report"], counts(&answer)), (&report, [3, 2, 2]));
        let nobody = json!({"attached": [], "detached": [], "created": []});
        for body in [body, json!({"name": "Sales"})] {
            assert_eq!(written(&put(client, "?report=members", &body).await)["report"], nobody);
            assert_eq!(write(client, &body).await.get("report"), None);
        }
        assert_eq!(super::faulty_fields(&put(client, "?report=everything", &json!({"name": "Sales"})).await), ["report"]);
    }
}
