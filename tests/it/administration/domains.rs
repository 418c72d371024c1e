//! The domains of an account on their pages, with real DNS servers: what is shown, who may change what, and what the
//! administrators of other accounts learn.

use std::time::{Duration, Instant};

use http::Method;

use super::languages::{check_german, english_sentences};
use super::scene::{Administrator, Scene, between, form_of, hidden, text};
use crate::support::answer::Answer;
use crate::support::browser::Browser;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::zones::{Mood, Zones};

/// How long an order may take to fail, on a machine that others load heavily.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) const LIST: &str = "/admin/domains";
/// A host of the table of `acme`.
const LISTED: &str = "forms.listed.com";
const SHOP: &str = "/admin/domains/forms.shop.com";

/// Whether certificates are obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certificates {
    /// Others do that.
    No,
    /// From an authority that can't be connected to.
    OfDownAuthority,
}

/// A node whose tenants `acme` and `globex` are in the registry, and `initech` in a file.
pub(super) struct Domains {
    pub(super) scene: Scene,
    pub(super) zones: Zones,
    registry: String,
    /// The URL of the database of `acme`.
    account: String,
}

impl Domains {
    pub(super) async fn start(engine: Engine, certificates: Certificates) -> Self {
        let zones = Zones::start().await;
        zones.serve("com", &[2], "");
        zones.serve("net", &[2], "");
        zones.serve("forms.net", &[2], "@ A 192.0.2.10\nacme A 192.0.2.10\nglobex A 192.0.2.10");
        zones.serve("shop.com", &[4], "");
        let mut domains = toml::Table::new();
        domains.insert("target".into(), "forms.net".into());
        domains.insert("resolvers".into(), vec![zones.resolver().to_string()].into());
        let site = Site::new().tenant_with("initech", engine, |initech| initech.domain("forms.initech.test"));
        let registry = engine.empty_database(site.folder(), "registry");
        let site = site.gateway("administration", toml::Table::new()).gateway("domains", domains);
        let mut site = site.gateway("registry", registry.clone());
        if certificates == Certificates::OfDownAuthority {
            site = site.gateway("acme", down_authority());
        }
        let scene = Scene::of(site);
        let databases = ["acme", "globex"].map(|slug| engine.database(scene.site.folder(), slug));
        for (slug, database) in ["acme", "globex"].into_iter().zip(&databases) {
            let address = scene.site.host(slug);
            let mut add = vec!["tenant", "add", slug, "--address", &address, "--database", database];
            add.extend(["--migrate", "--wait", "60"]);
            if certificates == Certificates::OfDownAuthority && slug == "acme" {
                add.extend(["--domain", LISTED]);
            }
            let added = scene.site.run_in_thread(&add).await;
            assert_eq!(added.code, 0, "{}", added.stderr);
        }
        let [account, _] = databases;
        Self { scene, zones, registry, account }
    }

    /// The database of `acme`.
    pub(super) async fn database(&self) -> Database {
        Database::connect(&self.account).await
    }

    /// Lets a tenant have many domains that were added.
    async fn add_many(&self, slug: &str, count: usize) {
        let registry = Database::connect(&self.registry).await;
        let (no, yes, now, later) = match &registry {
            Database::Postgres(_) => ("FALSE", "TRUE", "now()".to_owned(), "now() + interval '1 day'".to_owned()),
            Database::Sqlite(_) => {
                let now = jiff::Timestamp::now().as_microsecond();
                ("0", "1", now.to_string(), (now + 86_400_000_000).to_string())
            }
        };
        let row =
            |n| format!("('d{n:04}.many.com', '{slug}', {yes}, 'p', 'dns', '{{}}', {now}, {now}, {later}, 0, {no}, 0)");
        let rows: Vec<_> = (0..count).map(row).collect();
        let columns =
            "host, slug, is_added, proof, state, reason, since, created_at, next_at, failures, is_late, fence";
        registry.execute(&format!("INSERT INTO registry_domains ({columns}) VALUES {}", rows.join(", "))).await;
        registry.close().await;
    }

