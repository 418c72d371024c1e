//! Finds the zone of a name, and its authoritative servers.
//!
//! The resolvers find the closest zone that they can answer for; follow referrals, so that a zone is found even if all its
//! servers fail. Only servers with public addresses are asked directly: the claimant of a host chooses its name servers, and
//! could otherwise have queries sent into the network of formgate. For a zone without public servers the resolvers are asked,
//! which are part of that network or chosen for it.

use std::net::{IpAddr, SocketAddr};

use futures_util::future::join_all;
use hickory_resolver::proto::op::Message;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

use super::fault::Failure;
use super::resolvers::{ResolveError, Resolvers, address_of, addresses_in};
use crate::outbound::is_public;

/// How many name servers of a zone are asked.
///
/// Larger: a zone can have more queries sent to servers that it names. Smaller: a server that is behind is missed.
/// Zones have two to six.
const MAX_SERVERS: usize = 8;

/// An authoritative server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Its name, without a trailing dot.
    pub(super) name: String,
    /// Its address and port.
    pub(super) address: SocketAddr,
}

/// As a sentence names it.
impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` ({})", self.name, self.address.ip())
    }
}

/// A zone, and the servers of it that may be asked directly.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    /// `None` if no server has the name: only the resolvers know it.
    pub(super) apex: Option<Name>,
    /// Empty for a private zone: the resolvers are asked.
    pub(super) servers: Vec<Server>,
}

/// The servers of all zones: at which port, and whether they may have private addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerPolicy {
    pub(super) port: u16,
    pub(super) private: bool,
}

/// The closest zone at or above a name that the resolvers find, and its servers. An error if no resolver answers anything.
pub(super) async fn find(resolvers: &Resolvers, policy: ServerPolicy, name: &Name) -> Result<Zone, ResolveError> {
    let mut at = name.clone();
    let apex = loop {
        match resolvers.ask(&at, RecordType::SOA, false).await {
            Ok((_, answer)) => {
                if let Some(apex) = start_of_authority(&answer, &at) {
                    break Some(apex);
                }
            }
            Err(unresolved) if unresolved.failure < Failure::Servfail => {
                if !resolvers.are_alive().await {
                    return Err(unresolved);
                }
                // Every level below the public suffix would take another time limit.
                if let Some(suffix) = public_suffix(&at) {
                    at = suffix;
                    continue;
                }
            }
            Err(_) => {}
        }
        if at.is_root() {
            break None;
        }
        at = at.base_name();
    };
    let Some(apex) = apex else { return Ok(Zone { apex: None, servers: Vec::new() }) };
    let names = match resolvers.ask(&apex, RecordType::NS, false).await {
        Ok((_, answer)) => name_servers(&answer.answers, &apex),
        Err(_) => Vec::new(),
    };
    let servers = located(resolvers, policy, &names, &[]).await;
    Ok(Zone { apex: Some(apex), servers })
}

/// The zone below `zone` that a server's answer about `name` refers to.
pub(super) async fn referred(
    resolvers: &Resolvers,
    policy: ServerPolicy,
    zone: &Zone,
    name: &Name,
    answer: &Message,
) -> Option<Zone> {
    let apex = delegation(answer, zone.apex.as_ref()?, name)?;
    let names = name_servers(&answer.authorities, &apex);
    let servers = located(resolvers, policy, &names, &answer.additionals).await;
    Some(Zone { apex: Some(apex), servers })
}

/// The apex of the zone that an answer delegates a name to; below the zone of the server, so that referrals end.
pub(super) fn delegation(answer: &Message, zone: &Name, name: &Name) -> Option<Name> {
    let is_below = |apex: &Name| zone.zone_of(apex) && zone != apex && apex.zone_of(name);
    if answer.metadata.authoritative || !answer.answers.is_empty() {
        return None;
    }
    let delegated = |record: &Record| matches!(record.data, RData::NS(_)) && is_below(&record.name);
    answer.authorities.iter().find(|record| delegated(record)).map(|record| record.name.clone())
}

/// The zone that an answer to a question for SOA records belongs to.
fn start_of_authority(answer: &Message, asked: &Name) -> Option<Name> {
    // With an alias, the record in the authority section is of the zone that the alias leads to.
    let has_alias = answer.answers.iter().any(|record| matches!(record.data, RData::CNAME(_)));
    let authorities = if has_alias { &[] } else { &answer.authorities[..] };
    let of_a_parent = |record: &&Record| matches!(record.data, RData::SOA(_)) && record.name.zone_of(asked);
    answer.answers.iter().chain(authorities).find(of_a_parent).map(|record| record.name.to_lowercase())
}

fn name_servers(records: &[Record], apex: &Name) -> Vec<Name> {
    let of_apex = records.iter().filter(|record| record.name == *apex);
    let names = of_apex.filter_map(|record| match &record.data {
        RData::NS(name) => Some(name.0.to_lowercase()),
        _ => None,
    });
    names.take(MAX_SERVERS).collect()
}

/// One address of each family of each server. A referral has the addresses of servers below the zone itself, which can't be
/// found otherwise.
async fn located(resolvers: &Resolvers, policy: ServerPolicy, names: &[Name], glue: &[Record]) -> Vec<Server> {
    let glued = |name: &Name| -> Vec<IpAddr> {
        glue.iter().filter(|record| record.name == *name).filter_map(|record| address_of(&record.data)).collect()
    };
    let look_up = async |name: &Name| match glued(name) {
        addresses if !addresses.is_empty() => addresses,
        _ => {
            let kinds = [RecordType::AAAA, RecordType::A];
            let found = join_all(kinds.map(|kind| resolvers.ask(name, kind, false))).await;
            found.iter().flatten().flat_map(|(_, answer)| addresses_in(answer)).collect()
        }
    };
    let addresses = join_all(names.iter().map(look_up)).await;
    let mut servers: Vec<Server> = Vec::new();
    for (name, addresses) in names.iter().zip(addresses) {
        let usable = |address: &&IpAddr| policy.private || is_public(**address);
        let first = |v6: bool| addresses.iter().filter(usable).find(|address| address.is_ipv6() == v6);
        for ip in [first(false), first(true)].into_iter().flatten() {
            let address = SocketAddr::new(*ip, policy.port);
            if servers.iter().all(|server| server.address != address) {
                servers.push(Server { name: text(name), address });
            }
        }
    }
    servers
}

/// The public suffix above a name, if the name is below it: `co.uk` for `www.acme.co.uk`.
fn public_suffix(name: &Name) -> Option<Name> {
    let text = text(name);
    let suffix = absolute(psl::suffix_str(&text).filter(|suffix| *suffix != text)?)?;
    // The root has no suffix above it, whatever the list says about an empty name.
    (suffix.num_labels() < name.num_labels()).then_some(suffix)
}

/// The domain that the owner of a name registered, which is a zone of its own once it works: `acme.co.uk` for
/// `www.acme.co.uk`. `None` if the public suffix is unknown.
pub(super) fn registered_domain(name: &str) -> Option<&str> {
    let domain = psl::domain(name.as_bytes())?;
    let is_registry = domain.suffix().typ() == Some(psl::Type::Icann);
    if is_registry { std::str::from_utf8(domain.as_bytes()).ok() } else { None }
}

/// A name without its trailing dot.
pub(super) fn text(name: &Name) -> String {
    let text = name.to_ascii();
    text.strip_suffix('.').filter(|text| !text.is_empty()).unwrap_or(&text).to_owned()
}

/// A name in lower case, without search domains.
pub(super) fn absolute(name: &str) -> Option<Name> {
    let mut name = Name::from_ascii(name).ok()?.to_lowercase();
    name.set_fqdn(true);
    Some(name)
}
