//! What is wrong with a domain and what to do about it, in the language of a page.
//!
//! In English these are the words of the API, the log and the command line; a test compares them.

use jiff::Timestamp;

use super::texts::{DomainStepsTexts, Text, Texts};
use crate::config::Language;
use crate::dns::{Action, DnsFault, Failure, Record};
use crate::domains::{OF_THIS_GATEWAY, OtherReason, Reason};
use crate::store::registry::DomainState;

/// A part of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Words(String),
    /// A name or a value, to be copied exactly.
    Code(String),
    /// Words of others, which are English.
    English(String),
}

/// A reason for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReasonWords {
    /// The word that the API has for it.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) step: Vec<Piece>,
}

impl ReasonWords {
    /// The words for a reason; none if nothing is wrong. `moment` writes an instant.
    pub(super) fn of(
        reason: &Reason,
        texts: &'static Texts,
        language: Language,
        moment: &dyn Fn(Timestamp) -> String,
    ) -> Option<Self> {
        let steps = Steps { text: &texts.domain_steps, texts, language, moment };
        let (title, step) = match reason {
            Reason::None {} => return None,
            Reason::Dns(fault) => steps.of_fault(fault),
            Reason::Other(other) => steps.of_other(other),
        };
        Some(Self { name: reason.name(), title, step })
    }
}

/// What a state is called, and what it means.
pub(super) fn words_of(state: DomainState, texts: &'static Texts) -> (&'static str, &'static str) {
    let (label, meaning) = (&texts.domain_states, &texts.domain_meanings);
    let (label, meaning) = match state {
        DomainState::Claimed => (&label.claimed, &meaning.claimed),
        DomainState::Dns => (&label.dns, &meaning.dns),
        DomainState::Verified => (&label.verified, &meaning.verified),
        DomainState::Queued => (&label.queued, &meaning.queued),
        DomainState::Issuing => (&label.issuing, &meaning.issuing),
        DomainState::Live => (&label.live, &meaning.live),
        DomainState::Failing => (&label.failing, &meaning.failing),
        DomainState::Gone => (&label.gone, &meaning.gone),
        DomainState::Removed => (&label.removed, &meaning.removed),
    };
    (label, meaning)
}

struct Steps<'m> {
    text: &'static DomainStepsTexts,
    texts: &'static Texts,
    language: Language,
    moment: &'m dyn Fn(Timestamp) -> String,
}

