//! Writes of groups at once, on one node and on two: every answer is true, and none shows that there were others.

use std::time::Duration;

use serde_json::{Value, json};

use super::{ALL_USERS, GROUPS, counts, emails, everything, members, pull, put, show, write, written};
use crate::api::account::{Account, account};
use crate::support::answer::Answer;
use crate::support::client::{Call, Client, operator_get};
use crate::support::database::Database;
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

    async fn writes_of_groups_that_stand_add_up(engine: Engine) {
        let mut account = account(engine, "");
        let names = ["g0", "g1", "g2"];
        for name in names {
            write(&account.client, &json!({"name": name, "members": []})).await;
        }
        let (mut sizes, mut users) = ([0; 3], 0);
        for (round, clients) in rounds(&mut account) {
            // Three users of five, the last of whom is new in this round.
            let body = |at: usize| {
                let listed = (0..3).map(|n| (at + n) % 4).chain([4]).skip(usize::from(at.is_multiple_of(2)));
                let email = |n| if n == 4 { format!("{round}@x.example") } else { format!("{n}@x.example") };
                json!({"name": names[at % 3], "members": members(listed.map(email))})
            };
            let answers = all_at_once(clients.iter().enumerate().map(|(at, client)| put_of(client, &body(at)))).await;
            for (group, name) in names.iter().enumerate() {
                let answers = answers.iter().skip(group).step_by(3);
                let ([attached, detached, _], made) = sums(answers);
                let found = everything(&account.client).await;
                let found = found.iter().find(|found| found["name"] == *name).expect("it stands");
                sizes[group] = sizes[group] + attached - detached;
                assert_eq!((&found["members_count"], made), (&json!(sizes[group]), 0), "{round} {name}");
                let sent = (0..CALLS).skip(group).step_by(3).map(body);
                let mut sent = sent.map(|body| emails(&body).into_iter().map(str::to_owned).collect::<Vec<_>>());
                assert!(sent.any(|mut sent| { sent.sort(); sent == emails(found) }), "{round} {name}: {found}");
            }
            users += sums(&answers).0[2];
            assert_eq!(show(&account.client, ALL_USERS).await["members_count"], users, "{round}");
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

/// Writes a group again and again until the node is done with what it does after its start: it opens the database, and
/// inspects it in the background, by calls of its own.
async fn write_until_nothing_else_calls(account: &mut Account, body: &Value) {
    write(&account.client, body).await;
    let mut alone = 0;
    while alone < 10 {
        let before = calls(account).await;
        write(&account.client, body).await;
        alone = if calls(account).await - before == 1 { alone + 1 } else { 0 };
    }
}

#[tokio::test]
async fn replacing_the_members_of_an_existing_group_takes_one_call_to_postgres() {
    let mut account = account(Engine::Postgres, "");
    let body = |people: std::ops::Range<u64>| {
        let emails = people.map(|at| format!("{at}@x.example"));
        json!({"name": "Team", "external_id": "t", "members": members(emails)})
    };
    write_until_nothing_else_calls(&mut account, &body(0..50)).await;
    for round in 1..8 {
        if round == 4 {
            // From now on another has the same name.
            let namesake = json!({"name": "Team", "external_id": "other", "members": members(["other@x.example"])});
            assert_eq!(write(&account.client, &namesake).await["result"], "created");
        }
        let before = calls(&mut account).await;
        let answer = write(&account.client, &body(5 * round..50 + 5 * round)).await;
        assert_eq!((counts(&answer), &answer["data"]["members_count"]), ([5, 5, 5], &json!(50)), "{round}");
        assert_eq!(calls(&mut account).await - before, 1, "{round}");
    }
    let groups = everything(&account.client).await;
    let other = groups.iter().find(|group| group["external_id"] == "other").expect("it stands");
    assert_eq!(emails(other), ["other@x.example"]);
}

#[tokio::test]
async fn groups_that_stand_are_written_at_once_on_postgres() {
    let mut account = account(Engine::Postgres, "");
    let team = json!({"name": "Team", "members": members(["a@x.example"])});
    write_until_nothing_else_calls(&mut account, &team).await;
    // As another such write holds it until its end.
    let other = account.database().await;
    other.execute("SELECT pg_advisory_lock_shared(7310577365311121506)").await;
    let before = calls(&mut account).await;
    let answer = write(&account.client, &json!({"name": "Team", "members": members(["b@x.example"])})).await;
    assert_eq!((counts(&answer), calls(&mut account).await - before), ([1, 1, 1], 1));

    let new = tokio::spawn(put_of(&account.client, &json!({"name": "New", "members": []})).send());
    while other.integers(TURNS_AWAITED).await == [0] {
        assert!(!new.is_finished(), "it did not wait for its turn");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    other.close().await;
    assert_eq!(new.await.unwrap().status, 201);
}

#[tokio::test]
async fn an_existing_group_is_written_after_earlier_writers_on_postgres() {
    let mut account = account(Engine::Postgres, "");
    let database = account.database().await;
    repeatable_reads_are_the_default(&database).await;
    account.crash();
    let team = json!({"name": "Team", "members": members(["a@x.example", "b@x.example"])});
    for (lock, meanwhile, attached) in [
        ("SELECT pg_advisory_xact_lock(7310577365311121506)", "DELETE FROM group_members", 2),
        ("LOCK TABLE group_members", "SELECT 1", 0),
        ("LOCK TABLE groups", "SELECT 1", 0),
    ] {
        write(&account.client, &team).await;
        database.execute(&format!("BEGIN; {lock}; {meanwhile}")).await;
        let waiting = tokio::spawn(put_of(&account.client, &team).send());
        // Longer than it waits for what it hopes to do by one call.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiting.is_finished(), "{lock}");
        database.execute("COMMIT").await;
        assert_eq!(counts(&written(&waiting.await.unwrap())), [attached, 0, 0], "{lock}");
    }
}

/// Has who connects from now on see what was there when his transaction began, unless he says that he wants to see more.
async fn repeatable_reads_are_the_default(database: &Database) {
    let default = "ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''";
    database.execute(&format!("DO $$ BEGIN EXECUTE format('{default}', current_database()); END $$")).await;
}

/// The database's own, of which a write that must be alone waits for one.
const TURNS_AWAITED: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
