//! The area in a real browser: a token from its generation to its end, every page in every look, only by keyboard.

use serde_json::json;

use super::scene::Scene;
use crate::support::browser::{Browser, Look};
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::receiver::{Act, Receiver};

/// The key of WebDriver that moves the focus on, and the one that presses what has it.
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

on_both_databases! {
    async fn a_token_is_generated_seen_once_listed_and_revoked_in_a_browser(engine: Engine) {
        let scene = Scene::start(engine);
        let base = format!("https://{}", scene.host("acme"));
        let browser = Browser::start().await;
        // A page looks the same whichever database its rows are from.
        let check_page = async |name: &str| {
            if engine == Engine::Sqlite {
                browser.check_page(name).await;
            }
        };
        browser.open(&format!("{base}/admin")).await;
        check_page("not-signed-in").await;
        let link = scene.link("acme", "admin", 600).await;
        browser.open(&format!("{base}{link}")).await;
        check_page("enter").await;
        browser.follow("button").await;
        check_page("overview-empty").await;

        browser.follow("main a.button").await;
        check_page("tokens-empty").await;
        browser.type_into("#name", "   ").await;
        browser.follow("main form button").await;
        assert!(browser.page.title().await.unwrap().starts_with("Error: "));
        check_page("tokens-error").await;
        browser.type_into("#name", "<script>document.title = 'run'</script>").await;
        browser.follow("main form button").await;
        let value = browser.text("#token-value").await;
        assert!(value.starts_with("fg_") && value.len() == 49, "{value}");
        check_page("token-value").await;

        // The browser offers to send the form again, which shows no value.
        browser.page.refresh().await.unwrap();
        assert_eq!(browser.text("h1").await, "This form was sent before");
        check_page("token-again").await;
        for path in ["", "/tokens", "/tokens/1", "/tokens/1/revoke", "/webhooks", "/groups", "/requests", "/export", "/audit", "/sessions"] {
            browser.open(&format!("{base}/admin{path}")).await;
            assert!(!browser.page.source().await.unwrap().contains(&value), "{path}");
            assert_ne!(browser.page.title().await.unwrap(), "run");
            check_page(&format!("page{}", path.replace('/', "-"))).await;
        }
        browser.page.back().await.unwrap();
        browser.page.back().await.unwrap();
        assert!(!browser.page.source().await.unwrap().contains(&value), "the way back shows no value");

        let api = scene.node.client().to(&scene.host("acme")).with(&value);
        assert_eq!(api.get("/api/v1/me").send().await.status, 200);
        browser.open(&format!("{base}/admin")).await;
        check_page("overview-used").await;
        for number in [1, 2] {
            browser.click(&format!("section:nth-of-type({}) summary", number + 2)).await;
        }
        check_page("overview-tables").await;
        let group = json!({ "name": "Sales", "members": [{ "email": "ana@acme.example" }] });
        assert_eq!(api.put("/api/v1/group").json(&group).send().await.status, 201);
        browser.open(&format!("{base}/admin/groups")).await;
        check_page("groups").await;
        browser.follow("tbody a").await;
        check_page("group-sync").await;
        browser.follow("main form button").await;
        assert_eq!(browser.text("tbody .note").await, "undoes sync 1");

        let hook = json!({ "target_url": "https://hooks.example.com/x", "event": "submission.created" });
        assert_eq!(api.post("/api/v1/subscribe").json(&hook).send().await.status, 201);
        browser.open(&format!("{base}/admin/webhooks")).await;
        check_page("webhooks").await;
        browser.follow("tbody a").await;
        check_page("webhook").await;

        browser.open(&format!("{base}/admin/tokens/1/revoke")).await;
        browser.follow("main form button").await;
        assert!(browser.text(".facts").await.contains("revoked since"));
        check_page("token-revoked").await;
        assert_eq!(api.get("/api/v1/me").send().await.status, 401);

        // What the policy forbids is not run, and the area is in no frame.
        let foreign = "const done = arguments[0]; const image = new Image(); image.onerror = () => done('refused'); \
                       image.onload = () => done('loaded'); image.src = 'data:image/gif;base64,R0lGODlhAQABAAAAACw='";
        assert_eq!(browser.page.execute_async(foreign, Vec::new()).await.unwrap(), json!("refused"));
        browser.follow("header form button").await;
        assert_eq!(browser.text("h1").await, "You are signed out");
        check_page("signed-out").await;
        browser.page.back().await.unwrap();
        assert_eq!(browser.text("h1").await, "You are not signed in");
    }
}

#[tokio::test]
async fn the_check_of_pages_reports_what_is_wrong() {
    let page = "<!doctype html><title>x</title><main><h1>x</h1><img src='x'><p style='color:%23aaa'>grey on white</p>";
    let browser = Browser::start().await;
    browser.open(&format!("data:text/html,{page}")).await;
    let found = browser.violations().await;
    for rule in ["html-has-lang", "image-alt", "color-contrast"] {
        let rules: Vec<_> = found.as_array().expect("a list").iter().map(|violation| &violation[0]).collect();
        assert!(rules.contains(&&json!(rule)), "{rule} is missing in {found}");
    }
}

