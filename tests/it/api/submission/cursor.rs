//! Pages by cursor: they hold what pages by number hold, and what does not change is on exactly one, whatever else does.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::api::account::{Account, account};
use crate::api::world::World;
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_all_databases, on_both_databases};

const PATH: &str = "/api/v1/submission";

fn ids(page: &Value) -> Vec<String> {
    let data = page["data"].as_array().expect("a list").iter();
    data.map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
}

/// The page after another one, by its link.
async fn next(client: &Client, page: &Value, filter: &Value) -> Option<Value> {
    let next = page["links"]["next"].as_str()?;
    let answer = client.post(&next[next.find("/api").expect("a path")..]).json(filter).send().await;
    assert_eq!(answer.status, 200, "{filter}: {answer:?}");
    Some(answer.json())
}

async fn first(client: &Client, query: &str, filter: &Value) -> Value {
    let answer = client.post(&format!("{PATH}?cursor=&{query}")).json(filter).send().await;
    assert_eq!(answer.status, 200, "{filter}: {answer:?}");
    answer.json()
}

on_all_databases! {
    async fn pages_by_cursor_hold_what_pages_by_number_hold(engine: Engine) {
        let mut world = World::new(64, 1000, 220);
        let account = account(engine, &world.ndjson());
        let (mut pages, mut found) = (0, 0);
        for _ in 0..120 {
            let filter = world.filter();
            let expected = world.search(&filter);
            found += usize::from(!expected.is_empty());
            let limit = [1, 2, 7, 20, 50, 100][world.below(6)].max(expected.len() / 25);
            let query = if limit == 20 { String::new() } else { format!("limit={limit}") };
            let mut page = first(&account.client, &query, &filter).await;
            for (at, chunk) in expected.chunks(limit).map(<[Value]>::to_vec).chain(expected.is_empty().then(Vec::new)).enumerate() {
                let is_last = (at + 1) * limit >= expected.len();
                assert_eq!(page["data"], Value::Array(chunk), "{filter}, page {at} of {limit}");
                let cursor = page["meta"]["cursor"].clone();
                assert_eq!(page["meta"], json!({"cursor": cursor, "has_more": !is_last, "total": expected.len()}), "{filter}");
                assert_eq!(cursor.is_null(), is_last, "{filter}, page {at} of {limit}");
                pages += 1;
                match next(&account.client, &page, &filter).await {
                    Some(following) => page = following,
                    None => assert!(is_last, "{filter}, page {at} of {limit}"),
                }
            }
            let by_number = account.search("", &filter).await;
            assert_eq!(by_number["meta"]["total"], expected.len(), "{filter}");
        }
        assert!(found > 30 && pages > 150, "{found} searches with {pages} pages prove little");
    }
}

/// How many submissions stay as they are, and how many are written all the time.
const STABLE: i64 = 150;
const WRITTEN: i64 = 150;

/// The instants that submissions have: few, so that most have the same as others.
const INSTANTS: i64 = 12;

/// Writes submissions with ids beyond [`STABLE`] at random.
struct Writer {
    engine: Engine,
    random: StdRng,
}

impl Writer {
    fn instant(&mut self) -> String {
        let second = 1_772_366_400 + self.random.random_range(0..INSTANTS);
        match self.engine {
            Engine::Sqlite => format!("{second}000000"),
            Engine::Postgres | Engine::PostgresOn(_) => format!("to_timestamp({second})"),
        }
    }

    fn insert(&mut self, id: i64) -> String {
        let (created, updated) = (self.instant(), self.instant());
        let answer = if id % 3 == 0 { "word of many" } else { "word" };
        format!(
            "INSERT INTO submissions (id, form_id, status, created_at, updated_at) \
               VALUES ({id}, {form}, 'pending', {created}, {updated}) ON CONFLICT DO NOTHING; \
             INSERT INTO answers (submission_id, element_id, value, updated_at) \
               VALUES ({id}, {form}1, '{answer}', {updated}) ON CONFLICT DO NOTHING; \
             INSERT INTO submission_labels (submission_id, label_id) VALUES ({id}, 1) ON CONFLICT DO NOTHING",
            form = 1 + id % 2,
        )
    }

