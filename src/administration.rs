//! The administration area: web pages on which the administrators of an account manage its tokens.
//!
//! Owns the pages, sessions and what protects them; [`crate::store`] keeps the sessions and the audit log. A request
//! gets here if its path is that of the area, before any token check, so it spends none of the account's budget and
//! works when none is left. It passes these steps, in this order:
//!
//! ```text
//! sign-in address → route → origin → body → session → form token → role → page
//! ```
//!
//! - [`endpoints`]: every endpoint on one page, with the role that it needs and whether it changes anything.
//! - `visit`: the steps. A page that changes something takes an [`Actor`](crate::store::Actor), which only they make.
//! - A file a page; the HTML is in `templates/`, where everything is escaped by default.
//! - `texts`: what the pages say, a file a language.
//!
//! There is no JavaScript: each action is a form, and each POST needs the own origin and a form token that is bound to
//! the session. The area is served at the sign-in address only, since an account may lose its custom domain, whose new
//! owner would then see the cookies of its administrators.

mod audit;
mod chart;
mod cookie;
mod domain;
mod domain_faults;
mod domain_words;
mod domains;
pub mod endpoints;
mod enter;
mod forms;
mod frame;
mod groups;
mod oidc;
mod overview;
mod problem;
mod protection;
mod rates;
mod sessions;
mod style;
mod texts;
mod times;
mod token;
mod token_forms;
mod tokens;
mod usage;
mod visit;
mod webhooks;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::request;

use crate::config::{AdministrationConfig, GatewayConfig, Language};
use crate::metrics::Metrics;
use crate::oidc::Providers;
use crate::shared::announce::TokenChangeAnnouncer;
pub use problem::page_of_refusal;
use rates::SessionRates;
use texts::Texts;
pub use visit::{Visit, WebhookTools};

/// The largest body of a form, in bytes. Larger: callers without a session can send more for nothing. Smaller: the
/// longest valid form is refused.
pub const MAX_FORM: usize = 16 * 1024;

/// The administration area of every tenant.
#[derive(Debug)]
pub struct Administration {
    settings: ArcSwapOption<AreaSettings>,
    shared: Arc<Shared>,
}

/// What all requests share, whatever the settings.
#[derive(Debug)]
struct Shared {
    rates: SessionRates,
    /// Announces changed tokens to the other nodes, if Redis is configured.
    announcer: Option<Arc<TokenChangeAnnouncer>>,
    providers: Arc<Providers>,
    metrics: Metrics,
}

#[derive(Debug)]
struct AreaSettings {
    config: AdministrationConfig,
    public_port: Option<u16>,
}

/// The area as configured when a request arrived.
#[derive(Clone, Debug)]
pub struct Area {
    settings: Arc<AreaSettings>,
    shared: Arc<Shared>,
    /// The language of the answer.
    language: Language,
    texts: &'static Texts,
}

impl Administration {
    /// The area as configured, and what announces changed tokens.
    #[must_use]
    pub fn new(config: &GatewayConfig, announcer: Option<Arc<TokenChangeAnnouncer>>, metrics: Metrics) -> Self {
        let providers = Arc::new(Providers::new(config.webhooks.requests.dns_servers.clone()));
        let shared = Shared { rates: SessionRates::default(), announcer, providers, metrics };
        let administration = Self { settings: ArcSwapOption::empty(), shared: Arc::new(shared) };
        administration.configure(config);
        administration
    }

    /// Applies a changed configuration.
    pub fn configure(&self, config: &GatewayConfig) {
        let settings = config.administration.clone();
        let settings =
            settings.map(|config_of_area| AreaSettings { config: config_of_area, public_port: config.public_port });
        self.settings.store(settings.map(Arc::new));
    }

    /// The area in the language of a request, if it is served and the request is for it.
    #[must_use]
    pub fn at(&self, head: &request::Parts) -> Option<Area> {
        let settings = self.settings.load_full()?;
        let rest = head.uri.path().strip_prefix(&*settings.config.path)?;
        if !rest.is_empty() && !rest.starts_with('/') {
            return None;
        }
        let language = settings.config.language.unwrap_or_else(|| texts::preferred(&head.headers));
        Some(Area { settings, shared: Arc::clone(&self.shared), language, texts: Texts::of(language) })
    }
}

impl Area {
    /// The path of the overview.
    fn path(&self) -> &str {
        &self.settings.config.path
    }

    /// Whether a path is that of a one-time link, whose secret must not cross a network in the clear.
    #[must_use]
    pub fn is_link(&self, path: &str) -> bool {
        self.rest(path).starts_with("/enter/")
    }

    /// A path below that of the area.
    fn rest<'p>(&self, path: &'p str) -> &'p str {
        path.strip_prefix(self.path()).unwrap_or_default()
    }
}
