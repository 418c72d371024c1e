//! `fields`: what is shown is what is shown without it, of which the other keys and the other elements are left out.

use serde_json::{Value, json};

use crate::api::account::account;
use crate::api::world::World;
use crate::support::answer::Answer;
use crate::support::client::Client;
use crate::support::fixture::{Engine, on_all_databases, on_both_databases};

fn select(whole: &Value, fields: &[String]) -> Value {
    let whole = whole.as_array().expect("a list");
    whole.iter().map(|one| World::select(one, fields)).collect()
}

on_all_databases! {
    async fn fields_at_random_show_a_part_of_the_whole(engine: Engine) {
        let mut world = World::new(63, 1000, 160);
        let account = account(engine, &world.ndjson());
        let ids: Vec<i64> = world.ids().collect();
        let mut with_answers = 0;
        for round in 0..60 {
            let (filter, fields) = (world.filter(), world.fields());
            let joined = fields.join(",");
            for page in ["page=1", "cursor=", "cursor=&limit=100"] {
                let whole = account.search(&format!("?{page}"), &filter).await;
                let part = account.search(&format!("?{page}&fields={joined}"), &filter).await;
                let expected = select(&whole["data"], &fields);
                with_answers += usize::from(expected.to_string().contains("gid"));
                assert_eq!(part["data"], expected, "{joined} of {filter}");
                assert_eq!(part["meta"], whole["meta"], "{joined} of {filter}");
            }
            let id = ids[world.below(ids.len())];
            let path = format!("/api/v1/submission/{id}");
            let part = account.client.get(&format!("{path}?fields={joined}")).send().await;
            match world.find(id) {
                Some(whole) => assert_eq!(part.json()["data"], World::select(&whole, &fields), "{joined} of {id}"),
                None => assert_eq!(part.status, 404, "{id}"),
            }
            if round % 6 == 0 {
                let whole = feed(&account.client, "").await;
                let mut expected = whole["data"].clone();
                for change in expected.as_array_mut().expect("a list") {
                    change["submission"] = World::select(&change["submission"], &fields);
                }
                let part = feed(&account.client, &format!("&fields={joined}")).await;
                assert_eq!(part["data"], expected, "{joined}");
                assert_eq!(part["meta"], whole["meta"], "{joined}: the cursor is of no fields");
            }
        }
        assert!(with_answers > 40, "only {with_answers} had answers");
    }
}

