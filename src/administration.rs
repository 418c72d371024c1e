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
//! - `steps`: these steps. They look up the page in [`endpoints`]: every endpoint, with the role that it needs and whether
//!   it changes anything.
//! - A file a page; the HTML is in `templates/`, where everything is escaped by default.
//! - `visit`: what a page gets: a [`Visit`], a `Member`, or a `Change`, which only the steps create.
//! - `area`: the settings and what all requests share.
//! - `texts`: what the pages say, a file a language.
//!
//! There is no JavaScript: each action is a form, and each POST needs the own origin and a form token that is bound to
//! the session. The area is served at the sign-in address only, since an account may lose its custom domain, whose new
//! owner would then see the cookies of its administrators.

mod api_address;
mod area;
mod audit;
mod chart;
mod cookie;
mod domain;
mod domain_faults;
mod domain_words;
mod domains;
pub mod endpoints;
mod enter;
mod export;
mod forms;
mod frame;
mod group;
mod groups;
mod named_forms;
mod numbers;
mod oidc;
mod overview;
mod problem;
mod protection;
mod rates;
mod requests;
mod sessions;
mod steps;
mod style;
mod texts;
mod times;
mod token;
mod token_forms;
mod token_limits;
mod tokens;
mod usage;
mod visit;
mod webhooks;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::request;

use crate::config::GatewayConfig;
use crate::metrics::Metrics;
use crate::oidc::Providers;
use crate::shared::announce::TokenChangeAnnouncer;
pub use area::Area;
use area::{AreaSettings, Shared};
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

impl Administration {
    /// The area as configured, and what announces changed tokens.
    #[must_use]
    pub fn new(config: &GatewayConfig, announcer: Option<Arc<TokenChangeAnnouncer>>, metrics: Metrics) -> Self {
        let providers = Arc::new(Providers::new(config.webhooks.requests.dns_servers.clone()));
        let rates = SessionRates::default();
        let shared = Shared { rates, announcer, providers, metrics, is_page: endpoints::is_page };
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
