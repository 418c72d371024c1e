//! Sessions: their ends, and who may end them.

use std::time::{Duration, Instant};

use super::scene::{Administrator, Scene, text};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};

/// Moves an instant of every session into the past.
async fn age(scene: &Scene, column: &str, minutes: i64) {
    let database = scene.database("acme").await;
    let earlier = match &database {
        Database::Postgres(_) => format!("{column} - {minutes} * interval '1 minute'"),
        Database::Sqlite(_) => format!("{column} - {minutes} * 60000000"),
    };
    database.execute(&format!("UPDATE admin_sessions SET {column} = {earlier}")).await;
    database.close().await;
}

async fn status(administrator: &Administrator) -> u16 {
    administrator.get("/admin").await.status.as_u16()
}

on_both_databases! {
    async fn signing_out_is_felt_by_the_next_request_on_every_node(engine: Engine) {
        let scene = Scene::start(engine);
        let others = [scene.site.start(), scene.site.start()];
        let own = scene.sign_in("acme", "admin").await;
        let bystander = scene.sign_in("acme", "viewer").await;
        for node in &others {
            assert_eq!(status(&own.at(node)).await, 200);
        }
        let page = own.post("/admin/sign-out", &[]).await;
        assert_eq!(page.status, 200);
        assert!(text(&page).contains("You are signed out"));
        assert!(page.header("set-cookie").is_some_and(|cookie| cookie.starts_with("__Host-formgate=; Max-Age=0;")));
        for node in [&scene.node, &others[0], &others[1]] {
            assert_eq!((status(&own.at(node)).await, status(&bystander.at(node)).await), (401, 200));
        }
    }

    async fn an_administrator_ends_one_session_or_all(engine: Engine) {
        let scene = Scene::start(engine);
        let (own, second) = (scene.sign_in("acme", "admin").await, scene.sign_in("acme", "admin").await);
        let viewer = scene.sign_in("acme", "viewer").await;
        let page = text(&own.get("/admin/sessions").await);
        assert_eq!(page.matches("data-session=").count(), 3);
        assert!(page.contains("Ana &#60;b&#62;"), "{page}");
        assert!(!text(&viewer.get("/admin/sessions").await).contains("name=\"session\""), "a viewer has no buttons");
        let oldest = page.rsplit_once("name=\"session\" value=\"1\"").is_some();
        assert!(oldest, "{page}");
        let answer = second.post("/admin/sessions", &[("session", "1")]).await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (303, Some("/admin/sessions")));
        assert_eq!((status(&own).await, status(&second).await, status(&viewer).await), (401, 200, 200));
        for wrong in ["", "-1", "x", "9223372036854775808"] {
            let answer = second.post("/admin/sessions", &[("session", wrong)]).await;
            assert!([303, 404].contains(&answer.status.as_u16()), "{wrong:?}");
        }
        assert_eq!((status(&second).await, status(&viewer).await), (200, 200));
        assert_eq!(second.post("/admin/sessions", &[("session", "all")]).await.status, 200);
        assert_eq!((status(&second).await, status(&viewer).await), (401, 401));
    }

    async fn a_session_ends_when_it_is_idle_and_at_its_absolute_end(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        age(&scene, "last_seen_at", 59).await;
        assert_eq!(status(&own).await, 200);
        age(&scene, "last_seen_at", 59).await;
        assert_eq!(status(&own).await, 200, "its use was written");
        age(&scene, "last_seen_at", 61).await;
        let page = own.get("/admin").await;
        assert_eq!(page.status, 401);
        assert!(text(&page).contains("Your session has ended"));

        let own = scene.sign_in("acme", "admin").await;
        age(&scene, "expires_at", 11 * 60).await;
        assert_eq!(status(&own).await, 200);
        age(&scene, "expires_at", 60).await;
        assert_eq!(status(&own).await, 401);
    }
}

/// On a machine that takes a minute for so many requests, another time with another session.
#[tokio::test]
async fn a_session_has_120_requests_a_minute() {
    let scene = Scene::start(Engine::Sqlite);
    let other = scene.sign_in("acme", "admin").await;
    for _ in 0..3 {
        let began = Instant::now();
        // One request is the overview that is opened by signing in.
        let own = scene.sign_in("acme", "admin").await;
        let mut answers = Vec::new();
        for _ in 0..119 + 3 {
            answers.push(own.get("/admin/sessions").await);
        }
        if began.elapsed() >= Duration::from_secs(60) {
            continue;
        }
        let (served, refused) = answers.split_at(119);
        assert!(served.iter().all(|answer| answer.status == 200));
        for refused in refused {
            assert_eq!(refused.status, 429);
            assert!(refused.number("retry-after").is_some_and(|seconds| (1..=60).contains(&seconds)), "{refused:?}");
            assert!(text(refused).contains("too many pages"));
        }
        assert_eq!(status(&other).await, 200);
        return;
    }
    panic!("122 requests take a minute");
}
