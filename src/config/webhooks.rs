//! The `[gateway.webhooks]` table: what webhooks are sent, how fast, and where to.
//!
//! Owns its keys and their ranges, and the file of certificate authorities. [`crate::outbound`] owns the part that one
//! request needs, with its defaults.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::context::LoadContext;
use super::problem::Problem;
use super::table::{StringValue, TableReader};
use crate::certificate::parse_chain;
use crate::outbound::{AllowedTarget, Settings};
use crate::regular_file::{self, MAX_PEM};
use crate::seal::{SealKey, Seals};

/// The largest `settle_ms`. Larger: receivers and followers of the change feed think that nothing happens. Smaller: a
/// product that needs some seconds to write all answers causes several events.
const MAX_SETTLE_MS: u32 = 60_000;
/// The largest `timeout_seconds`. Larger: a hundred receivers that hang use up every permit for minutes. Smaller: no
/// receiver may do its work before it answers.
const MAX_TIMEOUT_SECONDS: u32 = 60;
/// The largest `disable_after_hours`: 30 days. Larger: subscriptions of receivers that are gone are tried in effect
/// forever. Smaller: a receiver can't be down over long holidays.
const MAX_DISABLE_AFTER_HOURS: u32 = 720;
/// The largest `in_flight`, `per_tenant` and `per_host`. Larger: a typing mistake passes, since no process may open
/// that many sockets. Smaller: a large machine can't use what it has.
const MAX_IN_FLIGHT: u32 = 10_000;
/// The largest `per_subscription`. Larger: a crash repeats that many deliveries to one receiver. Smaller: a fast
/// receiver far away gets less than it could take.
const MAX_PER_SUBSCRIPTION: u32 = 100;
/// The largest `sweep_seconds`. Larger: if every hint is lost, an event is late by that much. Smaller: many databases
/// can't be visited less often.
const MAX_SWEEP_SECONDS: u32 = 3600;
/// The largest `drain_seconds`. Larger: a stop is indistinguishable from a hang. Smaller: requests with the longest
/// `timeout_seconds` can't be drained.
const MAX_DRAIN_SECONDS: u32 = 3600;

/// The port of DNS.
const DNS_PORT: u16 = 53;

/// The `[gateway.webhooks]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Whether this node delivers.
    pub enabled: bool,
    /// Whether this node sends what only tests a receiver.
    pub sends_tests: bool,
    /// How long a submission must be unchanged before its changes become an event.
    ///
    /// Larger: events are later. Smaller: answers that are written after their submission cause a second event.
    pub settle: Duration,
    /// How long a subscription may go without a success before it is disabled.
    ///
    /// Larger: receivers that are gone are tried for longer. Smaller: an outage over some days ends subscriptions.
    pub disable_after: Duration,
    /// The maximum number of requests at once per tenant.
    ///
    /// Larger: one tenant takes more of `in_flight`. Smaller: a tenant with many receivers waits for its slow ones.
    pub per_tenant: u32,
    /// The maximum number of requests at once per subscription.
    ///
    /// Larger: a crash repeats more deliveries, and a receiver gets more at once. Smaller: a backlog takes longer.
    pub per_subscription: u32,
    /// How often each watched database is visited even if no hint says that it changed.
    ///
    /// Larger: an event whose hint was lost is later. Smaller: more queries to databases without changes.
    pub sweep: Duration,
    /// How long a stopping node waits for requests in flight.
    ///
    /// Larger: a stop takes longer. Smaller: more deliveries are repeated by another node.
    pub drain: Duration,
    /// The keys that seal the secrets of subscriptions at rest.
    pub seals: Seals,
    /// The limits and exceptions of each request.
    pub requests: Settings,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            sends_tests: true,
            settle: Duration::from_millis(500),
            disable_after: Duration::from_hours(120),
            per_tenant: 16,
            per_subscription: 4,
            sweep: Duration::from_secs(60),
            drain: Duration::from_secs(10),
            seals: Seals::default(),
            requests: Settings::default(),
        }
    }
}

