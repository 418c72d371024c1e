//! `POST /subscribe`.

use std::collections::HashSet;

use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

use super::{TARGET, data, faulty_fields, ids, subscribe, unsubscribe};
use crate::api::account::account;
use crate::support::acme::Acme;
use crate::support::fixture::{Site, on_both_databases};

const FORMS: &str = "INSERT INTO forms (id, name) VALUES (3, 'Leave'), (4, 'Travel')";

on_both_databases! {
    async fn a_subscription_shows_its_secret_once(engine: Engine) {
        let client = &account(engine, "").client;
        let made = data(&subscribe(client, &json!({"target_url": TARGET})).await, 201);
        let keys: Vec<&String> = made.as_object().unwrap().keys().collect();
        let first = ["id", "target_url", "event", "form", "created_at", "state", "reason", "failing_since"];
        let last = ["next_attempt_at", "pending", "last_success_at", "lost_deletions", "lost_until", "bound", "forms", "secret"];
        assert_eq!(keys, [&first[..], &last].concat());
        assert_eq!((&made["state"], &made["pending"], &made["reason"]), (&json!("active"), &json!(0), &Value::Null));
        assert_eq!((&made["target_url"], &made["event"], &made["form"]), (&json!(TARGET), &json!("submission.created"), &Value::Null));
        let secret = made["secret"].as_str().unwrap().strip_prefix("whsec_").unwrap();
        assert_eq!(secret.len(), 44, "32 bytes in base64");
        let at = made["created_at"].as_str().unwrap();
        let age = Timestamp::now() - at.parse::<Timestamp>().unwrap();
        assert!(at.len() == 27 && age.compare(1.minute()).unwrap().is_lt(), "{at}");

        let mut known = made.clone();
        known.as_object_mut().unwrap().remove("secret");
        let again = data(&subscribe(client, &json!({"target_url": TARGET})).await, 200);
        assert_eq!(again, known);
        let path = format!("{}/{}", super::SUBSCRIBE, made["id"].as_str().unwrap());
        let shown = client.get(&path).send().await;
        assert_eq!(data(&shown, 200), known);
        let listed = client.get(super::SUBSCRIBE).send().await;
        assert_eq!(data(&listed, 200), json!([known]));
        for answer in [shown, listed] {
            assert!(!String::from_utf8_lossy(&answer.body).contains("whsec_"));
        }
    }

    async fn the_same_triple_is_one_subscription_and_another_is_another(engine: Engine) {
        let account = account(engine, "");
        account.database().await.execute(FORMS).await;
        let client = &account.client;
        let triples = [
            json!({"target_url": TARGET}),
            json!({"target_url": TARGET, "event": "submission.updated"}),
            json!({"target_url": TARGET, "form": 3}),
            json!({"target_url": TARGET, "form": 4}),
            json!({"target_url": TARGET, "form": 3, "event": "submission.updated"}),
            json!({"target_url": TARGET.to_uppercase().replace("HTTPS", "https")}),
        ];
        let (mut found, mut secrets) = (Vec::new(), HashSet::new());
        for triple in &triples {
            let made = data(&subscribe(client, triple).await, 201);
            secrets.insert(made["secret"].to_string());
            found.push(made["id"].clone());
        }
        assert_eq!(secrets.len(), triples.len());
        assert_eq!(ids(client).await, found);
        for (triple, id) in triples.iter().zip(&found) {
            assert_eq!(data(&subscribe(client, triple).await, 200)["id"], *id, "{triple}");
        }
        for same in [
            json!({"hookUrl": TARGET}),
            json!({"targetUrl": TARGET}),
            json!({"url": TARGET}),
            json!({"url": TARGET, "target_url": null, "hookUrl": TARGET}),
            json!({"target_url": TARGET, "event": null, "form": null}),
            json!({"target_url": TARGET, "event": "submission.created"}),
        ] {
            assert_eq!(data(&subscribe(client, &same).await, 200)["id"], found[0], "{same}");
        }
        for form in [json!("for_3"), json!("3"), json!(3)] {
            let same = data(&subscribe(client, &json!({"target_url": TARGET, "form": form})).await, 200);
            assert_eq!((&same["id"], &same["form"]), (&found[2], &json!("for_3")), "{form}");
        }
        assert_eq!(ids(client).await, found);
    }

    async fn calls_at_once_make_one_subscription(engine: Engine) {
        let mut account = account(engine, "");
        account.database().await.execute(FORMS).await;
        let clients = [account.client.clone(), account.another_node()];
        for round in 0..15 {
            let form = [Value::Null, json!(3)][round % 2].clone();
            let body = json!({"target_url": format!("https://hooks.example/{round}"), "form": form});
            let calls: Vec<_> = (0..20)
                .map(|at| {
                    let (client, body) = (clients[at % 2].clone(), body.clone());
                    tokio::spawn(async move { subscribe(&client, &body).await })
                })
                .collect();
            let (mut made, mut found) = (0, HashSet::new());
            for call in calls {
                let answer = call.await.unwrap();
                let is_new = answer.status == 201;
                let subscription = data(&answer, if is_new { 201 } else { 200 });
                assert_eq!(subscription.get("secret").is_some(), is_new);
                made += usize::from(is_new);
                found.insert(subscription["id"].to_string());
            }
            assert_eq!((made, found.len()), (1, 1), "round {round}");
        }
        assert_eq!(ids(&account.client).await.len(), 15);
    }

    async fn spellings_of_a_url_are_one_subscription_which_keeps_the_first(engine: Engine) {
        let account = account(engine, "");
        let client = &account.client;
        let first = "HTTPS://Hooks.Example.:443/Catch/%7b1%7D?Key=a%20b#part";
        let made = data(&subscribe(client, &json!({"target_url": first})).await, 201);
        for same in [
            first,
            "https://hooks.example/Catch/%7b1%7D?Key=a%20b",
            "https://HOOKS.EXAMPLE/Catch/%7b1%7D?Key=a%20b#other",
            "https://hooks.example./Catch/%7b1%7D?Key=a%20b",
            "https://hooks.example:443/Catch/%7b1%7D?Key=a%20b",
        ] {
            let found = data(&subscribe(client, &json!({"target_url": same})).await, 200);
            assert_eq!((&found["id"], &found["target_url"]), (&made["id"], &json!(first)), "{same}");
        }
        for other in [
            "https://hooks.example/catch/%7b1%7D?Key=a%20b",
            "https://hooks.example/Catch/%7B1%7D?Key=a%20b",
            "https://hooks.example/Catch/%7b1%7D?key=a%20b",
            "https://hooks.example/Catch/%7b1%7D/?Key=a%20b",
            "https://hooks.example:8443/Catch/%7b1%7D?Key=a%20b",
        ] {
            assert_eq!(subscribe(client, &json!({"target_url": other})).await.status, 201, "{other}");
        }
        let ended = unsubscribe(client, &json!({"target_url": "https://hooks.example/Catch/%7b1%7D?Key=a%20b"})).await;
        assert_eq!(ended.json(), json!({"deleted": 1}));
        assert!(!ids(client).await.contains(&made["id"]));
    }

    async fn an_invalid_subscription_is_refused_with_all_its_faults(engine: Engine) {
        let account = account(engine, "");
        account.database().await.execute(FORMS).await;
        let client = &account.client;
        let long = format!("https://hooks.example/{}", "x".repeat(2048));
        for target in [
            json!("http://hooks.example/1"), json!("hooks.example/1"), json!("ftp://hooks.example"), json!("https://"), json!(""),
            json!("https://user@hooks.example/"), json!("https://user:pw@hooks.example/"), json!("https://hooks.example/ä"),
            json!("https://hooks.example/a b"), json!("https://hooks.example/\0"), json!(" https://hooks.example/"),
            json!("https://hooks.example:99999/"), json!("javascript:alert(1)"), json!(long), json!(7), json!([TARGET]),
        ] {
            for key in ["target_url", "hookUrl", "targetUrl", "url"] {
                assert_eq!(faulty_fields(&subscribe(client, &json!({key: target})).await), [key], "{target}");
            }
        }
        for (target, fault) in [
            ("https://hooks.example:0/", "must have a port from 1 to 65535, or none"),
            ("https://hooks.example:99999/", "must have a port from 1 to 65535, or none"),
            ("https://256.1.1.1/", "must have a host that is a name or a valid IP address"),
            ("https://[fe80::1%25eth0]/", "must have a host that is a name or a valid IP address"),
            ("https://b\u{fc}cher.example/", "must be ASCII: an international host in its xn-- form, the rest percent-encoded"),
        ] {
            let refused = subscribe(client, &json!({"target_url": target})).await;
            assert_eq!(refused.json()["errors"], json!({"target_url": [format!("The target_url {fault}.")]}), "{target}");
        }
        for (body, fields) in [
            (json!({}), vec!["target_url"]),
            (json!({"target_url": null}), vec!["target_url"]),
            (json!({"target_url": TARGET, "event": "submission.viewed"}), vec!["event"]),
            (json!({"target_url": TARGET, "event": "SUBMISSION.CREATED"}), vec!["event"]),
            (json!({"target_url": TARGET, "event": 1}), vec!["event"]),
            (json!({"target_url": TARGET, "form": 5}), vec!["form"]),
            (json!({"target_url": TARGET, "form": "for_5"}), vec!["form"]),
            (json!({"target_url": TARGET, "form": "sub_3"}), vec!["form"]),
            (json!({"target_url": TARGET, "form": 0}), vec!["form"]),
            (json!({"target_url": TARGET, "form": 3.5}), vec!["form"]),
            (json!({"target_url": TARGET, "form": [3]}), vec!["form"]),
            (json!({"form": "x", "event": "x", "target_url": "x"}), vec!["form", "event", "target_url"]),
        ] {
            assert_eq!(faulty_fields(&subscribe(client, &body).await), fields, "{body}");
        }
        assert_eq!(ids(client).await, [Value::Null; 0]);
    }

    async fn a_target_at_an_address_that_is_not_public_is_refused_unless_the_operator_allows_it(engine: Engine) {
        let webhooks: toml::Table = "allow_targets = [\"10.1.0.0/16\"]".parse().unwrap();
        let site = Site::new().tenant("acme", engine).requests_per_minute(100_000).gateway("webhooks", webhooks);
        let acme = Acme::of(site);
        let client = &acme.caller();
        for (key, target) in [
            ("target_url", "https://127.0.0.1/"),
            ("hookUrl", "https://10.2.0.1:8443/"),
            ("targetUrl", "https://2130706433/"),
            ("url", "https://0x7f.1/"),
            ("url", "https://[::1]/"),
            ("url", "https://[::ffff:10.0.0.1]/"),
            ("url", "https://169.254.169.254/latest/meta-data/"),
        ] {
            let answer = subscribe(client, &json!({key: target})).await;
            assert_eq!(faulty_fields(&answer), [key], "{target}");
            let text = answer.json()["errors"][key][0].as_str().unwrap().to_owned();
            assert_eq!(text, format!("The {key} is a blocked address: it must be public."));
        }
        assert_eq!(ids(client).await, [Value::Null; 0]);
        for target in ["https://1.1.1.1/", "https://10.1.0.1:8443/", "https://[2606:4700::1]/", "https://localhost/"] {
            data(&subscribe(client, &json!({"target_url": target})).await, 201);
        }
        let gone = unsubscribe(client, &json!({"target_url": "https://127.0.0.1/"})).await;
        assert_eq!(gone.json(), json!({"deleted": 0}), "only subscribing checks the address");
    }

    async fn names_of_the_target_with_different_values_are_refused(engine: Engine) {
        let client = &account(engine, "").client;
        for (body, fields) in [
            (json!({"target_url": TARGET, "url": "https://hooks.example/other"}), vec!["url"]),
            (json!({"targetUrl": TARGET, "hookUrl": 7, "url": TARGET}), vec!["hookUrl"]),
            (json!({"url": "no URL", "target_url": TARGET}), vec!["url", "target_url"]),
        ] {
            let answer = subscribe(client, &body).await;
            assert_eq!(faulty_fields(&answer), fields, "{body}");
            let last = fields[fields.len() - 1];
            let text = answer.json()["errors"][last][0].as_str().unwrap().to_owned();
            assert!(text.contains("are names of one value, and differ"), "{text}");
            assert_eq!(faulty_fields(&unsubscribe(client, &body).await), fields, "{body}");
        }
        assert_eq!(ids(client).await.len(), 0);
    }

    async fn an_unknown_key_is_ignored_and_named(engine: Engine) {
        let client = &account(engine, "").client;
        let answer = subscribe(client, &json!({"hookUrl": TARGET, "event": "submission.created", "formId": 3})).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-ignored-parameters")), (201, Some("formId")));
    }

    async fn subscriptions_end_with_their_form(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        database.execute(FORMS).await;
        subscribe(&account.client, &json!({"target_url": TARGET, "form": 3})).await;
        let other = data(&subscribe(&account.client, &json!({"target_url": TARGET, "form": 4})).await, 201);
        database.execute("DELETE FROM forms WHERE id = 3").await;
        assert_eq!(ids(&account.client).await, [other["id"].clone()]);
    }

    async fn another_account_has_its_own_subscriptions(engine: Engine) {
        let site = Site::new().tenant("acme", engine).tenant("globex", engine).requests_per_minute(100_000).write();
        let node = site.start();
        let clients = ["acme", "globex"].map(|slug| node.client().to(&site.host(slug)).with(&site.token(slug, "tests")));
        let [acme, globex] = &clients;
        for client in &clients {
            data(&subscribe(client, &json!({"target_url": TARGET})).await, 201);
        }
        let ended = unsubscribe(acme, &json!({"target_url": TARGET})).await;
        assert_eq!(ended.json(), json!({"deleted": 1}));
        assert_eq!((ids(acme).await.len(), ids(globex).await.len()), (0, 1));
    }
}
