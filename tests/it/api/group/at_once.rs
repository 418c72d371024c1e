//! Writes of groups at once, on one node and on two: every answer is true, and none shows that there were others.

use serde_json::{Value, json};

use super::{ALL_USERS, GROUPS, counts, everything, members, pull, put, show, write};
use crate::api::account::{Account, account};
use crate::support::answer::Answer;
use crate::support::client::{Call, Client};
use crate::support::fixture::on_both_databases;

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
            let body = json!({"name": format!("Group {round}"), "members": members((0..40).map(|at| format!("{round}-{at}@x.example")))});
            let users = (0..40).step_by(2).map(|at| (60 * round + at + 7, format!("{round}-{at}@X.example")));
            let (answer, ()) = tokio::join!(put(&account.client, "", &body), database.add_users(users));
            assert_eq!(answer.status, 201, "{answer:?}");
            assert_eq!(counts(&answer.json())[0], 40);
        }
        let groups = everything(&account.client).await;
        assert!(groups[..10].iter().all(|group| group["members_count"] == 40));
        assert_eq!(groups[10]["members_count"], 400);
    }
}
