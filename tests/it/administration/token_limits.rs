//! What tokens are limited to, on their pages: set, shown, narrowed and widened.

use serde_json::{Value, json};

use super::scene::{Administrator, Scene, between, random, text};
use crate::support::browser::Browser;
use crate::support::fixture::{Engine, on_both_databases};

/// Creates a token with limits, and returns its number and value.
async fn generate(own: &Administrator, name: &str, limits: &[(&str, &str)]) -> (i64, String) {
    let key = random();
    let answer = own.post("/admin/tokens", &[&[("name", name), ("form_key", &key)], limits].concat()).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let page = text(&answer);
    let id = between(&page, "<p class=\"value\" data-token=\"", "\"").parse().expect("a number");
    (id, between(&page, "<code id=\"token-value\">", "</code>").to_owned())
}

/// The limits of a token, as its page shows them and as the API does.
async fn limits(own: &Administrator, id: i64) -> (String, String) {
    let page = text(&own.get(&format!("/admin/tokens/{id}")).await);
    let shown = |name: &str| between(&page, &format!("<dd data-{name}=\""), "\"").to_owned();
    (shown("scopes"), shown("networks"))
}

on_both_databases! {
    async fn limits_are_set_shown_narrowed_and_widened(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let (all, _) = own.generate("All").await;
        assert_eq!(limits(&own, all).await, ("*".to_owned(), String::new()));
        // As a browser sends boxes, and as a script may send a list.
        for scopes in [&[("scopes", ""), ("scopes", "forms:read"), ("scopes", "groups:read")][..], &[("scopes", "groups:read,forms:read")]] {
            let (id, value) = generate(&own, "Some", &[scopes, &[("networks", "127.0.0.0/8\r\n::1/128"), ("requests_per_minute", "40")]].concat()).await;
            assert_eq!(limits(&own, id).await, ("forms:read groups:read".to_owned(), "127.0.0.0/8 ::1/128".to_owned()));
            let api = own.caller.with(&value);
            let answer = api.get("/api/v1/form").send().await;
            assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-limit")), (200, Some(40)));
            assert_eq!(api.post("/api/v1/submission").send().await.json()["required"], "submissions:read");
            let list = text(&own.get("/admin/tokens").await);
            let row = between(&list, &format!("<tr data-token=\"{id}\">"), "</tr>");
            for shown in ["data-scopes=\"forms:read groups:read\"", ">127.0.0.0/8, ::1/128<", ">40 requests per minute<"] {
                assert!(row.contains(shown), "{shown} in {row}");
            }

            // It is narrowed and widened at once on this node.
            let path = format!("/admin/tokens/{id}/limits");
            let change = async |fields: &[(&str, &str)]| own.post(&path, fields).await.status.as_u16();
            assert_eq!(change(&[("scopes", "groups:read")]).await, 303);
            assert_eq!(api.get("/api/v1/form").send().await.json()["required"], "forms:read");
            assert_eq!(limits(&own, id).await, ("groups:read".to_owned(), String::new()));
            assert_eq!(change(&[("scopes", "groups:read"), ("networks", "203.0.113.0/24")]).await, 303);
            assert_eq!(api.get("/api/v1/group").send().await.status, 401);
            assert_eq!(change(&[("networks", "")]).await, 422, "nothing is checked, which is not everything");
            assert_eq!(change(&[("scopes", "groups:read"), ("scopes", "*")]).await, 303);
            assert_eq!(api.get("/api/v1/form").send().await.status, 200);
            assert_eq!(limits(&own, id).await, ("*".to_owned(), String::new()));
            let notice = async |path: &str, fields: &[(&str, &str)]| {
                let answer = own.post(path, fields).await;
                let page = text(&own.get(answer.header("location").expect("a redirect")).await);
                between(&page, "<p class=\"done\" role=\"status\">", "</p>").to_owned()
            };
            assert_eq!(notice(&path, &[("scopes", "")]).await, "Nothing was changed: the token has these limits already.");
            assert_eq!(limits(&own, id).await.0, "*");

            assert_eq!(notice(&format!("/admin/tokens/{id}/revoke"), &[]).await, "The token is revoked.");
            assert_eq!(change(&[("scopes", "groups:read")]).await, 409);
        }
        let audit = text(&own.get("/admin/audit/export?action=token.change").await);
        let rows: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 2 * 3, "{audit}");
        let widened = json!({"name": "Some", "before": {"scopes": ["groups:read"], "networks": ["203.0.113.0/24"]}, "after": {"scopes": ["*"], "networks": null}});
        assert_eq!((&rows[0]["details"], &rows[0]["actor"]), (&widened, &json!("admin@acme.example")));
        for (language, expected) in [
            ("en", "may do: groups:read → everything, networks: 203.0.113.0/<wbr>24 → no limit"),
            ("de", "darf: groups:read → alles, Netze: 203.0.113.0/24 → keine Grenze"),
        ] {
            let call = own.call(http::Method::GET, "/admin/audit?action=token.change").header("accept-language", language);
            let page = text(&call.send().await).replace("<wbr>", "");
            assert!(page.contains(&expected.replace("<wbr>", "")), "{expected} in {page}");
        }
    }

    async fn forms_are_set_shown_narrowed_and_widened(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let database = scene.database("acme").await;
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;
        database.close().await;
        let shown = async |id: i64| between(&text(&own.get(&format!("/admin/tokens/{id}")).await), "<dd data-forms=\"", "\"").to_owned();
        let (id, value) = generate(&own, "Some", &[("forms", "for_7\r\n1")]).await;
        let api = own.caller.with(&value);
        let forms = async || api.get("/api/v1/me").send().await.json()["token"]["forms"].clone();
        assert_eq!((shown(id).await, forms().await), ("for_1 for_7".to_owned(), json!(["for_1", "for_7"])));
        let page = text(&own.get(&format!("/admin/tokens/{id}")).await);
        assert!(page.contains(">Leave <code>for_1</code>, <code>for_7</code></dd>"), "those that exist have names: {page}");
        assert!(page.contains("rows=\"3\"") && page.contains(">for_1\nfor_7</textarea>"), "one a line: {page}");
        let list = text(&own.get("/admin/tokens").await);
        assert!(between(&list, &format!("<tr data-token=\"{id}\">"), "</tr>").contains("data-forms=\"for_1 for_7\">Leave, for_7<"));
        for (typed, expected) in [("7", json!(["for_7"])), ("", Value::Null)] {
            assert_eq!(own.post(&format!("/admin/tokens/{id}/limits"), &[("forms", typed)]).await.status, 303);
            assert_eq!(forms().await, expected);
        }
        assert_eq!(shown(id).await, "");
        let audit = text(&own.get("/admin/audit/export?action=token.change").await);
        let rows: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows[0]["details"], json!({"name": "Some", "before": {"forms": ["for_7"]}, "after": {"forms": null}}));
    }

    async fn each_field_is_held_to_its_bounds(engine: Engine) {
        let scene = Scene::start(engine);
        let own = scene.sign_in("acme", "admin").await;
        let (id, _) = generate(&own, "Some", &[("scopes", "scim")]).await;
        for (field, value) in [
            ("scopes", "forms:write"),
            ("forms", "for_1, Leave"),
            ("forms", ","),
            ("networks", "203.0.113.7/24"),
            ("networks", "office <b>"),
            ("requests_per_minute", "61"),
            ("requests_per_minute", "0"),
            ("requests_per_minute", "many"),
        ] {
            let typed = [("name", "kept"), ("form_key", &*random()), (field, value)];
            let changed = [("scopes", "scim"), (field, value)];
            for answer in [
                own.post("/admin/tokens", &typed).await,
                own.post(&format!("/admin/tokens/{id}/limits"), &changed[usize::from(field == "scopes")..]).await,
            ] {
                let page = text(&answer);
                assert_eq!(answer.status, 422, "{field} {value}: {page}");
                assert!(page.contains(&format!("id=\"{}-fault\"", field.replace("requests_per_minute", "budget"))), "{page}");
                assert!(field == "scopes" || page.contains(&value.replace('<', "&#60;").replace('>', "&#62;")), "{page}");
            }
        }
        assert_eq!(limits(&own, id).await.0, "scim");
        for id in ["0", "9999", "x"] {
            assert_eq!(own.post(&format!("/admin/tokens/{id}/limits"), &[]).await.status, 404, "{id}");
        }
        let viewer = scene.sign_in("acme", "viewer").await;
        assert!(!text(&viewer.get(&format!("/admin/tokens/{id}")).await).contains("name=\"scopes\""));
        assert_eq!(viewer.post(&format!("/admin/tokens/{id}/limits"), &[("scopes", "*")]).await.status, 403);
    }
}

