//! The `[gateway.administration]` table: whether the administration area is served, where, in which language, and how long
//! a session lasts.
//!
//! Owns its keys and their ranges. The table switches the area on, even without keys; without the table, its path is
//! like any other path that does not exist.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::context::LoadContext;
use super::declaration::keys;
use super::oidc::{self, OidcConfig};
use super::problem::Problem;
use super::table::{StringValue, TableReader};

/// The longest `path`. Larger: a typing mistake passes. Smaller: areas can't have a path within that of a product.
const MAX_PATH: usize = 100;

keys! { key:
    path = string().default("\"/admin\""),
        "the path of the area, at the sign-in address of each tenant: `/` and names of letters, digits, `-` and `_`";
    language = choice(&Language::TAGS).without("the browser's"),
        "the language of all pages: `\"en\"` or `\"de\"`. By default, each browser gets the one of its `Accept-Language` header, and English if there \
         is no such language";
    /// The largest: a day. Larger: sessions end in effect only by `session_hours`. Smaller: a page that is left open over lunch
    /// is always signed out.
    idle_minutes = integer(1..=1440).default("60"), "a session ends after this time without a request";
    /// The largest: a week. Larger: a person who lost the right to administer an account stays signed in for weeks. Smaller: an
    /// operator can't choose a session of a working week.
    session_hours = integer(1..=168).default("12"), "a session ends after this time however much it is used";
    sign_in_url = string().without("none"),
        "an `https://` URL: where a page sends an administrator without a session. `{slug}` is replaced by the tenant's slug";
    oidc = table(oidc::key::KEYS).without("none"),
        "the [OpenID provider](#openid-connect) of tenants that have none of their own";
}

/// What `sign_in_url` contains in place of the tenant's slug.
const SLUG: &str = "{slug}";

/// A language of the administration area's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `en`
    English,
    /// `de`
    German,
}

impl Language {
    /// Every language.
    pub const ALL: [Self; 2] = [Self::English, Self::German];

    /// Their language tags.
    const TAGS: [&str; 2] = ["en", "de"];

    /// Its language tag (BCP 47).
    #[must_use]
    pub fn tag(self) -> &'static str {
        Self::TAGS[self as usize]
    }
}

/// The `[gateway.administration]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdministrationConfig {
    /// The path of the overview, which all other pages are below: `/admin`. Starts with a slash and does not end with
    /// one.
    pub path: Box<str>,
    /// The language of every page. `None`: each browser gets the one that it prefers.
    pub language: Option<Language>,
    /// How long a session lasts without a request.
    ///
    /// Larger: a browser that was left open stays signed in for longer. Smaller: administrators have to sign in again
    /// while they work.
    pub idle: Duration,
    /// How long a session lasts, however much it is used.
    ///
    /// Larger: a stolen cookie is useful for longer. Smaller: administrators sign in more often.
    pub session: Duration,
    /// Where administrators who are not signed in are sent; see [`Self::sign_in_url`].
    sign_in_url: Option<Box<str>>,
    /// The OpenID provider of tenants that have none of their own.
    pub oidc: Option<Arc<OidcConfig>>,
    /// Whether administrators sign in through OpenID providers, those of tenants included.
    pub asks_providers: bool,
}

impl Default for AdministrationConfig {
    fn default() -> Self {
        read(TableReader::empty(&LoadContext::empty(), key::KEYS), Path::new(""))
    }
}

impl AdministrationConfig {
    /// The URL where an administrator of a tenant signs in, if one is configured.
    #[must_use]
    pub fn sign_in_url(&self, slug: &str) -> Option<String> {
        self.sign_in_url.as_ref().map(|url| url.replace(SLUG, slug))
    }
}

/// Reads the table. `folder` is that of the file.
pub(super) fn read(mut table: TableReader<'_, '_>, folder: &Path) -> AdministrationConfig {
    let context = table.context();
    let path = table.string(&key::path).and_then(|text| read_path(text, context));
    let language = table.choice(&key::language, "not a language of the administration area");
    let config = AdministrationConfig {
        path: path.unwrap_or_else(|| key::path.default_value().unwrap_or_default().into()),
        language: language.and_then(|tag| Language::ALL.into_iter().find(|language| language.tag() == tag)),
        idle: table.duration(&key::idle_minutes),
        session: table.duration(&key::session_hours),
        sign_in_url: table.string(&key::sign_in_url).and_then(|text| read_url(text, context)),
        oidc: table.table(&key::oidc).and_then(|table| oidc::read(table, folder)).map(Arc::new),
        asks_providers: true,
    };
    table.finish();
    config
}

/// A path whose segments need no escaping in a URL, in HTML or in a header.
fn read_path(text: StringValue, context: &LoadContext<'_>) -> Option<Box<str>> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_segment = |segment: &str| !segment.is_empty() && segment.bytes().all(is_plain);
    let segments = text.value.strip_prefix('/').map(|rest| rest.split('/').collect::<Vec<_>>());
    let fault = match segments {
        Some(segments) if segments.iter().all(|segment| is_segment(segment)) && text.value.len() <= MAX_PATH => {
            if segments[0] != "api" {
                return Some(text.value.into());
            }
            "paths below `/api` belong to the API"
        }
        _ => "expected `/` and a name of letters, digits, `-` and `_`, such as `/admin`",
    };
    context.report(Problem::at(&text.span, "not a path of the administration area").label(fault));
    None
}

/// An absolute URL, with or without `{slug}`.
fn read_url(text: StringValue, context: &LoadContext<'_>) -> Option<Box<str>> {
    let url = Url::parse(&text.value.replace(SLUG, "slug")).ok();
    // Other braces are a mistyped `{slug}`.
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
    let is_visible = text.value.replace(SLUG, "slug").bytes().all(is_plain);
    if is_visible && url.is_some_and(|url| url.scheme() == "https" && url.host().is_some()) {
        return Some(text.value.into());
    }
    let problem = Problem::at(&text.span, "not the URL of a page where administrators sign in");
    context.report(problem.label("expected `https://` and what follows it; `{slug}` is replaced by the tenant's slug"));
    None
}
