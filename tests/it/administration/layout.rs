//! How pages look in a browser, from 360 to 1,280 pixels wide, in both languages: what breaks where, what is in which row,
//! and what is hidden. Pictures of each page are kept.

use serde_json::json;

use super::domains::{Certificates, Domains, LIST};
use super::scene::random;
use crate::support::browser::Browser;
use crate::support::fixture::Engine;

const WIDTHS: [u32; 4] = [360, 800, 960, 1280];

/// The longest word that fits a line everywhere. Longer ones, such as proofs and tokens, may break.
const LONGEST: usize = 20;

/// Words that are broken in the middle: two letters next to each other that are in different lines.
const BROKEN: &str = r"
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), broken = [];
    while (texts.nextNode()) {
        const text = texts.currentNode, range = document.createRange();
        if (!text.parentElement.checkVisibility() || text.parentElement.closest('.hidden, .skip')) continue;
        for (const word of text.data.matchAll(/[\p{L}\p{N}_]+/gu)) {
            if (word[0].length > LONGEST) continue;
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            const lines = new Set([...range.getClientRects()].map(line => Math.round(line.top)));
            if (lines.size > 1) broken.push(text.data.trim());
        }
    }
    return broken";

/// Labels next to the values of a narrow table that are wider than their place.
const WIDE_LABELS: &str = r"
    const context = document.createElement('canvas').getContext('2d'), wide = [];
    for (const cell of document.querySelectorAll('td[data-label]')) {
        const style = getComputedStyle(cell, '::before');
        if (style.content === 'none' || getComputedStyle(cell).display !== 'grid') continue;
        context.font = style.font;
        const place = parseFloat(getComputedStyle(cell).gridTemplateColumns);
        wide.push(...cell.dataset.label.split(' ').filter(word => context.measureText(word).width > place));
    }
    return wide";

/// Notes that are less than four pixels above or below a button.
const TOUCHED: &str = r"
    const boxes = css => [...document.querySelectorAll(css)].filter(it => it.checkVisibility())
        .map(it => [it.getBoundingClientRect(), it.textContent.trim()]);
    const near = [];
    for (const [button, label] of boxes('button, .button')) {
        for (const [note, words] of boxes('.note')) {
            const overlaps = note.left < button.right && button.left < note.right;
            const gap = Math.max(note.top - button.bottom, button.top - note.bottom);
            if (overlaps && gap < 4) near.push([label, words, gap]);
        }
    }
    return near";

/// How far the tab of the page is from the nearer edge, if there are tabs.
const TAB: &str = r"
    const tab = document.querySelector('header nav [aria-current]')?.getBoundingClientRect();
    return tab ? Math.round(Math.min(tab.left, innerWidth - tab.right)) : 16";

/// A browser that is signed in to an account with something on each page.
struct Layout {
    browser: Browser,
    _domains: Domains,
    base: String,
    name: &'static str,
}

