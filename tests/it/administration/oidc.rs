//! Signing in through an OpenID provider: a real one, and one that does what no real one does.

mod forged;
mod keys;
mod provider;
mod real;

use std::path::Path;

use formgate::administration::MAX_FORM;

use super::scene::{Administrator, Scene, form_of, hidden};
use crate::support::answer::Answer;
use crate::support::client::Call;
use crate::support::process::Node;

/// What the name of the cookie of a sign-in on its way begins with.
const COOKIE: &str = "__Host-formgate-sign-in-";

/// The table of a provider.
fn table(issuer: &str, authority: &Path) -> toml::Table {
    let table = format!(
        "issuer = '{issuer}'\nclient_id = 'formgate'\nclient_secret = 'a secret: of formgate/100%'\n\
         role_claim = 'groups'\nadmin_values = ['forms-admins', 'owners']\nviewer_values = ['forms-viewers']\n\
         ca_file = '{}'",
        authority.display()
    );
    table.parse().expect("TOML")
}

/// The `[gateway.administration]` table with a provider.
fn administration(issuer: &str, authority: &Path) -> toml::Table {
    toml::Table::from_iter([("oidc".to_owned(), toml::Value::from(table(issuer, authority)))])
}

/// A browser that has left for the provider.
struct Leaving {
    /// The address that it was sent to.
    url: url::Url,
    /// The cookie of the sign-in, as a browser sends it.
    cookie: String,
}

impl Leaving {
    fn parameter(&self, name: &str) -> String {
        let found = self.url.query_pairs().find(|(key, _)| key == name);
        found.unwrap_or_else(|| panic!("{name} is missing in {}", self.url)).1.into_owned()
    }
}

/// Calls of one account at one node.
struct Caller {
    client: crate::support::client::Client,
    host: String,
}

impl Caller {
    fn of(scene: &Scene, slug: &str, node: &Node) -> Self {
        let host = format!("{}:{}", scene.site.host(slug), node.address.port());
        Self { client: node.client().to(&host), host }
    }

    /// Follows the link to the provider.
    async fn leave(&self, page: &str) -> Leaving {
        let answer = self.client.get(&format!("/admin/sign-in{page}")).send().await;
        assert_eq!(answer.status, 303, "{answer:?}");
        let set = answer.header("set-cookie").expect("a cookie");
        assert!(set.ends_with("; Max-Age=600; Path=/; Secure; HttpOnly; SameSite=Lax"), "{set}");
        let cookie = set.split(';').next().expect("a cookie").to_owned();
        assert!(cookie.starts_with(COOKIE), "{cookie}");
        Leaving { url: answer.header("location").expect("an address").parse().expect("a URL"), cookie }
    }

    fn back(&self, query: &str, cookie: &str) -> Call {
        let call = self.client.get(&format!("/admin/callback?{query}"));
        if cookie.is_empty() { call } else { call.header("cookie", cookie) }
    }

    /// Comes back from the provider, and presses the button.
    async fn arrive(&self, query: &str, cookie: &str, page: &str) -> Administrator {
        let answer = self.back(query, cookie).send().await;
        self.press(&answer, page).await
    }

    /// Presses the button of the page that a callback led to.
    async fn press(&self, callback: &Answer, page: &str) -> Administrator {
        assert_eq!(callback.status, 303, "{callback:?}");
        let cleared = callback.header("set-cookie").expect("the cookie is cleared");
        assert!(cleared.starts_with(COOKIE) && cleared.contains("=; Max-Age=0;"), "{cleared}");
        let link = callback.header("location").expect("an address");
        assert!(link.starts_with("/admin/enter/") && link.len() < MAX_FORM, "{link}");
        let shown = self.client.get(link).send().await;
        assert_eq!((shown.status.as_u16(), shown.header("referrer-policy")), (200, Some("no-referrer")), "{shown:?}");
        let answer = form_of(self.client.post(link), &self.host, &[]).send().await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (303, Some(page)), "{answer:?}");
        let cookie = answer.header("set-cookie").expect("a session").split(';').next().expect("a cookie").to_owned();
        let overview = self.client.get("/admin").header("cookie", &cookie).send().await;
        let form_token = hidden(&overview, "form_token");
        let again = form_of(self.client.post(link), &self.host, &[]).send().await;
        assert_eq!(again.status, 404, "a link works once");
        Administrator { caller: self.client.clone(), host: self.host.clone(), cookie, form_token }
    }
}
