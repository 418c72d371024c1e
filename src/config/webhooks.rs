//! The `[gateway.webhooks]` table: what webhooks are sent, how fast, and where to.
//!
//! Owns its keys and their ranges. [`crate::outbound`] owns the part that one request needs, with its defaults.

use std::path::Path;
use std::time::Duration;

use super::context::LoadContext;
use super::declaration::keys;
use super::problem::Problem;
use super::table::{StringValue, TableReader};
use super::values::{read_authorities, read_dns_server, read_key};
use crate::outbound::{AllowedTarget, Settings};
use crate::seal::Seals;

/// The largest `in_flight`, `per_tenant` and `per_host`. Larger: a typing mistake passes, since no process may open
/// that many sockets. Smaller: a large machine can't use what it has.
const MAX_IN_FLIGHT: u32 = 10_000;

keys! { key:
    enabled = boolean().default("true"), "whether this node delivers webhooks";
    /// The largest. Larger: receivers and followers of the change feed think that nothing happens. Smaller: a product that
    /// needs some seconds to write all answers causes several events.
    settle_ms = integer(0..=60_000).default("500"),
        "how long a submission must be unchanged before its changes become an event, so that answers that are written after \
         it are in the same event. One that changes all the time is an event each ten times as long";
    /// The largest. Larger: a hundred receivers that hang use up every permit for minutes. Smaller: no receiver may do its
    /// work before it answers.
    timeout_seconds = integer(1..=60).default("15"), "how long a request may take, from DNS to the end of the response";
    /// The largest: 30 days. Larger: subscriptions of receivers that are gone are tried in effect forever. Smaller: a receiver
    /// can't be down over long holidays.
    disable_after_hours = integer(1..=720).default("120"), "a subscription is disabled after this time without a success";
    in_flight = integer(1..=MAX_IN_FLIGHT).default("256"), "the most requests at once";
    per_tenant = integer(1..=MAX_IN_FLIGHT).default("16"), "the most requests at once of one tenant";
    /// The largest. Larger: a crash repeats that many deliveries to one receiver. Smaller: a fast receiver far away gets less
    /// than it could take.
    per_subscription = integer(1..=100).default("4"), "the most requests at once of one subscription";
    per_host = integer(1..=MAX_IN_FLIGHT).default("32"), "the most requests at once to one host and port";
    /// The largest. Larger: if every hint is lost, an event is late by that much. Smaller: many databases can't be visited
    /// less often.
    sweep_seconds = integer(1..=3600).default("60"),
        "how often a database with subscriptions is visited although nothing indicates a change, or sixty times less often \
         where each write is sure to be noticed";
    /// The largest. Larger: a stop is indistinguishable from a hang. Smaller: requests with the longest `timeout_seconds` can't
    /// be drained.
    drain_seconds = integer(0..=3600).default("10"), "how long a stopping node waits for requests in flight";
    allow_targets = strings().default("[]"),
        "targets that are allowed although their addresses are not public: networks such as `\"10.0.0.0/8\"`, addresses, or \
         host names such as `\"hooks.internal\"`";
    ca_file = string().without("the system's authorities only"),
        "a PEM file with further certificate authorities that receivers may have certificates of";
    dns_servers = strings().without("those of the system"),
        "the DNS servers that look up receivers, such as `[\"10.0.0.2\", \"10.0.0.3:5353\"]`";
    secret_key = string().secret().without("secrets are not sealed"),
        "the key that seals the secrets of subscriptions in the databases, the same on every node: the Base64 of 32 bytes; see \
         [below](#sealed-secrets)";
    previous_secret_key = string().secret().without("none but `secret_key`"),
        "the key of before, which still opens what it sealed; without `secret_key`, new secrets are not sealed, and a warning \
         says so";
}

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

/// What a gateway uses that configures none.
impl Default for WebhookConfig {
    fn default() -> Self {
        read(TableReader::empty(&LoadContext::empty(), key::KEYS), Path::new(""))
    }
}

/// Reads the table. `folder` is that of the file.
pub(super) fn read(mut table: TableReader<'_, '_>, folder: &Path) -> WebhookConfig {
    let context = table.context();
    if let Some(span) = table.span_of(&key::previous_secret_key).filter(|_| !table.contains(&key::secret_key)) {
        let problem = Problem::at(&span, "new secrets are not sealed: there is no `secret_key`");
        context.report(problem.help("set `secret_key` too; this key only opens what it sealed before").into_warning());
    }
    let config = WebhookConfig {
        enabled: table.boolean(&key::enabled),
        sends_tests: true,
        settle: table.duration(&key::settle_ms),
        disable_after: table.duration(&key::disable_after_hours),
        per_tenant: table.integer(&key::per_tenant),
        per_subscription: table.integer(&key::per_subscription),
        sweep: table.duration(&key::sweep_seconds),
        drain: table.duration(&key::drain_seconds),
        requests: Settings {
            timeout: table.duration(&key::timeout_seconds),
            in_flight: table.integer(&key::in_flight),
            per_host: table.integer(&key::per_host),
            allowed: table.strings(&key::allow_targets).iter().filter_map(|text| read_target(text, context)).collect(),
            authorities: table
                .string(&key::ca_file)
                .and_then(|path| read_authorities(&path, folder, context))
                .unwrap_or_default(),
            dns_servers: table
                .strings(&key::dns_servers)
                .iter()
                .filter_map(|text| read_dns_server(text, context))
                .collect(),
        },
        seals: {
            let mut read = |key| table.string(key).and_then(|text| read_key(&text, context));
            let (current, previous) = (read(&key::secret_key), read(&key::previous_secret_key));
            Seals::new(current, previous)
        },
    };
    table.finish();
    config
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
