//! One check of a host: which questions are asked, and which fault is reported.
//!
//! The proof is asked for first, since it counts wherever the host points, even if that remains unknown.
//!
//! If there are several faults, report the one that blocks the others; report propagation delays last. So the order is:
//! where the host points, its proof, what resolvers accept, which CAs may issue, and whether everyone sees it.

use std::net::IpAddr;

use futures_util::future::OptionFuture;
use hickory_resolver::proto::rr::{Name, RData, RecordType};

use super::caa;
use super::cdn;
use super::fault::DnsFault;
use super::pointing::{self, End, Here, Pointing};
use super::public::{self, Public};
use super::record::{Action, Kind, Record};
use super::resolvers::{Addresses, ResolveError};
use super::wanted::wanted;
use super::zone::{absolute, registered_domain, text};
use super::zone_servers::{CheckError, Content, ZoneServers, no_resolver};
use super::{Finding, Ownership, Proof, Question};

/// The label below a host at which its owner proves ownership.
const PROOF_LABEL: &str = "_formgate";

/// How many wrong addresses are reported.
///
/// Larger: an owner gets hundreds of records that nobody reads. Smaller: an owner removes them in several rounds.
const MAX_REPORTED: usize = 8;

pub(super) async fn check(
    servers: &mut ZoneServers<'_>,
    question: &Question<'_>,
    ownership: &mut Ownership,
) -> Result<Finding, CheckError> {
    let Some(host) = absolute(question.host.as_str()) else {
        return Err(CheckError::Unknown(format!("`{}` is not a name in DNS", question.host)));
    };
    if question.issuers.is_empty() {
        return Err(CheckError::Unknown("no CA is configured".to_owned()));
    }
    let found = match proof(servers, question, &host).await {
        Err(error @ CheckError::Unknown(_)) => return Err(error),
        found => found,
    };
    if let Ok(Some(proof)) = &found {
        *ownership = Ownership::Proved(*proof);
    }
    let here = here(servers, question).await?;
    let pointing = pointing::follow(servers, &host, &here).await?;
    let is_of_label = here.own_label.as_ref().is_some_and(|own| pointing.aliases.contains(own));
    match &found {
        Ok(Some(Proof::NotNeeded)) => {}
        _ if is_of_label => *ownership = Ownership::Proved(Proof::OwnLabel),
        Ok(None) => *ownership = Ownership::Missing,
        _ => {}
    }
    let observed = Observed { question, host: &host, here: &here, pointing: &pointing };
    if let Some(unresolved) = observed.undecided() {
        return Err(unresolved_target(servers, question, unresolved).await);
    }
    if let Some(fault) = observed.wrong_way() {
        return Ok(Finding::Fault(fault));
    }
    if !is_of_label && found?.is_none() {
        return Ok(Finding::Fault(observed.proof_missing()));
    }
    let public = public::compare(servers.resolvers, &host, pointing.zone.as_ref(), &here).await?;
    if let Public::Bogus(resolver) = public {
        let (host, zone) = (text(&host), pointing.zone.as_ref().map(text));
        return Ok(Finding::Fault(DnsFault::Dnssec { host, zone, resolver: resolver.ip().to_string() }));
    }
    let issuers = match observed.issuers(servers).await? {
        Ok(issuers) => issuers,
        Err(fault) => return Ok(Finding::Fault(fault)),
    };
    Ok(match observed.not_seen_yet(&public) {
        Some(fault) => Finding::Fault(fault),
        None => Finding::Ready { issuers },
    })
}

/// The proof of ownership, other than an alias to the tenant's own label.
async fn proof(
    servers: &mut ZoneServers<'_>,
    question: &Question<'_>,
    host: &Name,
) -> Result<Option<Proof>, CheckError> {
    let Some(expected) = question.proof else { return Ok(Some(Proof::NotNeeded)) };
    // An alias is not followed: one for all names below the host would prove nothing about this one.
    let Ok(name) = host.prepend_label(PROOF_LABEL) else { return Ok(None) };
    let answers = servers.ask(&name, RecordType::TXT).await?;
    let has_proof = |content: &Content| match content {
        Content::Records(records) => records.iter().any(|record| is_proof(record, expected)),
        Content::Alias(_) | Content::Nothing { .. } => false,
    };
    Ok(answers.of.iter().all(|(_, content)| has_proof(content)).then_some(Proof::Txt))
}

