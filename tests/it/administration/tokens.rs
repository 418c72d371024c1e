//! Generating, rotating and revoking tokens.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;

use super::scene::{Scene, between, hidden, random, text};
use crate::support::answer::Answer;
use crate::support::busy::takes_less_than;
use crate::support::client::{Client, operator_count};
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::process::Node;
use crate::support::redis::Redis;

/// Texts that a page could mistake for something else.
const HOSTILE: [&str; 6] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% include \"/etc/passwd\" %}",
    "</title></h1><h1>",
    "&lt;b&gt; &amp;amp; ü 漢字 🦀",
];

on_both_databases! {
    async fn a_token_is_shown_once_listed_with_its_use_and_revoked(engine: Engine) {
        let mut scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        assert!(text(&own.get("/admin/tokens").await).contains("There is no active token yet"));
        let (id, value) = own.generate("Payroll").await;
        let (kept, kept_value) = own.generate("Kept").await;
        let api = own.caller.with(&value);
        assert_eq!(api.get("/api/v1/me").send().await.status, 200);
        let pages = ["/admin", "/admin/tokens", &format!("/admin/tokens/{id}"), &format!("/admin/tokens/{id}/revoke"), "/admin/audit", "/admin/audit/export"];
        for path in pages {
            assert!(!text(&own.get(path).await).contains(&value), "{path}");
        }
        let list = text(&own.get("/admin/tokens").await);
        let row = between(&list, &format!("<tr data-token=\"{id}\">"), "</tr>");
        assert!(row.contains(&format!("data-prefix=\"{}\"", &value[..8])) && row.contains("data-last-used="), "{row}");
        assert!(row.contains("by admin@acme.example"), "{row}");
        let answer = own.post(&format!("/admin/tokens/{id}/revoke"), &[]).await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (303, Some(&*format!("/admin/tokens/{id}?done=revoked"))));
        assert_eq!(api.get("/api/v1/me").send().await.status, 401, "at once on this node");
        assert_eq!(own.caller.with(&kept_value).get("/api/v1/me").send().await.status, 200);
        let list = text(&own.get("/admin/tokens").await);
        assert!(!list.contains(&format!("data-token=\"{id}\"")) && list.contains(&format!("data-token=\"{kept}\"")));
        assert!(text(&own.get("/admin/tokens?show=all").await).contains(&format!("data-token=\"{id}\"")));
        let metrics = crate::support::client::operator_get(scene.node.operator_address(), "/metrics").await;
        assert!(!scene.node.log().contains(&value) && !text(&metrics).contains(&value));
        let audit = text(&own.get("/admin/audit/export").await);
        let actions: Vec<String> = audit
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["action"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(actions, ["token.revoke", "token.create", "token.create", "session.start"]);
    }

    async fn a_form_that_is_sent_again_generates_no_second_token(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let key = hidden(&own.get("/admin/tokens").await, "form_key");
        let fields = [("name", "Once"), ("expires", "90d"), ("form_key", &*key)];
        let first = own.post("/admin/tokens", &fields).await;
        assert_eq!(first.status, 201);
        let value = between(&text(&first), "id=\"token-value\">", "<").to_owned();
        let again = own.post("/admin/tokens", &fields).await;
        assert_eq!(again.status, 200);
        assert!(text(&again).contains("This form was sent before") && !text(&again).contains(&value));
        let rows = text(&own.get("/admin/tokens?show=all").await).matches("<tr data-token=").count();
        assert_eq!(rows, 1);
    }

    async fn hostile_names_stay_text(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        for name in HOSTILE {
            let (id, _) = own.generate(name).await;
            for path in ["/admin/tokens".to_owned(), format!("/admin/tokens/{id}"), format!("/admin/tokens/{id}/revoke"), "/admin/audit".to_owned()] {
                // The client checks that the page has one title, one h1 and one main.
                let page = text(&own.get(&path).await);
                for tag in ["<script", "<img src=x", "onmouseover='", "<b>"] {
                    assert!(!page.contains(tag), "{path} after {name}: {page}");
                }
            }
        }
        for filter in HOSTILE {
            let query = form_urlencoded::Serializer::new(String::new()).append_pair("actor", filter).append_pair("action", filter).finish();
            let page = text(&own.get(&format!("/admin/audit?{query}")).await);
            assert!(page.contains("Nothing matches") && !page.contains("<script") && !page.contains("<img src=x"));
        }
    }

    async fn each_field_is_held_to_its_bounds_and_what_was_typed_is_kept(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let long = "ü".repeat(255);
        let too_long = "ü".repeat(256);
        for (name, expires, on, is_valid) in [
            ("a", "never", "", true),
            (&*long, "1y", "", true),
            ("  trimmed  ", "on", "2030-01-01", true),
            ("", "never", "", false),
            ("   ", "never", "", false),
            (&too_long, "never", "", false),
            ("a\0b", "never", "", false),
            ("a\nb", "never", "", false),
            ("\u{202e}gnp.exe\u{feff}", "never", "", false),
            ("kept <b>", "31d", "", false),
            ("kept", "on", "", false),
            ("kept", "on", "2020-01-01", false),
            ("kept", "on", "2030-02-30", false),
            ("kept", "on", "9999-12-31", false),
        ] {
            let fields = [("name", name), ("expires", expires), ("expires_on", on), ("form_key", &*random())];
            let answer = own.post("/admin/tokens", &fields).await;
            let expected = if is_valid { 201 } else { 422 };
            assert_eq!(answer.status, expected, "{name:?} {expires:?} {on:?}: {answer:?}");
            if !is_valid {
                let page = text(&answer);
                let kept = name.trim().replace('<', "&#60;").replace('>', "&#62;");
                assert!(page.contains(&format!("name=\"name\" value=\"{kept}\"")) && page.contains("aria-invalid"), "{page}");
                assert!(page.contains(&format!("type=\"date\" value=\"{on}\"")), "{page}");
            }
        }
        for key in ["", "0", &"z".repeat(32)] {
            let answer = own.post("/admin/tokens", &[("name", "kept"), ("form_key", key)]).await;
            assert_eq!(answer.status, 422);
        }
        for id in ["0", "-1", "+1", "01", "9999", "9223372036854775808", "x", "%00"] {
            assert_eq!(own.get(&format!("/admin/tokens/{id}")).await.status, 404, "{id}");
            assert_eq!(own.post(&format!("/admin/tokens/{id}/revoke"), &[]).await.status, 404, "{id}");
        }
    }

    async fn a_rotated_token_is_accepted_during_the_overlap_only(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let (old, old_value) = own.generate("Rotated").await;
        let rotate = async |id: i64, overlap: &str| {
            let key = random();
            let answer = own.post(&format!("/admin/tokens/{id}"), &[("overlap", overlap), ("form_key", &key)]).await;
            (answer.status.as_u16(), text(&answer))
        };
        let (status, page) = rotate(old, "1h").await;
        assert_eq!(status, 201);
        assert!(page.contains("is accepted until"), "{page}");
        let value = between(&page, "id=\"token-value\">", "<").to_owned();
        let new = between(&page, "class=\"value\" data-token=\"", "\"").parse().expect("a number");
        for token in [&old_value, &value] {
            assert_eq!(own.caller.with(token).get("/api/v1/me").send().await.status, 200);
        }
        let (status, page) = rotate(new, "none").await;
        assert!(status == 201 && page.contains("is revoked"), "{page}");
        assert_eq!(own.caller.with(&value).get("/api/v1/me").send().await.status, 401);
        assert_eq!(rotate(new, "none").await.0, 409, "another administrator was faster");
        assert_eq!(rotate(old, "2h").await.0, 422);
        assert_eq!(rotate(9999, "1h").await.0, 404);
    }

    async fn a_rotated_token_keeps_its_expiry_unless_the_form_has_another(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let create = async |expires: &str| {
            let fields = [("name", "Payroll"), ("expires", expires), ("form_key", &*random())];
            number_of(&own.post("/admin/tokens", &fields).await)
        };
        let rotate = async |id: i64, fields: &[(&str, &str)]| {
            let key = random();
            let fields = [fields, &[("overlap", "1h"), ("form_key", &*key)]].concat();
            number_of(&own.post(&format!("/admin/tokens/{id}"), &fields).await)
        };
        let expiry = async |id: i64| {
            let page = text(&own.get(&format!("/admin/tokens/{id}")).await);
            let shown = between(&page, "<dt>Expires</dt><dd>", "</dd>").to_owned();
            if shown == "never" { shown } else { between(&shown, "datetime=\"", "\"").to_owned() }
        };
        let first = create("90d").await;
        let kept = expiry(first).await;
        let page = text(&own.get(&format!("/admin/tokens/{first}")).await);
        let choices = between(&page, "<select id=\"expires\"", "</select>");
        let (default, _) = choices.split_once("</option>").unwrap();
        assert!(default.contains(&format!("<option value=\"{kept}\">As before: ")), "{choices}");
        assert!(!choices.contains("selected"), "the first one is: {choices}");

        // As the form is shown, by hand without the field, and with another choice.
        let second = rotate(first, &[("expires", &kept)]).await;
        assert_eq!(expiry(second).await, kept);
        assert_ne!(expiry(first).await, kept, "it ends with the overlap");
        let third = rotate(second, &[]).await;
        assert_eq!(expiry(third).await, kept);
        // The page was opened before the rotation.
        assert_eq!(expiry(rotate(second, &[("expires", &kept)]).await).await, kept);
        let lasting = rotate(third, &[("expires", "never")]).await;
        assert_eq!(expiry(lasting).await, "never");
        let newest = rotate(lasting, &[]).await;
        assert_eq!(expiry(newest).await, "never");
        let page = text(&own.get(&format!("/admin/tokens/{lasting}")).await);
        assert!(page.contains(&format!("data-successor=\"{newest}\"")) && page.contains("This one is accepted until <time"), "{page}");
        assert!(!page.contains("name=\"overlap\"") && page.contains("/revoke\""), "it is not rotated again: {page}");
        // The value of the new one was lost.
        assert_eq!(own.post(&format!("/admin/tokens/{newest}/revoke"), &[]).await.status, 303);
        let page = text(&own.get(&format!("/admin/tokens/{lasting}")).await);
        assert!(page.contains("That one is revoked.") && page.contains("As before: "), "it ends with the overlap: {page}");
        let lasting = create("never").await;
        assert!(!text(&own.get(&format!("/admin/tokens/{lasting}")).await).contains("As before"));
        let fields = [("expires", &*kept), ("overlap", "1h"), ("form_key", &random())];
        let invented = own.post(&format!("/admin/tokens/{lasting}"), &fields).await;
        assert_eq!(invented.status, 422, "{invented:?}");
    }

    async fn the_overview_lists_no_token_that_was_rotated(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let day = jiff::Zoned::now().date().saturating_add(jiff::Span::new().days(5)).to_string();
        let fields = [("name", "Payroll"), ("expires", "on"), ("expires_on", &*day), ("form_key", &random())];
        let old = number_of(&own.post("/admin/tokens", &fields).await);
        let listed = async |list: &str| {
            let page = text(&own.get(&format!("/admin/tokens?show={list}")).await);
            let overview = text(&own.get("/admin").await);
            let is_noted = overview.contains(&format!("/admin/tokens?show={list}"));
            assert_eq!(overview.contains("<p>Nothing. "), !is_noted, "{overview}");
            let ids = page.split("<tr data-token=\"").skip(1).map(|row| row.split('"').next().unwrap().parse().unwrap());
            let ids: Vec<i64> = ids.collect();
            assert_eq!(is_noted, !ids.is_empty(), "{overview}");
            ids
        };
        assert_eq!(listed("expiring").await, [old]);
        let fields = [("expires", "90d"), ("overlap", "7d"), ("form_key", &*random())];
        let new = number_of(&own.post(&format!("/admin/tokens/{old}"), &fields).await);
        assert_eq!(listed("expiring").await, [0; 0]);
        // Neither that it was unused: it ends by itself.
        let database = scene.database("acme").await;
        let long_ago = if engine == Engine::Sqlite { "1" } else { "to_timestamp(1)" };
        database.execute(&format!("UPDATE tokens SET created_at = {long_ago} WHERE id = {old}")).await;
        database.close().await;
        assert_eq!(listed("unused").await, [0; 0]);
        // Without the new one, tools would be left without a token.
        assert_eq!(own.post(&format!("/admin/tokens/{new}/revoke"), &[]).await.status, 303);
        assert_eq!(listed("expiring").await, [old]);
        assert_eq!(listed("unused").await, [old]);
    }

    async fn the_page_of_a_new_token_says_how_to_use_it(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let page = text(&own.post("/admin/tokens", &[("name", "Payroll"), ("form_key", &*random())]).await);
        let value = between(&page, "id=\"token-value\">", "<");
        let address = between(&page, "<code id=\"api-address\" class=\"copy host\">", "</code>");
        assert_eq!(address, format!("https://{}/api/v1", own.host));
        let line = between(&page, "<code id=\"curl\" class=\"copy\">", "</code>");
        assert_eq!(line, format!("curl --oauth2-bearer {value} {address}/me"));
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let (host, port) = own.host.rsplit_once(':').unwrap();
        // The certificate is the test's own.
        let flags = ["-sS", "-k", "--resolve", &format!("{host}:{port}:127.0.0.1")].map(str::to_owned);
        let run = move || std::process::Command::new(&words[0]).args(flags).args(&words[1..]).output().unwrap();
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let me: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(me["account"]["id"], "acme", "{me}");

        let description = between(&page, "<dt>Description</dt><dd><a href=\"", "\"").to_owned();
        for administrator in [&own, &scene.sign_in("acme", "viewer").await] {
            let served = administrator.get(&description).await;
            let served: serde_json::Value = serde_json::from_slice(&served.body).unwrap_or_else(|_| panic!("{served:?}"));
            assert_eq!(served["servers"][0]["url"], address);
            assert!(served["paths"]["/me"].is_object());
        }
        assert_eq!(own.caller.get(&description).send().await.status, 401, "only with a session");
    }

    async fn thousands_of_tokens_are_listed_in_pages(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let database = scene.database("acme").await;
        let digest = match engine {
            Engine::Sqlite => "randomblob(32)",
            _ => "sha256(n::text::bytea)",
        };
        let created = if engine == Engine::Sqlite { "1700000000000000" } else { "to_timestamp(1700000000)" };
        let numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)";
        database.execute(&format!("{numbers} INSERT INTO tokens (name, prefix, digest, created_at) SELECT 'token ' || n, 'fg_' || n, {digest}, {created} FROM numbers")).await;
        database.close().await;
        assert!(text(&own.get("/admin").await).contains("10,000 tokens</a> have not been used for 90 days"));
        let (mut path, mut seen) = ("/admin/tokens?show=unused".to_owned(), 0);
        for _ in 0..3 {
            let page = text(&own.get(&path).await);
            seen += page.matches("<tr data-token=").count();
            path = format!("/admin/tokens{}", between(&page, "<a class=\"button quiet\" href=\"/admin/tokens", "\"").replace("&#38;", "&"));
        }
        assert_eq!((seen, &*path), (300, "/admin/tokens?show=unused&before=9701"));
        let last = text(&own.get("/admin/tokens?before=1").await);
        assert!(last.contains("There are no older ones"), "{last}");
    }
}