/// The title of a reason, and its step.
type Words = (&'static str, Vec<Piece>);

impl Steps<'_> {
    fn of_fault(&self, fault: &DnsFault) -> Words {
        let (text, titles) = (self.text, &self.texts.domain_reasons);
        let (title, step) = match fault {
            DnsFault::NoRecords { host, undelegated, records } => {
                let step = match undelegated {
                    Some(domain) => self.fill(&text.undelegated, &[("domain", domain)]),
                    None if records.is_empty() => self.fill(&text.no_address, &[("host", host)]),
                    None => self.fill(&text.changes, &[("changes", &self.changes(records))]),
                };
                (&titles.no_records, step)
            }
            DnsFault::NotSeenYet { server, until: Some(until), .. } => {
                let values = [("server", &**server), ("time", &*(self.moment)(*until))];
                (&titles.not_seen_yet, self.fill(&text.not_seen_until, &values))
            }
            DnsFault::NotSeenYet { host, server, until: None } => {
                (&titles.not_seen_yet, self.fill(&text.not_copied, &[("host", host), ("server", server)]))
            }
            DnsFault::Elsewhere { host, records } => {
                let values = [("host", &**host), ("changes", &*self.changes(records))];
                (&titles.elsewhere, self.fill(&text.elsewhere, &values))
            }
            DnsFault::BehindCdn { host, cdn, found, records } => {
                let values = [("host", &**host), ("cdn", cdn), ("found", found), ("changes", &*self.changes(records))];
                let text = if records.is_empty() { &text.cdn_proxy } else { &text.behind_cdn };
                (&titles.behind_cdn, self.fill(text, &values))
            }
            DnsFault::Caa { holder, records, .. } => {
                let critical = records.first().filter(|record| record.action == Action::Remove);
                let step = match critical {
                    Some(record) => self.fill(&text.caa_critical, &[("record", &self.record(record))]),
                    None => self.fill(&text.caa, &[("holder", holder), ("changes", &self.changes(records))]),
                };
                (&titles.caa, step)
            }
            DnsFault::DnsBroken { name, kind, server, is_resolver, failure, .. } => {
                let values =
                    [("name", &**name), ("kind", kind), ("server", server), ("failure", self.failure(*failure))];
                let text = if *is_resolver { &text.resolver_broken } else { &text.server_broken };
                (&titles.dns_broken, self.fill(text, &values))
            }
            DnsFault::Dnssec { host, zone, resolver } => {
                let values = [("zone", &**zone.as_ref().unwrap_or(host)), ("resolver", resolver)];
                (&titles.dnssec, self.fill(&text.dnssec, &values))
            }
            DnsFault::ProofMissing { records, .. } => {
                let step = self.fill(&text.proof_missing, &[("changes", &self.changes(records))]);
                (&titles.proof_missing, step)
            }
        };
        (title, step)
    }

    fn of_other(&self, reason: &OtherReason) -> Words {
        let (text, titles) = (self.text, &self.texts.domain_reasons);
        let refused = |text, authority: &String, detail: &String, until| {
            let values = [("authority", &**authority), ("detail", &**detail), ("time", &*(self.moment)(until))];
            self.fill(text, &values)
        };
        let (title, step) = match reason {
            OtherReason::NotCheckedYet { host, records } => {
                let values = [("host", &**host), ("changes", &*self.changes(records))];
                let text = if records.is_empty() { &text.not_checked_address } else { &text.not_checked_yet };
                (&titles.not_checked_yet, self.fill(text, &values))
            }
            OtherReason::Expired { at } => {
                (&titles.expired, self.fill(&text.expired, &[("time", &(self.moment)(*at))]))
            }
            OtherReason::DnsDown { detail, until, records } => {
                let (changes, time) = (self.changes(records), (self.moment)(*until));
                let values = [("changes", &*changes), ("detail", detail), ("time", &*time)];
                let text = if records.is_empty() { &text.dns_down } else { &text.dns_down_new };
                (&titles.dns_down, self.fill(text, &values))
            }
            OtherReason::Taken { record: None, .. } => (&titles.taken, self.fill(&text.lost, &[])),
            OtherReason::ClaimExpired {} => (&titles.claim_expired, self.fill(&text.claim_expired, &[])),
            OtherReason::Taken { record: Some(record), moves_at: None } => {
                (&titles.taken, self.fill(&text.taken, &[("record", &self.bare(record))]))
            }
            OtherReason::Taken { record: Some(record), moves_at: Some(at) } => {
                let values = [("record", &*self.bare(record)), ("time", &*(self.moment)(*at))];
                (&titles.taken, self.fill(&text.moves, &values))
            }
            OtherReason::CaRefused { authority, detail, until } => {
                (&titles.ca_refused, refused(&text.ca_refused, authority, detail, *until))
            }
            OtherReason::CaLimited { authority, detail, until } => {
                (&titles.ca_limited, refused(&text.ca_limited, authority, detail, *until))
            }
            OtherReason::CaDown { authority, detail, until } => {
                (&titles.ca_down, refused(&text.ca_down, authority, detail, *until))
            }
            OtherReason::Unreachable { authority, host, challenge, detail, until } => {
                let (port, time) = (challenge.port().to_string(), (self.moment)(*until));
                let values =
                    [("port", &*port), ("host", host), ("authority", authority), ("detail", detail), ("time", &*time)];
                (&titles.unreachable, self.fill(&text.unreachable, &values))
            }
        };
        (title, step)
    }

    /// A text with values in its places, cut where something else than words begins.
    fn fill(&self, text: &Text, values: &[(&str, &str)]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut words = String::new();
        for part in text.parts() {
            let name = part.strip_prefix('{').and_then(|place| place.strip_suffix('}'));
            match values.iter().find(|(of, _)| Some(*of) == name) {
                Some(("detail", detail)) if self.language != Language::English => {
                    cut(&std::mem::take(&mut words), &mut pieces);
                    pieces.push(Piece::English((*detail).to_owned()));
                }
                Some((_, value)) if *value == OF_THIS_GATEWAY => words += &self.text.of_this_gateway,
                Some((_, value)) => words += value,
                None => words += part,
            }
        }
        cut(&words, &mut pieces);
        pieces
    }

    /// One sentence for each action.
    fn changes(&self, records: &[Record]) -> String {
        let sentence = |action: Action, text: &Text| {
            let listed: Vec<_> =
                records.iter().filter(|record| record.action == action).map(|record| self.record(record)).collect();
            (!listed.is_empty()).then(|| text.with("records", listed.join(&self.text.and)))
        };
        let sentences = [sentence(Action::Remove, &self.text.remove), sentence(Action::Add, &self.text.add)];
        sentences.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// A record with its article.
    fn record(&self, record: &Record) -> String {
        self.text.record.with("record", self.bare(record))
    }

    fn bare(&self, record: &Record) -> String {
        let Record { kind, name, relative, value, .. } = record;
        match relative {
            Some(relative) => self.text.relative_record.fill(&[
                ("kind", kind),
                ("relative", relative),
                ("name", name),
                ("value", value),
            ]),
            None => self.text.bare_record.fill(&[("kind", kind), ("name", name), ("value", value)]),
        }
    }

    fn failure(&self, failure: Failure) -> &'static str {
        let failures = &self.texts.domain_failures;
        match failure {
            Failure::Timeout => &failures.timeout,
            Failure::Unreachable => &failures.unreachable,
            Failure::Lame => &failures.lame,
            Failure::Malformed => &failures.malformed,
            Failure::Servfail => &failures.servfail,
        }
    }
}

