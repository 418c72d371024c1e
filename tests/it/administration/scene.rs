//! A site whose administration area is on, and administrators who use it by hand: a cookie, forms, and what a page says.

use http::Method;
use rand::RngExt;
use sha2::{Digest, Sha256};

use crate::support::answer::Answer;
use crate::support::client::{Call, Client};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;

/// The tenants of a scene.
pub(super) const SLUGS: [&str; 2] = ["acme", "globex"];

/// A site with two accounts and the area, and its first node.
pub(super) struct Scene {
    pub(super) site: Site,
    pub(super) node: Node,
}

impl Scene {
    pub(super) fn start(engine: Engine) -> Self {
        Self::of(Self::site(engine))
    }

    /// The site, not yet written.
    pub(super) fn site(engine: Engine) -> Site {
        let site = Site::new().tenant_with("acme", engine, |acme| acme.domain("forms.acme.test"));
        site.tenant("globex", engine).gateway("administration", toml::Table::new())
    }

    pub(super) fn of(site: Site) -> Self {
        let site = site.write();
        let node = site.start();
        Self { site, node }
    }

    pub(super) fn host(&self, slug: &str) -> String {
        format!("{}:{}", self.site.host(slug), self.node.address.port())
    }

    pub(super) async fn database(&self, slug: &str) -> Database {
        Database::connect(self.site.database_url(slug)).await
    }

    /// Stores a link that is valid for some seconds, and returns its path.
    pub(super) async fn link(&self, slug: &str, role: &str, seconds: i64) -> String {
        let secret = random();
        let digest: String = Sha256::digest(&secret).iter().map(|byte| format!("{byte:02x}")).collect();
        let database = self.database(slug).await;
        let (digest, now, end) = match &database {
            Database::Postgres(_) => {
                (format!("'\\x{digest}'"), "now()".to_owned(), format!("now() + {seconds} * interval '1 second'"))
            }
            Database::Sqlite(_) => {
                let now = jiff::Timestamp::now().as_microsecond();
                (format!("X'{digest}'"), now.to_string(), (now + seconds * 1_000_000).to_string())
            }
        };
        let row = format!("{digest}, '{role}@{slug}.example', 'Ana <b>', '{role}', {now}, {end}");
        let columns = "digest, email, name, role, created_at, expires_at";
        database.execute(&format!("INSERT INTO admin_links ({columns}) VALUES ({row})")).await;
        database.close().await;
        format!("/admin/enter/{secret}")
    }

    /// Signs an administrator in at the first node.
    pub(super) async fn sign_in(&self, slug: &str, role: &str) -> Administrator {
        let link = self.link(slug, role, 60).await;
        self.redeem(slug, &link).await.expect("the link is valid")
    }

    /// Presses the button of a link.
    pub(super) async fn redeem(&self, slug: &str, link: &str) -> Option<Administrator> {
        let host = self.host(slug);
        let answer = self.button(slug, link).send().await;
        if answer.status == 404 {
            return None;
        }
        assert_eq!((answer.status.as_u16(), answer.header("location")), (303, Some("/admin")), "{answer:?}");
        let set = answer.header("set-cookie").expect("a session has a cookie");
        assert!(set.ends_with("; Path=/; Secure; HttpOnly; SameSite=Lax"), "{set}");
        let cookie = set.split(';').next().expect("a cookie").to_owned();
        let caller = self.node.client().to(&host);
        let overview = caller.get("/admin").header("cookie", &cookie).send().await;
        Some(Administrator { caller, host, cookie, form_token: hidden(&overview, "form_token") })
    }

    /// The request of the button of a link.
    pub(super) fn button(&self, slug: &str, link: &str) -> Call {
        let host = self.host(slug);
        form_of(self.node.client().to(&host).method(Method::POST, link), &host, &[])
    }
}

/// A signed-in administrator.
#[derive(Clone, Debug)]
pub(super) struct Administrator {
    pub(super) caller: Client,
    /// With the port.
    pub(super) host: String,
    pub(super) cookie: String,
    pub(super) form_token: String,
}

impl Administrator {
    /// The same session at another node, which has another port.
    pub(super) fn at(&self, node: &Node) -> Self {
        let name = self.host.split(':').next().expect("a host");
        let host = format!("{name}:{}", node.address.port());
        Self { caller: node.client().to(&host), host, ..self.clone() }
    }

    pub(super) fn call(&self, method: Method, path: &str) -> Call {
        self.caller.method(method, path).header("cookie", &self.cookie)
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path).send().await
    }

    /// Sends a form of a page of the area.
    pub(super) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let fields = [&[("form_token", &*self.form_token)], fields].concat();
        form_of(self.call(Method::POST, path), &self.host, &fields).send().await
    }

    /// Generates a token on the page, and returns its number and value.
    pub(super) async fn generate(&self, name: &str) -> (i64, String) {
        let answer = self.post("/admin/tokens", &[("name", name), ("form_key", &random())]).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let text = text(&answer);
        let id = between(&text, "<p class=\"value\" data-token=\"", "\"").parse().expect("a number");
        (id, between(&text, "<code id=\"token-value\">", "</code>").to_owned())
    }
}

/// A form as browsers send it from a page of a host.
pub(super) fn form_of(call: Call, host: &str, fields: &[(&str, &str)]) -> Call {
    let call = call.header("origin", &format!("https://{host}")).header("sec-fetch-site", "same-origin");
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    call.header("content-type", "application/x-www-form-urlencoded").body(body)
}

/// 128 random bits, as a form key or a secret.
pub(super) fn random() -> String {
    format!("{:032x}", rand::rng().random::<u128>())
}

/// What an answer says, without the places where a word may break.
pub(super) fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.clone()).expect("a page is UTF-8").replace("<wbr>", "")
}

/// The value of a hidden field.
pub(super) fn hidden(answer: &Answer, name: &str) -> String {
    between(&text(answer), &format!("name=\"{name}\" value=\""), "\"").to_owned()
}

pub(super) fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{before} is missing in {text}"));
    rest.split_once(after).unwrap_or_else(|| panic!("{after} is missing in {text}")).0
}
