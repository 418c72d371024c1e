//! Tokens that are limited to forms: what is out of their reach does not exist for them, in whatever call.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::account::{Account, account};
use super::changes::follower::{Follower, all_submissions};
use super::submission::NOTHING_WRONG;
use super::world::World;
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};

/// A token and the forms that it is limited to.
struct Limited {
    client: Client,
    reach: Option<Vec<i64>>,
}

impl Limited {
    fn new(account: &Account, forms: &[i64]) -> Self {
        Self { client: account.client.with(&account.token_within(forms)), reach: Some(forms.to_vec()) }
    }
}

fn ids(list: &Value) -> Vec<String> {
    list.as_array()
        .unwrap_or_else(|| panic!("{list}"))
        .iter()
        .map(|one| one["id"].as_str().unwrap().to_owned())
        .collect()
}

fn by_id(submissions: Vec<Value>) -> BTreeMap<String, Value> {
    submissions.into_iter().map(|one| (one["id"].as_str().unwrap().to_owned(), one)).collect()
}

/// The list of a parameter: `1001,1002`.
fn joined(forms: &[i64]) -> String {
    forms.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

async fn search(world: &mut World, token: &Limited) {
    let filter = world.filter();
    let expected = world.search_within(&filter, token.reach.as_deref());
    let last = expected.len().div_ceil(20).max(1);
    let page = 1 + world.below(last);
    let answer = token.client.post(&format!("/api/v1/submission?page={page}")).json(&filter).send().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let (found, on_page) = (answer.json(), expected.chunks(20).nth(page - 1).unwrap_or_default());
    assert_eq!(found["meta"]["total"], expected.len(), "{filter} of {:?}", token.reach);
    assert_eq!(found["data"].as_array().unwrap(), on_page, "{filter} of {:?}", token.reach);
}

async fn show_submission(world: &mut World, token: &Limited) {
    let known: Vec<i64> = world.ids().collect();
    let id = known[world.below(known.len())];
    let expected = world.find(id).filter(|_| world.reaches(token.reach.as_deref(), world.form_of(id)));
    let answer = token.client.get(&format!("/api/v1/submission/{id}")).send().await;
    match expected {
        Some(expected) => assert_eq!(answer.json()["data"], expected, "{id} of {:?}", token.reach),
        None => assert_eq!(
            (answer.status.as_u16(), answer.json()),
            (404, json!({"message": "Submission not found"})),
            "{id} of {:?}",
            token.reach
        ),
    }
}

async fn show_form(world: &mut World, token: &Limited) {
    let known: Vec<i64> = world.forms().collect();
    let id = known[world.below(known.len())];
    let answer = token.client.get(&format!("/api/v1/form/for_{id}")).send().await;
    let expected = if world.reaches(token.reach.as_deref(), id) { 200 } else { 404 };
    assert_eq!(answer.status, expected, "{id} of {:?}", token.reach);
}

async fn list_forms(world: &World, token: &Limited) {
    let answer = token.client.get("/api/v1/form").send().await.json();
    let expected = world.listed_forms_within(token.reach.as_deref());
    assert_eq!((ids(&answer["data"]), &answer["meta"]["total"]), (expected.clone(), &json!(expected.len())));
}

async fn sample(world: &mut World, token: &Limited) {
    let forms: Vec<i64> = world.forms().collect();
    let form = forms[world.below(forms.len())];
    let (wanted, of) =
        if world.below(2) == 0 { (Vec::new(), String::new()) } else { (vec![form], format!("?form={form}")) };
    let shown = token.client.get(&format!("/api/v1/subscribe/sample{of}")).send().await.json();
    let all = by_id(world.search_within(&json!({ "forms": wanted }), token.reach.as_deref()));
    let shown: Vec<&Value> = shown.as_array().unwrap().iter().map(|envelope| &envelope["data"]).collect();
    assert_eq!(shown.len(), all.len().min(3), "{of} of {:?}", token.reach);
    for one in shown {
        assert_eq!(all.get(one["id"].as_str().unwrap()), Some(one), "{of} of {:?}", token.reach);
    }
}

/// A first load through the feed, of some forms now and then.
async fn load(world: &mut World, token: &Limited) {
    let forms = if world.below(2) == 0 { Vec::new() } else { world.some_forms(0.2) };
    let of = if forms.is_empty() { String::new() } else { format!("&forms={}", joined(&forms)) };
    let mut follower = Follower::new(&token.client, &format!("limit=500{of}"));
    follower.catch_up().await;
    let expected = by_id(world.search_within(&json!({ "forms": forms }), token.reach.as_deref()));
    assert_eq!(follower.copy, expected, "{of} of {:?}", token.reach);
}

/// A form out of reach is no form for a subscription.
async fn subscribe(world: &mut World, token: &Limited) {
    let known: Vec<i64> = world.forms().collect();
    let form = known[world.below(known.len())];
    let body = json!({"target_url": "https://hooks.example.com/1", "form": form});
    let answer = token.client.post("/api/v1/subscribe").json(&body).send().await;
    if world.reaches(token.reach.as_deref(), form) {
        assert!([200, 201].contains(&answer.status.as_u16()), "{form} of {:?}: {answer:?}", token.reach);
        let deleted = token.client.post("/api/v1/unsubscribe").json(&body).send().await.json();
        assert_eq!(deleted, json!({"deleted": 1}));
    } else {
        assert_eq!(answer.status, 422, "{form} of {:?}", token.reach);
        assert_eq!(answer.json()["errors"], json!({"form": ["The form does not exist."]}));
    }
}

on_both_databases! {
    async fn no_call_shows_anything_out_of_reach_and_all_totals_are_exact(engine: Engine) {
        let mut world = World::new(61, 1000, 200);
        let account = account(engine, &world.ndjson());
        let database = account.database().await;
        let mut tokens = vec![Limited { client: account.client.clone(), reach: None }];
        for chance in [0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.4, 0.6, 1.0] {
            let mut forms = world.some_forms(chance);
            if forms.is_empty() {
                forms = vec![1001 + world.below(9) as i64];
            }
            tokens.push(Limited::new(&account, &forms));
        }
        let mut followers = Vec::new();
        for token in &tokens {
            let mut forms = world.some_forms(0.25);
            forms.push(1001 + world.below(8) as i64);
            for of in [String::new(), format!("&forms={}", joined(&forms))] {
                let follower = Follower::new(&token.client, &format!("limit=50{of}"));
                let forms = if of.is_empty() { Vec::new() } else { forms.clone() };
                followers.push((follower, forms, token.reach.clone()));
            }
        }
        let mut calls = 0;
        while calls < 10_000 {
            let at = world.below(tokens.len());
            match (calls % 100, world.below(20)) {
                (0, _) => {
                    for _ in 0..3 {
                        database.execute(&world.change()).await;
                    }
                    for _ in 0..world.below(3) {
                        database.execute(&world.move_form()).await;
                    }
                }
                (50, _) => {
                    let at = world.below(followers.len());
                    let (follower, forms, reach) = &mut followers[at];
                    follower.catch_up().await;
                    let expected = by_id(world.search_within(&json!({ "forms": forms }), reach.as_deref()));
                    assert_eq!(follower.copy, expected, "{forms:?} of {reach:?}");
                }
                (_, 0..10) => search(&mut world, &tokens[at]).await,
                (_, 10..14) => show_submission(&mut world, &tokens[at]).await,
                (_, 14 | 15) => show_form(&mut world, &tokens[at]).await,
                (_, 16) => list_forms(&world, &tokens[at]).await,
                (_, 17) => sample(&mut world, &tokens[at]).await,
                (_, 18) => subscribe(&mut world, &tokens[at]).await,
                _ => load(&mut world, &tokens[at]).await,
            }
            calls += 1;
        }
        let restarts: usize = followers.iter().map(|(follower, ..)| follower.restarts).sum();
        assert!(restarts > 0, "no follower had to begin again: forms that moved were not met");
        assert_eq!(account.reindex(), NOTHING_WRONG);
    }
}

/// Forms 1 > 2 > 3, 4, and 5 <> 6; each has a submission of its number.
async fn with_forms(engine: Engine) -> (Account, Database) {
    let account = account(engine, "");
    let database = account.database().await;
    database
        .execute(
            "INSERT INTO forms (id, name, parent_id) VALUES (1, 'F', NULL), (2, 'F', 1), (3, 'F', 2), (4, 'F', NULL), (5, 'F', NULL),
               (6, 'F', 5); UPDATE forms SET parent_id = 6 WHERE id = 5",
        )
        .await;
    for form in 1..=6 {
        database.execute(&submission(engine, form, form)).await;
    }
    (account, database)
}

/// A statement that inserts a submission of a form.
fn submission(engine: Engine, id: i64, form: i64) -> String {
    let at = match engine {
        Engine::Sqlite => format!("{}", (1_772_366_400 + id) * 1_000_000),
        Engine::Postgres | Engine::PostgresOn(_) => format!("to_timestamp({})", 1_772_366_400 + id),
    };
    format!(
        "INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES ({id}, {form}, 'pending', {at}, {at})"
    )
}

/// The cursor at the end of the feed.
async fn cursor(client: &Client, parameters: &str) -> String {
    let answer = client.get(&format!("/api/v1/submission/changes?cursor=now{parameters}")).send().await;
    answer.json()["meta"]["cursor"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

/// The ids that a first load has.
async fn loaded(client: &Client, parameters: &str) -> BTreeSet<String> {
    let mut follower = Follower::new(client, parameters);
    follower.catch_up().await;
    follower.copy.into_keys().collect()
}

fn subs(ids: &[i64]) -> BTreeSet<String> {
    ids.iter().map(|id| format!("sub_{id}")).collect()
}

on_both_databases! {
    async fn only_those_forms_of_a_reader_match_that_are_in_reach(engine: Engine) {
        let (account, _) = with_forms(engine).await;
        for (reach, forms, expected) in [
            (&[1][..], &[][..], &[1, 2, 3][..]),
            (&[1], &[2], &[2, 3]),
            (&[2], &[1], &[]),
            (&[2, 4], &[1], &[]),
            (&[3, 4], &[1, 4], &[4]),
            (&[3], &[4], &[]),
            (&[5], &[6], &[5, 6]),
            (&[6], &[], &[5, 6]),
            (&[99], &[], &[]),
            (&[99], &[99, 1], &[]),
            (&[1, 99], &[3, 99], &[3]),
        ] {
            let client = Limited::new(&account, reach).client;
            let of = if forms.is_empty() { String::new() } else { format!("forms={}", joined(forms)) };
            assert_eq!(loaded(&client, &of).await, subs(expected), "feed: {reach:?} {forms:?}");
            let found = all_submissions(&client, &json!({ "forms": forms })).await;
            assert_eq!(found.into_keys().collect::<BTreeSet<_>>(), subs(expected), "search: {reach:?} {forms:?}");
        }
    }

    async fn a_reader_begins_again_when_a_form_comes_into_its_reach_or_leaves_it(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let client = Limited::new(&account, &[1]).client;
        let mut readers = [Follower::new(&client, ""), Follower::new(&client, "forms=2,4"), Follower::new(&client, "forms=3")];
        for reader in &mut readers {
            reader.catch_up().await;
        }
        for (statement, begins_again) in [
            // Form 3 follows form 2, out of the reach and back into it, although it is the form that is named.
            ("UPDATE forms SET parent_id = NULL WHERE id = 2", [true, true, true]),
            ("UPDATE forms SET parent_id = 1 WHERE id = 2", [true, true, true]),
            ("UPDATE forms SET parent_id = 2 WHERE id = 4", [true, true, false]),
            // Within all of them.
            ("UPDATE forms SET parent_id = 1 WHERE id = 4", [false, false, false]),
            // Form 1 comes below form 4, which is named, and goes again.
            ("UPDATE forms SET parent_id = 4 WHERE id = 1", [false, true, false]),
            ("UPDATE forms SET parent_id = NULL WHERE id = 1", [false, true, false]),
            ("UPDATE forms SET parent_id = NULL WHERE id = 4", [true, true, false]),
            // Out of reach.
            ("UPDATE forms SET parent_id = 4 WHERE id = 5", [false, false, false]),
            ("INSERT INTO forms (id, name, parent_id) VALUES (7, 'F', 3)", [false, false, false]),
            ("DELETE FROM forms WHERE id = 7", [false, false, false]),
        ] {
            let before = readers.each_ref().map(|reader| reader.restarts);
            database.execute(statement).await;
            // Whoever looks first gives the numbers.
            cursor(&account.client, "").await;
            for (reader, forms) in readers.iter_mut().zip([&[][..], &[2, 4], &[3]]) {
                reader.catch_up().await;
                assert_eq!(reader.copy, all_submissions(&client, &json!({ "forms": forms })).await, "{statement}: {forms:?}");
            }
            let again: Vec<bool> = readers.iter().zip(before).map(|(reader, before)| reader.restarts > before).collect();
            assert_eq!(again, begins_again, "{statement}");
        }
    }

    async fn a_reader_is_told_what_leaves_its_reach_also_of_forms_that_are_deleted(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let client = Limited::new(&account, &[1, 4]).client;
        let mut readers = [Follower::new(&client, ""), Follower::new(&client, "forms=1,4"), Follower::new(&client, "forms=3,4")];
        for reader in &mut readers {
            reader.catch_up().await;
        }
        for statement in [
            // Out of the reach, back into it, and within.
            "UPDATE submissions SET form_id = 5 WHERE id = 4",
            "UPDATE submissions SET form_id = 4 WHERE id = 5",
            "UPDATE submissions SET form_id = 3 WHERE id = 4",
            "UPDATE submissions SET form_id = 2 WHERE id = 6",
            "DELETE FROM submissions WHERE id = 3",
            // Forms that are named and not, with their submissions.
            "DELETE FROM submissions WHERE form_id = 4; DELETE FROM forms WHERE id = 4",
            "DELETE FROM submissions WHERE form_id = 3; DELETE FROM forms WHERE id = 3",
            "UPDATE submissions SET form_id = 5",
        ] {
            database.execute(statement).await;
            for (reader, forms) in readers.iter_mut().zip([&[][..], &[1, 4], &[3, 4]]) {
                reader.catch_up().await;
                assert_eq!(reader.copy, all_submissions(&client, &json!({ "forms": forms })).await, "{statement}: {forms:?}");
            }
        }
        assert!(readers.iter().all(|reader| reader.copy.is_empty()));
    }

    async fn a_cursor_is_refused_by_a_token_with_another_reach(engine: Engine) {
        let (account, _) = with_forms(engine).await;
        let all = Limited { client: account.client.clone(), reach: None };
        let [one, same, other] = [&[1][..], &[1], &[1, 4]].map(|forms| Limited::new(&account, forms));
        for (made_by, used_by, of, fault) in [
            (&one, &one, "", None),
            (&one, &same, "&forms=2", None),
            (&all, &all, "&forms=2", None),
            (&one, &other, "", Some("The cursor was made with another reach.")),
            (&one, &all, "", Some("The cursor was made with another reach.")),
            (&all, &one, "&forms=1", Some("The cursor was made with another reach.")),
        ] {
            let here = cursor(&made_by.client, of).await;
            let answer = used_by.client.get(&format!("/api/v1/submission/changes?cursor={here}{of}")).send().await;
            match fault {
                None => assert_eq!(answer.status, 200, "{answer:?}"),
                Some(fault) => {
                    assert_eq!((answer.status.as_u16(), &answer.json()["errors"]), (422, &json!({"cursor": [fault]})));
                }
            }
        }
        let here = cursor(&one.client, "").await;
        let answer = one.client.get(&format!("/api/v1/submission/changes?cursor={here}&forms=2")).send().await;
        assert_eq!(answer.json()["errors"], json!({"cursor": ["The cursor was made with other forms."]}));
    }

    async fn a_request_that_waits_is_answered_by_what_is_in_reach(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let client = Limited::new(&account, &[4]).client;
        let here = cursor(&client, "").await;
        let waiting = client.get(&format!("/api/v1/submission/changes?cursor={here}&wait=25"));
        let writing = async {
            database.execute(&submission(engine, 11, 1)).await;
            database.execute(&submission(engine, 12, 4)).await;
        };
        let (answer, ()) = tokio::join!(waiting.send(), writing);
        assert_eq!(ids(&answer.json()["data"]), ["sub_12"], "{answer:?}");
    }

    async fn a_long_submission_is_not_shown_to_a_token_that_does_not_reach_its_form(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        database.execute("INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (10, 1, 0, 'a', 'Text', 'text')").await;
        let long = "x".repeat(3 * 1024 * 1024);
        database.execute(&format!("INSERT INTO answers (submission_id, element_id, value, updated_at) SELECT id, 10, '{long}', created_at FROM submissions WHERE id = 1")).await;
        let path = "/api/v1/submission/1";
        let shown = Limited::new(&account, &[1]).client.get(path).send().await;
        assert_eq!(shown.json()["data"]["allElements"][0]["value"], long);
        let hidden = Limited::new(&account, &[2, 3]).client.get(path).send().await;
        assert_eq!((hidden.status.as_u16(), hidden.json()), (404, json!({"message": "Submission not found"})));
    }
}
