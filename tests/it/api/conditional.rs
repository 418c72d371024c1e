//! `ETag` and `If-None-Match`: what did not change is not sent again, and whatever changes an answer changes its tag.

use std::fs;
use std::time::Duration;

use serde_json::json;

use super::account::{Account, account};
use super::world::ZONE;
use crate::support::answer::Answer;
use crate::support::client::Client;
use crate::support::connection::Protocol;
use crate::support::fixture::{Engine, Site, on_both_databases};

/// A change is noticed, read once the files are quiet, and served well within this, on a busy machine too.
const NOTICED: Duration = Duration::from_secs(30);

/// A form with a sub-form, a submission with a time in it, and a group.
const DATA: &str = r#"{"type":"form","id":1,"name":"Leave","elements":[{"id":11,"gid":"a","name":"From","type":"time"}]}
{"type":"form","id":2,"name":"Days","parent_id":1,"elements":[]}
{"type":"form","id":3,"name":"Expenses","elements":[]}
{"type":"user","id":1,"email":"ada@acme.test","name":"Ada"}
{"type":"group","id":5,"name":"Staff","members":[1]}
{"type":"submission","id":7,"form_id":1,"status":"pending","created_at":"2024-05-01T10:00:00Z","updated_at":"2024-05-01T10:00:00Z","answers":[{"element_id":11,"value":"09:30","updated_at":"2024-05-01T10:00:00Z"}]}"#;

const TAGGED: [&str; 6] = [
    "/api/v1/form",
    "/api/v1/form/1",
    "/api/v1/submission/7",
    "/api/v1/group/5",
    "/api/v1/group/5?page=1",
    "/api/v1/openapi.json",
];

fn tag(answer: &Answer) -> String {
    answer.header("etag").unwrap_or_else(|| panic!("no tag: {answer:?}")).to_owned()
}

/// The tag of an answer in full.
async fn tag_of(client: &Client, path: &str) -> String {
    let answer = client.get(path).send().await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    tag(&answer)
}

/// What is known is a 304, and after a change the whole answer comes with another tag.
async fn changes(account: &Account, path: &str, sql: &str) {
    let before = tag_of(&account.client, path).await;
    let asked = async || account.client.get(path).header("if-none-match", &before).send().await;
    assert_eq!(asked().await.status, 304, "{path} before {sql}");
    account.database().await.execute(sql).await;
    let after = asked().await;
    assert_eq!(after.status, 200, "{path} after {sql}");
    assert_ne!(tag(&after), before, "{path} after {sql}");
}

