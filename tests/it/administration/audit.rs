//! The audit log on its page: filters, pages, the export.

use http::Method;
use serde_json::Value;

use super::scene::{Scene, between, random, text};
use crate::support::fixture::{Engine, on_both_databases};

on_both_databases! {
    async fn the_log_is_filtered_paged_and_exported(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let first = text(&own.get("/admin/audit").await);
        assert!(first.contains("session.start") && first.matches("data-entry=").count() == 1, "{first}");
        scene.site.token("acme", "by a command");
        for name in ["One", "Two"] {
            own.generate(name).await;
        }
        let rows = async |query: &str| {
            let page = own.get(&format!("/admin/audit{query}")).await;
            (page.status.as_u16(), text(&page).matches("data-entry=").count())
        };
        let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        for (query, expected) in [
            ("", (200, 4)),
            ("?action=token.create", (200, 3)),
            ("?actor=admin%40acme.example", (200, 3)),
            ("?actor=admin%40acme.example&action=token.create", (200, 2)),
            ("?actor=ADMIN", (200, 0)),
            ("?before=2", (200, 1)),
            (&format!("?since={today}"), (200, 4)),
            ("?until=2020-01-01", (200, 0)),
            ("?since=yesterday", (422, 0)),
            ("?until=2030-02-30", (422, 0)),
            ("?actor=%00", (200, 4)),
            ("?actor=a&actor=admin%40acme.example", (422, 0)),
        ] {
            assert_eq!(rows(query).await, expected, "{query}");
        }
        let export = own.get("/admin/audit/export?action=token.create").await;
        assert_eq!(export.header("content-type"), Some("application/x-ndjson"));
        assert_eq!(export.header("content-disposition"), Some("attachment; filename=\"audit-acme.ndjson\""));
        let export: Vec<Value> = text(&export).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let sources: Vec<_> = export.iter().map(|row| row["source"].as_str().unwrap()).collect();
        assert_eq!(sources, ["administration", "administration", "command"]);
        assert!(export[0]["details"].is_object() && export[0]["digest"].as_str().unwrap().len() == 64, "{export:?}");
        assert_eq!(own.get("/admin/audit/export?since=x").await.status, 404);
    }

    async fn every_time_in_the_log_has_the_same_form(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let fields = [("name", "2026-07-04T22:05:59Z"), ("expires", "90d"), ("form_key", &*random())];
        assert_eq!(own.post("/admin/tokens", &fields).await.status, 201);
        let fields = [("overlap", "24h"), ("form_key", &*random())];
        assert_eq!(own.post("/admin/tokens/1", &fields).await.status, 201);
        for (language, operator) in [("en", "by the operator of this service"), ("de", "durch den Betreiber")] {
            let call = own.call(Method::GET, "/admin/audit").header("accept-language", language);
            let page = text(&call.send().await);
            // Three rows, two of which have an expiry, and one the end of an overlap.
            let times: Vec<_> = page.split("<time datetime=\"").skip(1).collect();
            assert_eq!(times.len(), 3 + 2 + 1, "{page}");
            for time in times {
                let (exact, rest) = time.split_once("\">").unwrap();
                assert!(exact.len() == "2026-07-04T22:05:59.000000Z".len() && exact.ends_with('Z'), "{exact}");
                let shown = rest.split_once("</time>").unwrap().0;
                assert!(shown.contains(", ") && !shown.ends_with('Z'), "{shown}");
            }
            let words: String = page.split('<').filter_map(|tag| tag.split_once('>')).map(|(_, words)| words).collect();
            assert_eq!(words.matches("T22:05:59Z").count(), 2, "the name of a token is no instant: {words}");
            let exact = |word: &&str| word.len() > 16 && word.as_bytes()[10] == b'T' && word.ends_with('Z');
            let name = "2026-07-04T22:05:59Z";
            let others: Vec<_> = words.split([' ', ',', '\n']).filter(exact).filter(|word| *word != name).collect();
            assert!(others.is_empty(), "{others:?}");
            let lead = between(&page, "<p class=\"lead\">", "</p>");
            assert!(lead.contains(operator), "{lead}");
        }
        let export = text(&own.get("/admin/audit/export").await);
        for line in export.lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            assert_eq!(row["at"].as_str().map(str::len), Some("2026-07-04T22:05:59.000000Z".len()), "{row}");
        }
    }

    async fn a_long_log_is_exported_whole(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let database = scene.database("acme").await;
        let (at, digest) = if engine == Engine::Sqlite { ("0", "X'00'") } else { ("to_timestamp(0)", "'\\x00'") };
        let numbers = "WITH RECURSIVE numbers(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1234)";
        let columns = "id, at, actor, source, action, subject, details, digest";
        database.execute(&format!("{numbers} INSERT INTO audit_log ({columns}) SELECT n, {at}, 'a', 'command', 'b', 'c', 'no JSON', {digest} FROM numbers")).await;
        database.close().await;
        let export = text(&own.get("/admin/audit/export").await);
        let rows: Vec<Value> = export.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let ids: Vec<_> = rows.iter().map(|row| row["id"].as_i64().unwrap()).collect();
        assert_eq!(ids, (1..=1234).rev().collect::<Vec<_>>());
        assert_eq!(rows[0]["details"], "no JSON", "a row that was added by SQL is exported too");
    }
}