#[tokio::test]
async fn a_page_of_another_site_can_not_show_the_area_in_a_frame() {
    let scene = Scene::start(Engine::Sqlite);
    let link = scene.link("acme", "admin", 600).await;
    let area = format!("https://{}{link}", scene.host("acme"));
    let foreign = Receiver::deciding(move |_, request| {
        let frames = format!("<!doctype html><iframe src='{area}'></iframe><iframe src='/inner'></iframe>");
        let body = if request.line.contains("/inner") { "<p>Sign in to something else" } else { &frames };
        Act::answer(200, &["Content-Type: text/html"], body)
    });
    let foreign = foreign.await;
    let browser = Browser::start().await;
    let url = format!("https://localhost:{}/", foreign.address.port());
    let mut shown = Vec::new();
    for frame in [0, 1] {
        browser.open(&url).await;
        browser.page.enter_frame(frame).await.unwrap();
        shown.push(browser.page.source().await.unwrap());
    }
    assert!(shown[1].contains("Sign in to something else"), "a frame that is allowed is shown: {}", shown[1]);
    assert!(!shown[0].contains("Sign in to Acme") && !shown[0].contains("<form"), "{}", shown[0]);
    assert!(scene.redeem("acme", &link).await.is_some(), "the link is valid");
}

#[tokio::test]
async fn everything_is_reached_by_keyboard() {
    let scene = Scene::start(Engine::Sqlite);
    let base = format!("https://{}", scene.host("acme"));
    let browser = Browser::start().await;
    browser.open(&format!("{base}{}", scene.link("acme", "admin", 600).await)).await;
    browser.type_into("body", TAB).await;
    assert_eq!(browser.script("return document.activeElement.tagName").await, json!("BUTTON"));
    browser.leave_by("Enter", press(&browser, ENTER)).await;
    for path in ["", "/tokens", "/webhooks", "/groups", "/requests", "/export", "/audit", "/sessions"] {
        browser.open(&format!("{base}/admin{path}")).await;
        let all = browser
            .script(
                "return [...document.querySelectorAll('a, button, select, summary, textarea, input:not([type=hidden])')]\
                 .filter(element => element.checkVisibility()).length",
            )
            .await;
        let mut reached = 0;
        let mark = "const found = document.activeElement; const is_new = found !== document.body && !found.mark; \
                    found.mark = true; return [is_new, getComputedStyle(found).outlineStyle]";
        for step in 0..200 {
            press(&browser, TAB).await;
            let found = browser.script(mark).await;
            if step == 0 {
                assert_eq!(browser.text(":focus").await, "Skip to the content");
            }
            assert!(found[0] == json!(false) || found[1] != json!("none"), "the focus is visible on {path}");
            reached += u64::from(found[0] == json!(true));
            if Some(reached) >= all.as_u64() {
                break;
            }
        }
        assert_eq!(Some(reached), all.as_u64(), "all of {path}");
    }
}

#[tokio::test]
async fn cells_have_their_label_on_a_phone_and_one_long_name_narrows_no_other_column() {
    let scene = Scene::start(Engine::Sqlite);
    let own = scene.sign_in("acme", "admin").await;
    own.generate(&"a".repeat(255)).await;
    own.generate("Zapier").await;
    let base = format!("https://{}", scene.host("acme"));
    let browser = Browser::start().await;
    browser.open(&format!("{base}{}", scene.link("acme", "admin", 600).await)).await;
    browser.follow("button").await;
    browser.open(&format!("{base}/admin/tokens")).await;
    let lines = "return [...document.querySelectorAll('thead th:not(:last-child), .actions a, td code')].map(cell => { \
                 const words = document.createRange(); words.selectNodeContents(cell.firstChild); \
                 return [cell.firstChild.textContent, new Set([...words.getClientRects()].map(line => line.top)).size] })";
    let lines = browser.script(lines).await;
    let lines = lines.as_array().expect("a list");
    assert_eq!(lines.len(), 6 + 2 + 2, "{lines:?}");
    for line in lines {
        let words = line[0].as_str().expect("a text").split_whitespace().count();
        assert!(line[1].as_u64().is_some_and(|lines| lines <= words as u64), "a word is broken: {line}");
    }

    browser.look(Look::Narrow).await;
    let columns = "return [...document.querySelectorAll('td[data-label]')].map(cell => { \
                   const words = document.createRange(); words.selectNodeContents(cell); \
                   return words.getBoundingClientRect().left - cell.getBoundingClientRect().left })";
    let columns = browser.script(columns).await;
    let columns = columns.as_array().expect("a list");
    assert_eq!(columns.len(), 2 * 5, "{columns:?}");
    assert!(columns.iter().all(|left| left.as_f64() >= Some(90.0)), "a value is next to its label: {columns:?}");
}

async fn press(browser: &Browser, key: &str) {
    let focused = browser.page.active_element().await.unwrap();
    focused.send_keys(key).await.unwrap();
}
