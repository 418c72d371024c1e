//! `GET /group/{id}` of groups with many members: all of them in a streamed answer, or pages.

use std::time::{Duration, Instant};

use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{ALL_USERS, GROUPS, emails, faulty_fields, show};
use crate::api::account::{Account, account_with};
use crate::support::answer::decoded;
use crate::support::client::{Unanswered, wait_for_count};
use crate::support::connection::{Protocol, handshake};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};

/// How many users there are, with addresses in another order than their ids: the answer has 4 MB.
const USERS: usize = 30_000;

/// A list of `to` numbers as a table `n (i)`.
fn numbers(engine: Engine, to: usize) -> String {
    match engine {
        Engine::Postgres | Engine::PostgresOn(_) => format!("generate_series(1, {to}) AS n (i)"),
        Engine::Sqlite => format!(
            "(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {to}) SELECT i FROM n) AS n"
        ),
    }
}

fn address(id: usize) -> String {
    format!("u{}@x.example", id * 7_919 % 1_000_003)
}

/// An account with one connection, many users, group 7 with the even ones, and group 8 with every thousandth.
async fn filled(engine: Engine) -> Account {
    let account = account_with(engine, "", |tenant| tenant.set("max_connections", 1));
    let database = account.database().await;
    for statement in [
        format!(
            "INSERT INTO users (id, email, name) SELECT i, 'u' || (i * 7919 % 1000003) || '@x.example', {} FROM {}",
            "'A name of ninety characters, so that the list of all users takes some megabytes in all: number ' || i",
            numbers(engine, USERS)
        ),
        "INSERT INTO groups (id, name) VALUES (7, 'Even'), (8, 'Few')".to_owned(),
        "INSERT INTO group_members (group_id, user_id) SELECT 7, id FROM users WHERE id % 2 = 0".to_owned(),
        "INSERT INTO group_members (group_id, user_id) SELECT 8, id FROM users WHERE id % 1000 = 0".to_owned(),
    ] {
        database.execute(&statement).await;
    }
    database.close().await;
    account
}

/// Makes the list of all users longer than all buffers on its way to a client that does not read.
async fn lengthen_names(database: &Database) {
    database.execute("UPDATE users SET name = name || name || name || name").await;
}

/// The addresses of every `step`th user, in order.
fn expected(step: usize) -> Vec<String> {
    let mut addresses: Vec<String> = (step..=USERS).step_by(step).map(address).collect();
    addresses.sort();
    addresses
}

/// Begins to read an answer, and goes no further than its first bytes.
async fn begin_to_read(account: &Account, path: &str) -> (TlsStream<TcpStream>, Vec<u8>) {
    let mut stream = handshake(account.address(), "acme.example.test", Protocol::Http1).await.expect("a connection");
    let token = account.token();
    let head = format!("GET {path} HTTP/1.1\r\nHost: acme.example.test\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("a fresh connection");
    stream.flush().await.expect("a fresh connection");
    let mut first = vec![0; 4096];
    stream.read_exact(&mut first).await.expect("the answer begins");
    assert!(first.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&first));
    (stream, first)
}

/// Everything else that comes on a connection.
async fn read_on(stream: &mut TlsStream<TcpStream>) -> Vec<u8> {
    let mut rest = Vec::new();
    // An end without a close_notify is an error, which is as good an end.
    let _ = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await.expect("it ends");
    rest
}

/// Whether no transaction and no lock is held on a database that a slow client is being served from.
async fn is_free(database: &Database) -> bool {
    match database {
        Database::Postgres(_) => {
            let query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND pid <> pg_backend_pid() AND (xact_start IS NOT NULL OR state <> 'idle')";
            database.integers::<1>(query).await == [0]
        }
        // A reader would keep the log from being truncated.
        Database::Sqlite(_) => database.integers::<3>("PRAGMA wal_checkpoint(TRUNCATE)").await[0] == 0,
    }
}

