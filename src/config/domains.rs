//! The `[gateway.domains]` table: where the hosts of tenants have to point.

use std::net::{IpAddr, SocketAddr};

use super::declaration::keys;
use super::problem::Problem;
use super::source::SourceSpan;
use super::table::TableReader;
use super::values::read_dns_server;
use crate::host::HostName;

keys! { key:
    target = string().without("none"),
        "the name that hosts point to with a CNAME record. `<slug>.<target>` is the label of one tenant: a host that points \
         there proves that it is this tenant's";
    addresses = strings().without("those of `target`"),
        "the addresses of the gateway, for hosts that can have no CNAME record";
    resolvers = strings().without("the system's"),
        "the DNS servers that are asked, as `IP` or `IP:PORT`; the name servers of each domain are asked directly too";
}

/// The `[gateway.domains]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainsConfig {
    /// The name that hosts point to with a CNAME. `<slug>.<target>` is the label of a tenant: to point there also proves
    /// that a domain is the tenant's.
    pub target: Option<HostName>,
    /// The addresses of the gateway, for hosts that can have no CNAME. Empty: those of `target`.
    pub addresses: Vec<IpAddr>,
    /// The DNS servers that are asked; if there are none, the system's.
    pub resolvers: Vec<SocketAddr>,
    /// Whether this node looks at domains that are due, and obtains their certificates.
    pub is_worked_on: bool,
}

impl DomainsConfig {
    /// The name that only one tenant's hosts point to.
    #[must_use]
    pub fn label(&self, slug: &str) -> Option<HostName> {
        HostName::parse(&format!("{slug}.{}", self.target.as_ref()?)).ok()
    }

    /// Whether the operator owns a host: it is `target`, or below it.
    #[must_use]
    pub fn owns(&self, host: &HostName) -> bool {
        self.target.as_ref().is_some_and(|target| {
            let rest = host.as_str().strip_suffix(target.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
    }
}

/// Reads the table. `registry` is where the registry is configured, which has the life of each domain.
pub(super) fn read(mut table: TableReader<'_, '_>, registry: Option<&SourceSpan>) -> DomainsConfig {
    let context = table.context();
    let says_where = table.contains(&key::target) || table.contains(&key::addresses);
    let target = table.string(&key::target).and_then(|text| {
        let host = HostName::parse(&text.value).ok().filter(|host| host.as_str().contains('.'));
        if host.is_none() {
            let problem = Problem::at(&text.span, "not a host name");
            context.report(problem.label("expected the name that hosts point to, as `edge.example.com`"));
        }
        host
    });
    let addresses = table.strings(&key::addresses);
    let addresses: Vec<IpAddr> = addresses
        .iter()
        .filter_map(|text| {
            let address = text.value.parse().ok();
            if address.is_none() {
                context.report(Problem::at(&text.span, "not an IP address"));
            }
            address
        })
        .collect();
    let resolvers = table.strings(&key::resolvers);
    let resolvers = resolvers.iter().filter_map(|text| read_dns_server(text, context)).collect();
    if !says_where {
        let problem = Problem::at(table.span(), "nothing says where hosts have to point");
        context.report(problem.help("set `target`, the name that they point to, or the `addresses` of the gateway"));
    }
    if registry.is_none() {
        let problem = Problem::at(table.span(), "there is no registry, which has the state of each domain");
        context.report(problem.help("set `registry` in `[gateway]`, such as `registry = \"sqlite:registry.db\"`"));
    }
    table.finish();
    DomainsConfig { target, addresses, resolvers, is_worked_on: true }
}
