//! Asks every authoritative server of a name's zone, directly.
//!
//! Owns how answers of servers are classified, and when the resolvers are asked instead: if the zone has no public servers, or
//! if all are unreachable, as in a network that allows DNS only to its resolvers. A server that answers SERVFAIL is
//! reachable, and is reported.

use hickory_resolver::proto::op::Message;
use hickory_resolver::proto::rr::{Name, RData, RecordType};

use futures_util::future::join_all;

use super::fault::{DnsFault, Failure};
use super::resolvers::{ResolveError, Resolvers, failure_of};
use super::wire::{self, Ask, QueryError};
use super::zone::{self, Server, ServerPolicy, Zone, text};

/// How long one server may take, by UDP, and again by TCP.
///
/// Larger: dead servers use up more of the time for a check. Smaller: distant servers count as dead.
const TIME_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);

/// How many referrals are followed from the zone that the resolvers found.
///
/// Larger: servers that refer to each other take more time. Smaller: a host far below a broken zone is not found.
const MAX_REFERRALS: usize = 4;

/// How many records of an answer are read.
///
/// Larger: a name with thousands of addresses takes more memory. Smaller: a wrong record is missed among many.
const MAX_RECORDS: usize = 64;

/// Why a check ends early.
#[derive(Debug)]
pub(super) enum CheckError {
    /// DNS of the host is at fault.
    Fault(DnsFault),
    /// DNS was unreachable.
    Unknown(String),
}

/// What one server has for a name and a type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// An alias, whatever the type.
    Alias(Name),
    /// The records of the type.
    Records(Vec<RData>),
    /// No record of the type.
    Nothing {
        /// Whether the name exists, with other types or with names below.
        exists: bool,
    },
}

/// The answers of the servers of a zone, at least one.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    /// The apex of the zone.
    pub(super) zone: Option<Name>,
    /// What each server has; a server is named as a sentence names it.
    pub(super) of: Vec<(String, Content)>,
}

/// Asks name servers about the names of one check, and caches their zones.
pub(super) struct ZoneServers<'d> {
    pub(super) resolvers: &'d Resolvers,
    policy: ServerPolicy,
    host: String,
    zones: Vec<Zone>,
    /// A server that did not answer in time: what to report if the whole check takes too long.
    pub(super) late: Option<DnsFault>,
}

impl<'d> ZoneServers<'d> {
    pub(super) fn new(resolvers: &'d Resolvers, policy: ServerPolicy, host: &str) -> Self {
        Self { resolvers, policy, host: host.to_owned(), zones: Vec::new(), late: None }
    }

    /// What the servers of a name's zone have of one type.
    pub(super) async fn ask(&mut self, name: &Name, kind: RecordType) -> Result<Answers, CheckError> {
        let [answers] = self.ask_all(name, [kind]).await?;
        answers
    }

    /// The same for several types at once.
    pub(super) async fn ask_all<const KINDS: usize>(
        &mut self,
        name: &Name,
        kinds: [RecordType; KINDS],
    ) -> Result<[Result<Answers, CheckError>; KINDS], CheckError> {
        for _ in 0..=MAX_REFERRALS {
            let zone = self.zone_of(name).await?;
            let replies = join_all(kinds.map(|kind| self.ask_servers(&zone, name, kind))).await;
            let answered = replies.iter().flatten().filter_map(|reply| reply.as_ref().ok());
            let mut referral = None;
            for answer in answered {
                referral = zone::referred(self.resolvers, self.policy, &zone, name, answer).await;
                if referral.is_some() {
                    break;
                }
            }
            if let Some(below) = referral {
                self.zones.push(below);
                continue;
            }
            let answering = answering(&zone, &replies);
            let mut results = Vec::with_capacity(KINDS);
            for (kind, replies) in kinds.into_iter().zip(replies) {
                results.push(self.judged(&zone, name, kind, replies).await);
            }
            // A silent server is not asked again if another server or a resolver has answered.
            if let Some(known) = self.zones.iter_mut().find(|known| known.apex == zone.apex)
                && results.iter().any(Result::is_ok)
            {
                known.servers = answering;
            }
            return Ok(results.try_into().expect("as many results as kinds"));
        }
        let (zone, kind) = (self.zone_of(name).await?, kinds[0]);
        let server = zone.servers.first().map(Server::to_string).unwrap_or_default();
        Err(CheckError::Fault(self.broken(name, kind, server, Failure::Lame)))
    }

    /// The apex of the closest zone above a name that is known from an earlier question.
    pub(super) fn known_apex(&self, name: &Name) -> Option<&Name> {
        self.closest(name).and_then(|zone| zone.apex.as_ref())
    }

    fn closest(&self, name: &Name) -> Option<&Zone> {
        let above = |zone: &&Zone| zone.apex.as_ref().is_some_and(|apex| apex.zone_of(name));
        self.zones.iter().filter(above).max_by_key(|zone| zone.apex.as_ref().map(Name::num_labels))
    }

