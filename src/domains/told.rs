//! What an account is told of a reason: what its owner can act on, and nothing about the network of the operator.
//!
//! An account can claim any host, also a name that only the operator's resolvers know. So it learns neither where these
//! are, nor what they answer about names of that network, nor why an authority of that network can't be used. An authority
//! may answer the operator with an address that acts for the operator's account, such as one that ends a pause.

use super::reason::{OtherReason, Reason};
use crate::dns::{Action, DnsFault, Record};
use crate::outbound::is_public;

/// Stands for the address of a resolver. Pages have it in their language.
pub const OF_THIS_GATEWAY: &str = "of this gateway";

/// Stands for why DNS can't be asked.
const NO_RESOLVER: &str = "no resolver works";

/// Stands for what is wrong with an authority.
const NO_ANSWER: &str = "it gives no usable answer";

/// What a fault calls a resolver in place of a server of the zone.
const RESOLVER: &str = "the resolver ";

impl Reason {
    /// The same reason as the account of the host may see it.
    #[must_use]
    pub fn told(self) -> Self {
        match self {
            Self::Dns(fault) => Self::Dns(of_fault(fault)),
            Self::Other(OtherReason::DnsDown { until, records, .. }) => {
                Self::Other(OtherReason::DnsDown { detail: NO_RESOLVER.to_owned(), until, records })
            }
            Self::Other(OtherReason::CaDown { authority, until, .. }) => {
                Self::Other(OtherReason::CaDown { authority, detail: NO_ANSWER.to_owned(), until })
            }
            Self::Other(OtherReason::CaRefused { authority, detail, until }) => {
                Self::Other(OtherReason::CaRefused { authority, detail: without_addresses(&detail), until })
            }
            Self::Other(OtherReason::CaLimited { authority, detail, until }) => {
                Self::Other(OtherReason::CaLimited { authority, detail: without_addresses(&detail), until })
            }
            Self::Other(OtherReason::Unreachable { authority, host, challenge, detail, until }) => {
                let detail = without_addresses(&detail);
                Self::Other(OtherReason::Unreachable { authority, host, challenge, detail, until })
            }
            other => other,
        }
    }
}

/// The words of an authority, where of the address of a page only its server is left: all else may be a credential.
fn without_addresses(detail: &str) -> String {
    let mut told = String::with_capacity(detail.len());
    let mut rest = detail;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        let end =
            after.find(|letter: char| letter.is_whitespace() || "\"'<>)}`".contains(letter)).unwrap_or(after.len());
        let address = after[..end].trim_end_matches(['.', ',', ';', ':']);
        let server = &address[..address.find(['/', '?', '#', '\\']).unwrap_or(address.len())];
        told.push_str(before);
        told.push_str(server.rsplit_once('@').map_or(server, |(_, host)| host));
        if address.len() > server.len() {
            told.push_str("/…");
        }
        told.push_str(&after[address.len()..end]);
        rest = &after[end..];
    }
    told + rest
}

fn of_fault(fault: DnsFault) -> DnsFault {
    let here = || OF_THIS_GATEWAY.to_owned();
    match fault {
        DnsFault::NotSeenYet { host, until: Some(until), .. } => {
            DnsFault::NotSeenYet { host, server: here(), until: Some(until) }
        }
        DnsFault::NotSeenYet { host, server, until } if server.starts_with(RESOLVER) => {
            DnsFault::NotSeenYet { host, server: here(), until }
        }
        DnsFault::DnsBroken { host, name, kind, is_resolver: true, failure, .. } => {
            DnsFault::DnsBroken { host, name, kind, server: here(), is_resolver: true, failure }
        }
        DnsFault::Dnssec { host, zone, .. } => DnsFault::Dnssec { host, zone, resolver: here() },
        DnsFault::Elsewhere { host, mut records } => {
            records.retain(is_told);
            if records.iter().any(|record| record.action == Action::Remove) {
                DnsFault::Elsewhere { host, records }
            } else {
                // As for a host without records, so that it does not show whether a private name exists.
                DnsFault::NoRecords { host, undelegated: None, records }
            }
        }
        other => other,
    }
}

