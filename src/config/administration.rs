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
use super::oidc::{self, OidcConfig};
use super::problem::Problem;
use super::table::{StringValue, TableReader};

/// The default of `path`.
const DEFAULT_PATH: &str = "/admin";
/// The longest `path`. Larger: a typing mistake passes. Smaller: areas can't have a path within that of a product.
const MAX_PATH: usize = 100;
/// The default of `idle_minutes`. Larger: a browser that was left open stays signed in for longer. Smaller:
/// administrators have to sign in again while they work.
const DEFAULT_IDLE_MINUTES: u32 = 60;
/// The largest `idle_minutes`: a day. Larger: sessions end in effect only by `session_hours`. Smaller: a page that is
/// left open over lunch is always signed out.
const MAX_IDLE_MINUTES: u32 = 1440;
/// The default of `session_hours`: a working day. Larger: a stolen cookie is useful for longer. Smaller:
/// administrators sign in several times a day.
const DEFAULT_SESSION_HOURS: u32 = 12;
/// The largest `session_hours`: a week. Larger: a person who lost the right to administer an account stays signed in for weeks.
/// Smaller: an operator can't choose a session of a working week.
const MAX_SESSION_HOURS: u32 = 168;

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

    /// Its language tag (BCP 47).
    #[must_use]
    pub fn tag(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::German => "de",
        }
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
        Self {
            path: DEFAULT_PATH.into(),
            language: None,
            idle: Duration::from_mins(DEFAULT_IDLE_MINUTES.into()),
            session: Duration::from_hours(DEFAULT_SESSION_HOURS.into()),
            sign_in_url: None,
            oidc: None,
            asks_providers: true,
        }
    }
}

impl AdministrationConfig {
    /// The URL where an administrator of a tenant signs in, if one is configured.
    #[must_use]
    pub fn sign_in_url(&self, slug: &str) -> Option<String> {
        self.sign_in_url.as_ref().map(|url| url.replace(SLUG, slug))
    }
}

/// Reads the table; `None` if it is missing. `folder` is that of the file.
pub(super) fn read(table: Option<TableReader<'_, '_>>, folder: &Path) -> Option<AdministrationConfig> {
    let mut table = table?;
    let path = table.string("path").and_then(|text| read_path(text, table.context()));
    let language = table.string("language").and_then(|text| read_language(&text, table.context()));
    let idle = table.integer("idle_minutes", 1..=MAX_IDLE_MINUTES, DEFAULT_IDLE_MINUTES);
    let session = table.integer("session_hours", 1..=MAX_SESSION_HOURS, DEFAULT_SESSION_HOURS);
    let sign_in_url = table.string("sign_in_url").and_then(|text| read_url(text, table.context()));
    let oidc = oidc::read(table.table("oidc"), folder).map(Arc::new);
    table.finish();
    Some(AdministrationConfig {
        path: path.unwrap_or_else(|| DEFAULT_PATH.into()),
        language,
        idle: Duration::from_mins(idle.into()),
        session: Duration::from_hours(session.into()),
        sign_in_url,
        oidc,
        asks_providers: true,
    })
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

fn read_language(text: &StringValue, context: &LoadContext<'_>) -> Option<Language> {
    let found = Language::ALL.into_iter().find(|language| language.tag() == text.value);
    if found.is_none() {
        let tags = Language::ALL.map(|language| format!("`{}`", language.tag())).join(" or ");
        let problem = Problem::at(&text.span, "not a language of the administration area");
        context.report(problem.label(format!("expected {tags}")));
    }
    found
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
