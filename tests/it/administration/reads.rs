//! The page of a token says how much it has read.

use std::time::Duration;

use serde_json::json;

use super::scene::{Scene, text};
use crate::support::fixture::on_both_databases;

/// Ids on both sides of the border of a chunk.
const FIRST: i64 = 65_300;
const COUNT: i64 = 600;

fn lines() -> String {
    let mut lines = String::new();
    for form in [1, 2] {
        lines += &format!("{}\n", json!({"type": "form", "id": form, "name": "F"}));
    }
    for id in FIRST..FIRST + COUNT {
        let (form, at) = (1 + id % 2, "2026-03-01T12:00:00Z");
        lines += &format!(
            "{}\n",
            json!({"type": "submission", "id": id, "form_id": form, "status": "pending", "created_at": at, "updated_at": at})
        );
    }
    lines
}

on_both_databases! {
    async fn the_page_of_a_token_counts_the_submissions_and_forms_that_it_has_read(engine: Engine) {
        let mut scene = Scene::of(Scene::site(engine).requests_per_minute(100_000));
        scene.site.import("acme", &lines());
        let token = scene.site.token("acme", "copy");
        let own = scene.sign_in("acme", "viewer").await;
        let page = text(&own.get("/admin/tokens/1").await);
        assert!(page.contains("<p data-read=\"0\">Has read no submission in the last 400 days.</p>"), "{page}");

        let caller = scene.node.client().to(&scene.site.host("acme")).with(&token);
        for round in 0..3 {
            let mut path = "/api/v1/submission/changes?limit=500".to_owned();
            let mut read = 0;
            while read < COUNT {
                let answer = caller.get(&path).send().await.json();
                read += i64::try_from(answer["data"].as_array().unwrap().len()).unwrap();
                path = format!("/api/v1/submission/changes?limit=500&cursor={}", answer["meta"]["cursor"].as_str().unwrap());
            }
            let page = text(&own.get("/admin/tokens/1").await);
            assert!(page.contains("Has read 600 submissions of 2 forms in the last 400 days."), "{round} {page}");
        }
        assert_eq!(scene.node.stop(Duration::from_secs(30)).await, 0);
        scene.node = scene.site.start();
        let own = own.at(&scene.node);
        let page = text(&own.get("/admin/tokens/1").await);
        assert!(page.contains("Has read 600 submissions of 2 forms in the last 400 days."), "{page}");
        let caller = scene.node.client().to(&scene.site.host("acme")).with(&token);
        assert_eq!(caller.get("/api/v1/submission/65300").send().await.status, 200);
        let page = text(&own.get("/admin/tokens/1").await);
        assert!(page.contains("<p data-read=\"600\">"), "what was read again counts once: {page}");
        let german = text(&own.call(http::Method::GET, "/admin/tokens/1").header("accept-language", "de").send().await);
        assert!(german.contains("Hat in den letzten 400 Tagen 600 Einsendungen aus 2 Formularen gelesen."), "{german}");
    }
}
