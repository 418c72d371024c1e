//! Writes of groups at once, on one node and on two: every answer is true, and none shows that there were others.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{ALL_USERS, GROUPS, counts, everything, members, pull, put, show, write};
use crate::api::account::{Account, account};
use crate::support::answer::Answer;
use crate::support::client::{Call, Client, operator_get};
use crate::support::fixture::{Engine, on_both_databases};

/// Calls at once.
const CALLS: usize = 20;

/// Rounds on one node and on two, each with names that nobody has used.
const ROUNDS: usize = 15;

/// The answers to calls that are sent at the same time.
async fn all_at_once(calls: impl Iterator<Item = Call>) -> Vec<Answer> {
    let sent: Vec<_> = calls.map(|call| tokio::spawn(call.send())).collect();
    let mut answers = Vec::new();
    for answer in sent {
        answers.push(answer.await.unwrap());
    }
    answers
}

/// The sums of the counts, and how many groups were created. Nothing but 200 and 201 is an answer.
fn sums<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> ([u64; 3], usize) {
    let (mut sums, mut made) = ([0; 3], 0);
    for answer in answers {
        assert!([200, 201].contains(&answer.status.as_u16()), "{answer:?}");
        let answer = answer.json();
        let add: [u64; 3] = counts(&answer);
        sums = std::array::from_fn(|at| sums[at] + add[at]);
        made += usize::from(answer["result"] == "created");
    }
    (sums, made)
}

fn put_of(client: &Client, body: &Value) -> Call {
    client.put(GROUPS).json(body)
}

/// The rounds: their names, and which client each call of one uses.
fn rounds(account: &mut Account) -> Vec<(String, Vec<Client>)> {
    let (one, other) = (account.client.clone(), account.another_node());
    let clients = |alone| (0..CALLS).map(|at| if alone || at % 2 == 0 { one.clone() } else { other.clone() }).collect();
    (0..2 * ROUNDS).map(|round| (format!("r{round}"), clients(round < ROUNDS))).collect()
}

on_both_databases! {
    async fn calls_for_one_external_id_make_one_group(engine: Engine) {
        let mut account = account(engine, "");
        let mut users = 0;
        for (round, clients) in rounds(&mut account) {
            // One new user whom every call lists, and one whom only this call does.
            let body = |at: usize| {
                let emails = [format!("{round}@x.example"), format!("{round}-{at}@x.example")];
                json!({"name": round, "external_id": round, "members": members(emails)})
            };
            let answers = all_at_once(clients.iter().enumerate().map(|(at, client)| put_of(client, &body(at)))).await;
            let ([attached, detached, created], made) = sums(&answers);
            assert_eq!(made, 1, "{round}: {answers:?}");
            let ids: Vec<_> = answers.iter().map(|answer| answer.json()["data"]["id"].clone()).collect();
            assert!(ids.iter().all(|id| *id == ids[0]), "{round}: {ids:?}");
            assert!(answers.iter().all(|answer| answer.json()["data"]["members_count"] == 2));
            let calls = CALLS as u64;
            assert_eq!([attached, detached, created], [calls + 1, calls - 1, calls + 1], "{round}");
            let found = pull(&account.client, &format!("{GROUPS}?external_id={round}")).await;
            assert_eq!((found.len(), &found[0]["id"], &found[0]["members_count"]), (1, &ids[0], &json!(2)), "{round}");
            users += created;
            assert_eq!(show(&account.client, ALL_USERS).await["members_count"], users, "{round}");
        }
    }

    async fn calls_for_one_name_make_one_group(engine: Engine) {
        let mut account = account(engine, "");
        for (round, clients) in rounds(&mut account) {
            let body = json!({"name": round, "members": members([format!("{round}@x.example")])});
            let answers = all_at_once(clients.iter().map(|client| put_of(client, &body))).await;
            assert_eq!(sums(&answers), ([1, 0, 1], 1), "{round}: {answers:?}");
        }
        assert_eq!(pull(&account.client, GROUPS).await.len(), 2 * ROUNDS + 1);
    }

    async fn a_new_address_in_many_groups_is_one_user(engine: Engine) {
        let mut account = account(engine, "");
        let mut users = 0;
        for (round, clients) in rounds(&mut account) {
            let body = |at: usize| {
                let email = format!("{round}-Ä@x.example");
                let email = if at.is_multiple_of(3) { email.to_lowercase() } else { email };
                let own = format!("{round}-{at}@x.example");
                json!({"name": format!("{round} {at}"), "members": members([email, own])})
            };
            let answers = all_at_once(clients.iter().enumerate().map(|(at, client)| put_of(client, &body(at)))).await;
            let calls = CALLS as u64;
            assert_eq!(sums(&answers), ([2 * calls, 0, calls + 1], CALLS), "{round}");
            users += calls + 1;
            assert_eq!(show(&account.client, ALL_USERS).await["members_count"], users, "{round}");
        }
    }

    async fn writes_and_deletions_of_one_group_add_up(engine: Engine) {
        let mut account = account(engine, "");
        for (round, clients) in rounds(&mut account) {
            let body = json!({"name": round, "external_id": round, "members": members(["a@x.example", "b@x.example"])});
            let first = write(&account.client, &body).await;
            let path = format!("{GROUPS}/{}", first["data"]["id"].as_str().unwrap());
            let calls = clients.iter().enumerate().map(|(at, client)| match at % 4 {
                0 => client.delete(&path),
                _ => put_of(client, &body),
            });
            let (deletions, writes): (Vec<_>, Vec<_>) =
                all_at_once(calls).await.into_iter().enumerate().partition(|(at, _)| at % 4 == 0);
            let ([attached, detached, created], made) = sums(writes.iter().map(|(_, answer)| answer));
            let (mut deleted, mut let_go) = (0, 0);
            for (_, answer) in deletions {
                assert!([200, 404].contains(&answer.status.as_u16()), "{answer:?}");
                deleted += usize::from(answer.json()["deleted"] == true);
                let_go += answer.json()["detached"].as_u64().unwrap_or(0);
            }
            let left = pull(&account.client, &format!("{GROUPS}?external_id={round}")).await;
            assert_eq!(1 + made - deleted, left.len(), "{round}: {made} made, {deleted} deleted");
            let count: u64 = left.iter().map(|group| group["members_count"].as_u64().unwrap()).sum();
            assert_eq!((2 + attached - detached - let_go, created), (count, 0), "{round}");
        }
    }

    async fn other_writers_users_and_groups_collide_without_a_trace(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        // Ids that the sequences have not come to, and addresses that a call is about to make.
        for round in 0..10 {
            if round % 2 == 0 {
                write(&account.client, &json!({"name": format!("Group {round}"), "members": []})).await;
            }
            let body = json!({"name": format!("Group {round}"), "members": members((0..40).map(|at| format!("{round}-{at}@x.example")))});
            let users = (0..40).step_by(2).map(|at| (60 * round + at + 7, format!("{round}-{at}@X.example")));
            let (answer, ()) = tokio::join!(put(&account.client, "", &body), database.add_users(users));
            assert_eq!(answer.status, if round % 2 == 0 { 200 } else { 201 }, "{answer:?}");
            assert_eq!(counts(&answer.json())[0], 40);
        }
        let groups = everything(&account.client).await;
        assert!(groups[..10].iter().all(|group| group["members_count"] == 40));
        assert_eq!(groups[10]["members_count"], 400);
    }
}

