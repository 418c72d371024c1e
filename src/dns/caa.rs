//! Which CAs the CAA records of a name allow (RFC 8659, RFC 8657).
//!
//! Owns the climb from a name to the closest domain above it that has CAA records, and how they are read. Hosts are
//! never wildcards, so `issuewild` does not count.

use hickory_resolver::proto::rr::rdata::CAA;
use hickory_resolver::proto::rr::{Name, RData, RecordType};

use super::zone::{registered_domain, text};
use super::zone_servers::{CheckError, Content, ZoneServers};
use super::{Issuer, Question};

/// The properties that CAs know; an unknown one that is critical forbids to issue.
const KNOWN: [&str; 7] = ["issue", "issuewild", "issuemail", "issuevmc", "iodef", "contactemail", "contactphone"];

/// The CAA records that apply to a host.
#[derive(Debug)]
pub(super) struct Relevant {
    /// The name that has them.
    pub(super) holder: Name,
    /// What each server has there.
    pub(super) sets: Vec<Vec<CAA>>,
}

/// The CAA records of the host, or of the closest domain above it that has any. CAs do not issue if one of these questions
/// fails, so it is an error here too.
pub(super) async fn find(servers: &mut ZoneServers<'_>, host: &Name) -> Result<Option<Relevant>, CheckError> {
    let registered = registered_domain(&text(host)).and_then(super::zone::absolute);
    let mut at = host.clone();
    while !at.is_root() {
        let is_owners = registered.as_ref().is_none_or(|registered| registered.zone_of(&at));
        let found = if is_owners { directly(servers, &at).await? } else { None };
        let found = match found {
            Some(found) => found,
            None => resolved(servers, &at).await?,
        };
        if !found.sets.is_empty() {
            return Ok(Some(found));
        }
        at = at.base_name();
    }
    Ok(None)
}

/// What the servers of a name's zone have; `None` if it is an alias.
async fn directly(servers: &mut ZoneServers<'_>, name: &Name) -> Result<Option<Relevant>, CheckError> {
    let mut sets = Vec::new();
    for (_, content) in servers.ask(name, RecordType::CAA).await?.of {
        match content {
            Content::Alias(_) => return Ok(None),
            Content::Records(records) => sets.push(records.iter().filter_map(caa).cloned().collect()),
            Content::Nothing { .. } => {}
        }
    }
    Ok(Some(Relevant { holder: name.clone(), sets }))
}

/// What the resolvers find: at the end of an alias, and for names above the owner's domain.
async fn resolved(servers: &ZoneServers<'_>, name: &Name) -> Result<Relevant, CheckError> {
    match servers.resolvers.ask(name, RecordType::CAA, false).await {
        Ok((_, answer)) => {
            let holder = answer.answers.iter().find(|record| caa(&record.data).is_some());
            let set: Vec<CAA> = answer.answers.iter().filter_map(|record| caa(&record.data)).cloned().collect();
            let sets = if set.is_empty() { Vec::new() } else { vec![set] };
            Ok(Relevant { holder: holder.map_or_else(|| name.clone(), |record| record.name.clone()), sets })
        }
        Err(unresolved) => Err(servers.unresolved(name, RecordType::CAA, &unresolved).await),
    }
}

fn caa(data: &RData) -> Option<&CAA> {
    if let RData::CAA(caa) = data { Some(caa) } else { None }
}

impl Relevant {
    /// The critical property that CAs do not know, which forbids to issue.
    pub(super) fn critical(&self) -> Option<&CAA> {
        let is_unknown = |caa: &&CAA| caa.issuer_critical && !KNOWN.iter().any(|tag| caa.tag.eq_ignore_ascii_case(tag));
        self.sets.iter().flatten().find(is_unknown)
    }

    /// Whether every server's records allow a CA.
    pub(super) fn allow(&self, issuer: &Issuer<'_>, question: &Question<'_>) -> bool {
        self.critical().is_none() && self.sets.iter().all(|set| allows(set, issuer, question))
    }
}

fn allows(set: &[CAA], issuer: &Issuer<'_>, question: &Question<'_>) -> bool {
    let mut issue = set.iter().filter(|caa| caa.tag.eq_ignore_ascii_case("issue")).peekable();
    issue.peek().is_none() || issue.any(|caa| is_granted(&caa.value, issuer, question))
}

