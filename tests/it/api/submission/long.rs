//! Answers that are longer than what the keyword index contains: they are searched as short ones are.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::NOTHING_WRONG;
use crate::api::account::{Account, account};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};

/// More than a document of the index has.
const LONG: usize = 5 * 1024 * 1024;

/// Lines of a kilobyte, with a word of its own in the middle and another at the end.
fn long(middle: &str, end: &str) -> String {
    let half: String = (0..LONG / 2 / 1_000).map(|line| format!("{line:<1000}\n")).collect();
    // Nearly each place has a trigram of its own, which an index would have to contain.
    let various =
        (0..100_000_u64).map(|place| char::from_u32(0x4e00 + (place * place % 20_011) as u32).expect("a letter"));
    format!("{half}{middle}\n{half}{}{}{end}", various.collect::<String>(), "a".repeat(2_000))
}

async fn write(database: &Database, values: &[(i64, &str)]) {
    let updates =
        values.iter().map(|(id, value)| format!("UPDATE answers SET value = '{value}' WHERE submission_id = {id};"));
    database.execute(&updates.collect::<String>()).await;
}

/// How many submissions a search finds, once it is answered.
async fn total(account: &Account, filter: &Value) -> i64 {
    let since = Instant::now();
    loop {
        let answer = account.client.post("/api/v1/submission").json(filter).send().await;
        match answer.status.as_u16() {
            200 => return answer.json()["meta"]["total"].as_i64().expect("a number"),
            503 => assert!(since.elapsed() < Duration::from_secs(120), "{filter} is refused for ever: {answer:?}"),
            _ => panic!("{filter}: {answer:?}"),
        }
    }
}

async fn assert_found(account: &Account, expected: &[(&str, i64)]) {
    for (keyword, expected) in expected {
        for filter in [json!({"search": keyword}), json!({"search": keyword, "forms": [1], "statuses": ["info"]})] {
            assert_eq!(total(account, &filter).await, *expected, "{filter}");
        }
    }
}

on_both_databases! {
    async fn long_answers_are_searched_like_short_ones(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        let at = if engine == Engine::Postgres { "now()" } else { "1700000000000000" };
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'F'); INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (101, 1, 1, 'g', 'N', 'text')").await;
        for id in 1..=3 {
            database.execute(&format!("INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES ({id}, 1, 'info', {at}, {at}); INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({id}, 101, 'Short {id}', {at})")).await;
        }
        assert_found(&account, &[("short", 3), ("rt", 3), ("Needle", 0)]).await;

        // Two at once, which are more than one transaction derives from.
        write(&database, &[(1, &long("One Needle Jq", "Last Ünd")), (2, &long("Two Needle Jq", "ß"))]).await;
        assert_found(&account, &[("needle", 2), ("one needle", 1), ("JQ", 2), ("ÜND", 1), ("nd", 1), ("aß", 1)]).await;
        assert_found(&account, &[("short", 1), ("rt", 1), ("needles", 0), ("ß\u{fdd1}", 0), ("A".repeat(900).as_str(), 2)]).await;
        assert_eq!(total(&account, &json!({"terms": {"101": ["one needle jq"]}})).await, 1);
        assert_eq!(account.reindex(), NOTHING_WRONG);
        if engine == Engine::Postgres {
            let [bytes] = database.integers("SELECT pg_relation_size('listed_documents_trigrams')").await;
            assert!(bytes < 200_000, "the index has long documents: {bytes} bytes");
        }

        write(&database, &[(1, &long("Another Word", "end")), (2, "Short again")]).await;
        assert_found(&account, &[("needle", 0), ("jq", 0), ("another word", 1), ("short", 2), ("ag", 1), ("ain", 1)]).await;
        assert_eq!(total(&account, &json!({"terms": {"101": ["one needle jq"]}})).await, 0);
        assert_eq!(account.reindex(), NOTHING_WRONG);

        if engine == Engine::Sqlite {
            database.execute("INSERT INTO listed_trigrams (listed_trigrams) VALUES ('delete-all')").await;
            assert_ne!(account.reindex(), NOTHING_WRONG);
            assert_found(&account, &[("another word", 1), ("short", 2), ("rt", 2)]).await;
            assert_eq!(account.reindex(), NOTHING_WRONG);
        }
        database.execute("DELETE FROM submissions WHERE id = 1").await;
        assert_found(&account, &[("another word", 0), ("short", 2)]).await;
        assert_eq!(account.reindex(), NOTHING_WRONG);
    }
}