    /// The path of a link that signs in.
    pub(super) async fn link(&self, slug: &str, role: &str) -> String {
        let email = format!("{role}@people.example");
        let link = ["admin", "link", "--tenant", slug, "--email", &email, "--role", role];
        let link = self.scene.site.run_in_thread(&link).await;
        assert_eq!(link.code, 0, "{}", link.stderr);
        format!("/admin/enter/{}", link.stdout.trim().split_once("/admin/enter/").expect("a link").1)
    }

    pub(super) async fn sign_in(&self, slug: &str, role: &str) -> Administrator {
        let link = self.link(slug, role).await;
        self.scene.redeem(slug, &link).await.expect("the link is valid")
    }
}

fn down_authority() -> toml::Table {
    let text = r#"
        contact = ["it@example.net"]
        accept_terms = true
        challenges = ["tls-alpn-01"]
        seal_keys = ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
        [[ca]]
        name = "down"
        directory = "https://127.0.0.1:1/directory"
    "#;
    text.parse().expect("TOML")
}

async fn page(administrator: &Administrator, path: &str) -> String {
    let answer = administrator.get(path).await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    text(&answer)
}

/// Sends a form that is answered with a redirect, and opens the page there.
async fn follow(administrator: &Administrator, path: &str, fields: &[(&str, &str)]) -> String {
    let answer = administrator.post(path, fields).await;
    assert_eq!(answer.status, 303, "{path} {fields:?}: {answer:?}");
    page(administrator, answer.header("location").expect("a redirect")).await
}

/// The state on the page of a domain.
fn state(page: &str) -> &str {
    between(page, "<span class=\"state ", "\"")
}

fn assert_refused(answer: &Answer, status: u16, words: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    let text = text(answer);
    assert!(text.contains(words) && text.contains("aria-invalid"), "{text}");
}