#[tokio::test]
async fn a_token_is_limited_and_narrowed_in_a_browser_in_english_and_german() {
    for (language, everything) in [("en", "Everything"), ("de", "Alles")] {
        let scene = Scene::start(Engine::Sqlite);
        let base = format!("https://{}", scene.host("acme"));
        let browser = Browser::start_in(language).await;
        browser.open(&format!("{base}{}", scene.link("acme", "admin", 600).await)).await;
        browser.follow("button").await;
        browser.open(&format!("{base}/admin/tokens")).await;
        browser.type_into("#name", "Payroll").await;
        for scope in ["groups:read", "groups:write"] {
            browser.click(&format!("input[name=scopes][value='{scope}']")).await;
        }
        browser.type_into("#networks", "10.0.0.1/8").await;
        browser.follow("main form button").await;
        assert!(browser.text("#networks-fault").await.contains("10.0.0.0/8"));
        browser.check_page(&format!("limits-error-{language}")).await;
        browser.script("document.querySelector('#networks').value = '127.0.0.0/8'").await;
        browser.type_into("#requests_per_minute", "20").await;
        browser.follow("main form button").await;
        let value = browser.text("#token-value").await;
        let api = scene.node.client().to(&scene.host("acme")).with(&value);
        assert_eq!(api.get("/api/v1/form").send().await.json()["required"], "forms:read");
        assert_eq!(api.get("/api/v1/group").send().await.number("x-ratelimit-limit"), Some(20));

        browser.open(&format!("{base}/admin/tokens/1")).await;
        browser.check_page(&format!("limits-{language}")).await;
        assert_eq!(browser.text("dd[data-scopes]").await, "groups:read groups:write");
        browser.click("input[name=scopes][value='groups:read']").await;
        browser.follow("form[action$='/limits'] button").await;
        assert_eq!(browser.text("dd[data-scopes]").await, "groups:write");
        assert_eq!(api.get("/api/v1/group").send().await.json()["required"], "groups:read");
        browser.click("input[name=scopes][value='*']").await;
        browser.follow("form[action$='/limits'] button").await;
        assert_eq!(browser.text("dd[data-scopes]").await, everything);
        assert_eq!(api.get("/api/v1/form").send().await.status, 200);
    }
}
