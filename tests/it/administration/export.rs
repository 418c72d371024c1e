//! Exports on their page: what can be chosen, a link that works once, and who may use it.

use http::Method;
use serde_json::Value;

use super::scene::{Administrator, Scene, between, text};
use crate::support::fixture::{Engine, on_both_databases};

const PATH: &str = "/admin/export";

/// Two forms; submissions of the first from January on, one a month.
fn data() -> String {
    let mut lines = String::new();
    for (id, name) in [(1, "Leave <b>"), (2, "Empty")] {
        lines += &format!(
            r#"{{"type":"form","id":{id},"name":"{name}","elements":[{{"id":{id}01,"gid":"g{id}","name":"Reason","type":"text"}}]}}"#
        );
        lines.push('\n');
    }
    for month in 1..=5 {
        lines += &format!(
            r#"{{"type":"submission","id":{month},"form_id":1,"status":"pending","created_at":"2026-0{month}-10T12:00:00Z","updated_at":"2026-06-01T12:00:00Z","answers":[{{"element_id":101,"value":"=Month {month}"}}]}}"#
        );
        lines.push('\n');
    }
    lines
}

fn scene(engine: Engine) -> Scene {
    let scene = Scene::of(Scene::site(engine));
    scene.site.import("acme", &data());
    scene
}

/// Chooses an export, and returns the link to it.
async fn choose(own: &Administrator, fields: &[(&str, &str)]) -> String {
    let chosen = own.post(PATH, fields).await;
    assert_eq!(chosen.status, 201, "{chosen:?}");
    let page = text(&chosen);
    assert_eq!(page.matches("<h1").count(), 1, "{page}");
    between(&page, "id=\"export-link\" href=\"", "\"").to_owned()
}