    async fn write(&mut self, database: &Database) {
        let id = STABLE + self.random.random_range(1..=WRITTEN);
        let statement = match self.random.random_range(0..6) {
            0 | 1 => self.insert(id),
            2 => format!("DELETE FROM submissions WHERE id = {id}"),
            3 => format!("UPDATE submissions SET updated_at = {} WHERE id = {id}", self.instant()),
            4 => format!("UPDATE submissions SET created_at = {} WHERE id = {id}", self.instant()),
            _ => format!("UPDATE submissions SET status = 'denied', draft = NOT draft WHERE id = {id}"),
        };
        database.execute(&statement).await;
    }
}

/// An account with submissions of two forms, of which those up to [`STABLE`] stay as they are.
async fn with_writer(engine: Engine) -> (Account, Database, Writer) {
    let form = |id: i64| json!({"type": "form", "id": id, "name": "F", "elements": [{"id": id * 10 + 1, "gid": "g", "name": "N", "type": "text"}]});
    let account =
        account(engine, &format!("{}\n{}\n{}", form(1), form(2), json!({"type": "label", "id": 1, "name": "L"})));
    let database = account.database().await;
    let mut writer = Writer { engine, random: StdRng::seed_from_u64(7) };
    let all: Vec<String> = (1..=STABLE + WRITTEN).map(|id| writer.insert(id)).collect();
    database.execute(&all.join("; ")).await;
    (account, database, writer)
}