impl Layout {
    async fn start(languages: &str, name: &'static str) -> Self {
        let domains = Domains::start(Engine::Sqlite, Certificates::OfDownAuthority).await;
        let scene = &domains.scene;
        let own = domains.sign_in("acme", "admin").await;
        let (_, value) = own.generate("Personalverwaltung").await;
        let fields = [("name", "Zapier"), ("expires", "90d"), ("form_key", &*random())];
        assert_eq!(own.post("/admin/tokens", &fields).await.status, 201);
        let fields = [("overlap", "24h"), ("form_key", &*random())];
        assert_eq!(own.post("/admin/tokens/2", &fields).await.status, 201);
        assert_eq!(own.post(LIST, &[("host", "anmeldung.kundenportal.shop.com")]).await.status, 303);
        let api = own.caller.with(&value);
        let group = json!({ "name": "Vertrieb", "members": [{ "email": "ana.musterfrau@kunden.acme.example" }] });
        assert_eq!(api.put("/api/v1/group").json(&group).send().await.status, 201);
        let database = domains.database().await;
        let now = jiff::Timestamp::now().as_microsecond();
        let hour = (now - 30 * 3_600_000_000) / 3_600_000_000 * 3_600_000_000;
        for statement in [
            "INSERT INTO forms (id, name) VALUES (1, 'Urlaubsantrag')".to_owned(),
            format!(
                "INSERT INTO submissions (id, form_id, status, created_at, updated_at, draft) VALUES (1, 1, 'pending', {now}, {now}, 0)"
            ),
            format!("INSERT INTO token_hours (hour, counts) VALUES ({hour}, '[[1, 12345, 678], [2, 2345, 0]]')"),
        ] {
            database.execute(&statement).await;
        }
        let hook = json!({ "target_url": "https://hooks.automatisierung.example.com/einsendungen/neu", "event": "submission.updated", "form": "for_1" });
        assert_eq!(api.post("/api/v1/subscribe").json(&hook).send().await.status, 201);
        let attempt = format!("1, 'evt_1', 'submission.updated', 1, 1, {now}, 1234, 0, 503, 'busy'");
        let columns =
            "subscription_id, event_id, event, submission_id, attempt, at, duration_ms, accepted, status, response";
        database.execute(&format!("INSERT INTO webhook_attempts ({columns}) VALUES ({attempt})")).await;
        database.close().await;
        let base = format!("https://{}", scene.host("acme"));
        let browser = Browser::start_in(languages).await;
        browser.open(&format!("{base}{}", domains.link("acme", "admin").await)).await;
        let layout = Self { browser, _domains: domains, base, name };
        layout.check("enter").await;
        layout.browser.follow("button").await;
        layout
    }

    async fn open(&self, path: &str) {
        self.browser.open(&format!("{}/admin{path}", self.base)).await;
    }

    /// Asserts that the page that is open looks right in every width.
    async fn check(&self, page: &str) {
        for width in WIDTHS {
            self.browser.resize(width, 900).await;
            let page = format!("{page}, {width} wide, in {}", self.name);
            let content = self.browser.script("return document.documentElement.scrollWidth").await;
            assert_eq!(content, width, "{page}");
            let broken = self.browser.script(&BROKEN.replace("LONGEST", &LONGEST.to_string())).await;
            assert_eq!(broken, json!([]), "broken words on {page}");
            assert_eq!(self.browser.script(WIDE_LABELS).await, json!([]), "broken labels on {page}");
            let edge = self.browser.script(TAB).await.as_i64();
            assert!(edge.is_some_and(|edge| edge >= 16), "the tab is {edge:?} from the edge on {page}");
            assert_eq!(self.browser.script(TOUCHED).await, json!([]), "notes next to buttons on {page}");
        }
        for width in [360, 1280] {
            self.browser.keep_picture(&format!("{}-{page}", self.name), width).await;
        }
    }

    async fn check_all(&self) {
        for (path, page) in [
            ("", "overview"),
            ("/tokens", "tokens"),
            ("/tokens/2", "token"),
            ("/tokens/3", "token-that-replaces"),
            ("/tokens/2/revoke", "revoke"),
            ("/webhooks", "webhooks"),
            ("/webhooks/1", "webhook"),
            ("/groups", "groups"),
            ("/groups/1", "group-sync"),
            ("/groups/all", "all-groups"),
            ("/groups?group=1", "groups-of-one"),
            ("/domains", "domains"),
            ("/domains/anmeldung.kundenportal.shop.com", "domain"),
            ("/requests", "requests"),
            ("/audit", "audit"),
            ("/sessions", "sessions"),
        ] {
            self.open(path).await;
            self.check(page).await;
            self.check_tabs(page).await;
        }
        self.open("/requests").await;
        self.browser.follow("tbody a").await;
        self.check("request").await;
        self.open("/tokens").await;
        self.browser.type_into("#name", "Lohnabrechnung").await;
        self.browser.follow("main form button").await;
        self.check("token-value").await;
        self.open("/webhooks/1").await;
        self.browser.follow("button[value=pause]").await;
        self.check("webhook-paused").await;
        let color = "const other = document.createElement('p'); other.className = 'warning'; \
                     document.querySelector('main').append(other); \
                     return [document.querySelector('.done'), other].map(it => getComputedStyle(it).borderInlineStartColor)";
        let colors = self.browser.script(color).await;
        assert_ne!(colors[0], colors[1], "success is not shown in the colour of a warning");
    }

