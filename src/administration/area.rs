//! The area as configured when a request arrived, and what all requests share.

use std::sync::Arc;

use super::rates::SessionRates;
use super::texts::Texts;
use crate::config::{AdministrationConfig, Language};
use crate::metrics::Metrics;
use crate::oidc::Providers;
use crate::shared::announce::TokenChangeAnnouncer;

/// What all requests share, whatever the settings.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rates: SessionRates,
    /// Announces changed tokens to the other nodes, if Redis is configured.
    pub(super) announcer: Option<Arc<TokenChangeAnnouncer>>,
    pub(super) providers: Arc<Providers>,
    pub(super) metrics: Metrics,
    /// Whether a viewer may see the page at a path below that of the area.
    pub(super) is_page: fn(&str) -> bool,
}

/// What the configuration says about the area.
#[derive(Debug)]
pub(super) struct AreaSettings {
    pub(super) config: AdministrationConfig,
    pub(super) public_port: Option<u16>,
}

/// The area as configured when a request arrived.
#[derive(Clone, Debug)]
pub struct Area {
    pub(super) settings: Arc<AreaSettings>,
    pub(super) shared: Arc<Shared>,
    /// The language of the response.
    pub(super) language: Language,
    pub(super) texts: &'static Texts,
}

impl Area {
    /// The path of the overview.
    pub(super) fn path(&self) -> &str {
        &self.settings.config.path
    }

    /// Whether a path is that of a one-time link, whose secret must not cross a network in the clear.
    #[must_use]
    pub fn is_link(&self, path: &str) -> bool {
        self.rest(path).starts_with("/enter/")
    }

    /// A path below that of the area.
    pub(super) fn rest<'p>(&self, path: &'p str) -> &'p str {
        path.strip_prefix(self.path()).unwrap_or_default()
    }
}