on_both_databases! {
    async fn what_does_not_change_is_on_exactly_one_page_while_others_are_written(engine: Engine) {
        let (account, database, mut writer) = with_writer(engine).await;
        let orders = [("created_at", "asc"), ("created_at", "desc"), ("updated_at", "asc"), ("updated_at", "desc")];
        for filter in [
            json!({}),
            json!({"forms": [1, 2]}),
            json!({"statuses": ["pending"]}),
            json!({"forms": [1, 2], "statuses": ["pending", "approved"]}),
            json!({"labels": [1]}),
            json!({"search": "word"}),
            json!({"search": "wo", "statuses": ["pending"]}),
            json!({"start": "2026-03-01", "end": "2026-03-02"}),
        ] {
            for (by, direction) in orders {
                let mut filter = filter.clone();
                (filter["sortBy"], filter["sortDirection"]) = (by.into(), direction.into());
                let (mut seen, mut pages) = (BTreeMap::<String, usize>::new(), 0);
                let mut page = Some(first(&account.client, "limit=11", &filter).await);
                while let Some(shown) = page {
                    for id in ids(&shown) {
                        *seen.entry(id).or_default() += 1;
                    }
                    pages += 1;
                    for _ in 0..4 {
                        writer.write(&database).await;
                    }
                    page = next(&account.client, &shown, &filter).await;
                }
                assert!(pages > 10, "{filter}: {pages} pages");
                let counts: Vec<_> = (1..=STABLE).map(|id| seen.get(&format!("sub_{id}")).copied().unwrap_or(0)).collect();
                assert_eq!(counts, vec![1; STABLE as usize], "{filter}");
            }
        }
    }

    async fn a_cursor_is_used_with_what_it_was_made_with(engine: Engine) {
        let (account, database, _) = with_writer(engine).await;
        let cursor_of = |page: Value| page["meta"]["cursor"].as_str().expect("a cursor").to_owned();
        let filter = json!({"forms": [1, "for_2"], "search": "WORD", "sortBy": "created_at"});
        let cursor = cursor_of(first(&account.client, "limit=3", &filter).await);
        let ask = async |client: &Client, query: &str, filter: &Value| client.post(&format!("{PATH}?{query}")).json(filter).send().await;
        let after = ask(&account.client, &format!("cursor={cursor}"), &filter).await.json();
        assert_eq!(after["data"].as_array().map(Vec::len), Some(20), "the limit may differ");

        for same in [
            json!({"forms": ["2", 1, 1], "search": "word", "sortBy": "created_at", "sortDirection": "desc", "labels": []}),
            json!({"sortBy": "created_at", "search": "Word", "forms": [2, 1], "unknown": 1}),
        ] {
            let answer = ask(&account.client, &format!("cursor={cursor}&fields=id&limit=5"), &same).await;
            assert_eq!(ids(&answer.json()), ids(&after)[..5], "{same}");
        }
        let others = "The cursor was made with other filters or another order.";
        for other in [
            json!({}),
            json!({"forms": [1], "search": "word", "sortBy": "created_at"}),
            json!({"forms": [1, 2], "search": "words", "sortBy": "created_at"}),
            json!({"forms": [1, 2], "search": "word", "sortBy": "updated_at"}),
            json!({"forms": [1, 2], "search": "word", "sortBy": "created_at", "sortDirection": "asc"}),
            json!({"forms": [1, 2], "search": "word", "sortBy": "created_at", "labels": [1]}),
        ] {
            let answer = ask(&account.client, &format!("cursor={cursor}"), &other).await;
            assert_eq!((answer.status.as_u16(), &answer.json()["errors"]), (422, &json!({"cursor": [others]})), "{other}");
        }
        let limited = account.client.with(&account.token_within(&[1, 2]));
        for (client, made) in [(&limited, cursor.clone()), (&account.client, cursor_of(first(&limited, "limit=3", &filter).await))] {
            let answer = ask(client, &format!("cursor={made}"), &filter).await;
            assert_eq!((answer.status.as_u16(), &answer.json()["errors"]["cursor"][0]), (422, &json!("The cursor was made with another reach.")));
        }
        let again = account.client.with(&account.token_within(&[2, 1]));
        let answer = ask(&again, &format!("cursor={}", cursor_of(first(&limited, "limit=3", &filter).await)), &filter).await;
        assert_eq!(answer.status, 200, "another token with the same reach: {answer:?}");

        // What stood at the position is no longer there.
        database.execute("DELETE FROM submissions").await;
        let gone = ask(&account.client, &format!("cursor={cursor}"), &filter).await.json();
        assert_eq!((&gone["data"], &gone["meta"]), (&json!([]), &json!({"cursor": null, "has_more": false, "total": 0})));
    }

    async fn what_is_no_cursor_is_refused(engine: Engine) {
        let (account, ..) = with_writer(engine).await;
        let cursor = first(&account.client, "limit=3", &json!({})).await["meta"]["cursor"].as_str().expect("a cursor").to_owned();
        let faulty = "The cursor must be one that an answer had, or empty to begin.";
        let (both, once) = ("The cursor can't be combined with a page.", "The cursor must be given once.");
        let alone = "The limit is one of pages by cursor: add `cursor=`.";
        let range = "The limit must be an integer from 1 to 100.";
        for (query, field, text) in [
            ("cursor=x".to_owned(), "cursor", faulty),
            (format!("cursor={}", &cursor[1..]), "cursor", faulty),
            (format!("cursor={cursor}%00"), "cursor", faulty),
            ("cursor=now".to_owned(), "cursor", faulty),
            (format!("cursor={cursor}&page=1"), "cursor", both),
            ("cursor=&page=2".to_owned(), "cursor", both),
            (format!("cursor={cursor}&cursor={cursor}"), "cursor", once),
            ("limit=20".to_owned(), "limit", alone),
            ("page=2&limit=20".to_owned(), "limit", alone),
            ("cursor=&limit=0".to_owned(), "limit", range),
            ("cursor=&limit=101".to_owned(), "limit", range),
            ("cursor=&limit=".to_owned(), "limit", range),
            ("limit=x".to_owned(), "limit", range),
        ] {
            let answer = account.client.post(&format!("{PATH}?{query}")).json(&json!({})).send().await;
            assert_eq!((answer.status.as_u16(), answer.json()["errors"].clone()), (422, json!({field: [text]})), "{query}");
        }
        let answer = account.client.post(&format!("{PATH}?cursor=x&limit=0&page=0&fields=x")).json(&json!({"search": "x"})).send().await;
        let faults = answer.json()["errors"].as_object().expect("faults").len();
        assert_eq!((answer.status.as_u16(), faults), (422, 5), "all at once: {answer:?}");
    }

    async fn links_of_a_page_lead_to_pages_by_cursor(engine: Engine) {
        let (account, ..) = with_writer(engine).await;
        let by_number = account.search("?page=2&fields=id&x=a+b", &json!({})).await;
        let link = by_number["links"]["cursor"].as_str().expect("a link").to_owned();
        assert!(link.ends_with("/api/v1/submission?fields=id&x=a+b&cursor="), "{link}");
        let page = account.client.post(&link[link.find("/api").expect("a path")..]).json(&json!({})).send().await.json();
        assert_eq!(page["links"]["first"], link, "{page}");
        let cursor = page["meta"]["cursor"].as_str().expect("a cursor");
        let links = json!({"first": link, "next": format!("{link}{cursor}")});
        assert_eq!(page["links"], links);
        let following = next(&account.client, &page, &json!({})).await.expect("there is more");
        assert_eq!(ids(&following), ids(&by_number));
    }
}
