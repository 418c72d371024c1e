//! The entries of `listen`: addresses and the protocol of each.
//!
//! Owns the keys of an entry that is a table. A plain string is an entry with only an address, which is all that most
//! gateways need. The process can bind an address only once, so no address may appear twice.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::context::LoadContext;
use super::declaration::keys;
use super::problem::Problem;
use super::source::SourceSpan;
use super::table::{StringOrTable, StringValue, TableReader};

/// The default port of `https://` URLs.
pub(super) const DEFAULT_HTTPS_PORT: u16 = 443;

/// One entry of `listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    /// The address to bind.
    pub address: SocketAddr,
    /// The protocol of its connections.
    pub protocol: ListenProtocol,
    /// The load balancers whose connections begin with a PROXY protocol header, which carries the client's address.
    pub proxies: Vec<IpNet>,
}

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenProtocol {
    /// TLS; ALPN chooses between HTTP/1.1 and HTTP/2.
    Tls,
    /// Plain HTTP/1.1, behind a load balancer that terminates TLS.
    Http1,
    /// Plain HTTP/2 with prior knowledge, behind such a load balancer.
    Http2,
    /// Plain HTTP/1.1 that only redirects to `https://`.
    Redirect {
        /// The port of the `https://` addresses.
        https_port: u16,
    },
}

/// TLS at an address, without a load balancer in front.
impl From<SocketAddr> for ListenConfig {
    fn from(address: SocketAddr) -> Self {
        Self { address, protocol: ListenProtocol::Tls, proxies: Vec::new() }
    }
}

keys! { key:
    address = string(), "the `\"IP:PORT\"`";
    tls = boolean().default("true"), "`false`: plain HTTP, for a balancer that terminates TLS";
    http2 = boolean().default("false"), "with `tls = false`: HTTP/2 instead of HTTP/1.1";
    redirect_to_https = boolean().default("false"), "`true`: plain HTTP that only redirects to `https://`";
    https_port = integer(1..=65_535).default("443"), "with `redirect_to_https`: the port of the redirect's target";
    proxy_protocol_from = strings().default("[]"),
        "the balancers that send the PROXY protocol: networks such as `\"10.0.0.0/8\"`, or addresses";
}

/// Reads an entry of `listen`.
pub(super) fn read(entry: StringOrTable<'_, '_>, addresses: &mut ListenAddresses<'_>) -> Option<ListenConfig> {
    match entry {
        StringOrTable::String(text) => addresses.read(&text).map(ListenConfig::from),
        StringOrTable::Table(table) => read_table(table, addresses),
    }
}

fn read_table(mut table: TableReader<'_, '_>, addresses: &mut ListenAddresses<'_>) -> Option<ListenConfig> {
    let address = table.string(&key::address).and_then(|text| addresses.read(&text));
    let protocol = read_protocol(&mut table);
    let proxies = table.strings(&key::proxy_protocol_from);
    let proxies = proxies.into_iter().filter_map(|text| read_network(&text, table.context())).collect();
    table.finish();
    Some(ListenConfig { address: address?, protocol, proxies })
}

fn read_protocol(table: &mut TableReader<'_, '_>) -> ListenProtocol {
    let says_tls = table.contains(&key::tls);
    let tls = table.boolean(&key::tls);
    if table.boolean(&key::redirect_to_https) {
        if says_tls {
            let title = "`tls` and `redirect_to_https` exclude each other";
            table.context().report(Problem::at(table.span(), title).label("a redirect speaks plain HTTP by itself"));
        }
        let https_port = table.integer(&key::https_port);
        table.refuse(&key::http2, "a redirect speaks HTTP/1.1 alone");
        return ListenProtocol::Redirect { https_port: u16::try_from(https_port).expect("within its range") };
    }
    table.refuse(&key::https_port, "`https_port` needs `redirect_to_https = true`");
    if tls {
        table.refuse(&key::http2, "with TLS, callers choose HTTP/2 themselves; `http2` needs `tls = false`");
        return ListenProtocol::Tls;
    }
    if table.boolean(&key::http2) { ListenProtocol::Http2 } else { ListenProtocol::Http1 }
}

/// Parses a network, or an address as a network of one.
fn read_network(text: &StringValue, context: &LoadContext<'_>) -> Option<IpNet> {
    let network = text.value.parse::<IpNet>().ok().or_else(|| text.value.parse::<IpAddr>().ok().map(IpNet::from));
    if network.is_none() {
        let problem = Problem::at(&text.span, "not a network");
        context.report(problem.label("expected `ADDRESS/BITS`, as `10.0.0.0/8`, or an address"));
    }
    network
}

/// The addresses seen so far, with their spans.
pub(super) struct ListenAddresses<'r> {
    context: &'r LoadContext<'r>,
    taken: Vec<(SocketAddr, SourceSpan)>,
}

impl<'r> ListenAddresses<'r> {
    pub(super) fn new(context: &'r LoadContext<'r>) -> Self {
        Self { context, taken: Vec::new() }
    }

    pub(super) fn read(&mut self, text: &StringValue) -> Option<SocketAddr> {
        let Ok(address) = text.value.parse::<SocketAddr>() else {
            let problem = Problem::at(&text.span, "not an address to listen on");
            self.context.report(problem.label("expected `IP:PORT`"));
            return None;
        };
        self.take(address, &text.span);
        Some(address)
    }

    /// Refuses an address that this process could not bind in addition to those before.
    pub(super) fn take(&mut self, address: SocketAddr, span: &SourceSpan) {
        if let Some((first, at)) = self.taken.iter().find(|(first, _)| collide(*first, address)) {
            let title = match *first == address {
                true => format!("`{address}` stands here twice"),
                false => format!("`{address}` and `{first}` exclude each other"),
            };
            self.context.report(Problem::at(span, title).label("here").earlier(at, "first here"));
        }
        self.taken.push((address, span.clone()));
    }

    pub(super) fn into_taken(self) -> Vec<(SocketAddr, SourceSpan)> {
        self.taken
    }
}

/// Whether one of two addresses is the other, or every address of its family. Whether `[::]` has those of IPv4 too depends on
/// the system. Port 0 lets the system choose a free port, so it may appear twice.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let (ip, other_ip) = (one.ip(), other.ip());
    let is_every = |ip: IpAddr, other: IpAddr| ip.is_unspecified() && ip.is_ipv4() == other.is_ipv4();
    one.port() == other.port()
        && one.port() != 0
        && (ip == other_ip || is_every(ip, other_ip) || is_every(other_ip, ip))
}
