//! A slug outlives the tenant that had it: what a gateway remembers belongs to the tenant with its database, not to the slug.

use std::fs;
use std::time::Duration;

use serde_json::json;
use sqlx::{Connection, PgConnection};
use toml::{Table, Value};

use crate::support::answer::Answer;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::process::Node;
use crate::support::redis::Redis;

/// A change is noticed, read once the files are quiet, and served well within this, on a busy machine too.
const NOTICED: Duration = Duration::from_secs(30);

/// What a node logs once it serves a changed configuration.
const RELOADED: &str = "the configuration is reloaded";

/// Two databases and a token of each, one form in each of them. Which tenant has which changes.
struct Scene {
    site: Site,
    tokens: [String; 2],
    /// The tenants as they were configured first: `acme` with the first database, `globex` with the second.
    first: Table,
}

impl Scene {
    fn new(engine: Engine, redis: Option<&Redis>) -> Self {
        let site = Site::new().tenant("acme", engine).tenant("globex", engine).requests_per_minute(100);
        let site = match redis {
            Some(redis) => site.redis(redis).gateway("redis_timeout_ms", 5000).gateway("on_redis_failure", "deny"),
            None => site,
        };
        let site = site.write();
        let slugs = ["acme", "globex"];
        for slug in slugs {
            site.import(slug, &json!({"type": "form", "id": 1, "name": format!("of {slug}'s database")}).to_string());
        }
        let tokens = slugs.map(|slug| site.token(slug, "tests"));
        let first = fs::read_to_string(&site.config_path).expect("a configuration").parse().expect("TOML");
        Self { site, tokens, first }
    }

    /// Writes a configuration with these tenants, each with the database that the other one names.
    fn configure(&self, tenants: &[(&str, &str)]) {
        let all = self.first["tenant"].as_array().expect("tenants");
        let find = |slug: &str| all.iter().find(|tenant| tenant["slug"].as_str() == Some(slug)).expect("a tenant");
        let tenant = |(slug, database): &(&str, &str)| {
            let mut tenant = find(slug).clone();
            let url = if database.contains(':') { (*database).into() } else { find(database)["database"].clone() };
            tenant.as_table_mut().expect("a table").insert("database".into(), url);
            tenant
        };
        let mut root = self.first.clone();
        root.insert("tenant".into(), Value::Array(tenants.iter().map(tenant).collect()));
        let draft = self.site.config_path.with_extension("draft");
        fs::write(&draft, root.to_string()).expect("the site's folder can be written");
        fs::rename(&draft, &self.site.config_path).expect("the site's folder can be written");
    }

    /// The same for a running node, which serves it when this returns.
    fn reload(&self, node: &mut Node, tenants: &[(&str, &str)]) {
        let before = node.count_lines(RELOADED);
        self.configure(tenants);
        node.wait_for_lines(NOTICED, RELOADED, before + 1);
    }

    /// Asks `acme` for its forms, by the token of the first database or of the second.
    async fn ask(&self, node: &Node, token: usize) -> Answer {
        self.ask_of("acme", node, token).await
    }

    async fn ask_of(&self, slug: &str, node: &Node, token: usize) -> Answer {
        node.client().to(&self.site.host(slug)).with(&self.tokens[token]).get("/api/v1/form").send().await
    }

    /// Asserts that `acme` has the second database, and that nothing is left of the first one.
    async fn assert_acme_has_the_second(&self, node: &Node) {
        let refused = self.ask(node, 0).await;
        assert_eq!((refused.status.as_u16(), refused.number("x-ratelimit-remaining")), (401, Some(100)));
        let write = node.client().to(&self.site.host("acme")).with(&self.tokens[0]).put("/api/v1/group");
        assert_eq!(write.json(&json!({"name": "of the first"})).send().await.status, 401);
        let answer = self.ask(node, 1).await;
        assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (200, Some(99)));
        assert_eq!(answer.json()["data"][0]["name"], "of globex's database");
        let me = node.client().to(&self.site.host("acme")).with(&self.tokens[1]).get("/api/v1/me").send().await;
        assert_eq!(me.json()["usage"], json!([{"token": "tests", "requests": 2}]), "{me:?}");
    }
}

