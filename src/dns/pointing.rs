//! Follows a host to its addresses, through aliases, at the name servers of each name on the way.
//!
//! Owns how the answers of several servers become one: an answer that points here wins, and a server with another answer is
//! named, since a change reaches the servers of a zone one after another.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hickory_resolver::proto::rr::{Name, RecordType};

use super::resolvers::{ResolveError, address_of};
use super::zone::absolute;
use super::zone_servers::{Answers, CheckError, Content, ZoneServers};
use crate::host::HostName;

/// How many aliases are followed.
///
/// Larger: an endless chain takes more time. Smaller: a host behind several services is not followed; resolvers
/// follow 8 to 16.
const MAX_ALIASES: usize = 8;

/// Where a host has to point.
#[derive(Debug)]
pub(super) struct Here {
    pub(super) own_label: Option<Name>,
    pub(super) target: Option<Name>,
    /// `None`: every address is here.
    pub(super) addresses: Option<Vec<IpAddr>>,
    /// The family of addresses for which the target was not resolved: it may have more than these.
    pub(super) failed: Option<(RecordType, ResolveError)>,
}

impl Here {
    pub(super) fn new(own_label: Option<&HostName>, target: Option<&HostName>, addresses: Option<Vec<IpAddr>>) -> Self {
        let name = |host: Option<&HostName>| host.and_then(|host| absolute(host.as_str()));
        let canonical = |addresses: Vec<IpAddr>| addresses.iter().map(IpAddr::to_canonical).collect();
        Self { own_label: name(own_label), target: name(target), addresses: addresses.map(canonical), failed: None }
    }

    /// Whether an alias to this name points here.
    pub(super) fn is_named(&self, name: &Name) -> bool {
        [&self.own_label, &self.target].into_iter().flatten().any(|here| here == name)
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.as_ref().is_none_or(|addresses| addresses.contains(&address.to_canonical()))
    }

    /// Whether there are addresses, and all are here.
    pub(super) fn has_all(&self, addresses: &[IpAddr]) -> bool {
        !addresses.is_empty() && addresses.iter().all(|address| self.has(*address))
    }

    fn fits(&self, seen: &Seen) -> bool {
        match seen {
            Seen::Alias(name) => self.is_named(name),
            Seen::Addresses(addresses) => self.has_all(addresses),
            Seen::Nothing { .. } => false,
        }
    }
}

/// Where a host points.
#[derive(Debug)]
pub(super) struct Pointing {
    /// The zone of the host.
    pub(super) zone: Option<Name>,
    /// The targets of its aliases, in order.
    pub(super) aliases: Vec<Name>,
    pub(super) end: End,
    /// A server whose answer differs from the followed one.
    pub(super) behind: Option<String>,
}

/// The end of a chain of aliases.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A name that points here.
    Here,
    /// Addresses, IPv6 first.
    Addresses(Vec<IpAddr>),
    /// No address.
    Nothing {
        /// Whether the name exists.
        exists: bool,
    },
    /// Another alias: there are too many, or they form a loop.
    Endless,
}

/// What one server has for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Alias(Name),
    Addresses(Vec<IpAddr>),
    Nothing { exists: bool },
}

/// Follows a host.
pub(super) async fn follow(servers: &mut ZoneServers<'_>, host: &Name, here: &Here) -> Result<Pointing, CheckError> {
    let mut pointing = Pointing { zone: None, aliases: Vec::new(), end: End::Endless, behind: None };
    let mut at = host.clone();
    loop {
        let (zone, seen) = look_up(servers, &at).await?;
        if at == *host {
            pointing.zone = zone;
        }
        let (chosen, behind) = chosen(&seen, here);
        pointing.behind = pointing.behind.or(behind);
        pointing.end = match chosen {
            Seen::Nothing { exists } => End::Nothing { exists },
            Seen::Addresses(addresses) => End::Addresses(addresses),
            Seen::Alias(alias) => {
                let is_circle = alias == *host || pointing.aliases.contains(&alias);
                let is_here = here.is_named(&alias);
                pointing.aliases.push(alias.clone());
                if is_here {
                    End::Here
                } else if is_circle || pointing.aliases.len() == MAX_ALIASES {
                    End::Endless
                } else {
                    at = alias;
                    continue;
                }
            }
        };
        return Ok(pointing);
    }
}

