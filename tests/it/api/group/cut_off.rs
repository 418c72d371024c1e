//! Writes that are cut off: by their caller, with their node, with their database. The group is as it was or as asked.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{ALL_USERS, GROUPS, emails, pull, put, show, write, written};
use crate::api::account::{Account, account, account_with};
use crate::support::connection::{self, Protocol};
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::postgres::Postgres;

const HOST: &str = "acme.example.test";

/// Members of the group: enough that a write takes long enough to be cut off in its middle.
const MEMBERS: usize = 4_000;

/// A group that is written again and again, each time with half of its members new to the account.
struct Trial {
    id: String,
    /// The number of the write that the group is as.
    at: usize,
    /// How many numbers were used.
    tried: usize,
    /// How long an undisturbed write takes.
    pace: Duration,
    random: StdRng,
    /// Writes that were cut off and stayed, and those that did not.
    outcomes: [usize; 2],
}

/// The members of a write, by address.
fn wanted(write: usize) -> Vec<String> {
    let half = MEMBERS / 2;
    let mut emails: Vec<String> = (0..half).map(|at| format!("all-{at}@x.example")).collect();
    emails.extend((0..half).map(|at| format!("only-{write}-{at}@x.example")));
    emails.sort();
    emails
}

fn body(write: usize) -> Value {
    json!({"name": format!("Write {write}"), "external_id": "trial", "members": super::members(wanted(write))})
}

impl Trial {
    /// Writes the group twice, to see how long that takes.
    async fn begin(account: &Account, seed: u64) -> Self {
        write(&account.client, &body(0)).await;
        let began = Instant::now();
        let written = write(&account.client, &body(1)).await;
        Self {
            id: written["data"]["id"].as_str().unwrap().to_owned(),
            at: 1,
            tried: 2,
            pace: began.elapsed(),
            random: StdRng::seed_from_u64(seed),
            outcomes: [0, 0],
        }
    }

    /// A moment in the course of a write, or shortly after it.
    fn moment(&mut self) -> Duration {
        self.pace.mul_f64(self.random.random_range(0.02..1.5))
    }

    /// The next write's body.
    fn next(&mut self) -> Value {
        self.tried += 1;
        body(self.tried - 1)
    }

    /// Looks at the group, which has to be as the last write or as the one before it, name, members and all.
    async fn look(&mut self, account: &Account) {
        let group = show(&account.client, &self.id).await;
        let name = group["name"].as_str().unwrap();
        let number: usize = name.trim_start_matches("Write ").parse().unwrap();
        assert!(
            [self.at, self.tried - 1].contains(&number),
            "as write {number}: neither {} nor {}",
            self.at,
            self.tried - 1
        );
        assert!(emails(&group) == wanted(number), "the members are not those of {name}");
        self.outcomes[usize::from(number == self.at)] += 1;
        if number == self.at {
            // The users of a write that did not stay are none.
            self.tried -= 1;
        }
        self.at = number;
        let groups = pull(&account.client, GROUPS).await;
        let all = groups.iter().find(|group| group["id"] == ALL_USERS).unwrap();
        assert_eq!(all["members_count"], MEMBERS / 2 * (self.tried + 1), "all users of all writes that stayed");
    }

    /// Waits until whatever is still being written is written, or given up, and looks.
    async fn settle(&mut self, account: &Account) {
        written(&put(&account.client, "?dry_run=1", &json!({"name": "Behind it"})).await);
        self.look(account).await;
    }

    fn end(self) {
        let [_, gone] = self.outcomes;
        assert!(gone > 0, "no write was cut off in time: this proves little");
    }
}

on_both_databases! {
    async fn a_client_that_disconnects_within_the_body_changes_nothing(engine: Engine) {
        let account = account(engine, "");
        let mut trial = Trial::begin(&account, 5).await;
        for _ in 0..8 {
            let body = serde_json::to_vec(&trial.next()).unwrap();
            let part = trial.random.random_range(1..body.len());
            let head = format!(
                "PUT {GROUPS} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
                account.token(),
                body.len()
            );
            let mut stream = connection::handshake(account.address(), HOST, Protocol::Http1).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&body[..part]).await.unwrap();
            stream.flush().await.unwrap();
            drop(stream);
            trial.settle(&account).await;
        }
        assert_eq!(trial.outcomes, [0, 8]);
    }

    async fn a_client_that_disconnects_after_the_body_causes_all_or_nothing(engine: Engine) {
        let account = account(engine, "");
        let mut trial = Trial::begin(&account, 6).await;
        for round in 0..12 {
            let (body, moment) = (trial.next(), trial.moment());
            let protocol = [Protocol::Http1, Protocol::Http2][round % 2];
            let call = account.client.put(GROUPS).json(&body).over(protocol).fresh();
            let _ = tokio::time::timeout(moment, call.try_send()).await;
            trial.settle(&account).await;
        }
        trial.end();
    }

    async fn clients_that_disconnect_while_they_wait_for_a_connection_leave_no_trace(engine: Engine) {
        let account = account(engine, "");
        let mut trial = Trial::begin(&account, 7).await;
        for _ in 0..5 {
            let (body, moment) = (trial.next(), trial.moment());
            let calls: Vec<_> = (0..12)
                .map(|_| {
                    let call = account.client.put(GROUPS).json(&body).fresh();
                    tokio::spawn(tokio::time::timeout(moment, call.try_send()))
                })
                .collect();
            for call in calls {
                let _ = call.await.unwrap();
            }
            trial.settle(&account).await;
        }
    }

    async fn a_node_that_is_killed_leaves_all_or_nothing(engine: Engine) {
        let mut account = account(engine, "");
        let mut trial = Trial::begin(&account, 8).await;
        for _ in 0..8 {
            let (body, moment) = (trial.next(), trial.moment());
            let call = account.client.put(GROUPS).json(&body).fresh();
            let call = tokio::spawn(call.try_send());
            tokio::time::sleep(moment).await;
            account.crash();
            let answered = call.await.unwrap();
            trial.settle(&account).await;
            assert!(answered.is_err() || trial.at == trial.tried - 1, "a write that was answered stays");
        }
        trial.end();
    }
}

#[tokio::test]
async fn a_postgres_that_stops_leaves_all_or_nothing_and_is_found_again() {
    let mut postgres = Postgres::start();
    let database = postgres.new_migrated_database();
    let account = account_with(Engine::Postgres, "", |tenant| tenant.set("database", database));
    let mut trial = Trial::begin(&account, 9).await;
    for round in 0..8 {
        let (body, moment) = (trial.next(), trial.moment());
        let call = account.client.put(GROUPS).json(&body).fresh();
        let call = tokio::spawn(call.send());
        tokio::time::sleep(moment).await;
        postgres.crash();
        let answer = call.await.unwrap();
        assert!([200, 503].contains(&answer.status.as_u16()), "{answer:?}");
        if round == 0 {
            assert_eq!(put(&account.client, "", &json!({"name": "Other"})).await.status, 503, "there is no database");
        }
        postgres.recover();
        let began = Instant::now();
        while put(&account.client, "?dry_run=1", &json!({"name": "Behind it"})).await.status == 503 {
            assert!(began.elapsed() < Duration::from_secs(20), "the database is back, and nobody notices");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        trial.settle(&account).await;
        assert!(answer.status == 503 || trial.at == trial.tried - 1, "a write that was answered stays");
    }
    trial.end();
}
