//! The answers of the operator API.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};

use super::connections::operator_tcp;
use super::scene::{Scene, me};
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn one_call_takes_an_account_from_sign_up_to_served(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let target = "/v1/tenants/acme?migrate=1&wait=60&token=First&link=ana@acme.example";
        let answer = scene.call(0, Method::PUT, target, Some(&scene.tenant("acme"))).await;
        assert_eq!((answer.status.as_u16(), answer.headers["etag"].to_str().unwrap()), (201, "\"1\""), "{answer:?}");
        let token = answer.body["token"]["token"].as_str().unwrap();
        assert_eq!(me(&node, "acme", token).await, 200);
        let url = answer.body["link"]["url"].as_str().unwrap();
        let path = url.split_once("/admin/").map(|(_, rest)| format!("/admin/{rest}")).unwrap();
        let page = node.client().to("acme.example.test").get(&path).send().await;
        assert_eq!(page.status, 200, "{page:?}");
        let again = scene.call(0, Method::PUT, target, Some(&scene.tenant("acme"))).await;
        assert_eq!(again.status, 200);
        assert_eq!(again.body["token"], json!({ "id": 1, "name": "First" }), "no second token");
        assert_eq!(again.body["data"]["revision"], 1);
        let log: Value = serde_json::from_str(
            scene.succeed(&["audit", "list", "--tenant", "acme", "--json"]).lines().next_back().unwrap(),
        )
        .unwrap();
        assert_eq!(log["source"], "operator", "{log}");
    }

    async fn faults_are_those_of_check_by_key(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        let body = json!({ "name": "Acme", "address": "acme.elsewhere.test", "databse": "postgres://u:hunter2@x/y", "timezone": "Mars" });
        let answer = scene.call(0, Method::PUT, "/v1/tenants/acme", Some(&body)).await;
        assert_eq!(answer.status, 422, "{answer:?}");
        let keys: BTreeSet<_> = answer.body["errors"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, BTreeSet::from(["address", "database", "databse", "timezone"]), "{answer:?}");
        assert!(!answer.body.to_string().contains("hunter2"), "{answer:?}");
        for (method, target, body, status) in [
            (Method::PUT, "/v1/tenants/acme", "", 400),
            (Method::PUT, "/v1/tenants/acme", "[1]", 400),
            (Method::PUT, "/v1/tenants/acme", "{\"name\": null}", 422),
            (Method::PUT, "/v1/tenants/UPPER", "{}", 422),
            (Method::PUT, "/v1/tenants/acme?migrate=2", "{}", 422),
            (Method::PUT, "/v1/tenants/acme?migrat=1", "{}", 422),
            (Method::PUT, "/v1/tenants/acme?wait=x", "{}", 422),
            (Method::PUT, "/v1/tenants/acme?wait=%2B1", "{}", 422),
            (Method::PUT, "/v1/tenants/acme?migrate=1&migrate=0", "{}", 422),
            (Method::GET, "/v1/tenants?limit=1&limit=1", "", 422),
            (Method::GET, "/v1/tenants?limit=1.0", "", 422),
            (Method::PUT, "/v1/tenants/acme?link=nobody", "{}", 422),
            (Method::GET, "/v1/tenants/none", "", 404),
            (Method::DELETE, "/v1/tenants/none", "", 404),
            (Method::GET, "/v1/tenants?limit=0", "", 422),
            (Method::GET, "/v1/tenants?after=-1", "", 422),
            (Method::POST, "/v1/tenants/none/tokens", "{\"name\": \"x\"}", 404),
            (Method::POST, "/v1/tenants/none/links", "{\"email\": \"a@b.example\"}", 404),
            (Method::POST, "/v1/batch", "{\"operations\": [{}]}", 422),
            (Method::POST, "/v1/batch", "{\"operation\": []}", 422),
            (Method::PATCH, "/v1/tenants/acme", "", 405),
            (Method::GET, "/", "", 404),
            (Method::PATCH, "/v1/tenants/acme/tokens", "", 405),
            (Method::POST, "/v1/tenants/acme/usage", "", 405),
        ] {
            let answer = scene.send(0, method.clone(), target, body.to_owned(), &[]).await.unwrap();
            assert_eq!(answer.status, status, "{method} {target} {body}: {answer:?}");
            assert!(answer.body["message"].is_string(), "{answer:?}");
        }
    }

    async fn each_fault_names_its_key(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        let mut other = scene.tenant("globex");
        other["address"] = json!("acme.example.test");
        let mut domain = scene.tenant("globex");
        domain["domains"] = json!(["acme.example.test"]);
        let mut large = scene.tenant("globex");
        large["name"] = json!("a".repeat(1024 * 1024));
        let batch = json!({ "operations": [{ "remove": "none" }, { "put": "globex", "tenant": other }] });
        for (method, target, body, status, key, words) in [
            (Method::PUT, "/v1/tenants/globex", other.to_string(), 409, "address", "that of the tenant `acme`"),
            (Method::PUT, "/v1/tenants/globex", domain.to_string(), 409, "domains", "that of the tenant `acme`"),
            (Method::POST, "/v1/batch", batch.to_string(), 409, "operations.1.address", "that of the tenant `acme`"),
            (Method::POST, "/v1/batch", "{\"operations\": [{\"remove\": 5}]}".to_owned(), 422, "operations.0.remove", "`operations.0.remove` must be a string"),
            (Method::POST, "/v1/batch", "{\"operations\": \"x\"}".to_owned(), 422, "operations", "`operations` must be an array"),
            (Method::POST, "/v1/batch", "{}".to_owned(), 422, "operations", "`operations` is missing"),
            (Method::POST, "/v1/batch", "{\"operations\": [[]]}".to_owned(), 422, "operations.0", "`operations.0` must be an object"),
            (Method::POST, "/v1/batch", "{\"operations\": [{\"put\": \"a\", \"tenant\": {\"name\": 1, \"name\": 2}}]}".to_owned(), 422, "operations.0.tenant.name", "is given twice"),
            (Method::POST, "/v1/tenants/acme/tokens", "{\"name\": 5}".to_owned(), 422, "name", "`name` must be a string"),
            (Method::POST, "/v1/tenants/acme/tokens", "{\"name\": \"x\", \"name\": \"y\"}".to_owned(), 422, "name", "the key `name` is given twice"),
            (Method::POST, "/v1/tenants/acme/tokens", "{\"name\": \"x\", \"expires\": 1}".to_owned(), 422, "expires", "unknown key `expires`; there are `name`, `expires_at`, `scopes`"),
            (Method::POST, "/v1/tenants/acme/tokens", "{\"name\": \"x\", \"forms\": [1.5]}".to_owned(), 422, "forms.0", "`forms.0` must be the id of a form"),
            (Method::POST, "/v1/tenants/acme/tokens", "{\"name\": \"x\", \"requests_per_minute\": 60.5}".to_owned(), 422, "requests_per_minute", "must be a whole number"),
            (Method::POST, "/v1/tenants/acme/tokens", "{\"name\": \"x\", \"scopes\": [\"*\", \"scim\"]}".to_owned(), 422, "scopes", "`*` stands alone"),
            (Method::POST, "/v1/tenants/acme/tokens", "{\"name\": \"x\", \"expires_at\": \"soon\"}".to_owned(), 422, "expires_at", "`expires_at` must be an RFC 3339 date-time"),
            (Method::POST, "/v1/tenants/acme/links", "{\"email\": \"a@b.example\", \"valid_seconds\": -5}".to_owned(), 422, "valid_seconds", "`valid_seconds` must be a whole number, 0 or more"),
            (Method::GET, "/v1/tenants?limit=1001", String::new(), 422, "limit", "`limit` must be from 1 to 1000"),
            (Method::GET, "/v1/nodes?x=1", String::new(), 422, "x", "this call has none"),
            (Method::GET, "/v1/changes?after=1.x", String::new(), 422, "after", "`meta.next` of a page"),
            (Method::GET, "/v1/changes?after=zzz", String::new(), 422, "after", "`meta.next` of a page"),
            (Method::GET, "/v1/tenants?after=zzz", String::new(), 422, "after", "`meta.after` of a page"),
            (Method::PUT, "/v1/tenants/globex?token=", scene.tenant("globex").to_string(), 422, "token", "1 to 255 characters"),
        ] {
            let answer = scene.send(0, method.clone(), target, body, &[]).await.unwrap();
            assert_eq!(answer.status, status, "{method} {target}: {answer:?}");
            let errors = answer.body["errors"].as_object().expect("errors");
            assert_eq!(errors.keys().collect::<Vec<_>>(), [key], "{method} {target}: {answer:?}");
            assert!(answer.body["message"].as_str().unwrap().contains(words), "{method} {target}: {answer:?}");
        }
        let ahead = scene.call(0, Method::GET, "/v1/changes?after=2&wait=0", None).await;
        assert!(ahead.status == 410 && ahead.body["message"].as_str().unwrap().contains("at revision 1"), "{ahead:?}");
        let answer = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&large)).await;
        assert!(answer.status == 422 && answer.body["message"].as_str().unwrap().contains("may have 1048576"), "{}", answer.status);
        let missing = scene.call(0, Method::GET, "/v1/tenants/globex", None).await;
        assert_eq!(missing.status, 404, "nothing was written: {missing:?}");
    }

    async fn the_database_of_the_registry_is_no_tenants_database(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        let snapshot = format!("sqlite:{}", scene.snapshot(0).display());
        for database in [scene.registry_url.clone(), snapshot] {
            let mut tenant = scene.tenant("acme");
            tenant["database"] = json!(database);
            let answer = scene.call(0, Method::PUT, "/v1/tenants/acme?migrate=1", Some(&tenant)).await;
            let fault = answer.body["errors"]["database"][0].as_str().unwrap_or_default();
            assert!(answer.status == 422 && fault.starts_with("the database is that of the "), "{answer:?}");
        }
    }

    async fn a_caller_without_a_token_is_refused_before_its_body_is_read(engine: Engine) {
        let scene = Scene::new(engine);
        let mut node = scene.start(0);
        let mut stream = TcpStream::connect(operator_tcp(&mut node)).await.unwrap();
        let head = "PUT /v1/tenants/acme HTTP/1.1\r\nhost: operator\r\ncontent-length: 1000\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 401");
    }

    async fn a_change_can_ask_for_what_it_saw(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        let tenant = scene.tenant("acme");
        let answer = |headers: &'static [(&'static str, &'static str)], tenant: Value| {
            let scene = &scene;
            async move { scene.call_with(0, Method::PUT, "/v1/tenants/acme", Some(&tenant), headers).await }
        };
        let put = async |headers, tenant| answer(headers, tenant).await.status.as_u16();
        let missing = answer(&[("if-match", "\"1\"")], tenant.clone()).await;
        assert_eq!((missing.status.as_u16(), &missing.body), (412, &json!({ "message": "There is no tenant `acme`", "revision": null })));
        assert_eq!(put(&[("if-none-match", "*")], tenant.clone()).await, 201);
        let exists = answer(&[("if-none-match", "*")], tenant.clone()).await;
        assert_eq!((exists.status.as_u16(), &exists.body), (412, &json!({ "message": "The tenant `acme` exists", "revision": 1 })));
        let mut other = tenant.clone();
        other["name"] = json!("Other");
        assert_eq!(put(&[("if-match", "\"1\"")], other.clone()).await, 200);
        let changed = answer(&[("if-match", "\"1\"")], tenant.clone()).await;
        let expected = json!({ "message": "The tenant `acme` was changed meanwhile", "revision": 2 });
        assert_eq!((changed.status.as_u16(), &changed.body), (412, &expected), "someone was faster");
        assert_eq!(put(&[("if-match", "\"x\"")], tenant.clone()).await, 412);
        assert_eq!(put(&[("if-match", "\"+2\"")], tenant.clone()).await, 412);
        for headers in [
            &[("if-match", "*")] as &[_],
            &[("if-match", "2")],
            &[("if-match", "\"1\", \"2\"")],
            &[("if-match", "\"2\""), ("if-match", "\"1\"")],
            &[("if-none-match", "\"2\"")],
        ] {
            assert_eq!(put(headers, tenant.clone()).await, 400, "{headers:?}");
        }
        let shown = scene.call(0, Method::GET, "/v1/tenants/acme", None).await;
        assert_eq!((shown.headers["etag"].to_str().unwrap(), &shown.body["data"]["tenant"]["name"]), ("\"2\"", &json!("Other")));
    }

    async fn a_host_has_one_owner_whatever_races(engine: Engine) {
        let scene = Scene::new(engine);
        let _nodes = [scene.start(0), scene.start(1)];
        let calls = (0..50).map(|number| {
            let mut tenant = scene.tenant(&format!("t{number}"));
            tenant["address"] = json!("wanted.example.test");
            let scene = &scene;
            async move {
                let target = format!("/v1/tenants/t{number}");
                scene.call(number % 2, Method::PUT, &target, Some(&tenant)).await.status.as_u16()
            }
        });
        let mut statuses = futures_util::future::join_all(calls).await;
        statuses.sort_unstable();
        assert_eq!((statuses[0], statuses[1]), (201, 409), "{statuses:?}");
        assert_eq!(statuses[49], 409, "{statuses:?}");
    }

    async fn a_batch_is_all_or_nothing_and_changes_are_in_order(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        let operations = |slugs: &[&str]| -> Vec<Value> {
            slugs.iter().map(|slug| json!({ "put": slug, "tenant": scene.tenant(slug) })).collect()
        };
        let mut faulty = operations(&["a", "b"]);
        faulty[1]["tenant"]["timezone"] = json!("Mars");
        let answer = scene.call(0, Method::POST, "/v1/batch", Some(&json!({ "operations": faulty }))).await;
        assert!(answer.status == 422 && answer.body["errors"].get("operations.1.timezone").is_some(), "{answer:?}");
        let twice = operations(&["a", "a"]);
        assert_eq!(scene.call(0, Method::POST, "/v1/batch", Some(&json!({ "operations": twice }))).await.status, 422);
        let listed = scene.call(0, Method::GET, "/v1/tenants", None).await;
        assert_eq!(listed.body["data"], json!([]));
        let good = json!({ "operations": operations(&["c", "a", "b"]) });
        assert_eq!(scene.call(0, Method::POST, "/v1/batch", Some(&good)).await.status, 200);
        let more = json!({ "operations": [{ "remove": "a" }, { "remove": "none" }, { "put": "b", "tenant": scene.tenant("b") }] });
        let answer = scene.call(0, Method::POST, "/v1/batch", Some(&more)).await;
        let statuses: Vec<_> = answer.body["data"].as_array().unwrap().iter().map(|done| done["status"].clone()).collect();
        assert_eq!(statuses, ["removed", "absent", "same"]);
        let changes = scene.call(0, Method::GET, "/v1/changes?after=0", None).await;
        let seen: Vec<_> = changes.body["data"].as_array().unwrap().iter().map(|change| (change["slug"].clone(), change["type"].clone())).collect();
        let expected = [("c", "put"), ("b", "put"), ("a", "removed")].map(|(slug, kind)| (json!(slug), json!(kind)));
        assert_eq!(seen, expected);
        let first = scene.call(0, Method::GET, "/v1/tenants?limit=1", None).await;
        assert_eq!((&first.body["data"][0]["slug"], &first.body["meta"]["has_more"]), (&json!("c"), &json!(true)));
        let after = format!("/v1/tenants?after={}", first.body["meta"]["after"]);
        let rest = scene.call(0, Method::GET, &after, None).await;
        assert_eq!((&rest.body["data"][0]["slug"], &rest.body["meta"]["has_more"]), (&json!("b"), &json!(false)));
    }

    async fn pages_of_browsers_are_refused(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        for (header, value, is_refused) in [
            ("origin", "https://evil.example", true),
            ("origin", "null", true),
            ("origin", "", true),
            ("origin", "http://127.0.0.1:9465", true),
            ("sec-fetch-site", "cross-site", true),
            ("sec-fetch-site", "same-site", true),
            ("sec-fetch-site", "Cross-Site", true),
            ("sec-fetch-site", "none", false),
            ("sec-fetch-site", "same-origin", false),
            ("accept", "*/*", false),
        ] {
            for (method, target, body) in [
                (Method::GET, "/v1/tenants", None),
                (Method::PUT, "/v1/tenants/acme?migrate=1", Some(scene.tenant("acme"))),
                (Method::GET, "/v1/nothing", None),
            ] {
                let answer = scene.call_with(0, method.clone(), target, body.as_ref(), &[(header, value)]).await;
                assert_eq!(answer.status == 403, is_refused, "{method} {target} {header}: {value}: {answer:?}");
            }
            if is_refused {
                assert_eq!(scene.call(0, Method::GET, "/v1/tenants/acme", None).await.status, 404, "{header}: {value}");
            }
        }
    }

    async fn a_head_that_others_read_otherwise_is_refused(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        for (head, status) in [
            ("GET /v1/tenants HTTP/1.1\r\nHost: operator\r\n\r\n", "200"),
            ("\r\nGET /v1/tenants HTTP/1.1\r\nHost: operator\r\n\r\n", "200"),
            ("GET /v1/tenants HTTP/1.1\nHost: operator\r\n\r\n", "400"),
            ("GET /v1/tenants HTTP/1.1\r\nHost: operator\nX-A: b\r\n\r\n", "400"),
            ("GET /v1/tenants HTTP/1.1\r\nHost: operator\r\n\n", "400"),
            ("GET /v1/tenants HTTP/1.1\nHost: operator\n\n", "400"),
            ("\nGET /v1/tenants HTTP/1.1\r\nHost: operator\r\n\r\n", "400"),
            // What a form of a page sends as its body is not reached.
            ("POST / HTTP/1.1\r\nHost: operator\nContent-Length: 9\r\n\r\nGET / HTTP", "400"),
            ("GET /v1/tenants HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "400"),
            ("GET /v1/tenants HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
            ("GET /v1/tenants HTTP/1.1\r\nhost: a\r\nX-A: b\r\nHOST: a\r\n\r\n", "400"),
        ] {
            let mut stream = UnixStream::connect(scene.socket(0)).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut line = String::new();
            BufReader::new(&mut stream).read_line(&mut line).await.unwrap();
            assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{head:?}: {line}");
        }
    }

    async fn tokens_and_links_are_made_once_for_each_key(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        scene.add(0, "acme").await;
        let body = json!({ "name": "Sync", "expires_at": "2099-01-01T00:00:00Z" });
        let key = [("idempotency-key", "sign-up-7")];
        let first = scene.call_with(0, Method::POST, "/v1/tenants/acme/tokens", Some(&body), &key).await;
        assert_eq!(first.status, 201, "{first:?}");
        assert_eq!(me(&node, "acme", first.body["data"]["token"].as_str().unwrap()).await, 200);
        let again = scene.call_with(0, Method::POST, "/v1/tenants/acme/tokens", Some(&body), &key).await;
        assert_eq!((again.status.as_u16(), &again.body["data"]["id"]), (200, &first.body["data"]["id"]));
        assert!(again.body["data"].get("token").is_none());
        for other in [
            json!({ "name": "CRM", "expires_at": "2099-01-01T00:00:00Z" }),
            json!({ "name": "Sync", "expires_at": "2099-01-01T00:00:01Z" }),
            json!({ "name": "Sync", "expires_at": null }),
            json!({ "name": "Sync" }),
        ] {
            let answer = scene.call_with(0, Method::POST, "/v1/tenants/acme/tokens", Some(&other), &key).await;
            assert_eq!(answer.status, 422, "{other}: {answer:?}");
            assert!(answer.body["errors"]["idempotency-key"].is_array(), "{other}: {answer:?}");
        }
        let written_otherwise = json!({ "expires_at": "2099-01-01T01:00:00+01:00", "name": "Sync" });
        let answer = scene.call_with(0, Method::POST, "/v1/tenants/acme/tokens", Some(&written_otherwise), &key).await;
        assert_eq!((answer.status.as_u16(), &answer.body), (200, &again.body));
        let listed = scene.succeed(&["token", "list", "--tenant", "acme", "--json"]);
        assert!(listed.matches("Sync").count() == 1 && !listed.contains("CRM"), "{listed}");
        for (path, body, field) in [
            ("tokens", json!({}), "name"),
            ("tokens", json!({ "name": "" }), "name"),
            ("tokens", json!({ "name": "x", "expires_at": "2001-01-01T00:00:00Z" }), "expires_at"),
            ("tokens", json!({ "name": "x", "expires": "90d" }), "expires"),
            ("tokens", json!({ "name": "x", "scopes": [] }), "scopes"),
            ("tokens", json!({ "name": "x", "scopes": ["forms:read", "forms:write"] }), "scopes.1"),
            ("tokens", json!({ "name": "x", "scopes": "forms:read" }), "scopes"),
            ("tokens", json!({ "name": "x", "forms": [] }), "forms"),
            ("tokens", json!({ "name": "x", "forms": ["for_1", "sub_1"] }), "forms.1"),
            ("tokens", json!({ "name": "x", "networks": [] }), "networks"),
            ("tokens", json!({ "name": "x", "networks": ["203.0.113.1/24"] }), "networks.0"),
            ("tokens", json!({ "name": "x", "networks": ["10.0.0.0/8", "office"] }), "networks.1"),
            ("tokens", json!({ "name": "x", "requests_per_minute": 0 }), "requests_per_minute"),
            ("tokens", json!({ "name": "x", "requests_per_minute": 61 }), "requests_per_minute"),
            ("tokens", json!({ "name": "x", "requests_per_minute": 1.5 }), "requests_per_minute"),
            ("links", json!({ "email": "ana" }), "email"),
            ("links", json!({ "email": "ana@acme.example", "role": "owner" }), "role"),
            ("links", json!({ "email": "ana@acme.example", "valid_seconds": 604_801 }), "valid_seconds"),
        ] {
            let answer = scene.call(0, Method::POST, &format!("/v1/tenants/acme/{path}"), Some(&body)).await;
            assert!(answer.status == 422 && answer.body["errors"].get(field).is_some(), "{body}: {answer:?}");
        }
        let limits = json!({ "scopes": ["forms:read", "scim"], "forms": ["for_1", "for_7"], "networks": ["203.0.113.0/24"], "requests_per_minute": 60 });
        let none = json!({ "scopes": ["*"], "forms": null, "networks": null, "requests_per_minute": null });
        let nulls = json!({ "scopes": null, "forms": null, "networks": null, "requests_per_minute": null });
        for (sent, expected) in [(&limits, &limits), (&json!({ "forms": [7, "1"] }), &json!({ "forms": ["for_1", "for_7"] })), (&none, &none), (&nulls, &none), (&json!({}), &none)] {
            let mut body = sent.clone();
            body["name"] = json!("Limited");
            let answer = scene.call(0, Method::POST, "/v1/tenants/acme/tokens", Some(&body)).await;
            assert_eq!(answer.status, 201, "{answer:?}");
            for (key, value) in expected.as_object().unwrap() {
                assert_eq!(answer.body["data"][key], *value, "{body}: {answer:?}");
            }
        }
        let link = json!({ "email": "ana@acme.example", "role": "viewer", "valid_seconds": 60 });
        let answer = scene.call(0, Method::POST, "/v1/tenants/acme/links", Some(&link)).await;
        assert!(answer.status == 201 && answer.body["data"]["role"] == "viewer", "{answer:?}");
    }
}