/// Cuts a text at its backticks, which enclose what is to be copied exactly.
fn cut(words: &str, pieces: &mut Vec<Piece>) {
    let parts = words.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    pieces.extend(parts.map(|(at, part)| {
        let part = part.to_owned();
        if at % 2 == 1 { Piece::Code(part) } else { Piece::Words(part) }
    }));
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::acme::ChallengeKind;
    use crate::dns::Kind;

    fn until() -> Timestamp {
        Timestamp::from_second(1_800_000_001).unwrap()
    }

    fn records() -> Vec<Record> {
        let record = |action, kind, relative: Option<&str>, value: &str| Record {
            action,
            kind,
            name: "forms.acme.org".to_owned(),
            relative: relative.map(ToOwned::to_owned),
            value: value.to_owned(),
        };
        let address = Kind::from("2001:db8::1".parse::<IpAddr>().unwrap());
        vec![
            record(Action::Remove, address, Some("forms"), "2001:db8::1"),
            record(Action::Remove, Kind::A, None, "192.0.2.1"),
            record(Action::Add, Kind::Cname, Some("forms"), "acme.edge.example"),
        ]
    }

    fn faults() -> Vec<DnsFault> {
        let host = || "forms.acme.org".to_owned();
        let (add, remove) = (records().split_off(2), records());
        let critical = remove[..1].to_vec();
        let cdn =
            |records| DnsFault::BehindCdn { host: host(), cdn: "Cloudy".into(), found: "192.0.2.9".into(), records };
        let broken = |is_resolver, failure| DnsFault::DnsBroken {
            host: host(),
            name: "acme.org".into(),
            kind: "A".into(),
            server: "ns1.acme.org (192.0.2.53)".into(),
            is_resolver,
            failure,
        };
        let unseen = |until| DnsFault::NotSeenYet { host: host(), server: "192.0.2.53".into(), until };
        let dnssec = |zone| DnsFault::Dnssec { host: host(), zone, resolver: "192.0.2.53".into() };
        vec![
            DnsFault::NoRecords { host: host(), undelegated: Some("acme.org".into()), records: Vec::new() },
            DnsFault::NoRecords { host: host(), undelegated: None, records: Vec::new() },
            DnsFault::NoRecords { host: host(), undelegated: None, records: add.clone() },
            unseen(None),
            unseen(Some(until())),
            DnsFault::Elsewhere { host: host(), records: remove.clone() },
            cdn(remove),
            cdn(Vec::new()),
            DnsFault::Caa { host: host(), holder: "acme.org".into(), records: critical },
            DnsFault::Caa { host: host(), holder: "acme.org".into(), records: add.clone() },
            broken(true, Failure::Timeout),
            broken(false, Failure::Unreachable),
            broken(false, Failure::Lame),
            broken(false, Failure::Malformed),
            broken(true, Failure::Servfail),
            dnssec(None),
            dnssec(Some("org".into())),
            DnsFault::ProofMissing { host: host(), records: add },
        ]
    }

    fn others() -> Vec<OtherReason> {
        let record = records().pop().unwrap();
        let (authority, detail, until) = ("main".to_owned(), "no, `thanks`".to_owned(), until());
        let down = |records| OtherReason::DnsDown { detail: detail.clone(), until, records };
        let unchecked = |records| OtherReason::NotCheckedYet { host: "forms.acme.org".to_owned(), records };
        vec![
            unchecked(Vec::new()),
            unchecked(vec![record.clone()]),
            down(Vec::new()),
            down(vec![record.clone()]),
            OtherReason::Taken { record: None, moves_at: None },
            OtherReason::ClaimExpired {},
            OtherReason::Expired { at: until },
            OtherReason::Taken { record: Some(record.clone()), moves_at: None },
            OtherReason::Taken { record: Some(record), moves_at: Some(until) },
            OtherReason::CaRefused { authority: authority.clone(), detail: detail.clone(), until },
            OtherReason::CaLimited { authority: authority.clone(), detail: detail.clone(), until },
            OtherReason::CaDown { authority: authority.clone(), detail: detail.clone(), until },
            OtherReason::Unreachable {
                authority,
                host: "forms.acme.org".to_owned(),
                challenge: ChallengeKind::Http01,
                detail,
                until,
            },
        ]
    }

    fn all() -> impl Iterator<Item = Reason> {
        let all = faults().into_iter().map(Reason::Dns).chain(others().into_iter().map(Reason::Other));
        all.flat_map(|reason| [reason.clone(), reason.told()])
    }

    fn words(reason: &Reason, language: Language) -> ReasonWords {
        let minute = matches!(reason, Reason::Dns(_));
        let moment = move |at: Timestamp| {
            let format = if minute { "%Y-%m-%d %H:%M UTC" } else { "%Y-%m-%d %H:%M:%S UTC" };
            // The API never has an earlier minute than it is.
            let at = if minute { at + jiff::SignedDuration::from_mins(1) } else { at };
            at.strftime(format).to_string()
        };
        ReasonWords::of(reason, Texts::of(language), language, &moment).expect("something is wrong")
    }

    #[test]
    fn a_step_in_english_has_the_words_of_the_api() {
        for reason in all() {
            let step: String = words(&reason, Language::English)
                .step
                .iter()
                .map(|piece| match piece {
                    Piece::Words(words) | Piece::English(words) => words.clone(),
                    Piece::Code(words) => format!("`{words}`"),
                })
                .collect();
            assert_eq!(step.trim_end_matches('.'), reason.next_step().trim_end_matches('.'));
        }
    }

    #[test]
    fn a_step_in_another_language_marks_the_english_words_and_has_all_values() {
        for reason in all() {
            let words = words(&reason, Language::German);
            let shown = format!("{:?}", words.step);
            assert!(!shown.contains('{'), "no place is empty: {shown}");
            assert!(!shown.contains(OF_THIS_GATEWAY), "{shown}");
            let has_detail = matches!(
                reason,
                Reason::Other(
                    OtherReason::CaRefused { .. }
                        | OtherReason::CaLimited { .. }
                        | OtherReason::CaDown { .. }
                        | OtherReason::Unreachable { .. }
                        | OtherReason::DnsDown { .. }
                )
            );
            let marked = words.step.iter().any(|piece| matches!(piece, Piece::English(_)));
            assert_eq!(marked, has_detail, "{shown}");
            for record in reason.records() {
                assert!(words.step.contains(&Piece::Code(record.value.clone())), "{shown}");
            }
            assert_eq!(words.name, reason.name());
        }
        let none = ReasonWords::of(&Reason::None {}, Texts::of(Language::German), Language::German, &|_| String::new());
        assert_eq!(none, None);
    }
}