/// Where hosts have to point.
async fn here(servers: &ZoneServers<'_>, question: &Question<'_>) -> Result<Here, CheckError> {
    let here = |addresses| Here::new(question.own_label, question.target, addresses);
    if !question.addresses.is_empty() {
        return Ok(here(Some(question.addresses.to_vec())));
    }
    let target = question.target.and_then(|target| absolute(target.as_str()));
    let found = target.as_ref().map(|target| servers.resolvers.addresses(target));
    match OptionFuture::from(found).await {
        None => Ok(here(None)),
        Some(Ok(Addresses { addresses, failed })) if !addresses.is_empty() => {
            Ok(Here { failed, ..here(Some(addresses)) })
        }
        Some(Ok(_)) => {
            Err(CheckError::Unknown(format!("`{}` has no address", question.target.map_or("", |t| t.as_str()))))
        }
        Some(Err(unresolved)) => Err(unresolved_target(servers, question, unresolved).await),
    }
}

/// The addresses of the target, or those of one family, are unknown.
async fn unresolved_target(servers: &ZoneServers<'_>, question: &Question<'_>, unresolved: ResolveError) -> CheckError {
    if !servers.resolvers.any_works().await {
        return no_resolver(&unresolved);
    }
    let ResolveError { resolver, failure } = unresolved;
    CheckError::Unknown(format!(
        "the resolver {} {} for `{}`, where hosts have to point",
        resolver.ip(),
        failure.words(),
        question.target.map_or("", |target| target.as_str())
    ))
}

/// What a check has found so far.
struct Observed<'v> {
    question: &'v Question<'v>,
    host: &'v Name,
    here: &'v Here,
    pointing: &'v Pointing,
}

