//! What an account is told of a reason: what its owner can act on, and nothing about the network of the operator.
//!
//! An account can claim any host, also a name that only the operator's resolvers know. So it learns neither where these
//! are, nor what they respond about names of that network, nor why a CA of that network can't be used. A CA may send the
//! operator an address that acts for the operator's account, such as one that ends a pause.

use super::reason::{OtherReason, Reason};
use crate::dns::{Action, DnsFault, Record};
use crate::outbound::is_public;

/// Replaces the address of a resolver. Pages show it in their language.
pub(super) const OF_THIS_GATEWAY: &str = "of this gateway";

/// Replaces the cause for which DNS is unreachable. Pages show it in their language.
pub(super) const NO_RESOLVER: &str = "no resolver works";

/// Replaces what is wrong with a CA. Pages show it in their language.
pub(super) const NO_RESPONSE: &str = "it gives no usable response";

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
                Self::Other(OtherReason::CaDown { authority, detail: NO_RESPONSE.to_owned(), until })
            }
            Self::Other(OtherReason::CaAccount { authority, until, .. }) => {
                Self::Other(OtherReason::CaAccount { authority, detail: None, until })
            }
            Self::Other(OtherReason::CaRefused { authority, detail, until }) => {
                Self::Other(OtherReason::CaRefused { authority, detail: words_of(&detail), until })
            }
            Self::Other(OtherReason::CaLimited { authority, detail, until }) => {
                Self::Other(OtherReason::CaLimited { authority, detail: words_of(&detail), until })
            }
            Self::Other(OtherReason::Unreachable { authority, host, challenge, detail, until }) => {
                let detail = words_of(&detail);
                Self::Other(OtherReason::Unreachable { authority, host, challenge, detail, until })
            }
            other => other,
        }
    }
}

/// The words of a CA that can't be a credential. A word with other signs than a sentence has, such as an address of a page,
/// or with a long mix of letters and digits, is left out; of an address that is written in full, its server is shown.
fn words_of(detail: &str) -> String {
    let mut told: Vec<String> = Vec::new();
    let mut is_cut = false;
    for word in detail.split_whitespace() {
        // An address that was broken at a line end continues in the next word.
        let shown = if is_cut { LEFT_OUT.to_owned() } else { told_word(word) };
        is_cut = word.ends_with(['=', '/', '?', '&', '%', '-']) && word.len() > 1;
        if shown != LEFT_OUT || told.last().is_none_or(|last| last != LEFT_OUT) {
            told.push(shown);
        }
    }
    told.join(" ")
}

/// Replaces words that are left out.
const LEFT_OUT: &str = "…";

/// How long a mix of letters and digits may be.
///
/// Larger: a short credential is shown. Smaller: names of servers with numbers are left out.
const MAX_MIX: usize = 15;

fn told_word(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || ".,;:-_()[]<>\"'!*".contains(letter);
    if word.chars().all(is_plain) {
        let bare = word.trim_matches(|letter: char| !letter.is_alphanumeric());
        let is_mix = |part: &str| {
            part.chars().count() > MAX_MIX && part.contains(char::is_numeric) && part.contains(char::is_alphabetic)
        };
        let is_server = bare.contains('.') && !bare.contains(char::is_uppercase) && is_public_name(bare);
        let has_mix =
            bare.split(|letter: char| !letter.is_alphanumeric() && letter != '-' && letter != '_').any(is_mix);
        return if has_mix && !is_server { LEFT_OUT.to_owned() } else { word.to_owned() };
    }
    server_of(word).unwrap_or_else(|| LEFT_OUT.to_owned())
}

/// The address of a page without what follows its server.
fn server_of(word: &str) -> Option<String> {
    let (scheme, rest) = word.split_once("://")?;
    let opening = scheme.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let is_web = matches!(&*scheme[opening.len()..].to_ascii_lowercase(), "http" | "https");
    let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && !".-".contains(letter)).unwrap_or(rest.len());
    let (server, path) = rest.split_at(end);
    let is_told = is_web && "([<\"'".contains(opening) && told_word(server) == server && is_public_name(server);
    (is_told && path.starts_with(['/', '?', '#']) && !path.contains('@')).then(|| format!("{scheme}://{server}/…"))
}

fn is_public_name(name: &str) -> bool {
    psl::suffix(name.as_bytes()).is_some_and(|suffix| suffix.is_known())
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
                "Please visit: https://portal.example.com/unpause?jwt=eyJh.bGci and wait",
                "Please visit: https://portal.example.com/… and wait",
            ),
            ("(https://portal.example.com/unpause/eyJhbGci)", "(https://portal.example.com/…"),
            ("see https://me:secret@portal.example.com.", "see …"),
            ("see https://me:secret/x@portal.example.com/", "see …"),
            ("see https://me:pa'secret@portal.example.com/u now", "see … now"),
            ("see https://portal.example.com/ secret now", "see https://portal.example.com/… … now"),
            ("HTTPS://portal.example.com/o'neil?jwt=secret", "HTTPS://portal.example.com/…"),
            ("visit portal.example.com/unpause?jwt=secret today", "visit … today"),
            ("https:\\/\\/portal.example.com\\/unpause?jwt=secret", "…"),
            ("see //portal.example.com/secret https%3A%2F%2Fportal.example.com%2Fsecret now", "see … now"),
            ("https:/portal.example.com/secret jwt=secret &lt;https://a.example.com/secret&gt;", "…"),
            ("see https://portal.example.com/unpause?jwt= secret now", "see https://portal.example.com/… … now"),
            ("with the token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.x and more", "with the token … and more"),
            (
                "too many certificates (50) already issued for \"*.h1234567890123456.example.com\" in the last 168h0m0s",
                "too many certificates (50) already issued for \"*.h1234567890123456.example.com\" in the last 168h0m0s",
            ),
            (
                "urn:ietf:params:acme:error:rejectedIdentifier: 2001:db8::1, 192.0.2.1",
                "urn:ietf:params:acme:error:rejectedIdentifier: 2001:db8::1, 192.0.2.1",
            ),
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