    /// All tabs are in one row on a phone, and the one of this page can be seen.
    async fn check_tabs(&self, page: &str) {
        self.browser.resize(360, 900).await;
        self.browser.page.refresh().await.unwrap();
        let tabs = "const tabs = [...document.querySelectorAll('header nav a')].map(tab => tab.getBoundingClientRect()); \
                    const here = document.querySelector('[aria-current=page]').getBoundingClientRect(); \
                    return [new Set(tabs.map(tab => tab.top)).size, here.left >= 0 && here.right <= innerWidth]";
        assert_eq!(self.browser.script(tabs).await, json!([1, true]), "{page} in {}", self.name);
    }
}

#[tokio::test]
async fn pages_look_right_in_every_width_in_english() {
    Layout::start("en-US,en", "en").await.check_all().await;
}

#[tokio::test]
async fn pages_look_right_in_every_width_in_german() {
    Layout::start("de-DE,de", "de").await.check_all().await;
}

#[tokio::test]
async fn the_day_of_an_expiry_is_asked_for_only_if_one_is_chosen() {
    let layout = Layout::start("en-US,en", "day").await;
    for path in ["/tokens", "/tokens/1", "/tokens/3"] {
        layout.open(path).await;
        for (choice, is_asked) in [(None, false), (Some("30d"), false), (Some("on"), true), (Some("never"), false)] {
            if let Some(choice) = choice {
                layout.browser.click(&format!("#expires option[value='{choice}']")).await;
            }
            let is_shown =
                layout.browser.script("return document.querySelector('#expires_on').checkVisibility()").await;
            assert_eq!(is_shown, json!(is_asked), "{path} {choice:?}");
        }
    }
    let first = "return [...document.querySelectorAll('#expires option')].map(option => option.textContent)[0]";
    layout.open("/tokens/3").await;
    let default = layout.browser.script(first).await;
    assert!(default.as_str().is_some_and(|text| text.starts_with("As before: ")), "{default}");
}

#[tokio::test]
async fn charts_have_an_axis_whose_numbers_fit_the_bars() {
    let layout = Layout::start("en-US,en", "chart").await;
    layout.open("").await;
    assert_eq!(layout.browser.text("section[aria-labelledby=last-days] .axis").await, "20,000\n10,000\n0");
    assert!(
        layout.browser.text("section[aria-labelledby=last-days] .legend").await.contains("Personalverwaltung 12,3")
    );
    for width in WIDTHS {
        layout.browser.resize(width, 900).await;
        let places = "const chart = document.querySelector('section[aria-labelledby=last-days]'); \
                      const middle = css => [...chart.querySelectorAll(css)].map(it => it.getBoundingClientRect()) \
                          .map(box => (box.top + box.bottom) / 2); \
                      const drawing = chart.querySelector('svg').getBoundingClientRect(); \
                      const bar = chart.querySelector('g').getBoundingClientRect(); \
                      return [...middle('.axis span'), drawing.top, drawing.height, bar.height]";
        let places = layout.browser.script(places).await;
        let places: Vec<f64> = places.as_array().unwrap().iter().map(|place| place.as_f64().unwrap()).collect();
        let [top, half, zero, drawing, height, bar] = places[..] else { panic!("{places:?}") };
        for (tick, expected) in [(top, drawing), (half, drawing + height / 2.0), (zero, drawing + height)] {
            assert!((tick - expected).abs() < 3.0, "{width}: {places:?}");
        }
        let expected = height * (12_345.0 + 678.0 + 2_345.0) / 20_000.0;
        assert!((bar - expected).abs() < 3.0, "{width}: {places:?}");
    }
}