on_both_databases! {
    async fn a_domain_is_added_checked_until_its_records_are_right_and_removed(engine: Engine) {
        let domains = Domains::start(engine, Certificates::No).await;
        let zones = &domains.zones;
        let (own, viewer) = (domains.sign_in("acme", "admin").await, domains.sign_in("acme", "viewer").await);
        let list = page(&own, LIST).await;
        let served = between(&list, "<tr data-host=\"acme.example.test\">", "</tr>");
        assert!(served.contains("from the operator") && served.contains("state live"), "{served}");
        assert!(!list.contains("Certificates are obtained"), "others do that: {list}");

        let added = follow(&own, LIST, &[("host", " Forms.SHOP.com. ")]).await;
        assert_eq!(state(&added), "dns", "{added}");
        for shown in [
            "The domain is added.",
            "<code>no_records</code>",
            "<code class=\"copy host\">forms</code>",
            "<code class=\"copy host\">forms.shop.com</code>",
            "<code class=\"copy host\">acme.forms.net</code>",
            "<code class=\"copy host\">_formgate.forms.shop.com</code>",
            "<code class=\"copy host\">formgate-",
        ] {
            assert!(added.contains(shown), "{shown} in {added}");
        }
        let again = follow(&own, LIST, &[("host", "forms.shop.com")]).await;
        assert!(again.contains("had this domain already"), "{again}");

        zones.serve("shop.com", &[4], "forms A 192.0.2.10");
        let unproved = follow(&own, SHOP, &[("action", "check")]).await;
        assert!(unproved.contains("<code>proof_missing</code>") && state(&unproved) == "dns", "{unproved}");
        let value = between(&unproved, "<code class=\"copy host\">formgate-", "<").to_owned();
        assert_eq!(unproved.matches("class=\"copy host\">formgate-").count(), 1, "the proof is shown once: {unproved}");
        zones.serve("shop.com", &[4], &format!("forms A 192.0.2.10\n_formgate.forms TXT formgate-{value}"));
        let right = follow(&own, SHOP, &[("action", "check")]).await;
        assert!(right.contains("checked just now") && state(&right) == "verified", "{right}");
        assert!(!right.contains("Records to change") && right.contains("Proof of ownership"), "{right}");
        let row = right.split_once("Proof of ownership</caption>").expect("a table").1;
        assert!(row.contains("<th scope=\"row\">Keep</th>") && !row.contains("<th scope=\"row\">Add</th>"), "{right}");
        assert!(!right.contains("is a proof too"), "{right}");

        zones.set_resolver_mood(Mood::Servfail);
        let unasked = follow(&own, SHOP, &[("action", "check")]).await;
        assert!(unasked.contains("<code>dns_down</code>") && state(&unasked) == "verified", "{unasked}");
        assert!(unasked.contains("Nothing to do. DNS can&#39;t be asked (no resolver works)"), "{unasked}");
        assert!(!unasked.contains(&zones.resolver().to_string()), "{unasked}");
        zones.end_resolver_mood();
        let right = follow(&own, SHOP, &[("action", "check")]).await;
        assert!(!right.contains("dns_down") && state(&right) == "verified", "{right}");

        for path in [LIST, SHOP] {
            let shown = page(&viewer, path).await;
            assert!(shown.contains("forms.shop.com") && !shown.contains("<form class=\"panel\""), "{shown}");
        }
        for (path, fields) in
            [(LIST, ("host", "more.shop.com")), (SHOP, ("action", "check")), (SHOP, ("action", "remove"))]
        {
            assert_eq!(viewer.post(path, &[fields]).await.status, 403, "{path}");
            // Without the form token, and from another site.
            let call = || own.call(Method::POST, path);
            assert_eq!(form_of(call(), &own.host, &[fields]).send().await.status, 403, "{path}");
            let fields = [("form_token", &*own.form_token), fields];
            assert_eq!(form_of(call(), "evil.example", &fields).send().await.status, 403, "{path}");
        }
        let list = page(&own, LIST).await;
        assert!(!list.contains("more.shop.com") && list.contains("added here"), "{list}");

        for (fields, expected) in [(&[("action", "drop")][..], 404), (&[], 404)] {
            assert_eq!(own.post(SHOP, fields).await.status, expected, "{fields:?}");
        }
        let address = format!("{LIST}/acme.example.test");
        assert_eq!(own.post(&address, &[("action", "remove")]).await.status, 404, "it was not added here");
        let removed = follow(&own, SHOP, &[("action", "remove")]).await;
        assert!(removed.contains("The domain is removed.") && !removed.contains("forms.shop.com"), "{removed}");
        assert_eq!(own.get(SHOP).await.status, 404);
        assert_eq!(own.post(SHOP, &[("action", "remove")]).await.status, 404);
        let audit = page(&own, "/admin/audit").await;
        for action in ["domain.added", "domain.removed"] {
            let rows = page(&own, &format!("/admin/audit?action={action}")).await;
            assert_eq!(rows.matches("domain forms.shop.com").count(), 1, "{action} in {audit}");
        }
        // Back within a day: the row begins its life again with the same proof.
        let back = follow(&own, LIST, &[("host", "forms.shop.com")]).await;
        assert!(back.contains(&value) && state(&back) == "verified", "{back}");
        let unicode = follow(&own, LIST, &[("host", "bücher.shop.com")]).await;
        assert!(unicode.contains("<p class=\"lead host\">bücher.shop.com</p>"), "{unicode}");
        let row = page(&own, LIST).await;
        let row = between(&row, "<tr data-host=\"xn--bcher-kva.shop.com\">", "</tr>");
        assert!(row.contains("bücher.shop.com"), "{row}");
    }

    async fn the_overview_lists_the_domains_that_need_attention(engine: Engine) {
        let domains = Domains::start(engine, Certificates::No).await;
        let own = domains.sign_in("acme", "viewer").await;
        let noted = async || {
            let overview = page(&own, "/admin").await;
            let rows = overview.split("<li data-domain=\"").skip(1);
            let rows: Vec<_> = rows.map(|row| (row.split('"').next().unwrap().to_owned(), between(row, "</a>", "</li>").trim().to_owned())).collect();
            let is_known = !overview.contains("can&#39;t be read") && !overview.contains("not served yet");
            assert_eq!(rows.is_empty() && is_known, overview.contains("no domain needs a change"), "{overview}");
            (rows, overview)
        };
        assert_eq!(noted().await.0, []);
        let admin = domains.sign_in("acme", "admin").await;
        follow(&admin, LIST, &[("host", "forms.shop.com")]).await;
        assert_eq!(noted().await.0, [("forms.shop.com".to_owned(), ": no DNS records".to_owned())]);
        domains.zones.serve("shop.com", &[4], "forms CNAME acme.forms.net");
        let right = follow(&admin, SHOP, &[("action", "check")]).await;
        assert_eq!(state(&right), "verified", "{right}");
        assert_eq!(noted().await.0, []);

        domains.add_many("acme", 9).await;
        let (rows, overview) = noted().await;
        assert!(rows.is_empty() && overview.contains("<a href=\"/admin/domains\">9 domains are not served yet</a>"), "{overview}");
        let registry = Database::connect(&domains.registry).await;
        for (state, reason, hosts) in [
            ("gone", r#"{"reason":"claim_expired"}"#, "'d0000.many.com'"),
            ("failing", "{}", "'d0001.many.com'"),
            // Nothing that its owner could do.
            ("queued", r#"{"reason":"ca_down","authority":"main","detail":"","until":"2030-01-01T00:00:00Z"}"#, "'d0008.many.com'"),
        ] {
            registry.execute(&format!("UPDATE registry_domains SET state = '{state}', reason = '{reason}' WHERE host IN ({hosts})")).await;
        }
        let broken = r#"{"reason":"dnssec","host":"x.com","zone":null,"resolver":"9.9.9.9"}"#;
        registry.execute(&format!("UPDATE registry_domains SET reason = '{broken}' WHERE host BETWEEN 'd0002' AND 'd0007.zzz'")).await;
        let (rows, overview) = noted().await;
        let shown: Vec<_> = rows.iter().map(|(host, words)| (&host[..5], &words[2..])).collect();
        let broken = "DNSSEC is broken";
        let expected = [("d0000", "not proved in time"), ("d0001", "failing"), ("d0002", broken), ("d0003", broken), ("d0004", broken)];
        assert_eq!(shown, expected, "{overview}");
        assert!(overview.contains("<a href=\"/admin/domains\">3 more domains</a>"), "{overview}");

        registry.execute("ALTER TABLE registry_domains RENAME TO elsewhere").await;
        let (rows, overview) = noted().await;
        assert!(rows.is_empty() && overview.contains("The state of the domains can&#39;t be read at the moment."), "{overview}");
        registry.execute("ALTER TABLE elsewhere RENAME TO registry_domains").await;
        registry.close().await;
    }

    async fn what_was_done_about_a_domain_and_what_was_not_look_different(engine: Engine) {
        let domains = Domains::start(engine, Certificates::No).await;
        let own = domains.sign_in("acme", "admin").await;
        let done = "<p class=\"done\" role=\"status\">";
        for _ in 0..2 {
            let added = follow(&own, LIST, &[("host", "forms.shop.com")]).await;
            assert!(added.contains(done) && !added.contains("\"warning\""), "{added}");
        }
        let mut refused = None;
        for _ in 0..10 {
            let answer = own.post(SHOP, &[("action", "check")]).await;
            if answer.status == 429 {
                refused = Some(text(&answer));
                break;
            }
            let checked = page(&own, answer.header("location").expect("a redirect")).await;
            assert!(checked.contains(done) && !checked.contains("\"warning\""), "{checked}");
        }
        let refused = refused.expect("only six a minute are checked");
        assert!(refused.contains("<p class=\"warning\" role=\"alert\">") && !refused.contains(done), "{refused}");
        let removed = follow(&own, SHOP, &[("action", "remove")]).await;
        assert!(removed.contains(done) && !removed.contains("\"warning\""), "{removed}");
    }

    async fn an_account_can_add_a_thousand_domains_and_sees_a_hundred_on_a_page(engine: Engine) {
        let domains = Domains::start(engine, Certificates::No).await;
        domains.add_many("acme", 999).await;
        let own = domains.sign_in("acme", "admin").await;
        let (mut path, mut seen) = (LIST.to_owned(), Vec::new());
        loop {
            let shown = page(&own, &path).await;
            let hosts: Vec<_> = shown.split("<tr data-host=\"").skip(1).map(|row| row.split('"').next().unwrap().to_owned()).collect();
            assert!((1..=100).contains(&hosts.len()), "{hosts:?}");
            seen.extend(hosts);
            let Some((_, next)) = shown.split_once("href=\"/admin/domains?after=") else { break };
            path = format!("{LIST}?after={}", next.split('"').next().unwrap());
        }
        let many = (0..999).map(|n| format!("d{n:04}.many.com"));
        assert_eq!(seen, std::iter::once("acme.example.test".to_owned()).chain(many).collect::<Vec<_>>());
        domains.zones.serve("shop.com", &[4], "");
        assert_eq!(state(&follow(&own, LIST, &[("host", "forms.shop.com")]).await), "dns");
        assert_refused(&own.post(LIST, &[("host", "more.shop.com")]).await, 409, "as many domains as can be added");
        let other = domains.sign_in("globex", "admin").await;
        assert_eq!(state(&follow(&other, LIST, &[("host", "more.shop.com")]).await), "dns", "another account may");
    }

    async fn an_account_can_add_twenty_domains_before_it_proves_one(engine: Engine) {
        let domains = Domains::start(engine, Certificates::No).await;
        let own = domains.sign_in("acme", "admin").await;
        // Those of the operator do not count.
        let by_operator = ["domain", "add", "operator.shop.com", "--tenant", "acme", "--wait", "0"];
        assert_eq!(domains.scene.site.run_in_thread(&by_operator).await.code, 0);
        let hosts: Vec<_> = (0..22).map(|number| format!("forms{number}.shop.com")).collect();
        let add = async |host: &str| own.post(LIST, &[("host", host)]).await;
        let added = futures_util::future::join_all(hosts[..21].iter().map(|host| add(host))).await;
        let refused: Vec<_> = added.iter().filter(|answer| answer.status != 303).collect();
        let [refused] = refused[..] else { panic!("{refused:?}") };
        assert_refused(refused, 422, "This account has 20 domains that are not proved.");
        let at = added.iter().position(|answer| answer.status == 422).unwrap();
        let (first, refused) = (&hosts[usize::from(at == 0)], &hosts[at]);
        assert_eq!(add(first).await.status, 303, "it has that one already");
        let label = first.strip_suffix(".shop.com").unwrap();
        domains.zones.serve("shop.com", &[4], &format!("{label} CNAME acme.forms.net"));
        let proved = follow(&own, &format!("{LIST}/{first}"), &[("action", "check")]).await;
        assert_eq!(state(&proved), "verified", "{proved}");
        assert_eq!(add(refused).await.status, 303, "one of them is proved");
        assert_refused(&add(&hosts[21]).await, 422, "This account has 20 domains that are not proved.");
        let removed = follow(&own, &format!("{LIST}/{refused}"), &[("action", "remove")]).await;
        assert!(removed.contains("The domain is removed."), "{removed}");
        assert_eq!(add(&hosts[21]).await.status, 303, "one of them is removed");
    }

    async fn another_account_learns_that_a_domain_is_taken_and_not_by_which_account(engine: Engine) {
        let domains = Domains::start(engine, Certificates::OfDownAuthority).await;
        let zones = &domains.zones;
        let (own, other) = (domains.sign_in("acme", "admin").await, domains.sign_in("globex", "admin").await);
        zones.serve("shop.com", &[4], "forms CNAME acme.forms.net");
        let mut right = follow(&own, LIST, &[("host", "forms.shop.com")]).await;
        let began = Instant::now();
        // The page may be older than the answer to the order.
        while state(&right) != "queued" || !right.contains("<code>ca_down</code>") {
            assert!(began.elapsed() < LIMIT, "{right}");
            // A session may open only so many pages a minute.
            tokio::time::sleep(Duration::from_millis(250)).await;
            right = page(&own, SHOP).await;
        }
        let listed = page(&own, LIST).await;
        let listed = between(&listed, "<tr data-host=\"forms.listed.com\">", "</tr>");
        assert!(listed.contains("none yet") && !listed.contains("added here"), "{listed}");
        let shown = page(&own, &format!("{LIST}/{LISTED}")).await;
        assert!(!shown.contains("value=\"remove\"") && shown.contains("value=\"check\""), "{shown}");
        assert_eq!(own.post(&format!("{LIST}/{LISTED}"), &[("action", "remove")]).await.status, 404);
        assert_eq!(other.get(SHOP).await.status, 404);
        for action in ["check", "remove"] {
            assert_eq!(other.post(SHOP, &[("action", action)]).await.status, 404, "{action}");
        }
        assert!(!page(&other, LIST).await.contains("forms.shop.com"));

        let contested = follow(&other, LIST, &[("host", "forms.shop.com")]).await;
        assert_eq!(state(&contested), "claimed", "{contested}");
        for shown in ["<code>taken</code>", "_formgate.forms.shop.com", "moves after 72 hours"] {
            assert!(contested.contains(shown), "{shown} in {contested}");
        }
        let taken = other.post(LIST, &[("host", LISTED)]).await;
        assert_refused(&taken, 409, "Another account has this domain");
        let taken_by_file = other.post(LIST, &[("host", "forms.initech.test")]).await;
        assert_refused(&taken_by_file, 409, "Another account has this domain");
        for shown in [&contested, &text(&taken), &page(&other, LIST).await] {
            assert!(!shown.to_lowercase().contains("acme"), "{shown}");
        }
        let kept = page(&own, SHOP).await;
        let row = kept.split_once("<th scope=\"row\">Keep</th>").expect("its proof").1;
        assert!(row.contains("<td data-label=\"Type\">CNAME</td>") && !kept.contains("formgate-"), "{kept}");
        assert_eq!(state(&page(&own, SHOP).await), "queued", "nothing changed for its owner");
        let removed = follow(&other, SHOP, &[("action", "remove")]).await;
        assert!(!removed.contains("forms.shop.com"), "{removed}");
        assert_eq!(own.get(SHOP).await.status, 200);
        // What would be served without a proof.
        for host in ["login.example.test", "acme.example.test", "forms.net", "acme.forms.net", "new.forms.net"] {
            assert_refused(&other.post(LIST, &[("host", host)]).await, 409, "belongs to the operator");
        }
        for (host, rule) in [
            ("", "Not a host name: it is empty."),
            ("127.0.0.1", "An IP address is not a host name."),
            ("[::1]", "An IP address is not a host name."),
            ("localhost", "are not in the public DNS."),
            ("*.shop.com", "Not a host name: wildcards are not supported; list each name."),
            ("a b.com", "a label has only letters, digits and hyphens."),
            ("<b>.com", "a label has only letters, digits and hyphens."),
            ("https://shop.com", "expected only a name, without scheme, port or path."),
            ("co.uk", "Not a domain: it is a public suffix: others register domains below it."),
        ] {
            assert_refused(&other.post(LIST, &[("host", host)]).await, 422, rule);
        }
    }
}

#[tokio::test]
async fn the_hosts_of_an_account_in_a_file_can_only_be_read_and_checked() {
    let domains = Domains::start(Engine::Sqlite, Certificates::OfDownAuthority).await;
    let own = domains.sign_in("initech", "admin").await;
    let list = page(&own, LIST).await;
    assert!(list.contains("decides which names these are") && !list.contains("name=\"host\""), "{list}");
    assert!(list.contains("data-host=\"forms.initech.test\""), "{list}");
    assert_refused(&own.post(LIST, &[("host", "forms.shop.com")]).await, 409, "decides which names these are");
    let served = page(&own, "/admin/domains/initech.example.test").await;
    assert!(served.contains("certificate of the operator") && !served.contains("name=\"action\""), "{served}");
    for path in ["/admin/domains/other.example.test", "/admin/domains/Initech.example.test", "/admin/domains/a%20b"] {
        assert_eq!(own.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn without_the_table_there_is_no_page_and_no_entry_of_the_navigation() {
    let scene = Scene::start(Engine::Sqlite);
    let own = scene.sign_in("acme", "admin").await;
    assert!(!page(&own, "/admin").await.contains(LIST));
    for path in [LIST, SHOP] {
        assert_eq!(own.get(path).await.status, 404, "{path}");
        assert_eq!(own.post(path, &[("action", "check"), ("host", "forms.shop.com")]).await.status, 404, "{path}");
    }
}

/// Opens every page of domains in a browser that is signed in.
async fn open_all(browser: &Browser, base: &str, check: impl AsyncFn(&str)) {
    let open = async |path: &str| browser.open(&format!("{base}{path}")).await;
    open(LIST).await;
    check("domains").await;
    browser.type_into("#host", "login.example.test").await;
    browser.follow("main form button").await;
    check("domains-error").await;
    open(LIST).await;
    browser.type_into("#host", "forms.shop.com").await;
    browser.follow("main form button").await;
    check("domain-added").await;
    open(LIST).await;
    check("domains-added").await;
    browser.follow("tr[data-host='forms.shop.com'] a").await;
    browser.follow("button[value=check]").await;
    check("domain-checked").await;
    open("/admin/domains/acme.example.test").await;
    check("domain-of-operator").await;
    open("/admin/domains/unknown.shop.com").await;
    check("domain-unknown").await;
    open(SHOP).await;
    browser.follow("button[value=remove]").await;
    check("domains-removed").await;
}

#[tokio::test]
async fn every_page_of_domains_is_accessible_and_a_value_is_selected_by_a_click() {
    let domains = Domains::start(Engine::Sqlite, Certificates::OfDownAuthority).await;
    let base = format!("https://{}", domains.scene.host("acme"));
    let browser = Browser::start().await;
    browser.open(&format!("{base}{}", domains.link("acme", "admin").await)).await;
    browser.follow("button").await;
    open_all(&browser, &base, async |name| {
        browser.check_page(name).await;
        if name == "domain-checked" {
            browser.click("code.copy").await;
            assert_eq!(browser.script("return getSelection().toString()").await, "forms");
        }
        if name == "domains-error" {
            assert!(browser.page.title().await.unwrap().starts_with("Error: "));
        }
    })
    .await;
    let viewer = domains.sign_in("acme", "viewer").await;
    assert!(!hidden(&viewer.get(LIST).await, "form_token").is_empty(), "a viewer can sign out");
}

#[tokio::test]
async fn every_page_of_domains_is_complete_in_german() {
    let domains = Domains::start(Engine::Sqlite, Certificates::OfDownAuthority).await;
    let base = format!("https://{}", domains.scene.host("acme"));
    let foreign = english_sentences();
    let browser = Browser::start_in("de-DE,de").await;
    browser.open(&format!("{base}{}", domains.link("acme", "admin").await)).await;
    browser.follow("button").await;
    open_all(&browser, &base, async |name| check_german(&browser, name, &foreign).await).await;
    browser.open(&format!("{base}/admin/audit")).await;
    check_german(&browser, "audit-of-domains", &foreign).await;
}
