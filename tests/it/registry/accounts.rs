//! What the operator API shows and changes of one account: its tokens, their usage, and who is signed in.

use std::io::Write;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use http::Method;
use serde_json::{Value, json};

use super::scene::{Answer, LIMIT, Scene, me};
use crate::support::fixture::on_both_databases;
use crate::support::process::Node;

async fn get(scene: &Scene, target: &str) -> Answer {
    scene.call(0, Method::GET, target, None).await
}

async fn delete(scene: &Scene, target: &str) -> Answer {
    scene.call(0, Method::DELETE, target, None).await
}

/// The actions of the audit log of `acme`, the oldest first, each with its subject and its source.
fn audited(scene: &Scene) -> Vec<[String; 3]> {
    let log = scene.succeed(&["audit", "list", "--tenant", "acme", "--json"]);
    let rows = log.lines().rev().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    rows.map(|row| ["action", "subject", "source"].map(|key| row[key].as_str().unwrap_or_default().to_owned()))
        .collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

on_both_databases! {
    async fn tokens_are_listed_and_revoked_by_the_operators_product(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let first = scene.add(0, "acme").await;
        let tokens = "/v1/tenants/acme/tokens";
        let body = json!({ "name": "Payroll", "expires_at": "2099-01-01T00:00:00.5Z" });
        let created = scene.call(0, Method::POST, tokens, Some(&body)).await;
        assert_eq!((created.status.as_u16(), &created.body["data"]["expires_at"]), (201, &json!("2099-01-01T00:00:00.500000Z")));
        let payroll = created.body["data"]["token"].as_str().unwrap().to_owned();
        assert_eq!(me(&node, "acme", &payroll).await, 200);

        let listed = get(&scene, tokens).await;
        let names: Vec<_> = listed.body["data"].as_array().unwrap().iter().map(|token| &token["name"]).collect();
        assert_eq!(names, ["Payroll", "tests"], "the newest first: {listed:?}");
        let newest = &listed.body["data"][0];
        assert_eq!((&newest["id"], &newest["state"], &newest["revoked_at"]), (&json!(2), &json!("active"), &Value::Null));
        assert_eq!(newest["last_used_route"], "GET /me", "also before it is written: {newest}");
        assert!(newest["last_used_at"].is_string() && !listed.body.to_string().contains(&payroll), "{listed:?}");
        let page = get(&scene, "/v1/tenants/acme/tokens?limit=1").await;
        assert_eq!(page.body["meta"], json!({ "after": 2, "has_more": true }));
        let rest = get(&scene, "/v1/tenants/acme/tokens?limit=1&after=2").await;
        assert_eq!((&rest.body["data"][0]["name"], &rest.body["meta"]["has_more"]), (&json!("tests"), &json!(false)));

        let revoked = delete(&scene, "/v1/tenants/acme/tokens/2").await;
        assert_eq!((revoked.status.as_u16(), &revoked.body["data"]["state"]), (200, &json!("revoked")), "{revoked:?}");
        let again = delete(&scene, "/v1/tenants/acme/tokens/2").await;
        assert_eq!((again.status.as_u16(), &again.body), (200, &revoked.body), "it changes nothing");
        let began = Instant::now();
        while me(&node, "acme", &payroll).await != 401 {
            assert!(began.elapsed() < LIMIT, "it is refused");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(me(&node, "acme", &first).await, 200, "the other one is not");
        let active = get(&scene, "/v1/tenants/acme/tokens?state=active").await;
        assert_eq!(active.body["data"].as_array().map(Vec::len), Some(1));
        assert_eq!(active.body["data"][0]["name"], "tests");
        for target in ["tokens/3", "tokens/0", "tokens/-1", "tokens/x", "tokens/99999999999999999999"] {
            let unknown = delete(&scene, &format!("/v1/tenants/acme/{target}")).await;
            assert_eq!(unknown.status, 404, "{target}: {unknown:?}");
        }
        for target in ["tokens", "usage", "sessions"] {
            assert_eq!(get(&scene, &format!("/v1/tenants/none/{target}")).await.status, 404, "{target}");
        }
        for query in ["state=revoked", "limit=0", "after=x", "page=2"] {
            assert_eq!(get(&scene, &format!("{tokens}?{query}")).await.status, 422, "{query}");
        }
        let log = audited(&scene);
        let row = |action: &str, subject: &str| [action, subject, "operator"].map(str::to_owned);
        assert_eq!(log, [row("token.create", "token 1"), row("token.create", "token 2"), row("token.revoke", "token 2")]);
    }

    async fn limits_of_a_token_are_changed_by_the_operators_product(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let change = async |id: &str, body: &str| {
            let target = format!("/v1/tenants/acme/tokens/{id}");
            scene.send(0, Method::PATCH, &target, body.to_owned(), &[]).await.expect("an answer")
        };
        let limits = |answer: &Answer| {
            ["scopes", "forms", "networks", "requests_per_minute"].map(|key| answer.body["data"][key].clone())
        };
        assert_eq!(me(&node, "acme", &token).await, 200);
        let narrowed = change("1", r#"{"networks": ["192.0.2.0/24"], "requests_per_minute": 20, "forms": [7, "for_1"]}"#).await;
        let expected = [json!(["*"]), json!(["for_1", "for_7"]), json!(["192.0.2.0/24"]), json!(20)];
        assert_eq!((narrowed.status.as_u16(), limits(&narrowed)), (200, expected), "{narrowed:?}");
        let until = async |status: u16| {
            let began = Instant::now();
            while me(&node, "acme", &token).await != status {
                assert!(began.elapsed() < LIMIT, "it is {status}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        until(401).await;
        // What is absent stays, and `null` lifts a limit.
        let widened = change("1", r#"{"networks": null, "forms": null, "scopes": ["forms:read"]}"#).await;
        assert_eq!(limits(&widened), [json!(["forms:read"]), Value::Null, Value::Null, json!(20)], "{widened:?}");
        until(200).await;
        let same = change("1", r#"{"requests_per_minute": 20.0}"#).await;
        assert_eq!((same.status.as_u16(), limits(&same)), (200, limits(&widened)), "{same:?}");
        for (body, key) in [
            ("{}", ""),
            (r#"{"requests_per_minute": 0}"#, "requests_per_minute"),
            (r#"{"scopes": []}"#, "scopes"),
            (r#"{"scopes": ["*", "forms:read"]}"#, "scopes"),
            (r#"{"forms": ["for_1", "sub_1"], "name": "x"}"#, "name"),
            (r#"{"networks": ["203.0.113.1/24"]}"#, "networks.0"),
            (r#"{"scopes": ["scim"], "scopes": null}"#, "scopes"),
        ] {
            let refused = change("1", body).await;
            let is_named = key.is_empty() || refused.body["errors"].get(key).is_some();
            assert!(refused.status == 422 && is_named, "{body}: {refused:?}");
        }
        assert_eq!(change("9", r#"{"scopes": null}"#).await.status, 404);
        assert_eq!(change("1", "").await.status, 400);
        delete(&scene, "/v1/tenants/acme/tokens/1").await;
        let ended = change("1", r#"{"scopes": null}"#).await;
        assert!(ended.status == 409 && ended.body["message"].as_str().unwrap().contains("is revoked"), "{ended:?}");
        let row = |action: &str| [action, "token 1", "operator"].map(str::to_owned);
        let expected = [row("token.create"), row("token.change"), row("token.change"), row("token.revoke")];
        let log: Vec<_> = audited(&scene).into_iter().filter(|[action, ..]| action != "token.refused").collect();
        assert_eq!(log, expected);
    }

    async fn a_folder_that_does_not_exist_is_only_made_below_that_of_the_configuration(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        let elsewhere = crate::support::folder::temporary("elsewhere");
        let put = async |database: String| {
            let body = json!({ "name": "Acme", "address": "acme.example.test", "database": database });
            scene.call(0, Method::PUT, "/v1/tenants/acme?migrate=1", Some(&body)).await
        };
        let missing = elsewhere.path().join("none");
        let refused = put(format!("sqlite:{}/a.db", missing.display())).await;
        let words = refused.body["errors"]["database"][0].as_str().unwrap_or_default();
        assert!(refused.status == 422 && words.contains("does not exist: create it first"), "{refused:?}");
        assert!(!missing.exists(), "nothing is created");
        let batch = json!({ "operations": [{ "put": "acme", "tenant": {
            "name": "Acme", "address": "acme.example.test", "database": format!("sqlite:{}/a.db", missing.display()),
        } }] });
        let refused = scene.call(0, Method::POST, "/v1/batch?migrate=1", Some(&batch)).await;
        assert!(refused.body["errors"].get("operations.0.database").is_some() && !missing.exists(), "{refused:?}");
        assert_eq!(put("sqlite:accounts/acme/a.db".to_owned()).await.status, 201);
    }

    async fn usage_is_what_was_asked_by_token_and_hour(engine: Engine) {
        let scene = Scene::new(engine);
        let mut node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let quiet = get(&scene, "/v1/tenants/acme/usage").await;
        assert_eq!((&quiet.body["data"], &quiet.body["meta"]["admitted"]), (&json!([]), &json!(0)), "{quiet:?}");
        for _ in 0..3 {
            assert_eq!(me(&node, "acme", &token).await, 200);
        }
        // Also at the turn of an hour.
        let count = |usage: &Answer| -> i64 {
            usage.body["data"].as_array().unwrap().iter().map(|hour| hour["admitted"].as_i64().unwrap()).sum()
        };
        let used = get(&scene, "/v1/tenants/acme/usage").await;
        assert_eq!((count(&used), &used.body["meta"]["admitted"]), (3, &json!(3)), "{used:?}");
        let hour = &used.body["data"][0];
        assert_eq!(hour["token"], json!({ "id": 1, "name": "tests" }));
        assert!(hour["hour"].as_str().is_some_and(|hour| hour.ends_with(":00:00.000000Z")), "{hour}");
        // Once it is written, it is counted once.
        node.terminate();
        assert_eq!(node.wait(LIMIT), 0);
        let _node = scene.start(0);
        assert_eq!(count(&get(&scene, "/v1/tenants/acme/usage").await), 3);
        let past = get(&scene, "/v1/tenants/acme/usage?since=2024-02-01&until=2024-02-29").await;
        assert_eq!(past.body["data"], json!([]), "{past:?}");
        assert_eq!(past.body["meta"]["until"], "2024-02-29T23:59:59.999999Z");
        for (query, key, words) in [
            ("since=yesterday", "since", "must be a day such as"),
            ("until=2024-02-30", "until", "must be a day such as"),
            ("since=2024-02-02&until=2024-02-01", "until", "must not be before `since`"),
            ("since=2024-01-01&until=2024-03-01", "since", "at most 32 days before `until`"),
            ("since=2024-01-01", "since", "at most 32 days ago: give `until`"),
            ("since=2124-01-01", "since", "must not be in the future"),
        ] {
            let refused = get(&scene, &format!("/v1/tenants/acme/usage?{query}")).await;
            let told = refused.body["errors"][key][0].as_str().unwrap_or_default();
            assert!(refused.status == 422 && told.contains(words), "{query}: {refused:?}");
        }
    }

    async fn sessions_are_listed_and_ended_by_the_operators_product(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        scene.add(0, "acme").await;
        let sessions = "/v1/tenants/acme/sessions";
        assert_eq!(get(&scene, sessions).await.body["data"], json!([]));
        let mut cookies = Vec::new();
        for email in ["ana@acme.example", "ben@acme.example"] {
            cookies.push(sign_in(&scene, &node, email).await);
        }
        let listed = get(&scene, sessions).await;
        let emails: Vec<_> = listed.body["data"].as_array().unwrap().iter().map(|one| one["email"].as_str().unwrap()).collect();
        assert_eq!(emails, ["ben@acme.example", "ana@acme.example"], "{listed:?}");
        assert_eq!((&listed.body["data"][0]["role"], &listed.body["data"][0]["issuer"]), (&json!("admin"), &Value::Null));
        let ana = listed.body["data"][1]["id"].as_i64().unwrap();
        let ended = delete(&scene, &format!("{sessions}/{ana}")).await;
        assert_eq!((ended.status.as_u16(), &ended.body), (200, &json!({ "data": { "ended": 1 } })));
        assert_eq!(delete(&scene, &format!("{sessions}/{ana}")).await.status, 404);
        assert_eq!(is_signed_in(&node, &cookies).await, [false, true]);
        assert_eq!(delete(&scene, sessions).await.body, json!({ "data": { "ended": 1 } }));
        assert_eq!(delete(&scene, sessions).await.body, json!({ "data": { "ended": 0 } }));
        assert_eq!(is_signed_in(&node, &cookies).await, [false, false]);
        let ends: Vec<_> = audited(&scene).into_iter().filter(|[action, ..]| action == "session.end").collect();
        let row = |email: &str| ["session.end", email, "operator"].map(str::to_owned);
        assert_eq!(ends, [row("ana@acme.example"), row("ben@acme.example")]);
    }

    async fn bodies_are_read_as_in_the_api_of_accounts(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        let mut tenant = scene.tenant("acme");
        tenant["domains"] = Value::Null;
        tenant["tls"] = Value::Null;
        let text = tenant.to_string().replacen('{', "{\"requests_per_minute\": 60.0, \"max_in_flight\": 1e1, ", 1);
        let put = async |body: Vec<u8>, headers: &[(&str, &str)]| {
            scene.send(0, Method::PUT, "/v1/tenants/acme", body, headers).await.expect("an answer")
        };
        let added = put(text.clone().into_bytes(), &[]).await;
        assert_eq!(added.status, 201, "{added:?}");
        let table = &added.body["data"]["tenant"];
        assert_eq!((&table["requests_per_minute"], &table["max_in_flight"]), (&json!(60), &json!(10)), "{added:?}");
        assert!(table.get("domains").is_none() && table.get("tls").is_none(), "{added:?}");
        let marked = [b"\xef\xbb\xbf", text.as_bytes()].concat();
        assert_eq!(put(marked.clone(), &[]).await.status, 200, "with a byte order mark");
        for coding in ["gzip", "x-gzip"] {
            let compressed = put(gzip(&marked), &[("content-encoding", coding)]).await;
            assert_eq!((compressed.status.as_u16(), &compressed.body["data"]["revision"]), (200, &json!(1)), "{compressed:?}");
        }
        for (body, headers, status) in [
            (text.replace("60.0", "60.5").into_bytes(), &[][..], 422),
            (text.replacen('{', "{\"name\": \"x\", ", 1).into_bytes(), &[], 422),
            (text.replace("60.0", "60.00000000000000000001").into_bytes(), &[], 422),
            (text.replace("\"ACME\"", "null").into_bytes(), &[], 422),
            (text.replace("\"ACME\"", "[null]").into_bytes(), &[], 422),
            (text.clone().into_bytes(), &[("content-encoding", "br")], 415),
            (text.clone().into_bytes(), &[("content-encoding", "gzip")], 422),
            (text.clone().into_bytes(), &[("content-type", "application/json; charset=utf-16")], 415),
            (b"name=ACME".to_vec(), &[("content-type", "application/x-www-form-urlencoded")], 415),
            (gzip(&vec![b' '; 9 * 1024 * 1024]), &[("content-encoding", "gzip")], 413),
            (b"[]".to_vec(), &[], 400),
            (b"{".to_vec(), &[], 400),
        ] {
            let refused = put(body, headers).await;
            assert_eq!(refused.status, status, "{headers:?}: {refused:?}");
        }
        let link = json!({ "email": "ana@acme.example", "name": null, "role": null, "valid_seconds": 600.0 });
        let made = scene.call(0, Method::POST, "/v1/tenants/acme/links", Some(&link)).await;
        assert_eq!(made.status, 503, "its tables are missing, and the body is right: {made:?}");
        // What no call reads may be anything.
        let form = [("content-type", "multipart/form-data; boundary=x")];
        let shown = scene.send(0, Method::GET, "/v1/tenants/acme", "--x", &form).await.expect("an answer");
        assert_eq!(shown.status, 200, "{shown:?}");
        let deep = format!("{{\"operations\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let refused = scene.send(0, Method::POST, "/v1/batch", deep, &[]).await.expect("an answer");
        assert_eq!(refused.status, 400, "{}", refused.status);
    }
}

/// Signs an administrator in, and returns the cookie.
async fn sign_in(scene: &Scene, node: &Node, email: &str) -> String {
    let link = scene.call(0, Method::POST, "/v1/tenants/acme/links", Some(&json!({ "email": email }))).await;
    let url = link.body["data"]["url"].as_str().expect("a link").to_owned();
    let path = url.split_once("/admin/").map(|(_, rest)| format!("/admin/{rest}")).expect("its path");
    let client = node.client().to("acme.example.test");
    let form = [("origin", "https://acme.example.test"), ("content-type", "application/x-www-form-urlencoded")];
    let page = form.into_iter().fold(client.post(&path), |call, (name, value)| call.header(name, value)).send().await;
    let cookie = page.headers.get("set-cookie").unwrap_or_else(|| panic!("{page:?}")).to_str().unwrap();
    cookie.split(';').next().unwrap().to_owned()
}

async fn is_signed_in(node: &Node, cookies: &[String]) -> Vec<bool> {
    let mut signed_in = Vec::new();
    for cookie in cookies {
        let page = node.client().to("acme.example.test").get("/admin").header("cookie", cookie).send().await;
        signed_in.push(page.status == 200);
    }
    signed_in
}