async fn feed(client: &Client, parameters: &str) -> Value {
    let answer = client.get(&format!("/api/v1/submission/changes?limit=500{parameters}")).send().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// A graduated form with a sub-form, and another form; a submission with a child, and one of the other form.
const DATA: &str = r#"{"type":"form","id":1,"name":"Trip","graduated":true,"elements":[{"id":11,"gid":"a","name":"From","type":"time"},{"id":12,"gid":"b","name":"To","type":"text"}]}
{"type":"form","id":2,"name":"Day","parent_id":1,"elements":[{"id":21,"gid":"c","name":"Cost","type":"number"},{"id":22,"gid":"d","name":"Note","type":"text"}]}
{"type":"form","id":3,"name":"Other","elements":[{"id":31,"gid":"e","name":"What","type":"text"}]}
{"type":"submission","id":7,"form_id":1,"status":"pending","created_at":"2024-05-01T10:00:00Z","updated_at":"2024-05-01T10:00:00Z","answers":[{"element_id":11,"value":"09:30","updated_at":"2024-05-01T10:00:00Z"}]}
{"type":"submission","id":8,"form_id":2,"parent_id":7,"status":"pending","created_at":"2024-05-01T10:00:00Z","updated_at":"2024-05-01T10:00:00Z","answers":[{"element_id":21,"value":"12","updated_at":"2024-05-01T10:00:00Z"}]}
{"type":"submission","id":9,"form_id":3,"status":"pending","created_at":"2024-05-01T09:00:00Z","updated_at":"2024-05-01T09:00:00Z"}"#;

/// What each of the three calls answers with some parameters.
async fn calls(client: &Client, query: &str) -> [Answer; 3] {
    [
        client.post(&format!("/api/v1/submission?{query}")).json(&json!({})).send().await,
        client.get(&format!("/api/v1/submission/7?{query}")).send().await,
        client.get(&format!("/api/v1/submission/changes?{query}")).send().await,
    ]
}

/// The submission 7 as each call shows it; the feed is of form 1.
fn seventh(answers: &[Answer; 3]) -> [Value; 3] {
    let [search, one, changes] = answers.each_ref().map(Answer::json);
    [search["data"][0].clone(), one["data"].clone(), changes["data"][0]["submission"].clone()]
}

/// The values of the entries that submission 7 shows, with a field's name each.
fn entries(submission: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let entries = submission["allElements"].as_array().unwrap_or_else(|| panic!("{submission}"));
    entries.iter().map(|entry| (text(&entry["name"]), text(&entry["value"]))).collect()
}

on_both_databases! {
    async fn what_is_shown_is_named_by_keys_and_by_elements_also_of_children(engine: Engine) {
        let account = account(engine, DATA);
        for (fields, keys, shown) in [
            ("id", vec!["id"], None),
            ("updated_at,id,id", vec!["id", "updated_at"], None),
            ("21", vec!["allElements"], Some(vec![("Cost", "12")])),
            ("11,id,21", vec!["id", "allElements"], Some(vec![("From", "09:30 CEST"), ("Cost", "12")])),
            ("22,12", vec!["allElements"], Some(vec![("To", ""), ("Note", "")])),
            ("31", vec!["allElements"], Some(vec![])),
            ("allElements,12", vec!["allElements"], Some(vec![("From", "09:30 CEST"), ("To", ""), ("Cost", "12"), ("Note", "")])),
            ("id&fields=status,21", vec!["id", "status", "allElements"], Some(vec![("Cost", "12")])),
            ("+id+,0011", vec!["id", "allElements"], Some(vec![("From", "09:30 CEST")])),
        ] {
            let answers = calls(&account.client, &format!("fields={fields}&forms=1")).await;
            for submission in seventh(&answers) {
                let found: Vec<&String> = submission.as_object().expect("a submission").keys().collect();
                assert_eq!(found, keys, "{fields}: {submission}");
                if let Some(shown) = &shown {
                    let expected: Vec<_> = shown.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
                    assert_eq!(entries(&submission), expected, "{fields}");
                }
            }
            let [_, _, changes] = answers;
            assert_eq!(changes.json()["data"][0].as_object().expect("a change").len(), 5, "it selects within the submission");
        }
    }

    async fn empty_fields_are_as_if_there_were_none(engine: Engine) {
        let account = account(engine, DATA);
        let whole = calls(&account.client, "").await.map(|answer| answer.json()["data"].clone());
        for query in ["fields=", "fields=&fields="] {
            assert_eq!(calls(&account.client, query).await.map(|answer| answer.json()["data"].clone()), whole, "{query}");
        }
    }

    async fn what_is_no_field_is_a_fault_at_its_place(engine: Engine) {
        let account = account(engine, DATA);
        let many = vec!["11"; 1001].join(",");
        for (fields, places) in [
            ("nonsense", vec!["fields.0"]),
            ("id,name,Status,11", vec!["fields.1", "fields.2"]),
            ("id,", vec!["fields.1"]),
            (",", vec!["fields.0", "fields.1"]),
            ("0,-1,1.0,1e1", vec!["fields.0", "fields.1", "fields.2", "fields.3"]),
            ("9223372036854775808", vec!["fields.0"]),
            ("11,99,id,98,99", vec!["fields.1", "fields.3", "fields.4"]),
            ("allElements,99", vec!["fields.1"]),
            ("id&fields=99", vec!["fields.1"]),
            ("9223372036854775807,1%00", vec!["fields.1"]),
            ("9223372036854775807", vec!["fields.0"]),
            (&many, vec!["fields"]),
        ] {
            for answer in calls(&account.client, &format!("fields={fields}")).await {
                assert_eq!(answer.status, 422, "{fields}: {answer:?}");
                let faults = answer.json()["errors"].as_object().expect("faults").clone();
                assert_eq!(faults.keys().collect::<Vec<_>>(), places, "{fields}");
                for (place, text) in faults.iter().filter(|(place, _)| *place != "fields") {
                    let expected = format!("The {place} must be one of id, status, created_at, updated_at, allElements, or the id of an element.");
                    assert_eq!(*text, json!([expected]));
                }
            }
        }
        for answer in calls(&account.client, &format!("fields={}", vec!["11"; 1000].join(","))).await {
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }

    async fn an_element_out_of_reach_is_no_element(engine: Engine) {
        let account = account(engine, DATA);
        let limited = account.client.with(&account.token_within(&[1]));
        for answer in calls(&limited, "fields=11,21").await {
            assert_eq!(answer.status, 200, "those of a form in reach and of its sub-form: {answer:?}");
        }
        let [unknown, hidden] = [calls(&limited, "fields=11,99").await, calls(&limited, "fields=11,31").await];
        for (unknown, hidden) in unknown.iter().zip(&hidden) {
            assert_eq!((hidden.status.as_u16(), hidden.json()), (422, unknown.json()));
        }
    }

    async fn what_is_not_shown_is_not_read_and_what_is_long_is_sent_in_parts(engine: Engine) {
        let account = account(engine, DATA);
        let database = account.database().await;
        let at = if engine == Engine::Postgres { "now()" } else { "1714557600000000" };
        for (submission, element, value) in [(7, 12, "x".repeat(1_200_000)), (8, 22, "y".repeat(100_000))] {
            database.execute(&format!("INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({submission}, {element}, '{value}', {at})")).await;
        }
        // A search waits for some seconds until a long answer can be searched.
        while account.client.post("/api/v1/submission").json(&json!({})).send().await.status == 503 {}
        let whole = calls(&account.client, "forms=1").await;
        assert!(whole.iter().all(|answer| answer.header("content-length").is_none()), "they are too long to be built whole");
        let whole = seventh(&whole);
        assert_eq!(whole.each_ref().map(|one| one["allElements"].as_array().map(Vec::len)), [Some(4); 3]);
        let gids = [("11", "a"), ("12", "b"), ("21", "c"), ("22", "d")];
        for (fields, is_whole) in [
            ("id,status,updated_at", true),
            ("created_at", true),
            ("id,11,21", true),
            ("31,status", true),
            ("22", true),
            ("22,11,status,id", true),
            ("id,12", false),
            ("22,12", false),
            ("allElements", false),
        ] {
            let expected = |whole: &Value| {
                let mut shown = whole.clone();
                let wanted: Vec<&str> = fields.split(',').collect();
                let elements = shown["allElements"].as_array_mut().expect("a list");
                let named: Vec<&str> = gids.iter().filter(|(id, _)| wanted.contains(id)).map(|(_, gid)| *gid).collect();
                let has_numbers = wanted.iter().any(|field| field.parse::<i64>().is_ok());
                if !wanted.contains(&"allElements") {
                    elements.retain(|entry| named.contains(&entry["gid"].as_str().expect("a text")));
                }
                shown.as_object_mut().expect("a submission").retain(|key, _| wanted.contains(&key.as_str()) || (key == "allElements" && has_numbers));
                shown
            };
            let answers = calls(&account.client, &format!("fields={fields}&forms=1")).await;
            for answer in &answers {
                assert_eq!(answer.header("content-length").is_some(), is_whole, "{fields}");
            }
            for (part, whole) in seventh(&answers).iter().zip(&whole) {
                assert!(*part == expected(whole), "{fields}");
            }
        }
    }

    async fn a_renamed_element_is_found_by_its_id(engine: Engine) {
        let account = account(engine, DATA);
        account.database().await.execute("UPDATE elements SET name = 'Departure', gid = 'z' WHERE id = 11").await;
        for submission in seventh(&calls(&account.client, "fields=11&forms=1").await) {
            assert_eq!(entries(&submission), [("Departure".to_owned(), "09:30 CEST".to_owned())]);
        }
    }
}

/// What a link of a page leads to has the same fields.
#[tokio::test]
async fn links_keep_the_fields() {
    let account = account(Engine::Sqlite, DATA);
    let feed = feed(&account.client, "&fields=id,11").await;
    let next = feed["links"]["next"].as_str().expect("a link");
    assert!(next.contains("&fields=id%2C11&cursor="), "{next}");
    let search = account.search("?fields=id,11&limit=1&cursor=", &json!({})).await;
    let next = search["links"]["next"].as_str().expect("a link");
    assert!(next.contains("?fields=id%2C11&limit=1&cursor="), "{next}");
    let next = &next[next.find("/api").expect("a path")..];
    let followed = account.client.post(next).json(&json!({})).send().await.json();
    assert_eq!(followed["data"], json!([{"id": "sub_9", "allElements": []}]));
}