/// Reads the table; a missing key keeps its default. `folder` is that of the file.
pub(super) fn read(table: Option<TableReader<'_, '_>>, folder: &Path) -> WebhookConfig {
    let mut config = WebhookConfig::default();
    let Some(mut table) = table else { return config };
    let seconds = |duration: Duration| u32::try_from(duration.as_secs()).expect("the defaults are short");
    config.enabled = table.boolean("enabled", config.enabled);
    let settle = u32::try_from(config.settle.as_millis()).expect("the default is short");
    config.settle = Duration::from_millis(table.integer("settle_ms", 0..=MAX_SETTLE_MS, settle).into());
    let timeout = table.integer("timeout_seconds", 1..=MAX_TIMEOUT_SECONDS, seconds(config.requests.timeout));
    config.requests.timeout = Duration::from_secs(timeout.into());
    let disable_after = seconds(config.disable_after) / 3600;
    let disable_after = table.integer("disable_after_hours", 1..=MAX_DISABLE_AFTER_HOURS, disable_after);
    config.disable_after = Duration::from_hours(disable_after.into());
    config.requests.in_flight = table.integer("in_flight", 1..=MAX_IN_FLIGHT, config.requests.in_flight);
    config.per_tenant = table.integer("per_tenant", 1..=MAX_IN_FLIGHT, config.per_tenant);
    config.per_subscription = table.integer("per_subscription", 1..=MAX_PER_SUBSCRIPTION, config.per_subscription);
    config.requests.per_host = table.integer("per_host", 1..=MAX_IN_FLIGHT, config.requests.per_host);
    let sweep = table.integer("sweep_seconds", 1..=MAX_SWEEP_SECONDS, seconds(config.sweep));
    config.sweep = Duration::from_secs(sweep.into());
    let drain = table.integer("drain_seconds", 0..=MAX_DRAIN_SECONDS, seconds(config.drain));
    config.drain = Duration::from_secs(drain.into());
    let context = table.context();
    let targets = table.strings("allow_targets");
    config.requests.allowed = targets.iter().filter_map(|text| read_target(text, context)).collect();
    let authorities = table.string("ca_file").and_then(|path| read_authorities(&path, folder, context));
    config.requests.authorities = authorities.unwrap_or_default();
    let servers = table.strings("dns_servers");
    config.requests.dns_servers = servers.iter().filter_map(|text| read_dns_server(text, context)).collect();
    let previous_at = table.span_of("previous_secret_key").filter(|_| !table.contains("secret_key"));
    if let Some(span) = previous_at {
        let problem = Problem::at(&span, "new secrets are not sealed: there is no `secret_key`");
        context.report(problem.help("set `secret_key` too; this key only opens what it sealed before").into_warning());
    }
    let mut key = |name| table.string(name).and_then(|text| read_key(&text, context));
    let (current, previous) = (key("secret_key"), key("previous_secret_key"));
    config.seals = Seals::new(current, previous);
    table.finish();
    config
}

/// How to make a key that seals.
pub(super) const MAKE_KEY: &str = "make one: `openssl rand -base64 32`";

pub(super) fn read_key(text: &StringValue, context: &LoadContext<'_>) -> Option<SealKey> {
    let key = SealKey::parse(&text.value);
    if let Err(error) = &key {
        let problem = Problem::at(&text.span, error.to_string());
        context.report(problem.help(MAKE_KEY));
    }
    key.ok()
}

fn read_target(text: &StringValue, context: &LoadContext<'_>) -> Option<AllowedTarget> {
    let target = AllowedTarget::parse(&text.value).ok();
    let fault = match &target {
        None => Some((
            "neither a network nor a host name",
            "expected `ADDRESS/BITS`, as `10.0.0.0/8`, an address, or a host name",
        )),
        Some(target) => target.is_never_allowed().then_some((
            "this target can't be allowed",
            "link-local addresses and the metadata services of clouds give credentials to every client",
        )),
    };
    if let Some((title, label)) = fault {
        context.report(Problem::at(&text.span, title).label(label));
    }
    target
}

pub(super) fn read_dns_server(text: &StringValue, context: &LoadContext<'_>) -> Option<SocketAddr> {
    let address = text.value.parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT));
    let address = address.ok().or_else(|| text.value.parse().ok());
    if address.is_none() {
        let problem = Problem::at(&text.span, "not the address of a DNS server");
        context.report(problem.label("expected an IP address, or `IP:PORT`"));
    }
    address
}

pub(super) fn read_authorities(
    path: &StringValue,
    folder: &Path,
    context: &LoadContext<'_>,
) -> Option<Vec<CertificateDer<'static>>> {
    let file = folder.join(&path.value);
    let (title, cause) = match authorities_of(&file) {
        Ok(authorities) => return Some(authorities),
        Err(fault) => fault,
    };
    let problem = Problem::at(&path.span, title);
    let problem = cause.into_iter().fold(problem, Problem::label);
    // The variable may contain the certificates themselves.
    context.report(match path.from_environment {
        true => problem.help("check the variable, the path in it, and the rights to the file"),
        false => problem.help(format!("the file is `{}`", file.display())),
    });
    None
}

/// The certificates of a file, or the title and label of its fault.
fn authorities_of(file: &Path) -> Result<Vec<CertificateDer<'static>>, (&'static str, Option<String>)> {
    let read = regular_file::read(file, MAX_PEM);
    let text = read.map_err(|error| ("can't read the certificate authorities", Some(error.to_string())))?;
    let authorities = parse_chain(&text).ok_or(("no certificate in PEM form", None))?;
    let unusable = authorities.iter().position(|authority| webpki::anchor_from_trusted_cert(authority).is_err());
    match unusable {
        Some(at) => Err(("a certificate authority is malformed", Some(format!("it is number {}", at + 1)))),
        None => Ok(authorities),
    }
}
