//! What a page of the area gets: a request, its administrator, and a change that they may make.

use std::sync::Arc;

use http::header::USER_AGENT;
use http::request;
use jiff::Timestamp;

use super::area::Area;
use super::cookie::SessionSecret;
use super::forms::Form;
use super::times::Moment;
use crate::domains::Domains;
use crate::error::abbreviate;
use crate::gate::{Authority, Connection, Gate};
use crate::memory::RowMemory;
use crate::outbound::TestRequests;
use crate::seal::Seals;
use crate::store::{Actor, AdminSession, Store};
use crate::tenant::{SubscriptionChanges, Tenant, shown_network};

/// A request, and what is known about it.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'r> {
    /// Limits attempts, and knows the account's budget.
    pub gate: &'r Gate,
    /// Its connection.
    pub connection: &'r Connection,
    /// The tenant that it is for.
    pub tenant: &'r Arc<Tenant>,
    /// The address that it is for.
    pub authority: &'r Authority<'r>,
    /// Its head.
    pub head: &'r request::Parts,
    /// Tests and changes webhooks.
    pub webhooks: WebhookTools<'r>,
    /// The domains that get a certificate of their own, if that is configured.
    pub domains: Option<&'r Domains>,
    /// Whether requests are logged.
    pub logs_requests: bool,
    /// Where the rows that it reads are counted.
    pub rows: &'r RowMemory,
}

/// What is needed to test and to change webhooks.
#[derive(Clone, Copy, Debug)]
pub struct WebhookTools<'r> {
    /// Tests receivers.
    pub tests: &'r TestRequests,
    /// Seals secrets.
    pub seals: &'r Seals,
    /// Is notified when subscriptions change.
    pub changes: &'r SubscriptionChanges,
}

impl Visit<'_> {
    /// The caller's network, in the form that is stored.
    pub(super) fn network(&self) -> Option<String> {
        self.connection.caller.map(shown_network)
    }

    /// The `User-Agent` of the browser, shortened.
    pub(super) fn user_agent(&self) -> String {
        let agent = self.head.headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes()));
        abbreviate(&agent.unwrap_or_default()).into_owned()
    }
}

/// A request of a signed-in administrator.
pub(super) struct Member<'v> {
    pub(super) area: &'v Area,
    pub(super) visit: Visit<'v>,
    pub(super) store: Store,
    pub(super) session: AdminSession,
    pub(super) secret: SessionSecret,
    pub(super) now: Timestamp,
}

impl Member<'_> {
    /// An instant as the pages of this account show it.
    pub(super) fn moment(&self, at: Timestamp) -> Moment {
        Moment::new(at, &self.visit.tenant.timezone, &self.area.texts.dates)
    }

    /// The same to the second.
    pub(super) fn moment_with_second(&self, at: Timestamp) -> Moment {
        Moment::with_second(at, &self.visit.tenant.timezone, &self.area.texts.dates)
    }

    /// Announces a change of tokens: it takes effect at once on this node, and through Redis on the others. Returns
    /// whether they all know, or there are no others.
    pub(super) async fn announce_tokens(&self) -> bool {
        let tenant = self.visit.tenant;
        tenant.tokens.changed();
        match &self.area.shared.announcer {
            Some(announcer) => announcer.announce(&tenant.slug).await,
            None => true,
        }
    }
}

/// A form that an administrator may send: it comes from a page of this session, and the role allows it. Only
/// [`super::steps`] creates one.
pub(super) struct Change<'v> {
    pub(super) member: Member<'v>,
    pub(super) form: Form,
    pub(super) actor: Actor,
}

impl Area {
    /// The port in addresses of the area, if they need one.
    pub(super) fn port(&self, visit: &Visit<'_>) -> Option<String> {
        let public = self.settings.public_port.map(|port| port.to_string());
        let port = public.or_else(|| visit.authority.origin().port.map(ToOwned::to_owned));
        port.filter(|port| !port.is_empty() && port != "443")
    }
}