/// What each server has for a name, with the addresses of both families. A server may fail for one family, as some without
/// IPv6 do: CAs continue with the other. If that has no address, it is unknown whether there is one.
async fn look_up(
    servers: &mut ZoneServers<'_>,
    name: &Name,
) -> Result<(Option<Name>, Vec<(String, Seen)>), CheckError> {
    let [v6, v4] = servers.ask_all(name, [RecordType::AAAA, RecordType::A]).await?;
    let both: Vec<Answers> = match (v6, v4) {
        (Err(_), Err(error)) => return Err(error),
        (Ok(answers), Err(error)) | (Err(error), Ok(answers)) if !has_something(&answers) => return Err(error),
        (v6, v4) => v6.into_iter().chain(v4).collect(),
    };
    let zone = both[0].zone.clone();
    let mut seen: Vec<(String, Seen)> = Vec::new();
    for (server, content) in both.into_iter().flat_map(|answers| answers.of) {
        let new = match content {
            Content::Alias(alias) => Seen::Alias(alias),
            Content::Records(records) => Seen::Addresses(records.iter().filter_map(address_of).collect()),
            Content::Nothing { exists } => Seen::Nothing { exists },
        };
        match seen.iter_mut().find(|(known, _)| *known == server) {
            None => seen.push((server, new)),
            Some((_, known)) => *known = joined(known.clone(), new),
        }
    }
    Ok((zone, seen))
}

fn has_something(answers: &Answers) -> bool {
    answers.of.iter().any(|(_, content)| !matches!(content, Content::Nothing { .. }))
}

fn joined(a: Seen, b: Seen) -> Seen {
    match (a, b) {
        (Seen::Addresses(mut a), Seen::Addresses(b)) => {
            a.extend(b.iter().filter(|address| !a.contains(address)).copied().collect::<Vec<_>>());
            Seen::Addresses(a)
        }
        (Seen::Nothing { exists: a }, Seen::Nothing { exists: b }) => Seen::Nothing { exists: a || b },
        (Seen::Nothing { .. }, other) | (other, _) => other,
    }
}

/// The answer to follow, and a server with another one: first what points here, then what most servers have, and no records
/// only if no server has any.
fn chosen(seen: &[(String, Seen)], here: &Here) -> (Seen, Option<String>) {
    let fits = |seen: &Seen| here.fits(seen);
    let candidates = if seen.iter().any(|(_, seen)| fits(seen)) {
        seen.iter().filter(|(_, seen)| fits(seen)).collect::<Vec<_>>()
    } else {
        let something: Vec<_> = seen.iter().filter(|(_, seen)| !matches!(seen, Seen::Nothing { .. })).collect();
        if something.is_empty() { seen.iter().collect() } else { something }
    };
    let mut alternatives: BTreeMap<Option<&Name>, Vec<&Seen>> = BTreeMap::new();
    for (_, candidate) in &candidates {
        let alias = if let Seen::Alias(alias) = candidate { Some(alias) } else { None };
        alternatives.entry(alias).or_default().push(candidate);
    }
    let most = alternatives.into_values().max_by_key(Vec::len).expect("at least one server answered");
    let chosen = most.into_iter().cloned().reduce(joined).expect("an alternative has a server");
    let agrees = |other: &Seen| match (&chosen, other) {
        (Seen::Addresses(_), Seen::Addresses(_)) => fits(other) || !fits(&chosen),
        (Seen::Nothing { .. }, Seen::Nothing { .. }) => true,
        (chosen, other) => chosen == other,
    };
    let behind = seen.iter().find(|(_, seen)| !agrees(seen)).map(|(server, _)| server.clone());
    (chosen, behind)
}
