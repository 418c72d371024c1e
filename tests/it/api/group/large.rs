//! `PUT /group` with tens of thousands of members.

use serde_json::{Value, json};

use super::{ALL_USERS, GROUPS, counts, put, show, write, written};
use crate::api::account::account;
use crate::support::connection;
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;

const MANY: usize = 50_000;

/// The most bytes of a body.
const LIMIT: usize = 16 * 1024 * 1024;

fn group(members: impl Iterator<Item = usize>) -> Value {
    let member = |at: usize| json!({"email": format!("User-{at}@example.com"), "name": format!("User {at}")});
    json!({"name": "Everybody", "external_id": "all", "members": members.map(member).collect::<Value>()})
}

/// Groups, members and users as one statement sees them.
const STATE: &str = "SELECT (SELECT count(*) FROM groups WHERE NOT built_in), (SELECT count(*) FROM group_members), \
    (SELECT count(*) FROM users)";

on_both_databases! {
    async fn fifty_thousand_members_are_written_at_one_instant_and_once(engine: Engine) {
        let account = account(engine, "");
        let (client, database) = (&account.client, account.database().await);
        let body = group(0..MANY);
        let mut writing = std::pin::pin!(write(client, &body));
        let mut looks = 0;
        let written = loop {
            tokio::select! {
                biased;
                written = &mut writing => break written,
                state = database.integers(STATE) => assert!([[0; 3], [1, 50_000, 50_000]].contains(&state), "{state:?}"),
            }
            looks += 1;
        };
        assert!(looks > 3, "{looks} looks prove little");
        assert_eq!((&written["result"], counts(&written)), (&json!("created"), [50_000, 0, 50_000]));
        assert_eq!(show(client, written["data"]["id"].as_str().unwrap()).await["members_count"], MANY);
        assert_eq!(database.integers(STATE).await, [1, 50_000, 50_000]);
        if let Database::Postgres(_) = database {
            // One transaction (xmin), one statement a table (cmin), and few before it.
            for (table, many) in [("group_members", 50_000), ("users", 50_000)] {
                let query = format!(
                    "SELECT count(*), count(DISTINCT (xmin::text, cmin::text)), max(cmin::text::bigint) FROM {table}"
                );
                let [rows, statements, commands] = database.integers(&query).await;
                assert_eq!((rows, statements), (many, 1), "{table}");
                assert!(commands < 5, "{commands} statements before that of {table}");
            }
            let one = "SELECT count(DISTINCT xmin::text) FROM \
                (SELECT xmin FROM users UNION ALL SELECT xmin FROM group_members UNION ALL SELECT xmin FROM groups WHERE NOT built_in) AS t";
            assert_eq!(database.integers(one).await, [1]);
        }

        database.count_row_writes().await;
        let again = write(client, &body).await;
        assert_eq!((&again["result"], counts(&again)), (&json!("updated"), [0, 0, 0]));
        assert_eq!(again["data"], written["data"]);
        assert_eq!(database.row_writes().await, 0, "the same again writes nothing");

        let half = write(client, &group(MANY / 2..MANY + MANY / 2)).await;
        assert_eq!(counts(&half), [25_000, 25_000, 25_000]);
        assert_eq!(database.row_writes().await, 75_000);
        assert_eq!(database.integers(STATE).await, [1, 50_000, 75_000]);
        assert_eq!(show(client, ALL_USERS).await["members_count"], 75_000);
    }

    async fn the_first_list_of_a_directory_is_written_where_few_users_were_expected(engine: Engine) {
        // An import tells the database how many users there are: three.
        let users = (1..=3).map(|id| format!("{}\n", json!({"type": "user", "id": id, "email": format!("{id}@x.example")})));
        let account = account(engine, &users.collect::<String>());
        let client = &account.client;
        // Often enough for a session to keep its plans.
        for turn in 0..20 {
            let body = json!({"name": "Few", "members": [{"email": format!("few-{turn}@example.com")}]});
            assert_eq!(put(client, "?report=members", &body).await.status, if turn == 0 { 201 } else { 200 });
            let few = write(client, &body).await;
            assert_eq!(show(client, few["data"]["id"].as_str().unwrap()).await["members_count"], 1);
        }
        let first = write(client, &group(0..MANY)).await;
        assert_eq!(counts(&first), [50_000, 0, 50_000]);
        let answer = put(client, "?report=members&dry_run=1", &group(MANY / 2..MANY + MANY / 2)).await;
        assert_eq!(counts(&written(&answer)), [25_000, 25_000, 25_000]);
        assert_eq!(show(client, first["data"]["id"].as_str().unwrap()).await["members_count"], MANY);
        let next = write(client, &group(MANY / 2..MANY + MANY / 2)).await;
        assert_eq!(counts(&next), [25_000, 25_000, 25_000]);
    }

    async fn a_body_of_sixteen_mebibytes_is_accepted_and_a_longer_one_is_refused(engine: Engine) {
        let account = account(engine, "");
        let client = &account.client;
        let long = |at: usize| json!({"email": format!("user-{at}@example.com"), "name": "ü".repeat(57)});
        let body = json!({"name": "Everybody", "members": (0..100_000).map(long).collect::<Value>()});
        let mut body = serde_json::to_vec(&body).unwrap();
        assert!(body.len() < LIMIT && body.len() > LIMIT - 1024 * 1024, "{} bytes", body.len());
        body.resize(LIMIT, b' ');
        let answer = client.put(GROUPS).body(body).send().await;
        assert_eq!((answer.status.as_u16(), counts(&answer.json())), (201, [100_000, 0, 100_000]));

        let host = "acme.example.test";
        let head = format!(
            "PUT {GROUPS} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
            account.token(),
            LIMIT + 1
        );
        let answer = connection::raw(account.address(), host, head.as_bytes()).await;
        assert!(answer.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&answer));
    }
}