impl Observed<'_> {
    /// Why it is unknown whether the host points here: it has another address than the known ones, of a family for which the
    /// target could not be resolved.
    fn undecided(&self) -> Option<ResolveError> {
        let (family, unresolved) = self.here.failed?;
        let End::Addresses(addresses) = &self.pointing.end else { return None };
        let is_of_family = |address: &IpAddr| address.is_ipv6() == (family == RecordType::AAAA);
        addresses.iter().any(|address| is_of_family(address) && !self.here.has(*address)).then_some(unresolved)
    }

    /// The fault of a host that does not point here.
    fn wrong_way(&self) -> Option<DnsFault> {
        let host = text(self.host);
        let addresses = match &self.pointing.end {
            End::Here => return None,
            End::Addresses(addresses) if self.here.has_all(addresses) => return None,
            End::Addresses(addresses) => &addresses[..],
            End::Nothing { exists } if self.pointing.aliases.is_empty() => {
                let undelegated = if *exists { None } else { self.undelegated() };
                let records = if undelegated.is_some() { Vec::new() } else { self.wanted() };
                return Some(DnsFault::NoRecords { host, undelegated, records });
            }
            End::Nothing { .. } | End::Endless => &[],
        };
        let wrong: Vec<IpAddr> = addresses.iter().filter(|address| !self.here.has(**address)).copied().collect();
        let mut records = self.to_remove(&wrong);
        if !self.pointing.aliases.is_empty() || wrong.len() == addresses.len() {
            records.extend(self.wanted());
        }
        let by_name = self.pointing.aliases.iter().map(text).find_map(|name| Some((cdn::named(&name)?, name.clone())));
        let by_address = || wrong.first().and_then(|address| Some((cdn::at(*address)?, address.to_string())));
        Some(match by_name.or_else(by_address) {
            // The CDN's own name servers answer with its addresses in place of the records that the owner sees.
            Some((cdn, found)) if self.pointing.aliases.is_empty() => {
                DnsFault::BehindCdn { host, cdn: cdn.to_owned(), found, records: Vec::new() }
            }
            Some((cdn, found)) => DnsFault::BehindCdn { host, cdn: cdn.to_owned(), found, records },
            None => DnsFault::Elsewhere { host, records },
        })
    }

    fn to_remove(&self, wrong: &[IpAddr]) -> Vec<Record> {
        if let Some(alias) = self.pointing.aliases.first() {
            return vec![self.record(Action::Remove, Kind::Cname, text(alias))];
        }
        let shown = wrong.iter().take(MAX_REPORTED);
        shown.map(|address| self.record(Action::Remove, Kind::from(*address), address.to_string())).collect()
    }

    /// The records that point the host here.
    fn wanted(&self) -> Vec<Record> {
        let zone = self.pointing.zone.as_ref().map(text);
        let name = self.question.own_label.or(self.question.target);
        let addresses = self.here.addresses.as_deref().unwrap_or_default();
        wanted(&text(self.host), zone.as_deref(), name, addresses)
    }

    fn record(&self, action: Action, kind: Kind, value: String) -> Record {
        let zone = self.pointing.zone.as_ref().map(text);
        Record::new(action, kind, &text(self.host), zone.as_deref(), value)
    }

    /// The registered domain of the host, if the zone is above it.
    fn undelegated(&self) -> Option<String> {
        let host = text(self.host);
        let domain = registered_domain(&host)?;
        let is_above = self.pointing.zone.as_ref()?.num_labels() < absolute(domain)?.num_labels();
        is_above.then(|| domain.to_owned())
    }

    fn proof_missing(&self) -> DnsFault {
        let host = text(self.host);
        let zone = self.pointing.zone.as_ref().map(text);
        let name = format!("{PROOF_LABEL}.{host}");
        let value = self.question.proof.unwrap_or_default();
        let records = vec![Record::new(Action::Add, Kind::Txt, &name, zone.as_deref(), value)];
        DnsFault::ProofMissing { host, records }
    }

    /// The CAs that may issue.
    async fn issuers(&self, servers: &mut ZoneServers<'_>) -> Result<Result<Vec<usize>, DnsFault>, CheckError> {
        let issuers = self.question.issuers;
        let unchecked: Vec<usize> = (0..issuers.len()).filter(|index| issuers[*index].name.is_empty()).collect();
        if unchecked.len() == issuers.len() {
            return Ok(Ok(unchecked));
        }
        let relevant = match caa::find(servers, self.host).await {
            Ok(Some(relevant)) => relevant,
            Ok(None) => return Ok(Ok((0..issuers.len()).collect())),
            Err(CheckError::Fault(_)) if !unchecked.is_empty() => return Ok(Ok(unchecked)),
            Err(error) => return Err(error),
        };
        let is_allowed = |index: &usize| {
            let issuer = &issuers[*index];
            issuer.name.is_empty() || relevant.allow(issuer, self.question)
        };
        let allowed: Vec<usize> = (0..issuers.len()).filter(is_allowed).collect();
        if !allowed.is_empty() {
            return Ok(Ok(allowed));
        }
        let holder = text(&relevant.holder);
        let (action, value) = match relevant.critical() {
            Some(critical) => (Action::Remove, caa::written(critical)),
            None => (Action::Add, format!("0 issue \"{}\"", issuers[0].name)),
        };
        let zone = servers.known_apex(&relevant.holder).map(text);
        let records = vec![Record::new(action, Kind::Caa, &holder, zone.as_deref(), value)];
        Ok(Err(DnsFault::Caa { host: text(self.host), holder, records }))
    }

    fn not_seen_yet(&self, public: &Public) -> Option<DnsFault> {
        let host = text(self.host);
        if let Some(server) = &self.pointing.behind {
            return Some(DnsFault::NotSeenYet { host, server: server.clone(), until: None });
        }
        match public {
            Public::Older(resolver, until) => {
                let server = resolver.map_or_else(String::new, |resolver| resolver.ip().to_string());
                Some(DnsFault::NotSeenYet { host, server, until: Some(*until) })
            }
            Public::Same | Public::Bogus(_) => None,
        }
    }
}

/// Whether a TXT record has exactly this text, in one string or in several. Some forms of DNS providers store the
/// quotes that an owner pastes.
fn is_proof(record: &RData, expected: &str) -> bool {
    let RData::TXT(txt) = record else { return false };
    let text = txt.txt_data.concat();
    text.trim_ascii() == expected.as_bytes()
        || text.trim_ascii().strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")) == Some(expected.as_bytes())
}