const FIRST: (&str, &str) = ("acme", "acme");
const SECOND: (&str, &str) = ("acme", "globex");

on_both_databases! {
    async fn a_slug_that_is_given_to_another_database_after_its_tenant_was_removed(engine: Engine) {
        let redis = Redis::start();
        for redis in [None, Some(&redis)] {
            let scene = Scene::new(engine, redis);
            scene.configure(&[FIRST, ("globex", "globex")]);
            let mut node = scene.site.start();
            for _ in 0..5 {
                assert_eq!(scene.ask(&node, 0).await.status, 200);
                assert_eq!(scene.ask(&node, 1).await.status, 401, "the second token is known to be bad at the first");
            }
            scene.reload(&mut node, &[("globex", "acme")]);
            scene.reload(&mut node, &[SECOND]);
            scene.assert_acme_has_the_second(&node).await;
        }
    }

    async fn a_database_that_is_replaced_by_another_in_one_reload(engine: Engine) {
        let redis = Redis::start();
        for redis in [None, Some(&redis)] {
            let scene = Scene::new(engine, redis);
            scene.configure(&[FIRST]);
            let mut node = scene.site.start();
            for _ in 0..5 {
                assert_eq!(scene.ask(&node, 0).await.status, 200);
                assert_eq!(scene.ask(&node, 1).await.status, 401);
            }
            scene.reload(&mut node, &[SECOND]);
            scene.assert_acme_has_the_second(&node).await;

            // Back again, its window is where it was.
            scene.reload(&mut node, &[FIRST]);
            let answer = scene.ask(&node, 0).await;
            assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (200, Some(94)));
        }
    }

    async fn two_tenants_that_exchange_their_databases_in_one_reload(engine: Engine) {
        let redis = Redis::start();
        for redis in [None, Some(&redis)] {
            let scene = Scene::new(engine, redis);
            let mut node = scene.site.start();
            for _ in 0..3 {
                assert_eq!(scene.ask(&node, 0).await.status, 200);
                assert_eq!(scene.ask_of("globex", &node, 1).await.status, 200);
            }
            scene.reload(&mut node, &[SECOND, ("globex", "acme")]);
            scene.assert_acme_has_the_second(&node).await;
            assert_eq!(scene.ask_of("globex", &node, 1).await.status, 401);
            let answer = scene.ask_of("globex", &node, 0).await;
            assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (200, Some(99)));
        }
    }

    async fn a_database_that_is_replaced_by_a_restart(engine: Engine) {
        let redis = Redis::start();
        let scene = Scene::new(engine, Some(&redis));
        scene.configure(&[FIRST]);
        let mut node = scene.site.start();
        for _ in 0..5 {
            assert_eq!(scene.ask(&node, 0).await.status, 200);
        }
        assert_eq!(node.stop(NOTICED).await, 0);
        scene.configure(&[SECOND]);
        let mut node = scene.site.start();
        scene.assert_acme_has_the_second(&node).await;
        assert_eq!(node.stop(NOTICED).await, 0);
        scene.configure(&[FIRST]);
        let node = scene.site.start();
        assert_eq!(scene.ask(&node, 0).await.number("x-ratelimit-remaining"), Some(94), "this window is still there");
    }

    /// One budget over all nodes, whichever way each one goes to the database.
    async fn a_database_that_is_reached_by_another_address_is_the_same_account(engine: Engine) {
        let redis = Redis::start();
        for redis in [None, Some(&redis)] {
            let scene = Scene::new(engine, redis);
            let other_way = another_address_of(&scene, engine);
            scene.configure(&[FIRST]);
            let mut node = scene.site.start();
            for left in (90..100).rev() {
                assert_eq!(scene.ask(&node, 0).await.number("x-ratelimit-remaining"), Some(left));
            }
            scene.reload(&mut node, &[("acme", &other_way)]);
            let stranger = node.client().to(&scene.site.host("acme"));
            let unauthenticated = stranger.get("/api/v1/form").send().await;
            assert_eq!((unauthenticated.status.as_u16(), unauthenticated.number("x-ratelimit-remaining")), (401, Some(90)));
            assert_eq!(scene.ask(&node, 0).await.number("x-ratelimit-remaining"), Some(89));
            if redis.is_some() {
                scene.configure(&[FIRST]);
                let second = scene.site.start();
                let stranger = second.client().to(&scene.site.host("acme"));
                assert_eq!(stranger.get("/").send().await.number("x-ratelimit-remaining"), Some(89));
                assert_eq!(scene.ask(&second, 0).await.number("x-ratelimit-remaining"), Some(88));
            }
        }
    }

    /// A tenant may be copied for another one. The copy has the identity of its origin, and a slug of its own.
    async fn a_copied_database_is_another_account_under_another_slug(engine: Engine) {
        let redis = Redis::start();
        let scene = Scene::new(engine, Some(&redis));
        let copy = copy_of_the_first(&scene, engine).await;
        scene.configure(&[FIRST, ("globex", &copy)]);
        let node = scene.site.start();
        for left in [99, 98, 97] {
            for slug in ["acme", "globex"] {
                assert_eq!(scene.ask_of(slug, &node, 0).await.number("x-ratelimit-remaining"), Some(left), "{slug}");
            }
        }
    }

    /// The first token of each database has the number 1.
    async fn a_use_that_was_noted_before_is_written_to_the_database_that_the_token_is_of(engine: Engine) {
        let scene = Scene::new(engine, None);
        scene.configure(&[FIRST]);
        let mut node = scene.site.start();
        assert_eq!(scene.ask(&node, 0).await.status, 200);
        scene.reload(&mut node, &[SECOND]);
        assert_eq!(scene.ask(&node, 0).await.status, 401);
        assert_eq!(node.stop(NOTICED).await, 0);
        scene.configure(&[FIRST, ("globex", "globex")]);
        let last_used = |slug| {
            let list = scene.site.run(&["token", "list", "--json", "--tenant", slug], b"").stdout;
            let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
            list[0]["last_used_at"].clone()
        };
        assert!(last_used("acme").is_string());
        assert!(last_used("globex").is_null());
    }
}

