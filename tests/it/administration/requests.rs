//! The log of requests on its pages: filters, pages, one request, in both languages.

use http::Method;

use super::scene::{Scene, between, text};
use crate::support::fixture::on_both_databases;

const PATH: &str = "/admin/requests";

/// How much of a token is shown, in bytes.
const PREFIX: usize = 8;

on_both_databases! {
    async fn requests_are_listed_filtered_paged_and_shown_one_by_one(engine: Engine) {
        let scene = Scene::of(Scene::site(engine).requests_per_minute(100_000));
        let own = scene.sign_in("acme", "viewer").await;
        assert!(text(&own.get(PATH).await).contains("There were no requests yet"));
        let tokens = ["Payroll", "<b>Loader"].map(|name| scene.site.token("acme", name));
        let [payroll, loader] = tokens.each_ref().map(|token| own.caller.with(token));
        assert_eq!(payroll.get("/api/v1/me").header("user-agent", "<i>agent").header("x-request-id", "the-one").send().await.status, 200);
        assert_eq!(loader.get("/api/v1/form/7").send().await.status, 404);
        assert_eq!(own.caller.get("/api/v1/nothing").send().await.status, 401);
        assert_eq!(own.caller.get("/api/v1/nothing").send().await.status, 401);
        let page = async |query: &str| {
            let answer = own.get(&format!("{PATH}{query}")).await;
            (answer.status.as_u16(), text(&answer))
        };
        let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        for (query, expected) in [
            ("", (200, 3)),
            ("?token=1", (200, 1)),
            ("?token=2&status=4xx", (200, 1)),
            ("?token=2&status=2xx", (200, 0)),
            ("?status=401", (200, 1)),
            (&format!("?since={today}"), (200, 3)),
            ("?token=&status=&since=", (200, 3)),
            ("?token=x", (422, 0)),
            ("?status=abc", (422, 0)),
            ("?since=yesterday", (422, 0)),
            ("?after=x", (200, 3)),
            ("?token=1&token=2", (422, 0)),
        ] {
            let (status, page) = page(query).await;
            assert_eq!((status, page.matches("data-request=").count()), expected, "{query}: {page}");
        }
        let (_, list) = page("").await;
        assert!(list.contains("401 × 2") && list.contains("No token was sent."), "{list}");
        assert!(list.contains("&lt;b&gt;Loader") || list.contains("&#60;b&#62;Loader"), "{list}");
        assert!(!list.contains("<b>Loader") && list.contains("/form/{id}"), "{list}");
        assert!(list.contains(&format!(">Payroll ({}…)</option>", &tokens[0][..PREFIX])), "{list}");
        assert!(!list.contains("switched off"), "{list}");
        let shown = between(&list, "<time datetime=", "</time>").split_once('>').expect("its end").1;
        assert_eq!(shown.split(", ").nth(1).map(|time| time.matches(':').count()), Some(2), "{shown}");

        let row = list.split("data-request=\"the-one\"").nth(1).expect("the row");
        let link = between(row, "<a href=\"", "\"");
        for (language, words) in [("en", ["Arrived", "Program", "Requests"]), ("de", ["Eingang", "Programm", "Anfragen"])] {
            let shown = own.call(Method::GET, link).header("accept-language", language).send().await;
            assert_eq!(shown.status, 200, "{shown:?}");
            let shown = text(&shown);
            for word in words.iter().chain(&["the-one", "/me", "127.0.0.0/24", "Payroll"]) {
                assert!(shown.contains(word), "{word} in {language}: {shown}");
            }
            assert!(!shown.contains("<i>agent") && shown.matches("<h1").count() == 1, "{shown}");
            let list = own.call(Method::GET, PATH).header("accept-language", language).send().await;
            assert!(text(&list).contains(words[2]), "{list:?}");
        }
        for key in ["x", "1-1", "99999999999999999999-1", "-1-1", "9223372036854775807-1"] {
            assert_eq!(own.get(&format!("{PATH}/{key}")).await.status, 404, "{key}");
        }
        // Of another account there is nothing, not even by its link.
        let other = scene.sign_in("globex", "admin").await;
        assert_eq!(other.get(link).await.status, 404);
        assert!(!text(&other.get(PATH).await).contains("data-request="));
        assert!(text(&own.get("/admin/tokens/1").await).contains(&format!("{PATH}?token=1")));

        for at in 0..110 {
            assert_eq!(payroll.get("/api/v1/me").header("x-request-id", &format!("many-{at}")).send().await.status, 200);
        }
        let (_, first) = page("?token=1").await;
        assert_eq!(first.matches("data-request=\"many-").count(), 100);
        let next = between(&first, &format!("href=\"{PATH}?token=1&#38;after="), "\"");
        let (_, second) = page(&format!("?token=1&after={next}")).await;
        assert_eq!(second.matches("data-request=\"many-").count(), 10, "{second}");
        assert!(!second.contains("&#38;after="), "{second}");
    }

    async fn a_page_of_a_log_that_is_switched_off_says_so(engine: Engine) {
        let scene = Scene::of(Scene::site(engine).gateway("request_log", false));
        let own = scene.sign_in("acme", "viewer").await;
        assert!(text(&own.get(PATH).await).contains("This log is switched off"));
    }
}