on_both_databases! {
    async fn what_a_client_has_is_not_sent_again_and_spends_one_request(engine: Engine) {
        let account = account(engine, DATA);
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let client = account.client.over(protocol);
            for path in TAGGED {
                let whole = client.get(path).send().await;
                assert_eq!((whole.status.as_u16(), whole.header("cache-control")), (200, Some("private, no-cache")));
                let tag = tag(&whole);
                for (sent, expected) in [(&*tag, 304), ("*", 304), ("W/\"other\"", 200), (&*format!("\"x\", {tag}"), 304)] {
                    let again = client.get(path).header("if-none-match", sent).send().await;
                    assert_eq!((again.status.as_u16(), again.header("etag")), (expected, Some(&*tag)), "{path} {sent}");
                    let left = whole.number("x-ratelimit-remaining").unwrap();
                    assert!(again.number("x-ratelimit-remaining").unwrap() < left, "{path} {sent}: {again:?}");
                }
                let head = client.head(path).header("if-none-match", &tag).send().await;
                assert_eq!((head.status.as_u16(), head.header("content-length")), (304, None), "{path}: {head:?}");
                let compressed = client.get(path).header("accept-encoding", "gzip").header("if-none-match", &tag).send().await;
                assert_eq!(compressed.status, 304, "{path}: the tag is of the answer, however it is compressed");
            }
        }
        for path in ["/api/v1/form/99", "/api/v1/me", "/api/v1/group"] {
            let other = account.client.get(path).header("if-none-match", "*").send().await;
            assert!(other.status != 304 && other.header("etag").is_none(), "{path}: {other:?}");
        }
    }

    async fn every_commit_that_changes_an_answer_changes_its_tag(engine: Engine) {
        let account = account(engine, DATA);
        for (path, sql) in [
            ("/api/v1/form", "UPDATE forms SET name = 'Holiday' WHERE id = 1"),
            ("/api/v1/form", "UPDATE forms SET disabled = TRUE WHERE id = 3"),
            ("/api/v1/form/1", "UPDATE forms SET anonymous = TRUE WHERE id = 1"),
            ("/api/v1/form/1", "UPDATE elements SET name = 'Begins' WHERE id = 11"),
            ("/api/v1/submission/7", "UPDATE elements SET name = 'Start' WHERE id = 11"),
            ("/api/v1/submission/7", "UPDATE answers SET value = '10:00' WHERE submission_id = 7"),
            ("/api/v1/submission/7?fields=11", "UPDATE elements SET name = 'Departure' WHERE id = 11"),
            ("/api/v1/submission/7?fields=id,11", "UPDATE answers SET value = '11:00' WHERE submission_id = 7"),
            ("/api/v1/submission/7?fields=status", "UPDATE submissions SET status = 'info' WHERE id = 7"),
            ("/api/v1/submission/7", "UPDATE submissions SET status = 'denied' WHERE id = 7"),
            ("/api/v1/group/5", "UPDATE users SET name = 'Ada L.' WHERE id = 1"),
            ("/api/v1/group/5?page=1", "UPDATE users SET email = 'ada.l@acme.test' WHERE id = 1"),
            ("/api/v1/group/5", "DELETE FROM group_members WHERE group_id = 5"),
        ] {
            changes(&account, path, sql).await;
        }
    }

    async fn fields_have_a_tag_of_their_own(engine: Engine) {
        let account = account(engine, DATA);
        let paths = ["", "?fields=id,status", "?fields=id,status,11", "?fields=allElements"].map(|fields| format!("/api/v1/submission/7{fields}"));
        let mut tags = Vec::new();
        for path in &paths {
            let tag = tag_of(&account.client, path).await;
            assert!(!tags.contains(&tag), "{path}");
            tags.push(tag);
        }
        for (path, tag) in paths.iter().zip(&tags) {
            for (sent, other) in tags.iter().zip(&paths) {
                let answer = account.client.get(path).header("if-none-match", sent).send().await;
                assert_eq!((answer.status == 304, answer.header("etag")), (path == other, Some(&**tag)), "{path} {other}");
            }
        }
        account.database().await.execute("UPDATE elements SET name = 'Begins' WHERE id = 11").await;
        for (path, (before, stays)) in paths.iter().zip(tags.iter().zip([false, true, false, false])) {
            let answer = account.client.get(path).header("if-none-match", before).send().await;
            assert_eq!(answer.status == 304, stays, "{path}: {answer:?}");
        }
    }

    async fn a_tag_is_that_of_what_the_token_reaches(engine: Engine) {
        let account = account(engine, DATA);
        let all = tag_of(&account.client, "/api/v1/form").await;
        let limited = account.client.with(&account.token_within(&[3]));
        let answer = limited.get("/api/v1/form").header("if-none-match", &all).send().await;
        assert_eq!(answer.status, 200, "another token's list is not this one's");
        assert_ne!(tag(&answer), all);
        let hidden = limited.get("/api/v1/submission/7").header("if-none-match", "*").send().await;
        assert_eq!(hidden.status, 404, "what is out of reach does not exist");
    }

    async fn another_zone_of_the_account_changes_the_tag_of_a_time(engine: Engine) {
        let site = Site::new().tenant_with("acme", engine, |tenant| tenant.set("timezone", ZONE)).write();
        site.import("acme", DATA);
        let token = site.token("acme", "tests");
        let mut node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        let path = "/api/v1/submission/7";
        let before = tag_of(&client, path).await;
        let of_fields = tag_of(&client, &format!("{path}?fields=11")).await;
        let without_times = tag_of(&client, &format!("{path}?fields=id,created_at")).await;
        let moved = fs::read_to_string(&site.config_path).expect("a configuration").replace(ZONE, "Asia/Tokyo");
        let draft = site.config_path.with_extension("draft");
        fs::write(&draft, moved).expect("the site's folder can be written");
        fs::rename(&draft, &site.config_path).expect("the site's folder can be written");
        node.wait_for_lines(NOTICED, "the configuration is reloaded", 1);
        let after = client.get(path).header("if-none-match", &before).send().await;
        assert_eq!(after.status, 200, "{after:?}");
        assert_eq!(after.json()["data"]["allElements"][0]["value"], json!("09:30 JST"), "{after:?}");
        assert_ne!(tag(&after), before);
        let after = client.get(&format!("{path}?fields=11")).header("if-none-match", &of_fields).send().await;
        assert_eq!(after.json()["data"]["allElements"][0]["value"], json!("09:30 JST"), "{after:?}");
        let after = client.get(&format!("{path}?fields=id,created_at")).header("if-none-match", &without_times).send().await;
        assert_eq!(after.status, 304, "it shows no time of the zone");
    }
}

/// A body that is sent while it is read has no tag.
#[tokio::test]
async fn an_answer_of_more_than_a_mebibyte_has_no_tag() {
    let long = "x".repeat(2 * 1024 * 1024);
    let lines = DATA.replace(r#""value":"09:30""#, &format!(r#""value":"{long}""#));
    let account = account(Engine::Sqlite, &lines);
    let answer = account.client.get("/api/v1/submission/7").header("if-none-match", "*").send().await;
    assert_eq!((answer.status.as_u16(), answer.header("etag")), (200, None));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.json()["data"]["allElements"][0]["value"], json!(long));
}
