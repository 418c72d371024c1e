//! What a resolver shows of a host, and so what the public and CAs see.
//!
//! Owns how an older answer differs from a wrong one, and DNSSEC: if a resolver answers SERVFAIL, but answers normally with
//! signature checks disabled, it rejects the signatures.

use std::net::{IpAddr, SocketAddr};

use hickory_resolver::proto::op::Message;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use jiff::{SignedDuration, Timestamp};

use super::fault::Failure;
use super::pointing::Here;
use super::resolvers::{ResolveError, Resolvers, address_of};
use super::zone::text;
use super::zone_servers::{CheckError, no_resolver};

/// Assumed TTL of an answer without one, in seconds.
///
/// Larger: an owner waits for longer than necessary. Smaller: an owner checks again too early.
const DEFAULT_TTL: u32 = 300;

/// The largest TTL that is believed, in seconds: a week, which is the limit of resolvers.
///
/// Larger: a zone can name a time in the far future. Smaller: an owner checks again too early.
const MAX_TTL: u32 = 7 * 86_400;

/// How a resolver's answer compares with that of the name servers, which point here.
#[derive(Debug)]
pub(super) enum Public {
    /// The host points here.
    Same,
    /// An older answer, until this instant.
    Older(Option<SocketAddr>, Timestamp),
    /// Signatures are wrong.
    Bogus(SocketAddr),
}

/// Asks a resolver about a host that points here according to its name servers.
pub(super) async fn compare(
    resolvers: &Resolvers,
    host: &Name,
    zone: Option<&Name>,
    here: &Here,
) -> Result<Public, CheckError> {
    let kinds = [RecordType::AAAA, RecordType::A];
    let [v6, v4] = kinds.map(|kind| resolvers.ask(host, kind, true));
    let (v6, v4) = tokio::join!(v6, v4);
    let (mut answers, mut failed) = (Vec::new(), None);
    for (kind, answer) in kinds.into_iter().zip([v6, v4]) {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(unresolved) => {
                if unresolved.failure == Failure::Servfail
                    && let Ok((resolver, _)) = resolvers.ask(host, kind, false).await
                {
                    return Ok(Public::Bogus(resolver));
                }
                failed = Some(unresolved);
            }
        }
    }
    match (seen(host, here, &answers), failed) {
        (Ok(Public::Older(..)), Some(unresolved)) => refused(resolvers, host, zone, &unresolved).await,
        (seen, _) => seen,
    }
}

/// For resolvers that fail whether they check signatures or not. Only a signed zone can have wrong signatures.
async fn refused(
    resolvers: &Resolvers,
    host: &Name,
    zone: Option<&Name>,
    unresolved: &ResolveError,
) -> Result<Public, CheckError> {
    if unresolved.failure < Failure::Servfail {
        return Err(no_resolver(unresolved));
    }
    if let Some(zone) = zone
        && let Ok((_, answer)) = resolvers.ask(zone, RecordType::DS, true).await
        && answer.answers.iter().any(|record| record.record_type() == RecordType::DS)
    {
        return Ok(Public::Bogus(unresolved.resolver));
    }
    let resolver = unresolved.resolver.ip();
    let host = text(host);
    Err(CheckError::Unknown(format!(
        "the resolver {resolver} answers SERVFAIL for `{host}`, whose name servers answer"
    )))
}

fn seen(host: &Name, here: &Here, answers: &[(SocketAddr, Message)]) -> Result<Public, CheckError> {
    let records = || answers.iter().flat_map(|(_, answer)| &answer.answers);
    let alias = records().find_map(|record| match &record.data {
        RData::CNAME(alias) if here.is_named(&alias.0) => Some(&alias.0),
        _ => None,
    });
    let addresses: Vec<IpAddr> = records().filter_map(|record| address_of(&record.data)).collect();
    match alias {
        Some(_) if !addresses.is_empty() => return Ok(Public::Same),
        Some(alias) => return Err(CheckError::Unknown(format!("`{}` has no address", text(alias)))),
        None if here.has_all(&addresses) => return Ok(Public::Same),
        None => {}
    }
    let is_older =
        |record: &&Record| record.name == *host || address_of(&record.data).is_some_and(|address| !here.has(address));
    let wrong = records().filter(is_older).map(|record| record.ttl).max();
    let negative = answers.iter().flat_map(|(_, answer)| &answer.authorities).filter_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    });
    let ttl = wrong.or_else(|| negative.max()).unwrap_or(DEFAULT_TTL);
    let until = Timestamp::now() + SignedDuration::from_secs(ttl.min(MAX_TTL).into());
    Ok(Public::Older(answers.first().map(|(resolver, _)| *resolver), until))
}
