//! The resolvers: recursive DNS servers, which find name servers and show what the public sees.
//!
//! They are asked one after another, first the resolver that answered last. A cached answer may be old; it only decides which
//! servers are asked, unless the zone has no servers that may be asked directly.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, RecordType};

use super::fault::Failure;
use super::wire::{self, Ask, QueryError};

/// How long one resolver may take.
///
/// Larger: a dead resolver uses up more of the time for a check. Smaller: a resolver that has to ask slow servers counts as
/// dead.
const TIME_LIMIT: Duration = Duration::from_secs(3);

/// How many resolvers are asked.
///
/// Larger: if all are dead, the check ends before that is known. Smaller: fewer to fall back on.
const MAX_RESOLVERS: usize = 3;

/// The resolvers of a [`super::Dns`].
#[derive(Clone, Debug)]
pub(super) struct Resolvers {
    servers: Vec<SocketAddr>,
    /// The index of the resolver that answered last.
    preferred: Arc<AtomicUsize>,
}

/// Why no resolver answered a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResolveError {
    /// The resolver that failed.
    pub(super) resolver: SocketAddr,
    /// How it failed; [`Failure::Servfail`] if at least one resolver answered so.
    pub(super) failure: Failure,
}

impl Resolvers {
    /// These, or those of the system, which are read now. If the system configures none, a resolver on this machine, as in
    /// the C library.
    pub(super) fn new(servers: &[SocketAddr]) -> Self {
        let mut servers = servers.to_vec();
        if servers.is_empty() {
            servers = of_the_system();
        }
        if servers.is_empty() {
            servers.push((Ipv4Addr::LOCALHOST, 53).into());
        }
        servers.truncate(MAX_RESOLVERS);
        Self { servers, preferred: Arc::default() }
    }

    /// The first answer of a resolver, which may have no records. `checked`: whether an answer with wrong DNSSEC signatures
    /// counts as a failure.
    pub(super) async fn ask(
        &self,
        name: &Name,
        kind: RecordType,
        checked: bool,
    ) -> Result<(SocketAddr, Message), ResolveError> {
        let ask = Ask { name, kind, recursion: true, checking_disabled: !checked, time_limit: TIME_LIMIT };
        let first = self.preferred.load(Ordering::Relaxed);
        let mut worst: Option<ResolveError> = None;
        for turn in 0..self.servers.len() {
            let index = (first + turn) % self.servers.len();
            let resolver = self.servers[index];
            let failure = match wire::ask(resolver, ask).await {
                Ok(answer) => match failure_of(answer.metadata.response_code) {
                    None => {
                        self.preferred.store(index, Ordering::Relaxed);
                        return Ok((resolver, answer));
                    }
                    Some(failure) => failure,
                },
                Err(QueryError::Failed(failure)) => failure,
                Err(QueryError::NoRoute) => Failure::Unreachable,
            };
            if worst.is_none_or(|worst| worst.failure < failure) {
                worst = Some(ResolveError { resolver, failure });
            }
        }
        Err(worst.expect("there is at least one resolver"))
    }

    /// Whether any resolver answers anything at all. Some answer NOTIMP to questions about zones and their servers.
    pub(super) async fn are_alive(&self) -> bool {
        self.ask_for_root().await.iter().any(Result::is_ok)
    }

    /// Whether any resolver can resolve the root. Only then is its failure for another name the fault of that name: a
    /// resolver without upstream answers SERVFAIL to every query, and one that refuses our queries NOTIMP or REFUSED.
    pub(super) async fn any_works(&self) -> bool {
        let answers = self.ask_for_root().await;
        answers.iter().flatten().any(|answer| failure_of(answer.metadata.response_code).is_none())
    }

    async fn ask_for_root(&self) -> Vec<Result<Message, QueryError>> {
        let root = Name::root();
        let time_limit = TIME_LIMIT;
        let ask = Ask { name: &root, kind: RecordType::NS, recursion: true, checking_disabled: true, time_limit };
        join_all(self.servers.iter().map(|resolver| wire::ask(*resolver, ask))).await
    }

    /// The addresses of both families, IPv6 first; the resolver follows aliases. One family may fail, unless the other has no
    /// address.
    pub(super) async fn addresses(&self, name: &Name) -> Result<Addresses, ResolveError> {
        let kinds = [RecordType::AAAA, RecordType::A];
        let [v6, v4] = kinds.map(|kind| self.ask(name, kind, false));
        let (v6, v4) = tokio::join!(v6, v4);
        let mut found = Addresses::default();
        for (kind, answer) in kinds.into_iter().zip([v6, v4]) {
            match answer {
                Ok((_, message)) => found.addresses.extend(addresses_in(&message)),
                Err(unresolved) => found.failed = Some((kind, unresolved)),
            }
        }
        match found.failed {
            Some((_, unresolved)) if found.addresses.is_empty() => Err(unresolved),
            _ => Ok(found),
        }
    }
}

/// The addresses of a name.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    pub(super) addresses: Vec<IpAddr>,
    /// The family that was not resolved.
    pub(super) failed: Option<(RecordType, ResolveError)>,
}

/// The addresses in the answer section.
pub(super) fn addresses_in(message: &Message) -> Vec<IpAddr> {
    message.answers.iter().filter_map(|record| address_of(&record.data)).collect()
}

pub(super) fn address_of(data: &RData) -> Option<IpAddr> {
    match data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    }
}

/// What a response code says about the server that sent it; `None` for an answer.
pub(super) fn failure_of(code: ResponseCode) -> Option<Failure> {
    match code {
        ResponseCode::NoError | ResponseCode::NXDomain => None,
        ResponseCode::Refused | ResponseCode::NotAuth => Some(Failure::Lame),
        ResponseCode::FormErr | ResponseCode::NotImp => Some(Failure::Malformed),
        _ => Some(Failure::Servfail),
    }
}

fn of_the_system() -> Vec<SocketAddr> {
    let Ok((config, _)) = hickory_resolver::system_conf::read_system_conf() else { return Vec::new() };
    let address = |server: &hickory_resolver::config::NameServerConfig| {
        let port = server.connections.first().map_or(53, |connection| connection.port);
        SocketAddr::new(server.ip, port)
    };
    config.name_servers().iter().map(address).collect()
}
