//! Who may call SCIM, and the budget that its calls spend.

use serde_json::{Value, json};

use super::{Scene, refusal};
use crate::support::acme::Acme;
use crate::support::fixture::{Site, on_both_databases};

on_both_databases! {
    async fn a_request_without_a_token_and_one_without_the_scope_are_refused_as_scim_does(engine: Engine) {
        let scene = Scene::start(engine);
        for path in ["/scim/v2", "/scim/v2/Users", "/scim/v2/ServiceProviderConfig", "/scim/v2/nothing"] {
            let answer = scene.acme.stranger().get(path).send().await;
            assert_eq!(refusal(&answer).0, 401, "{path}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        let reader = scene.acme.site.limited_token("acme", "Reader", &["--scopes", "groups:read,groups:write"]);
        let answer = scene.acme.stranger().with(&reader).get("/scim/v2/Groups").send().await;
        assert_eq!(refusal(&answer).0, 403);
        assert_eq!(answer.json()["detail"], "The token lacks the scope scim");
        let everything = scene.acme.caller().get("/scim/v2/Groups").send().await;
        assert_eq!(everything.status, 200, "a token without limits");
        for path in ["/scim", "/scim/v1/Users", "/scim/v2x"] {
            assert_eq!(scene.acme.caller().get(path).send().await.json()["message"], "Not found", "{path}");
        }
    }

    async fn unknown_paths_and_methods_come_before_the_scope(engine: Engine) {
        let scene = Scene::start(engine);
        let reader = scene.acme.site.limited_token("acme", "Reader", &["--scopes", "groups:read"]);
        let reader = scene.acme.stranger().with(&reader);
        for (method, path, status) in [
            ("GET", "/nothing", 404),
            ("GET", "/Users/usr_1/name", 404),
            ("DELETE", "/Users", 405),
            ("PUT", "/Groups", 405),
            ("GET", "/Users/usr_1", 403),
            ("HEAD", "/Users", 403),
        ] {
            let answer = reader.method(method.parse().unwrap(), &format!("/scim/v2{path}")).send().await;
            assert_eq!(answer.status, status, "{method} {path}");
        }
        let answer = scene.directory.method("PATCH".parse().unwrap(), "/scim/v2/Users").send().await;
        assert_eq!(answer.header("allow"), Some("GET, HEAD, POST"));
    }

    async fn scim_spends_a_budget_of_its_own(engine: Engine) {
        let site = Site::new().tenant_with("acme", engine, |tenant| tenant.set("scim_requests_per_minute", 7));
        let acme = Acme::of(site.requests_per_minute(5));
        let token = acme.site.limited_token("acme", "Reader", &["--scopes", "groups:read"]);
        let (all, reader) = (acme.caller(), acme.stranger().with(&token));
        for (client, path, status, left) in [
            (&all, "/scim/v2/Users", 200, 6),
            (&all, "/scim/v2/nothing", 404, 5),
            (&reader, "/scim/v2/Users", 403, 4),
            (&all, "/scim/v2/Users?filter=x", 400, 3),
            (&all, "/api/v1/group", 200, 4),
            (&all, "/scim/v2/Me", 501, 2),
            (&all, "/scim/v2/Users/usr_1", 404, 1),
            (&all, "/scim/v2/Groups", 200, 0),
        ] {
            let answer = client.get(path).send().await;
            assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (status, Some(left)), "{path}");
        }
        let spent = all.get("/scim/v2/Users").send().await;
        assert_eq!((refusal(&spent).0, spent.number("x-ratelimit-limit")), (429, Some(7)));
        let error = spent.json();
        assert_eq!(error["limit"], "scim");
        assert!(error["detail"].as_str().unwrap().ends_with("The account's budget for SCIM (scim_requests_per_minute) is spent."));
        let unauthenticated = acme.stranger().get("/scim/v2/Users").send().await;
        assert_eq!(unauthenticated.number("x-ratelimit-limit"), Some(7));
        assert_eq!(all.get("/api/v1/group").send().await.number("x-ratelimit-remaining"), Some(3));
        let log = all.get("/api/v1/request?status=429").send().await.json();
        assert_eq!((log["data"].as_array().unwrap().len(), &log["data"][0]["reason"]), (1, &json!("rate_limited_scim")), "{log}");
    }

    async fn a_token_with_a_spent_budget_of_its_own_is_told_so(engine: Engine) {
        let scene = Scene::start(engine);
        let token = scene.acme.site.limited_token("acme", "Slow", &["--scopes", "scim", "--requests-per-minute", "1"]);
        let slow = scene.acme.stranger().with(&token);
        assert_eq!(slow.get("/scim/v2/Users").send().await.status, 200);
        let spent = slow.get("/scim/v2/Users").send().await;
        assert_eq!((refusal(&spent).0, &spent.json()["limit"]), (429, &json!("token")));
        assert!(spent.json()["detail"].as_str().unwrap().ends_with("The token's own budget (requests_per_minute) is spent."));
    }

    async fn both_types_of_json_are_taken_and_sent(engine: Engine) {
        let scene = Scene::start(engine);
        let body = json!({"userName": "ana@example.com"});
        let sent = scene.directory.post("/scim/v2/Users").json(&body).send().await;
        assert_eq!((sent.status.as_u16(), sent.header("content-type")), (201, Some("application/scim+json")));
        let plain = scene.directory.get("/scim/v2/Users").header("accept", "application/json").send().await;
        assert_eq!((plain.status.as_u16(), plain.header("content-type")), (200, Some("application/json")));
        let form = scene.directory.post("/scim/v2/Users").header("content-type", "multipart/form-data").body("x").send().await;
        assert_eq!(refusal(&form).0, 415);
        let gzip = scene.directory.post("/scim/v2/Users").header("content-encoding", "gzip").body(body.to_string()).send().await;
        assert_eq!(refusal(&gzip).0, 400);
        let head = scene.directory.head("/scim/v2/Users").send().await;
        assert_eq!(head.status, 200);
    }

    /// Whatever a client sends, the answer says what is wrong with it.
    async fn no_body_fails_the_server(engine: Engine) {
        let scene = Scene::start(engine);
        let user = scene.user("ana@example.com").await;
        let group = scene.group("Sales", &[&user]).await;
        let deep = format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000));
        let bodies = [
            "", "null", "[]", "7", "{", "{}", "\"x\"", "{\"Operations\": 7}", "{\"Operations\": [[]]}", "{\"userName\": []}",
            "{\"userName\": \"a\\u0000b@example.com\"}", "{\"displayName\": {\"a\": []}}", &deep, "\u{1}",
            "{\"Operations\": [{\"op\": \"add\", \"path\": \"members[\"}]}", "{\"members\": {}}", "{\"displayName\": \"x\", \"members\": 7.5}",
        ];
        for path in ["/Users", "/Users/.search", "/Groups", "/Groups/.search", &format!("/Users/{user}"), &format!("/Groups/{group}")] {
            for method in ["POST", "PUT", "PATCH"] {
                for body in bodies {
                    let call = scene.directory.method(method.parse().unwrap(), &format!("/scim/v2{path}"));
                    let answer = call.body(body.to_owned()).send().await;
                    let expected = if path.ends_with(".search") { [400, 405, 200].as_slice() } else { &[400, 405] };
                    assert!(expected.contains(&answer.status.as_u16()), "{method} {path} {body}: {answer:?}");
                }
            }
        }
        assert_eq!(scene.members(&group).await, [user]);
        let all = scene.read("/Users").await;
        assert_eq!(all["totalResults"], 1, "{all}");
        assert_ne!(all["Resources"][0]["userName"], Value::Null);
    }
}
