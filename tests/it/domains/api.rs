//! `/v1/tenants/{slug}/domains`, `/v1/domains` and what the change feed has of domains.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::Method;
use serde_json::{Value, json};
use toml::Table;

use crate::registry::scene::{Answer, LIMIT, Scene};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::zones::Zones;

/// A node's configuration with `[gateway.domains]`, and the servers that it asks.
pub(super) async fn scene(engine: Engine) -> (Scene, Zones) {
    let zones = Zones::start().await;
    zones.serve("edge.test", &[], "@ A 192.0.2.10\nacme A 192.0.2.10\nglobex A 192.0.2.10");
    zones.serve("globex.test", &[], "");
    let mut domains = Table::new();
    domains.insert("target".into(), "edge.test".into());
    domains.insert("addresses".into(), vec!["192.0.2.10"].into());
    domains.insert("resolvers".into(), vec![zones.resolver().to_string()].into());
    (Scene::new(engine).gateway("domains", domains), zones)
}

pub(super) async fn call(scene: &Scene, method: Method, target: &str) -> Answer {
    scene.call(0, method, target, None).await
}

/// Checks a host until it is in a state.
pub(super) async fn state_becomes(scene: &Scene, host: &str, state: &str) -> Value {
    let began = Instant::now();
    loop {
        let answer = call(scene, Method::POST, &format!("/v1/domains/{host}/check?wait=60")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        if answer.body["data"]["state"] == state {
            return answer.body["data"].clone();
        }
        assert!(began.elapsed() < LIMIT, "{answer:?}");
    }
}

/// A call that waits for a look takes part in the share of its caller.
#[tokio::test]
async fn a_caller_whose_calls_wait_gets_no_further_one_that_waits_for_a_look() {
    // It never answers.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut domains = Table::new();
    domains.insert("target".into(), "edge.test".into());
    domains.insert("addresses".into(), vec!["192.0.2.10"].into());
    domains.insert("resolvers".into(), vec![silent.local_addr().unwrap().to_string()].into());
    let scene = Scene::new(Engine::Sqlite).gateway("domains", domains);
    let _node = scene.start(0);
    scene.add(0, "acme").await;
    assert_eq!(call(&scene, Method::PUT, "/v1/tenants/acme/domains/a.globex.test").await.status, 201);
    let next = call(&scene, Method::GET, "/v1/changes").await.body["meta"]["next"].clone();
    let target = format!("/v1/changes?after={}&wait=60", next.as_str().expect("a mark"));
    let mut waiting: FuturesUnordered<_> = (0..64).map(|_| call(&scene, Method::GET, &target)).collect();
    let refused: Vec<_> = waiting.by_ref().take(48).map(|answer| answer.status.as_u16()).collect().await;
    assert_eq!(refused, [429; 48]);
    let checked = call(&scene, Method::POST, "/v1/domains/a.globex.test/check?wait=60").await;
    assert_eq!(checked.status, 202, "it is answered before the look: {checked:?}");
    let added = call(&scene, Method::PUT, "/v1/tenants/acme/domains/b.globex.test?wait=60").await;
    assert_eq!((added.status.is_success(), &added.body["data"]["checked_at"]), (true, &Value::Null), "{added:?}");
    assert!(waiting.next().now_or_never().is_none(), "the others still wait");
}

on_both_databases! {
    async fn changes_of_domains_are_in_the_audit_log_of_their_account(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let mut node = scene.start(0);
        for slug in ["acme", "globex"] {
            scene.add(0, slug).await;
        }
        let audited = |slug: &str| -> Vec<String> {
            let log = scene.succeed(&["audit", "list", "--tenant", slug, "--json"]);
            let rows = log.lines().rev().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            let rows = rows.filter(|row| row["action"].as_str().is_some_and(|action| action.starts_with("domain.")));
            let shown = |row: Value| ["action", "subject", "source", "details"].map(|key| row[key].to_string().replace('"', ""));
            rows.map(|row| shown(row).join(" ")).collect()
        };
        let (first, second) = ("/v1/tenants/acme/domains/forms.globex.test", "/v1/tenants/globex/domains/forms.globex.test");
        for status in [201, 200] {
            assert_eq!(call(&scene, Method::PUT, first).await.status, status, "the same again is no change");
        }
        zones.serve("globex.test", &[], "forms CNAME acme.edge.test");
        state_becomes(&scene, "forms.globex.test", "verified").await;
        for _ in 0..2 {
            assert_eq!(call(&scene, Method::PUT, second).await.status, 409, "it is contested");
        }
        assert_eq!(call(&scene, Method::DELETE, first).await.status, 200);
        assert_eq!(call(&scene, Method::DELETE, first).await.status, 404);
        scene.succeed(&["domain", "add", "other.globex.test", "--tenant", "acme", "--wait", "0"]);
        scene.succeed(&["domain", "add", "other.globex.test", "--tenant", "acme", "--wait", "0"]);
        scene.succeed(&["domain", "remove", "other.globex.test"]);
        assert_eq!(audited("acme"), [
            "domain.added domain forms.globex.test operator {}",
            "domain.removed domain forms.globex.test operator {}",
            "domain.added domain other.globex.test command {}",
            "domain.removed domain other.globex.test command {}",
        ]);
        assert_eq!(audited("globex"), ["domain.added domain forms.globex.test operator {contested:true}"]);
        // A change is made although the database of the account can't be used, and who made it is told.
        let mut nowhere = scene.tenant("initech");
        nowhere["database"] = json!(format!("sqlite:{}", scene.folder().join("missing.db").display()));
        assert_eq!(scene.call(0, Method::PUT, "/v1/tenants/initech", Some(&nowhere)).await.status, 201);
        assert_eq!(call(&scene, Method::PUT, "/v1/tenants/initech/domains/c.globex.test").await.status, 201);
        let logged = node.wait_for_log(LIMIT, |line| line.contains("could not write a change of a domain to the audit log").then_some(()));
        assert!(logged.is_some(), "{}", node.log());
        let warned = scene.run(&["domain", "add", "d.globex.test", "--tenant", "initech", "--wait", "0"]);
        assert!(warned.code == 0 && warned.stderr.contains("not in the audit log of the tenant `initech`"), "{warned:?}");
    }

    async fn a_domain_is_added_looked_at_and_removed(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        let target = "/v1/tenants/acme/domains/forms.globex.test";
        assert_eq!(call(&scene, Method::GET, target).await.status, 404);
        let added = call(&scene, Method::PUT, "/v1/tenants/acme/domains/Forms.Globex.%74est?wait=60").await;
        assert_eq!((added.status.as_u16(), &added.body["data"]["owner"]), (201, &json!("domain")), "{added:?}");
        assert_eq!(added.body["data"]["records"][0]["value"], "acme.edge.test", "before the first look too: {added:?}");
        assert_eq!(call(&scene, Method::PUT, target).await.status, 200);
        let added_domains = async || call(&scene, Method::GET, "/v1/tenants/acme").await.body["data"]["added_domains"].clone();
        assert_eq!(added_domains().await, json!([]), "it is not proved");
        let missing = state_becomes(&scene, "forms.globex.test", "dns").await;
        assert_eq!(missing["reason"], "no_records", "{missing}");
        assert_eq!(missing["records"][0]["value"], "acme.edge.test", "{missing}");
        assert!(missing["next_step"].as_str().is_some_and(|step| step.starts_with("Add ")), "{missing}");
        let ask = "/v1/domains/ask?domain=FORMS.globex.test";
        assert_eq!(call(&scene, Method::GET, ask).await.status, 404, "it is not proved");
        zones.serve("globex.test", &[], "forms CNAME acme.edge.test");
        let verified = state_becomes(&scene, "forms.globex.test", "verified").await;
        assert_eq!((&verified["reason"], &verified["records"]), (&Value::Null, &json!([])), "{verified}");
        assert_eq!(added_domains().await, json!(["forms.globex.test"]));
        assert_eq!(call(&scene, Method::GET, target).await.body["data"]["state"], "verified");
        let began = Instant::now();
        while call(&scene, Method::GET, ask).await.status != 200 {
            assert!(began.elapsed() < LIMIT, "it is served once it is proved");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let listed = call(&scene, Method::GET, "/v1/tenants/acme/domains?state=verified").await;
        assert_eq!(listed.body["data"][0]["host"], "forms.globex.test");
        assert_eq!(call(&scene, Method::GET, "/v1/domains?state=dns").await.body["data"], json!([]));
        assert_eq!(call(&scene, Method::DELETE, &format!("{target}?wait=60")).await.status, 200);
        for (method, target) in [(Method::DELETE, target), (Method::GET, target), (Method::GET, ask)] {
            assert_eq!(call(&scene, method.clone(), target).await.status, 404, "{method} {target}");
        }
        assert_eq!(call(&scene, Method::POST, "/v1/domains/forms.globex.test/check").await.status, 404);
        let back = call(&scene, Method::PUT, &format!("{target}?wait=60")).await;
        assert_eq!(back.status, 201, "{back:?}");
    }

    async fn fifty_claims_at_once_exclude_nobody_and_the_first_proof_decides(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let _node = scene.start(0);
        let operations: Vec<_> = (0..50).map(|number| {
            let database = format!("sqlite:{}", scene.folder().join(format!("{number}.db")).display());
            let address = format!("t{number}.example.test");
            json!({ "put": format!("t{number}"), "tenant": { "name": "T", "address": address, "database": database } })
        }).collect();
        let batch = scene.call(0, Method::POST, "/v1/batch", Some(&json!({ "operations": operations }))).await;
        assert_eq!(batch.status, 200, "{batch:?}");
        let targets: Vec<_> = (0..50).map(|number| format!("/v1/tenants/t{number}/domains/forms.globex.test")).collect();
        let claims = targets.iter().map(|target| call(&scene, Method::PUT, target));
        let answers = futures_util::future::join_all(claims).await;
        let proofs: Vec<_> = answers.iter().map(|answer| {
            assert_eq!(answer.status, 201, "{answer:?}");
            answer.body["data"]["proof"]["value"].as_str().unwrap().to_owned()
        }).collect();
        assert_eq!(proofs.iter().collect::<BTreeSet<_>>().len(), 50, "each has its own");
        assert_eq!(call(&scene, Method::DELETE, &targets[3]).await.status, 200, "a claim is given up");
        assert_eq!(call(&scene, Method::GET, &targets[3]).await.status, 404);
        zones.serve("globex.test", &[], &format!("forms A 192.0.2.10\n_formgate.forms TXT {}", proofs[7]));
        // A check that was under way may not have seen the record.
        let began = Instant::now();
        let check = "/v1/domains/forms.globex.test/check?wait=60&tenant=t7";
        while call(&scene, Method::POST, check).await.body["data"]["state"] != "verified" {
            assert!(began.elapsed() < LIMIT, "the proof is not seen");
        }
        for (number, target) in targets.iter().enumerate().filter(|(number, _)| ![3, 7].contains(number)) {
            let data = &call(&scene, Method::GET, target).await.body["data"];
            assert_eq!((&data["state"], &data["reason"]), (&json!("gone"), &json!("taken")), "{number}: {data}");
            assert_eq!(data["records"], json!([]), "{data}");
        }
        let checked = call(&scene, Method::POST, "/v1/domains/forms.globex.test/check?wait=60").await;
        assert_eq!(checked.body["data"]["tenant"], "t7", "that of the owner: {checked:?}");
        let lost = call(&scene, Method::POST, "/v1/domains/forms.globex.test/check?wait=60&tenant=t8").await;
        assert_eq!((lost.status.as_u16(), &lost.body["data"]["state"]), (200, &json!("gone")), "{lost:?}");
        let again = call(&scene, Method::PUT, &targets[8]).await;
        let data = &again.body["data"];
        assert_eq!((again.status.as_u16(), &data["state"], &data["reason"]), (409, &json!("claimed"), &json!("taken")));
        assert_eq!((&data["records"][0]["type"], &data["records"][0]["value"]), (&json!("TXT"), &json!(proofs[8])));
    }

    async fn a_host_that_cannot_be_added_is_refused_with_the_reason(engine: Engine) {
        let (mut scene, _zones) = scene(engine).await;
        let text = scene.text("filed");
        scene.write_files(&text, 1);
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        scene.add(0, "globex").await;
        let put = async |slug: &str, host: &str| {
            let answer = call(&scene, Method::PUT, &format!("/v1/tenants/{slug}/domains/{host}")).await;
            (answer.status.as_u16(), answer.body)
        };
        let long = format!("{}.test", "a".repeat(64));
        for (host, text) in [
            ("192.0.2.1", "an IP address is not a host name"),
            ("[2001:db8::1]", "an IP address is not a host name"),
            ("a..test", "not a host name: a label is empty: there are two dots in a row, or one in front"),
            (&long, "not a host name: a label has at most 63 characters"),
            ("xn--a.test", "not a host name: a label that begins with `xn--` is not valid Punycode"),
            ("localhost", "not a domain: names that end with `alt`, `invalid`, `local`, `localhost` or `onion` are not in the public DNS"),
            ("org", "not a domain: expected a name with a dot, such as `forms.example.com`"),
            ("a.test:443", "not a host name: expected only a name, without scheme, port or path"),
        ] {
            assert_eq!(put("acme", host).await, (422, json!({ "message": text, "errors": { "host": [text] } })), "{host}");
        }
        let place = format!("{}:", scene.config(0).display());
        for (slug, host) in [("filed", "forms.globex.test"), ("acme", "filed.example.test")] {
            let (status, body) = put(slug, host).await;
            assert!(status == 409 && body["message"].as_str().unwrap().contains(&place), "{body}");
        }
        let (status, body) = put("acme", "globex.example.test").await;
        assert_eq!((status, &body["data"]), (409, &Value::Null), "{body}");
        assert_eq!(body["message"], "the host `globex.example.test` is in the table of the tenant `globex`");
        let (status, body) = put("acme", "acme.example.test").await;
        assert_eq!((status, &body["data"]["owner"], &body["data"]["state"]), (200, &json!("table"), &Value::Null), "{body}");
        assert_eq!(put("nobody", "forms.globex.test").await.0, 404);
        for (method, target, status) in [
            (Method::GET, "/v1/tenants/acme/domains/acme.example.test", 200),
            (Method::GET, "/v1/tenants/filed/domains/filed.example.test", 200),
            (Method::DELETE, "/v1/tenants/acme/domains/acme.example.test", 409),
            (Method::DELETE, "/v1/tenants/filed/domains/filed.example.test", 409),
            (Method::PUT, "/v1/tenants/acme/domains/globex.edge.test", 422),
            (Method::PUT, "/v1/tenants/acme/domains/edge.test", 422),
            (Method::PUT, "/v1/tenants/acme/domains/acme.edge.test", 201),
            (Method::GET, "/v1/tenants/nobody/domains", 404),
            (Method::GET, "/v1/tenants/nobody/domains/forms.globex.test", 404),
            (Method::GET, "/v1/tenants/acme/domains/none.globex.test", 404),
            (Method::GET, "/v1/domains?state=broken", 422),
            (Method::GET, "/v1/domains?tenant=nobody", 404),
            (Method::GET, "/v1/domains?after=%00", 422),
            (Method::GET, "/v1/domains?tenant=%00", 422),
            (Method::GET, "/v1/domains/ask", 422),
            (Method::GET, "/v1/domains/ask?domain=acme.example.test", 200),
            (Method::GET, "/v1/domains/ask?domain=filed.example.test", 200),
            (Method::GET, "/v1/domains/ask?domain=none.globex.test", 404),
            (Method::GET, "/v1/domains/ask?domain=%00", 404),
        ] {
            let answer = call(&scene, method.clone(), target).await;
            assert_eq!(answer.status, status, "{method} {target}: {answer:?}");
        }
    }

    async fn without_the_table_of_domains_there_are_none(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        for (method, target) in [
            (Method::GET, "/v1/domains"),
            (Method::GET, "/v1/tenants/acme/domains"),
            (Method::GET, "/v1/tenants/acme/domains/forms.globex.test"),
            (Method::PUT, "/v1/tenants/acme/domains/forms.globex.test"),
            (Method::DELETE, "/v1/tenants/acme/domains/forms.globex.test"),
            (Method::POST, "/v1/domains/forms.globex.test/check"),
        ] {
            let answer = call(&scene, method.clone(), target).await;
            assert_eq!(answer.status, 409, "{method} {target}: {answer:?}");
            assert!(answer.body["message"].as_str().unwrap().contains("`[gateway.domains]`"), "{answer:?}");
        }
        assert_eq!(call(&scene, Method::GET, "/v1/domains/ask?domain=acme.example.test").await.status, 200);
    }

    async fn the_domains_of_all_tenants_are_listed_by_pages(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        scene.add(0, "globex").await;
        for (slug, host) in [("acme", "b.globex.test"), ("globex", "a.globex.test"), ("globex", "c.globex.test")] {
            assert_eq!(call(&scene, Method::PUT, &format!("/v1/tenants/{slug}/domains/{host}")).await.status, 201);
        }
        // A second row of a host, between two pages.
        assert_eq!(call(&scene, Method::PUT, "/v1/tenants/globex/domains/b.globex.test").await.status, 201);
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = call(&scene, Method::GET, &format!("/v1/domains?limit=2&after={after}")).await;
            let data = page.body["data"].as_array().unwrap();
            seen.extend(data.iter().map(|row| format!("{} {}", row["host"].as_str().unwrap(), row["tenant"].as_str().unwrap())));
            after = page.body["meta"]["after"].as_str().unwrap().to_owned();
            if page.body["meta"]["has_more"] == false {
                break;
            }
        }
        assert_eq!(seen, ["a.globex.test globex", "b.globex.test acme", "b.globex.test globex", "c.globex.test globex"]);
        let of_tenant = call(&scene, Method::GET, "/v1/domains?tenant=acme").await;
        assert_eq!(of_tenant.body["data"].as_array().map(Vec::len), Some(1), "{of_tenant:?}");
        assert_eq!(of_tenant.body["data"], call(&scene, Method::GET, "/v1/tenants/acme/domains").await.body["data"]);
    }

    async fn the_change_feed_has_events_of_domains_in_the_order_of_the_revisions(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        let _node = scene.start(0);
        let registry = Database::connect(&scene.registry_url).await;
        let event = async |kind: &str| {
            let detail = json!({ "state": "live", "reason": "", "next_step": "", "expires_at": null });
            registry.execute("UPDATE registry_head SET revision = revision + 1").await;
            registry.execute(&format!(
                "INSERT INTO registry_events (revision, kind, slug, host, detail, at) SELECT revision, '{kind}', 'acme', \
                 'forms.globex.test', '{detail}', (SELECT seen_at FROM registry_nodes LIMIT 1) FROM registry_head"
            )).await;
        };
        scene.add(0, "acme").await;
        event("domain.live").await;
        event("domain.failing").await;
        scene.add(0, "globex").await;
        event("certificate.renewal_late").await;
        let all = call(&scene, Method::GET, "/v1/changes").await;
        let kinds = |answer: &Answer| -> Vec<String> {
            answer.body["data"].as_array().unwrap().iter().map(|change| change["type"].as_str().unwrap().to_owned()).collect()
        };
        let expected = ["put", "domain.live", "domain.failing", "put", "certificate.renewal_late"];
        assert_eq!((kinds(&all), &all.body["meta"]["has_more"]), (expected.map(str::to_owned).to_vec(), &json!(false)));
        for limit in 1..=4 {
            let (mut seen, mut after) = (Vec::new(), 0);
            loop {
                let page = call(&scene, Method::GET, &format!("/v1/changes?limit={limit}&after={after}")).await;
                seen.extend(page.body["data"].as_array().unwrap().iter().cloned());
                after = page.body["meta"]["revision"].as_i64().unwrap();
                if page.body["meta"]["has_more"] == false {
                    break;
                }
                assert_eq!(page.body["data"].as_array().map(Vec::len), Some(limit));
            }
            assert_eq!(json!(seen), all.body["data"], "{limit}");
        }
        registry.close().await;
    }
}

/// What the `ask` of Caddy sends: a URL with a name and a password.
#[tokio::test]
async fn a_token_can_be_the_password_of_a_url() {
    let scene = Scene::new(Engine::Sqlite);
    let mut node = scene.start(0);
    scene.add(0, "acme").await;
    let token = scene.succeed(&["operator-token", "create", "--name", "caddy"]);
    let logged = node.wait_for_log(LIMIT, |line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let address = line["address"].as_str().filter(|_| line["message"] == "operator API is served")?;
        address.parse::<std::net::SocketAddr>().ok()
    });
    let address = logged.expect("it logs where it listens");
    let ask = |password: &str, host: &str| {
        let url = format!("http://caddy:{password}@{address}/v1/domains/ask?domain={host}");
        let output = Command::new("curl").args(["-s", "-o", "/dev/null", "-w", "%{http_code}", &url]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(ask(token.trim(), "acme.example.test"), "200");
    assert_eq!(ask(token.trim(), "other.example.test"), "404");
    assert_eq!(ask("fgo_wrong", "acme.example.test"), "401");
    assert_eq!(ask("", "acme.example.test"), "401");
}