/// Another URL that leads to the first database.
fn another_address_of(scene: &Scene, engine: Engine) -> String {
    let url = scene.site.database_url("acme");
    match engine {
        Engine::Postgres | Engine::PostgresOn(_) => {
            format!("{url}{}application_name=pooler", if url.contains('?') { '&' } else { '?' })
        }
        Engine::Sqlite => {
            let link = scene.site.folder().join("link.db");
            let file = url.strip_prefix("sqlite:").expect("a SQLite URL");
            if !link.exists() {
                std::os::unix::fs::symlink(file, &link).expect("the site's folder can be written");
            }
            format!("sqlite:{}", link.display())
        }
    }
}

/// The URL of a copy of the first database.
async fn copy_of_the_first(scene: &Scene, engine: Engine) -> String {
    let url = scene.site.database_url("acme");
    match engine {
        Engine::Postgres | Engine::PostgresOn(_) => {
            let name = url.rsplit('/').next().and_then(|rest| rest.split('?').next()).expect("a name");
            let mut other = PgConnection::connect(scene.site.database_url("globex")).await.expect("a connection");
            let copy = format!("CREATE DATABASE copy_of_{name} TEMPLATE {name}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(copy)).execute(&mut other).await.expect("nobody uses the template");
            url.replace(&format!("/{name}"), &format!("/copy_of_{name}"))
        }
        Engine::Sqlite => {
            let file = url.strip_prefix("sqlite:").expect("a SQLite URL");
            let copy = scene.site.folder().join("copy.db");
            fs::copy(file, &copy).expect("the site's folder can be written");
            format!("sqlite:{}", copy.display())
        }
    }
}