on_both_databases! {
    async fn all_members_are_listed_in_order_however_many_there_are(engine: Engine) {
        let account = filled(engine).await;
        let groups = [(ALL_USERS, 1), ("grp_7", 2), ("grp_8", 1000)];
        for (id, step) in groups {
            for protocol in [Protocol::Http1, Protocol::Http2] {
                let path = format!("{GROUPS}/{id}");
                let answer = account.client.get(&path).over(protocol).send().await;
                let group = answer.json()["data"].clone();
                assert_eq!(emails(&group), expected(step), "{id}");
                assert_eq!(group["members_count"], USERS / step);
                assert_eq!(answer.header("content-length").is_some(), step == 1000, "{id}: {:?}", answer.headers);
                let head = account.client.head(&path).over(protocol).send().await;
                assert_eq!((head.status.as_u16(), head.header("content-length").is_some()), (200, step == 1000), "{id}");
            }
        }
        for encoding in ["gzip", "br", "zstd"] {
            let answer = account.client.get(&format!("{GROUPS}/{ALL_USERS}")).header("accept-encoding", encoding).send().await;
            assert_eq!(answer.header("content-encoding"), Some(encoding));
            let plain = decoded(encoding, &answer.body);
            let json: Value = serde_json::from_slice(&plain).expect("JSON");
            assert_eq!(emails(&json["data"]), expected(1), "{encoding}");
            assert!(answer.body.len() < plain.len() / 3, "{encoding}: {} of {}", answer.body.len(), plain.len());
        }
    }

    async fn pages_of_members_make_up_the_whole_list(engine: Engine) {
        let account = filled(engine).await;
        for (id, step) in [(ALL_USERS, 1), ("grp_7", 2), ("grp_8", 1000)] {
            let (all, path) = (expected(step), format!("/api/v1/group/{id}"));
            let last = all.len().div_ceil(1000);
            for number in [1, 2, last / 2 + 1, last.max(2) - 1, last, last + 1] {
                let answer = account.client.get(&format!("{path}/?page={number}&x=1")).send().await;
                let page = answer.json();
                let shown = all.chunks(1000).nth(number - 1).unwrap_or_default();
                assert_eq!(emails(&page["data"]), shown, "page {number} of {id}");
                assert_eq!(page["data"]["members_count"], all.len());
                let url = format!("https://acme.example.test{path}");
                let (from, to) = ((number - 1) * 1000, (number - 1) * 1000 + shown.len());
                let bounds = if shown.is_empty() { [Value::Null, Value::Null] } else { [json!(from + 1), json!(to)] };
                let meta = json!({"current_page": number, "last_page": last, "per_page": 1000, "total": all.len(),
                    "from": bounds[0], "to": bounds[1], "path": url});
                assert_eq!(page["meta"], meta);
                let next = if number < last { json!(format!("{url}?x=1&page={}", number + 1)) } else { Value::Null };
                assert_eq!(page["links"]["next"], next);
                assert_eq!(answer.header("x-ignored-parameters"), Some("x"));
            }
            for wrong in ["0", "x", "", "-1"] {
                let answer = account.client.get(&format!("{path}?page={wrong}")).send().await;
                assert_eq!(faulty_fields(&answer), ["page"]);
            }
        }
        let unknown = account.client.get("/api/v1/group/77?page=1").send().await;
        assert_eq!((unknown.status.as_u16(), &unknown.json()["message"]), (404, &json!("Group not found")));
    }

    async fn members_without_a_folded_address_and_with_huge_names_are_listed_once(engine: Engine) {
        let account = account_with(engine, "", |tenant| tenant);
        let database = account.database().await;
        let name = "n".repeat(60_000);
        for id in 1..=60 {
            let email = if id % 3 == 0 { format!("Ä{id:02}@x.example") } else { format!("b{id:02}@x.example") };
            database.execute(&format!("INSERT INTO users (id, email, name) VALUES ({id}, '{email}', '{name}')")).await;
        }
        for query in ["", "?page=1"] {
            let answer = account.client.get(&format!("{GROUPS}/{ALL_USERS}{query}")).send().await;
            assert_eq!(answer.header("content-length"), None);
            let group = answer.json()["data"].clone();
            let mut listed: Vec<String> = emails(&group).into_iter().map(str::to_owned).collect();
            listed.sort();
            listed.dedup();
            assert_eq!((listed.len(), &group["members_count"]), (60, &json!(60)));
            assert!(group["members"].as_array().unwrap().iter().all(|member| member["name"] == name));
        }
    }

    async fn a_slow_reader_holds_no_connection_and_no_transaction(engine: Engine) {
        let mut account = filled(engine).await;
        let database = account.database().await;
        lengthen_names(&database).await;
        let (mut stream, first) = begin_to_read(&account, &format!("{GROUPS}/{ALL_USERS}")).await;
        let began = Instant::now();
        while !is_free(&database).await {
            assert!(began.elapsed() < Duration::from_secs(20), "something is held for a client that does not read");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The account's only connection serves others meanwhile.
        assert_eq!(emails(&show(&account.client, "grp_8").await).len(), USERS / 1000);
        database.execute("INSERT INTO groups (id, name) VALUES (9, 'Meanwhile')").await;
        let whole = [first, {
            stream.write_all(b"GET /api/v1/me HTTP/1.1\r\nHost: acme.example.test\r\nConnection: close\r\n\r\n").await.unwrap();
            read_on(&mut stream).await
        }]
        .concat();
        let text = String::from_utf8(whole).expect("UTF-8");
        assert!(text.contains("\r\n0\r\n\r\nHTTP/1.1 401"), "the answer is whole, and the connection goes on");
        let operator = account.operator();
        wait_for_count(operator, "formgate_memory_reserved_bytes", 0).await;
        wait_for_count(operator, "formgate_answers_cut_total{by=\"client\"}", 0).await;
    }

    async fn an_answer_that_fails_half_way_ends_visibly(engine: Engine) {
        let mut account = filled(engine).await;
        let database = account.database().await;
        lengthen_names(&database).await;
        let path = format!("{GROUPS}/{ALL_USERS}");
        let mut cut = 0;
        for encoding in ["identity", "zstd"] {
            let (mut stream, first) = begin_to_read(&account, &path).await;
            let call = account.client.get(&path).over(Protocol::Http2).header("accept-encoding", encoding).fresh();
            let mut response = call.begin().await;
            let frame = response.body_mut().frame().await.expect("a part").expect("a part");
            database.execute("ALTER TABLE users RENAME TO unread").await;
            let rest = read_on(&mut stream).await;
            assert!(rest.len() + first.len() < 10_000_000, "{} bytes were sent before", rest.len());
            assert!(!rest.ends_with(b"\r\n0\r\n\r\n"), "no last chunk");
            let mut error = None;
            while let Some(frame) = response.body_mut().frame().await {
                if let Err(failed) = frame {
                    error = Some(failed);
                    break;
                }
            }
            assert!(error.is_some(), "the stream is reset after {frame:?}");
            database.execute("ALTER TABLE unread RENAME TO users").await;
            cut += 2;
            wait_for_count(account.operator(), "formgate_answers_cut_total{by=\"failure\"}", cut).await;
        }
        wait_for_count(account.operator(), "formgate_memory_reserved_bytes", 0).await;
        assert_eq!(emails(&show(&account.client, ALL_USERS).await), expected(1));
        let log = account.log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("\"cut\":\"failure\"")).collect();
        assert!(lines.len() == 4 && lines.iter().all(|line| line.contains("\"status\":200") && line.contains("\"bytes\":")), "{log}");
        assert_eq!(log.matches("an answer was cut off").count(), 4);
    }

    async fn a_group_that_is_deleted_while_it_is_read_ends_its_answer_early(engine: Engine) {
        let account = filled(engine).await;
        let database = account.database().await;
        lengthen_names(&database).await;
        database.execute("INSERT INTO group_members (group_id, user_id) SELECT 7, id FROM users WHERE id % 2 = 1").await;
        let (mut stream, first) = begin_to_read(&account, &format!("{GROUPS}/7")).await;
        assert_eq!(account.client.delete(&format!("{GROUPS}/7")).send().await.status, 200);
        let whole = [first, read_on(&mut stream).await].concat();
        assert!(!whole.ends_with(b"\r\n0\r\n\r\n"), "no last chunk");
        assert!(whole.len() < 10_000_000, "{}", whole.len());
    }

    async fn a_client_that_hangs_up_half_way_frees_what_its_answer_held(engine: Engine) {
        let mut account = filled(engine).await;
        lengthen_names(&account.database().await).await;
        let (stream, _) = begin_to_read(&account, &format!("{GROUPS}/{ALL_USERS}")).await;
        drop(stream);
        let operator = account.operator();
        wait_for_count(operator, "formgate_answers_cut_total{by=\"client\"}", 1).await;
        wait_for_count(operator, "formgate_memory_reserved_bytes", 0).await;
        assert!(account.log().lines().any(|line| line.contains("\"cut\":\"client\"")));
    }
}

#[tokio::test]
async fn killed_connections_of_postgres_cut_an_answer_or_are_replaced_and_never_shorten_it() {
    let account = filled(Engine::Postgres).await;
    let database = account.database().await;
    lengthen_names(&database).await;
    let (mut stream, first) = begin_to_read(&account, &format!("{GROUPS}/{ALL_USERS}")).await;
    let reading = tokio::spawn(async move { [first, read_on(&mut stream).await].concat() });
    while !reading.is_finished() {
        database
            .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
            .await;
    }
    let text = String::from_utf8_lossy(&reading.await.unwrap()).into_owned();
    if text.ends_with("\r\n0\r\n\r\n") {
        assert_eq!(text.matches("@x.example").count(), USERS, "a whole answer has all members");
    }
    let answer = account.client.method(Method::GET, &format!("{GROUPS}/{ALL_USERS}")).try_send().await;
    match answer {
        Ok(answer) if answer.status == 200 => assert_eq!(emails(&answer.json()["data"]), expected(1)),
        Ok(answer) => assert_eq!(answer.status, 503),
        Err(error) => assert!(matches!(error, Unanswered::Broken(_))),
    }
}