    async fn zone_of(&mut self, name: &Name) -> Result<Zone, CheckError> {
        if let Some(zone) = self.closest(name) {
            return Ok(zone.clone());
        }
        let found = zone::find(self.resolvers, self.policy, name).await;
        let zone = found.map_err(|unresolved| no_resolver(&unresolved))?;
        self.zones.push(zone.clone());
        Ok(zone)
    }

    async fn ask_servers(&self, zone: &Zone, name: &Name, kind: RecordType) -> Vec<Result<Message, QueryError>> {
        let ask = Ask { name, kind, recursion: false, checking_disabled: false, time_limit: TIME_LIMIT };
        join_all(zone.servers.iter().map(|server| wire::ask(server.address, ask))).await
    }

    async fn judged(
        &mut self,
        zone: &Zone,
        name: &Name,
        kind: RecordType,
        replies: Vec<Result<Message, QueryError>>,
    ) -> Result<Answers, CheckError> {
        let mut answers = Answers { zone: zone.apex.clone(), of: Vec::new() };
        let mut worst: Option<(Failure, String)> = None;
        for (server, reply) in zone.servers.iter().zip(replies) {
            let failure = match reply {
                Ok(answer) => match failure_of(answer.metadata.response_code) {
                    None if answer.metadata.authoritative => {
                        answers.of.push((server.to_string(), content(&answer, name, kind)));
                        continue;
                    }
                    None => Failure::Lame,
                    Some(failure) => failure,
                },
                Err(QueryError::Failed(failure)) => failure,
                Err(QueryError::NoRoute) => continue,
            };
            if failure == Failure::Timeout {
                self.late = Some(self.broken(name, kind, server.to_string(), failure));
            }
            if worst.as_ref().is_none_or(|(known, _)| *known < failure) {
                worst = Some((failure, server.to_string()));
            }
        }
        if !answers.of.is_empty() {
            return Ok(answers);
        }
        match worst {
            Some((Failure::Servfail, server)) => {
                Err(CheckError::Fault(self.broken(name, kind, server, Failure::Servfail)))
            }
            worst => self.ask_resolvers(answers, name, kind, worst).await,
        }
    }

    async fn ask_resolvers(
        &self,
        mut answers: Answers,
        name: &Name,
        kind: RecordType,
        worst: Option<(Failure, String)>,
    ) -> Result<Answers, CheckError> {
        match self.resolvers.ask(name, kind, false).await {
            Ok((resolver, answer)) => {
                answers.of.push((format!("the resolver {}", resolver.ip()), content(&answer, name, kind)));
                Ok(answers)
            }
            Err(unresolved) => Err(match (worst, self.unresolved(name, kind, &unresolved).await) {
                (Some((failure, server)), CheckError::Fault(_)) => {
                    CheckError::Fault(self.broken(name, kind, server, failure))
                }
                (_, error) => error,
            }),
        }
    }

    /// The error if the resolvers can't answer for a name that only they can be asked about.
    pub(super) async fn unresolved(&self, name: &Name, kind: RecordType, unresolved: &ResolveError) -> CheckError {
        if !self.resolvers.any_works().await {
            return no_resolver(unresolved);
        }
        CheckError::Fault(DnsFault::DnsBroken {
            host: self.host.clone(),
            name: text(name),
            kind: kind.to_string(),
            server: unresolved.resolver.ip().to_string(),
            is_resolver: true,
            failure: unresolved.failure,
        })
    }

    fn broken(&self, name: &Name, kind: RecordType, server: String, failure: Failure) -> DnsFault {
        let (host, name, kind) = (self.host.clone(), text(name), kind.to_string());
        DnsFault::DnsBroken { host, name, kind, server, is_resolver: false, failure }
    }
}

/// The servers of a zone that answered.
fn answering(zone: &Zone, replies: &[Vec<Result<Message, QueryError>>]) -> Vec<Server> {
    let answers = |index: &usize| replies.iter().any(|of_kind| of_kind[*index].is_ok());
    (0..zone.servers.len()).filter(answers).map(|index| zone.servers[index].clone()).collect()
}

/// No resolver works.
pub(super) fn no_resolver(unresolved: &ResolveError) -> CheckError {
    CheckError::Unknown(format!("no resolver works; {} {}", unresolved.resolver, unresolved.failure.words()))
}

/// What an answer has for exactly this name: records of other names are ignored.
fn content(answer: &Message, name: &Name, kind: RecordType) -> Content {
    let of_name = || answer.answers.iter().filter(|record| record.name == *name);
    let alias = of_name().find_map(|record| match &record.data {
        RData::CNAME(alias) => Some(alias.0.to_lowercase()),
        _ => None,
    });
    if let Some(alias) = alias {
        return Content::Alias(alias);
    }
    let records: Vec<RData> = of_name()
        .filter(|record| record.record_type() == kind)
        .map(|record| record.data.clone())
        .take(MAX_RECORDS)
        .collect();
    match records.is_empty() {
        false => Content::Records(records),
        true => {
            let exists = answer.metadata.response_code != hickory_resolver::proto::op::ResponseCode::NXDomain;
            Content::Nothing { exists }
        }
    }
}