/// Whether an account may know a record: one to add, or one of the public DNS.
fn is_told(record: &Record) -> bool {
    let is_public_name = |name: &str| psl::suffix(name.as_bytes()).is_some_and(|suffix| suffix.is_known());
    record.action == Action::Add || record.value.parse().map_or_else(|_| is_public_name(&record.value), is_public)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::dns::{Failure, Kind};

    fn record(action: Action, kind: Kind, value: &str) -> Record {
        Record { action, kind, name: "forms.acme.org".to_owned(), relative: None, value: value.to_owned() }
    }

    #[test]
    fn an_account_learns_nothing_about_resolvers_and_internal_authorities() {
        let (host, until) = (|| "forms.acme.org".to_owned(), Timestamp::from_second(1_800_000_000).unwrap());
        let resolver = || "10.0.0.53".to_owned();
        let detail = || "no resolver works; 10.0.0.53:53 does not answer".to_owned();
        for reason in [
            Reason::Dns(DnsFault::NotSeenYet { host: host(), server: resolver(), until: Some(until) }),
            Reason::Dns(DnsFault::NotSeenYet { host: host(), server: "the resolver 10.0.0.53".into(), until: None }),
            Reason::Dns(DnsFault::Dnssec { host: host(), zone: None, resolver: resolver() }),
            Reason::Dns(DnsFault::DnsBroken {
                host: host(),
                name: "acme.org".into(),
                kind: "A".into(),
                server: resolver(),
                is_resolver: true,
                failure: Failure::Servfail,
            }),
            Reason::Other(OtherReason::DnsDown { detail: detail(), until, records: Vec::new() }),
            Reason::Other(OtherReason::CaDown { authority: "main".into(), detail: detail(), until }),
        ] {
            let told = reason.clone().told();
            assert!(reason.next_step().contains("10.0.0.53") && !told.stored().contains("10.0.0.53"), "{told:?}");
            assert_eq!(told.name(), reason.name());
        }
    }

    #[test]
    fn an_account_reads_no_address_that_may_carry_a_credential() {
        let until = Timestamp::from_second(1_800_000_000).unwrap();
        for (words, told) in [
            (
                "Please visit: https://portal.example/unpause?jwt=eyJh.bGci and wait",
                "Please visit: https://portal.example/… and wait",
            ),
            ("(https://portal.example/unpause/eyJhbGci)", "(https://portal.example/…)"),
            ("see https://me:secret@portal.example.", "see https://portal.example."),
            (
                "<http://[2001:db8::1]:8080#token>, http://b.example, too",
                "<http://[2001:db8::1]:8080/…>, http://b.example, too",
            ),
            ("HTTPS://portal.example\\secret", "HTTPS://portal.example/…"),
            ("too many requests", "too many requests"),
        ] {
            let detail = || words.to_owned();
            let host = "forms.acme.org".to_owned();
            for reason in [
                OtherReason::CaRefused { authority: "main".into(), detail: detail(), until },
                OtherReason::CaLimited { authority: "main".into(), detail: detail(), until },
                OtherReason::Unreachable {
                    authority: "main".into(),
                    host,
                    challenge: crate::acme::ChallengeKind::Http01,
                    detail: detail(),
                    until,
                },
            ] {
                let step = Reason::Other(reason.clone()).told().next_step();
                assert!(step.contains(&format!("({told})")) || step.contains(&format!(": {told}. ")), "{step}");
                assert!(Reason::Other(reason).next_step().contains(words), "the operator reads it whole");
            }
        }
    }

    #[test]
    fn a_name_of_the_private_network_is_told_as_one_without_records() {
        let add = || record(Action::Add, Kind::Cname, "acme.edge.example.net");
        let elsewhere = |records| Reason::Dns(DnsFault::Elsewhere { host: "forms.acme.org".into(), records }).told();
        let none =
            Reason::Dns(DnsFault::NoRecords { host: "forms.acme.org".into(), undelegated: None, records: vec![add()] });
        for (kind, value) in [
            (Kind::A, "10.0.0.5"),
            (Kind::Aaaa, "fd00::5"),
            (Kind::A, "127.0.0.1"),
            (Kind::Cname, "db1.corp.internal"),
            (Kind::Cname, "db1"),
        ] {
            assert_eq!(elsewhere(vec![record(Action::Remove, kind, value), add()]), none, "{value}");
        }
        for (kind, value) in [(Kind::A, "1.1.1.1"), (Kind::Cname, "shop.provider.example.com")] {
            let public = vec![record(Action::Remove, kind, value), add()];
            let both = [vec![record(Action::Remove, Kind::A, "10.0.0.5")], public.clone()].concat();
            let expected = Reason::Dns(DnsFault::Elsewhere { host: "forms.acme.org".into(), records: public });
            assert_eq!(elsewhere(both), expected, "{value}");
        }
    }
}