/// The number of the token on the page that shows its value.
fn number_of(answer: &Answer) -> i64 {
    assert_eq!(answer.status, 201, "{answer:?}");
    between(&text(answer), "class=\"value\" data-token=\"", "\"").parse().expect("a number")
}

/// The requests of a tool: the statuses of its answers.
async fn call(api: &Client, token: &str) -> u16 {
    api.with(token).get("/api/v1/me").send().await.status.as_u16()
}

/// A tool that makes up to 200 requests a second until it is dropped.
struct Tool {
    /// Each request holds the value that it is made with.
    value: Arc<Mutex<Arc<str>>>,
    statuses: Arc<Mutex<Vec<u16>>>,
    _work: AbortOnDropHandle<()>,
}

impl Tool {
    fn start(api: Client, value: &str) -> Self {
        let (value, statuses) = (Arc::new(Mutex::new(Arc::from(value))), Arc::<Mutex<Vec<u16>>>::default());
        let (current, seen) = (Arc::clone(&value), Arc::clone(&statuses));
        let work = tokio::spawn(async move {
            let (mut ticks, mut calls) = (tokio::time::interval(Duration::from_millis(5)), JoinSet::new());
            // On a busy machine, calls are late rather than more at once than the account may have in flight.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let at_once = Arc::new(Semaphore::new(16));
            loop {
                ticks.tick().await;
                let permit = Arc::clone(&at_once).acquire_owned().await;
                let (api, value, seen) = (api.clone(), Arc::clone(&current.lock().unwrap()), Arc::clone(&seen));
                calls.spawn(async move {
                    let _permit = permit;
                    let status = call(&api, &value).await;
                    seen.lock().unwrap().push(status);
                });
                while calls.try_join_next().is_some() {}
            }
        });
        Self { value, statuses, _work: AbortOnDropHandle::new(work) }
    }

