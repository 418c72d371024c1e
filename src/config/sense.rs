//! Values of `[gateway]` that are each in their range and make no sense together, or where others can't use them.
//!
//! Owns these comparisons. A default gives way: only a value that is in the file is a fault. A number of connections per address
//! or database may be above that of all: it is how to say that there is no such limit.

use std::collections::HashMap;
use std::net::IpAddr;

use super::context::LoadContext;
use super::problem::Problem;
use super::source::SourceSpan;
use super::table::TableReader;
use super::{DomainsConfig, Limits, WebhookConfig};

/// The keys that are compared, by their tables.
const KEYS: [(&str, &[&str]); 3] = [
    ("limits", &["memory_bytes", "memory_bytes_per_tenant", "body_bytes", "group_body_bytes"]),
    ("webhooks", &["in_flight", "per_tenant", "per_host", "per_subscription"]),
    ("domains", &["target", "addresses"]),
];

/// Where these keys are in the file.
pub(super) struct Spans(HashMap<(&'static str, &'static str), SourceSpan>);

/// What is compared.
pub(super) struct Values<'v> {
    pub(super) limits: &'v Limits,
    pub(super) webhooks: &'v WebhookConfig,
    pub(super) domains: Option<&'v DomainsConfig>,
}

impl Spans {
    /// Those of the `[gateway]` table, before its values are taken.
    pub(super) fn of(gateway: &TableReader<'_, '_>) -> Self {
        let keys = KEYS.iter().flat_map(|(table, keys)| keys.iter().map(move |key| (*table, *key)));
        Self(keys.filter_map(|at| Some((at, gateway.span_within(at.0, at.1)?))).collect())
    }

    /// Reports what makes no sense.
    pub(super) fn check(&self, values: &Values<'_>, context: &LoadContext<'_>) {
        let Values { limits: Limits { request, .. }, webhooks, domains } = values;
        let at_most = |table, part: (&'static str, u64), whole: (&'static str, u64), also_at_whole: bool| {
            let at_whole = self.0.get(&(table, whole.0)).filter(|_| also_at_whole);
            let Some(span) = self.0.get(&(table, part.0)).or(at_whole) else { return };
            if part.1 > whole.1 {
                let title =
                    format!("`{}` is {}, and `{}` of `[gateway.{table}]` only {}", part.0, part.1, whole.0, whole.1);
                context.report(Problem::at(span, title).help("raise the one, or lower the other"));
            }
        };
        let bytes = |bytes: usize| bytes as u64;
        let memory = ("memory_bytes", bytes(request.memory_bytes));
        let of_tenant = ("memory_bytes_per_tenant", bytes(request.memory_bytes_per_tenant));
        at_most("limits", of_tenant, memory, false);
        for whole in [memory, of_tenant] {
            at_most("limits", ("body_bytes", bytes(request.body_bytes)), whole, true);
            at_most("limits", ("group_body_bytes", bytes(request.group_body_bytes)), whole, false);
        }
        let in_flight = ("in_flight", webhooks.requests.in_flight.into());
        at_most("webhooks", ("per_tenant", webhooks.per_tenant.into()), in_flight, false);
        at_most("webhooks", ("per_host", webhooks.requests.per_host.into()), in_flight, false);
        at_most("webhooks", ("per_subscription", webhooks.per_subscription.into()), in_flight, false);
        if let Some(domains) = domains {
            self.check_domains(domains, context);
        }
    }

    fn check_domains(&self, domains: &DomainsConfig, context: &LoadContext<'_>) {
        let target = domains.target.as_ref().zip(self.0.get(&("domains", "target")));
        if let Some((target, span)) = target
            && target.as_str().rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()))
        {
            let problem = Problem::at(span, format!("`target`: `{target}` is an address, and no CNAME leads to one"));
            context.report(problem.help("name the gateway's host, as `edge.example.com`; `addresses` takes addresses"));
        }
        let Some(span) = self.0.get(&("domains", "addresses")) else { return };
        for address in &domains.addresses {
            let problem = |why: &str| {
                Problem::at(span, format!("`addresses`: no client reaches a gateway at `{address}`, {why}"))
            };
            let help = "list the addresses to which hosts have to point, as clients on the Internet see them";
            if address.is_unspecified() || address.is_multicast() || is_broadcast(*address) {
                context.report(problem("which is the address of no host").help(help));
            } else if address.is_loopback() {
                context.report(problem("which leads each client to itself").help(help).into_warning());
            }
        }
    }
}

fn is_broadcast(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if address.is_broadcast())
}