/// Whether an `issue` property names this CA, with parameters that it satisfies. A malformed value names no CA.
fn is_granted(value: &[u8], issuer: &Issuer<'_>, question: &Question<'_>) -> bool {
    let Ok(value) = std::str::from_utf8(value) else { return false };
    let mut parts = value.split(';').map(str::trim);
    let domain = parts.next().unwrap_or_default();
    let mut accounts = 0;
    domain.eq_ignore_ascii_case(issuer.name)
        && parts.filter(|part| !part.is_empty()).all(|part| match part.split_once('=') {
            None => false,
            Some((tag, value)) if tag.trim().eq_ignore_ascii_case("accounturi") => {
                accounts += 1;
                accounts == 1 && issuer.account.is_none_or(|account| account == value.trim())
            }
            Some((tag, value)) if tag.trim().eq_ignore_ascii_case("validationmethods") => {
                value.split(',').any(|method| question.methods.contains(&method.trim()))
            }
            Some(_) => true,
        })
}

/// A CAA record's value as in a zone file.
pub(super) fn written(caa: &CAA) -> String {
    format!("{} {} \"{}\"", caa.flags(), caa.tag, String::from_utf8_lossy(&caa.value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostName;

    fn property(flags: u8, tag: &str, value: &str) -> CAA {
        let mut caa = CAA::new_issue(flags & 0x80 != 0, None, Vec::new());
        (caa.tag, caa.value) = (tag.to_owned(), value.as_bytes().to_vec());
        caa
    }

    #[test]
    fn an_authority_is_allowed_as_rfc_8659_and_8657_say() {
        let host = HostName::parse("forms.acme.example").unwrap();
        let methods = ["http-01", "tls-alpn-01"];
        let question = Question {
            host: &host,
            own_label: None,
            target: None,
            addresses: &[],
            proof: None,
            issuers: &[],
            methods: &methods,
        };
        let issuer = Issuer { name: "ca.example", account: Some("https://ca.example/acct/1") };
        let unknown = Issuer { account: None, ..issuer };
        for (set, allowed, allowed_without_account) in [
            (&[(0, "issue", "ca.example")][..], true, true),
            (&[(0, "ISSUE", " CA.Example ; ")], true, true),
            (&[(0, "issue", "other.example")], false, false),
            (&[(0, "issue", "other.example"), (0, "issue", "ca.example")], true, true),
            (&[(0, "issue", ";")], false, false),
            (&[(0, "issue", "")], false, false),
            (&[(0, "issue", "%%%%%")], false, false),
            (&[(0, "issue", ";"), (0, "issue", "ca.example")], true, true),
            (&[(0, "iodef", "mailto:dns@acme.example")], true, true),
            (&[(0, "issuewild", ";")], true, true),
            (&[(0, "issuewild", "ca.example"), (0, "issue", ";")], false, false),
            (&[(128, "issue", "ca.example")], true, true),
            (&[(128, "tbs", "unknown"), (0, "issue", "ca.example")], false, false),
            (&[(0, "tbs", "unknown"), (0, "issue", "ca.example")], true, true),
            (&[(0, "issue", "ca.example; validationmethods=dns-01")], false, false),
            (&[(0, "issue", "ca.example; validationmethods=dns-01,http-01")], true, true),
            (&[(0, "issue", "ca.example;accounturi=https://ca.example/acct/1")], true, true),
            (&[(0, "issue", "ca.example; accounturi = https://ca.example/acct/2")], false, true),
            (&[(0, "issue", "ca.example; accounturi=x; accounturi=x")], false, false),
            (&[(0, "issue", "ca.example; policy=ev")], true, true),
            (&[(0, "issue", "ca.example; policy")], false, false),
        ] {
            let records = set.iter().map(|(flags, tag, value)| property(*flags, tag, value)).collect();
            let relevant = Relevant { holder: Name::root(), sets: vec![records] };
            assert_eq!(relevant.allow(&issuer, &question), allowed, "{set:?}");
            assert_eq!(relevant.allow(&unknown, &question), allowed_without_account, "{set:?}, without an account");
        }
    }

    #[test]
    fn the_records_of_every_server_have_to_allow_an_authority() {
        let host = HostName::parse("acme.example").unwrap();
        let question = Question {
            host: &host,
            own_label: None,
            target: None,
            addresses: &[],
            proof: None,
            issuers: &[],
            methods: &[],
        };
        let (ours, others) = (property(0, "issue", "ca.example"), property(0, "issue", "other.example"));
        let issuer = Issuer { name: "ca.example", account: None };
        for (sets, allowed) in [
            (vec![vec![ours.clone()], vec![ours.clone()]], true),
            (vec![vec![ours.clone()], vec![others.clone()]], false),
        ] {
            assert_eq!(Relevant { holder: Name::root(), sets }.allow(&issuer, &question), allowed);
        }
        assert_eq!(written(&others), r#"0 issue "other.example""#);
    }
}