/// How often Postgres was called so far.
async fn calls(account: &mut Account) -> u64 {
    let text = String::from_utf8(operator_get(account.operator(), "/metrics").await.body).unwrap();
    let name = r#"formgate_database_call_duration_seconds_count{database="postgres"} "#;
    text.lines().find_map(|line| line.strip_prefix(name)).expect("it was called").parse().unwrap()
}

#[tokio::test]
async fn a_group_that_stands_has_its_members_replaced_by_one_call_to_postgres() {
    let mut account = account(Engine::Postgres, "");
    let body = |people: std::ops::Range<u64>| {
        let emails = people.map(|at| format!("{at}@x.example"));
        json!({"name": "Team", "external_id": "t", "members": members(emails)})
    };
    write(&account.client, &body(0..50)).await;
    let mut before = calls(&mut account).await;
    for round in 1..8 {
        let answer = write(&account.client, &body(5 * round..50 + 5 * round)).await;
        assert_eq!((counts(&answer), &answer["data"]["members_count"]), ([5, 5, 5], &json!(50)), "{round}");
        let now = calls(&mut account).await;
        assert_eq!(now - before, 1, "{round}");
        before = now;
    }
}

#[tokio::test]
async fn a_group_that_stands_is_written_once_those_before_it_on_postgres_are_done() {
    let account = account(Engine::Postgres, "");
    let team = json!({"name": "Team", "members": members(["a@x.example", "b@x.example"])});
    let changed = json!({"name": "Team", "members": members(["b@x.example", "c@x.example"])});
    let database = account.database().await;
    for lock in ["SELECT pg_advisory_xact_lock(7310577365311121506)", "LOCK TABLE group_members", "LOCK TABLE groups"] {
        write(&account.client, &team).await;
        let began = Instant::now();
        let holding = format!("BEGIN; {lock}; SELECT pg_sleep(0.5); COMMIT");
        let holding = tokio::spawn({
            let database = account.database().await;
            async move { database.execute(&holding).await }
        });
        while database.integers(WAITING).await == [0] {
            assert!(began.elapsed() < Duration::from_secs(30), "{lock}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let answer = write(&account.client, &changed).await;
        assert_eq!(counts(&answer), [1, 1, u64::from(lock.contains("advisory"))], "{lock}");
        assert!(began.elapsed() >= Duration::from_millis(500), "{lock}");
        holding.await.unwrap();
    }
}

const WAITING: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