    /// Waits for the answers of about a second more of requests. All requests were answered with 200 so far.
    async fn is_served_on(&self) {
        let before = self.statuses.lock().unwrap().len();
        until(|| self.statuses.lock().unwrap().len() >= before + 200).await;
        let statuses = self.statuses.lock().unwrap();
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    }

    /// Uses another value, and waits until every request with the old one is answered.
    async fn switch_to(&self, value: &str) {
        let old = std::mem::replace(&mut *self.value.lock().unwrap(), Arc::from(value));
        until(|| Arc::strong_count(&old) == 1).await;
    }
}

async fn until(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "the tool is not served");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_rotation_refuses_none_of_200_requests_a_second_and_the_old_value_ends_within_a_second() {
    let scene = Scene::of(Scene::site(Engine::Postgres).requests_per_minute(100_000));
    let own = scene.sign_in("acme", "admin").await;
    let (old, old_value) = own.generate("Payroll").await;
    let tool = Tool::start(own.caller.clone(), &old_value);
    tool.is_served_on().await;
    let fields = [("overlap", "1h"), ("form_key", &*random())];
    let page = text(&own.post(&format!("/admin/tokens/{old}"), &fields).await);
    tool.is_served_on().await;
    let new = between(&page, "class=\"value\" data-token=\"", "\"").to_owned();
    let shown = text(&own.get(&format!("/admin/tokens/{new}")).await);
    assert!(shown.contains("The old value") && shown.contains("data-old-requests=\""), "{shown}");
    tool.switch_to(between(&page, "id=\"token-value\">", "<")).await;

    // The pages offer no overlap below an hour.
    let database = scene.database("acme").await;
    database.execute(&format!("UPDATE tokens SET expires_at = now() + interval '3 seconds' WHERE id = {old}")).await;
    let end = format!("SELECT (extract(epoch FROM expires_at) * 1000000)::bigint FROM tokens WHERE id = {old}");
    let [end] = database.integers(&end).await;
    let end = Timestamp::from_microsecond(end).unwrap();
    database.close().await;
    // A change of a token, so that the node does not use what it has cached of the old one.
    own.generate("Another").await;
    loop {
        let sent = Timestamp::now();
        let status = call(&own.caller, &old_value).await;
        let answered = Timestamp::now();
        if status != 200 {
            assert_eq!(status, 401);
            assert!(answered >= end, "refused at {answered}; the overlap ends at {end}");
            break;
        }
        assert!(sent < end + Duration::from_secs(1), "sent at {sent} and accepted; the overlap ends at {end}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tool.is_served_on().await;
    assert_eq!(call(&own.caller, &old_value).await, 401);
    let shown = text(&own.get(&format!("/admin/tokens/{new}")).await);
    assert!(shown.contains("It is expired: no request with it is accepted any more."), "{shown}");
}

#[tokio::test]
async fn with_redis_a_token_revoked_on_a_page_is_refused_on_every_node_within_a_second() {
    let redis = Redis::start();
    let site = Scene::site(Engine::Postgres).requests_per_minute(10_000).redis(&redis).write();
    let [node, mut other] =
        [0, 1].map(|_| Node::spawn_in(&site.config_path, &[("FORMGATE_LOG", "info,formgate=debug")]));
    let scene = Scene { site, node };
    let own = scene.sign_in("acme", "admin").await;
    // Until a node receives changes, it caches tokens only briefly.
    other.wait_for_lines(Duration::from_secs(30), "receiving token changes", 1);
    takes_less_than(Duration::from_secs(1), "refusing a revoked token", async || {
        let (id, value) = own.generate("Payroll").await;
        let elsewhere = own.at(&other).caller.with(&value);
        assert_eq!(elsewhere.get("/api/v1/me").send().await.status, 200);
        let page = text(&own.get(&format!("/admin/tokens/{id}/revoke")).await);
        assert!(page.contains("every other node within a second"));
        assert_eq!(own.post(&format!("/admin/tokens/{id}/revoke"), &[]).await.status, 303);
        let revoked = Instant::now();
        loop {
            let sent = revoked.elapsed();
            if elsewhere.get("/api/v1/me").send().await.status == 401 {
                return sent;
            }
            assert!(sent < Duration::from_secs(30), "still accepted");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// The page says that other nodes notice later, and a metric counts it: whoever looks at the metrics does not see the page.
#[tokio::test]
async fn an_announcement_that_redis_refuses_is_counted() {
    let redis = Redis::start();
    redis.run::<()>(&["ACL", "SETUSER", "formgate", "on", ">secret", "~*", "&*", "+@all", "-incrby"]);
    let url = redis.url().replacen("redis://", "redis://formgate:secret@", 1);
    let mut scene = Scene::of(Scene::site(Engine::Sqlite).requests_per_minute(10_000).gateway("redis", url));
    let own = scene.sign_in("acme", "admin").await;
    let address = scene.node.operator_address();
    let failures = async || operator_count(address, "formgate_redis_failures_total{reason=\"refused\"}").await;
    let revoke = async || {
        let (id, _) = own.generate("Payroll").await;
        assert_eq!(own.post(&format!("/admin/tokens/{id}/revoke"), &[]).await.status, 303);
    };
    assert_eq!(failures().await, 0);
    revoke().await;
    assert_eq!(failures().await, 2, "the new token and its end");
    redis.run::<()>(&["ACL", "SETUSER", "formgate", "+incrby"]);
    revoke().await;
    assert_eq!(failures().await, 2);
    assert_eq!(scene.node.count_lines("a change of tokens was not announced through Redis"), 2);
}