on_both_databases! {
    async fn a_link_exports_once_in_its_session_and_spends_nothing(engine: Engine) {
        let scene = scene(engine);
        let token = scene.site.token("acme", "API");
        let own = scene.sign_in("acme", "admin").await;
        let page = text(&own.get(PATH).await);
        assert!(page.contains("Leave &#60;b&#62; (for_1)") && !page.contains("Leave <b>"), "{page}");
        let left = own.caller.with(&token).get("/api/v1/me").send().await.number("x-ratelimit-remaining").unwrap();

        let csv = [("form", "1"), ("format", "csv"), ("since", "2026-02-10"), ("until", "2026-04-09"), ("excel", "1")];
        let link = choose(&own, &csv).await;
        // Looking uses up nothing, and neither does anybody else.
        for _ in 0..3 {
            let head = own.call(Method::HEAD, &link).send().await;
            assert_eq!((head.status.as_u16(), head.body.len()), (200, 0), "{head:?}");
        }
        let second = scene.sign_in("acme", "admin").await;
        assert_eq!(second.get(&link).await.status, 404);
        assert_eq!(scene.sign_in("acme", "viewer").await.get(&link).await.status, 404);
        assert_eq!(scene.sign_in("globex", "admin").await.get(&link).await.status, 404);
        assert_eq!(own.caller.get(&link).send().await.status, 401);

        let exported = own.get(&link).await;
        assert_eq!(exported.status, 200, "{exported:?}");
        assert_eq!(exported.header("content-type"), Some("text/csv; charset=utf-8; header=present"));
        let name = exported.header("content-disposition").expect("a name");
        assert!(name.starts_with("attachment; filename=\"acme-for_1-2") && name.ends_with(".csv\""), "{name}");
        let lines = text(&exported);
        let months: Vec<&str> = lines.split("\r\n").filter_map(|line| line.split(',').nth(4)).collect();
        assert_eq!(months, ["Reason", "'=Month 2", "'=Month 3"], "{lines}");
        assert!(lines.starts_with("\u{feff}id,"), "{lines}");
        assert_eq!(own.get(&link).await.status, 404, "it was used");
        let now_left = own.caller.with(&token).get("/api/v1/me").send().await.number("x-ratelimit-remaining").unwrap();
        assert_eq!(now_left, left - 1, "only the second look at the budget was spent");

        let audit = text(&own.get("/admin/audit/export?action=export").await);
        let rows: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 1, "{audit}");
        let row = &rows[0];
        assert_eq!((&row["subject"], &row["actor"]), (&"for_1".into(), &"admin@acme.example".into()), "{row}");
        assert_eq!(row["details"]["format"], "csv", "{row}");
        for (language, words) in [("en", "Submissions exported"), ("de", "Einsendungen exportiert")] {
            let page = own.call(Method::GET, "/admin/audit").header("accept-language", language).send().await;
            assert!(text(&page).contains(words), "{words}: {page:?}");
        }
    }

    async fn every_format_is_exported_and_a_newer_choice_ends_the_one_before(engine: Engine) {
        let scene = scene(engine);
        let own = scene.sign_in("acme", "admin").await;
        let first = choose(&own, &[("form", ""), ("format", "ndjson"), ("since", ""), ("until", "")]).await;
        let link = choose(&own, &[("form", ""), ("format", "ndjson")]).await;
        assert_eq!(own.get(&first).await.status, 404);
        let lines = text(&own.get(&link).await);
        assert_eq!(lines.lines().count(), 6, "{lines}");
        let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
        assert_eq!(last["rows"], 5);
        let parquet = own.get(&choose(&own, &[("form", "2"), ("format", "parquet")]).await).await;
        assert_eq!(parquet.header("content-type"), Some("application/vnd.apache.parquet"));
        assert!(parquet.body.starts_with(b"PAR1") && parquet.body.ends_with(b"PAR1"), "{parquet:?}");
    }

    async fn one_link_is_used_once_however_many_ask_at_once(engine: Engine) {
        let scene = scene(engine);
        let nodes = [scene.site.start(), scene.site.start()];
        let own = scene.sign_in("acme", "admin").await;
        let link = choose(&own, &[("form", "1"), ("format", "csv")]).await;
        let callers: Vec<Administrator> = nodes.iter().map(|node| own.at(node)).chain([own.clone()]).collect();
        let calls = (0..12).map(|at| {
            let (caller, link) = (callers[at % callers.len()].clone(), link.clone());
            tokio::spawn(async move { caller.get(&link).await.status.as_u16() })
        });
        let mut statuses = Vec::new();
        for call in calls.collect::<Vec<_>>() {
            statuses.push(call.await.expect("it does not panic"));
        }
        statuses.sort_unstable();
        assert_eq!(statuses[0], 200, "{statuses:?}");
        // One that came while the first was sent may try again.
        assert!(statuses[1..].iter().all(|status| [404, 409].contains(status)), "{statuses:?}");
        assert_eq!(own.get(&link).await.status, 404);
    }
}

#[tokio::test]
async fn what_cannot_be_exported_is_said_in_both_languages() {
    let scene = scene(Engine::Sqlite);
    let own = scene.sign_in("acme", "admin").await;
    for (fields, english) in [
        ([("form", ""), ("format", "csv"), ("since", ""), ("until", "")], "Choose a form: CSV and Parquet"),
        ([("form", "1"), ("format", "xlsx"), ("since", ""), ("until", "")], "Choose a format from the list."),
        ([("form", "77"), ("format", "csv"), ("since", ""), ("until", "")], "Choose a form from the list."),
        ([("form", "for_1"), ("format", "csv"), ("since", ""), ("until", "")], "Choose a form from the list."),
        ([("form", "1"), ("format", "csv"), ("since", "soon"), ("until", "")], "Enter days as YYYY-MM-DD."),
        (
            [("form", "1"), ("format", "csv"), ("since", "2026-02-02"), ("until", "2026-02-01")],
            "The last day is before the first day.",
        ),
    ] {
        let refused = own.post(PATH, &fields).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        let page = text(&refused);
        assert!(page.contains(english) && !page.contains("export-link"), "{english}: {page}");
    }
    let viewer = scene.sign_in("acme", "viewer").await;
    let page = text(&viewer.get(PATH).await);
    assert!(page.contains("Your role is viewer.") && !page.contains("name=\"format\""), "{page}");
    assert_eq!(viewer.post(PATH, &[("form", "1"), ("format", "csv")]).await.status, 403);
    let german = own.call(Method::GET, PATH).header("accept-language", "de").send().await;
    assert!(text(&german).contains("Link erstellen"), "{german:?}");
}
