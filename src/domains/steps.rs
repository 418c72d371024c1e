//! What to do about a domain: one text for each reason, written once for every surface.
//!
//! The API, the log and the commands show [`Reason::next_step`], which is English; pages show [`Reason::step`] in their
//! language.

use std::sync::LazyLock;

use jiff::Timestamp;
use serde::Deserialize;

use super::reason::{OtherReason, Reason};
use super::told::{NO_RESOLVER, NO_RESPONSE, OF_THIS_GATEWAY};
use crate::config::Language;
use crate::dns::{Action, DnsFault, Failure, Record};
use crate::translation::{Text, Translations};

/// A part of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepPart {
    /// Words, with names and values between backticks.
    Words(String),
    /// The words of a third party, which are English.
    Detail(String),
}

/// Declares texts: their type, and their keys.
macro_rules! texts {
    ($(#[$doc:meta])* $name:ident { $($key:ident),+ $(; $table:ident: $kind:ident)? }) => {
        $(#[$doc])*
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name { $($key: Text,)+ $($table: $kind,)? }
    };
}

texts! {
    /// The texts of a language.
    StepTexts {
        undelegated, no_address, changes, not_seen_until, not_copied, elsewhere, behind_cdn, cdn_proxy, caa_critical,
        caa, resolver_broken, server_broken, dnssec, proof_missing, not_checked_yet, not_checked_address, dns_down,
        dns_down_new, taken, moves, lost, claim_expired, ca_refused, ca_limited, expired, ca_account, ca_account_told, ca_down, unreachable,
        remove,
        add, and, record, relative_record, bare_record, of_this_gateway, no_resolver, no_response; failures: FailureTexts
    }
}

texts! {
    /// What a name server does instead of responding.
    FailureTexts { timeout, unreachable, lame, malformed, servfail }
}

static TRANSLATIONS: LazyLock<Translations<StepTexts>> = LazyLock::new(|| Translations::read(file_of));

fn file_of(language: Language) -> &'static str {
    match language {
        Language::English => include_str!("steps/en.toml"),
        Language::German => include_str!("steps/de.toml"),
    }
}

impl Reason {
    /// What to do, in English; empty if nothing is wrong.
    #[must_use]
    pub fn next_step(&self) -> String {
        let moment = |at: Timestamp| match self {
            Self::Dns(_) => minute(at),
            Self::Other(_) | Self::None {} => at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        };
        let parts = self.step(Language::English, &moment).into_iter();
        let mut step: String = parts
            .map(|part| match part {
                StepPart::Words(text) | StepPart::Detail(text) => text,
            })
            .collect();
        if let Self::Other(_) = self {
            // Only steps about DNS records end with a period.
            step.truncate(step.trim_end_matches('.').len());
        }
        step
    }

    /// What to do, in a language; nothing if nothing is wrong. `moment` writes an instant.
    #[must_use]
    pub fn step(&self, language: Language, moment: &dyn Fn(Timestamp) -> String) -> Vec<StepPart> {
        let steps = Steps { text: TRANSLATIONS.of(language), moment };
        match self {
            Self::None {} => Vec::new(),
            Self::Dns(fault) => steps.of_fault(fault),
            Self::Other(other) => steps.of_other(other),
        }
    }
}

/// A time to the minute, never earlier than it is.
fn minute(at: Timestamp) -> String {
    let rounded = at.as_second().div_euclid(60).saturating_add(1).saturating_mul(60);
    let at = Timestamp::from_second(rounded).unwrap_or(at);
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

struct Steps<'m> {
    text: &'static StepTexts,
    moment: &'m dyn Fn(Timestamp) -> String,
}

impl Steps<'_> {
    fn of_fault(&self, fault: &DnsFault) -> Vec<StepPart> {
        let text = self.text;
        match fault {
            DnsFault::NoRecords { undelegated: Some(domain), .. } => {
                self.fill(&text.undelegated, &[("domain", domain)])
            }
            DnsFault::NoRecords { host, records, .. } if records.is_empty() => {
                self.fill(&text.no_address, &[("host", host)])
            }
            DnsFault::NoRecords { records, .. } => self.fill(&text.changes, &[("changes", &self.changes(records))]),
            DnsFault::NotSeenYet { server, until: Some(until), .. } => {
                self.fill(&text.not_seen_until, &[("server", server), ("time", &(self.moment)(*until))])
            }
            DnsFault::NotSeenYet { host, server, until: None } => {
                self.fill(&text.not_copied, &[("host", host), ("server", server)])
            }
            DnsFault::Elsewhere { host, records } => {
                self.fill(&text.elsewhere, &[("host", host), ("changes", &self.changes(records))])
            }
            DnsFault::BehindCdn { host, cdn, found, records } => {
                let text = if records.is_empty() { &text.cdn_proxy } else { &text.behind_cdn };
                let changes = self.changes(records);
                self.fill(text, &[("host", host), ("cdn", cdn), ("found", found), ("changes", &changes)])
            }
            DnsFault::Caa { holder, records, .. } => match records.first() {
                Some(critical) if critical.action == Action::Remove => {
                    self.fill(&text.caa_critical, &[("record", &self.with_article(critical))])
                }
                _ => self.fill(&text.caa, &[("holder", holder), ("changes", &self.changes(records))]),
            },
            DnsFault::DnsBroken { name, kind, server, is_resolver, failure, .. } => {
                let text = if *is_resolver { &text.resolver_broken } else { &text.server_broken };
                let failure = self.failure(*failure);
                self.fill(text, &[("name", name), ("kind", kind), ("server", server), ("failure", failure)])
            }
            DnsFault::Dnssec { host, zone, resolver } => {
                let zone = zone.as_ref().unwrap_or(host);
                self.fill(&text.dnssec, &[("zone", zone), ("resolver", resolver)])
            }
            DnsFault::ProofMissing { records, .. } => {
                self.fill(&text.proof_missing, &[("changes", &self.changes(records))])
            }
        }
    }

    fn of_other(&self, reason: &OtherReason) -> Vec<StepPart> {
        let text = self.text;
        let at = |at: &Timestamp| (self.moment)(*at);
        match reason {
            OtherReason::NotCheckedYet { host, records } => {
                let text = if records.is_empty() { &text.not_checked_address } else { &text.not_checked_yet };
                self.fill(text, &[("host", host), ("changes", &self.changes(records))])
            }
            OtherReason::Expired { at: expired } => self.fill(&text.expired, &[("time", &at(expired))]),
            OtherReason::DnsDown { detail, until, records } => {
                let text = if records.is_empty() { &text.dns_down } else { &text.dns_down_new };
                let changes = self.changes(records);
                self.fill(text, &[("changes", &changes), ("detail", detail), ("time", &at(until))])
            }
            OtherReason::Taken { record: None, .. } => self.fill(&text.lost, &[]),
            OtherReason::Taken { record: Some(record), moves_at: None } => {
                self.fill(&text.taken, &[("record", &self.bare(record))])
            }
            OtherReason::Taken { record: Some(record), moves_at: Some(moves_at) } => {
                self.fill(&text.moves, &[("record", &self.bare(record)), ("time", &at(moves_at))])
            }
            OtherReason::ClaimExpired {} => self.fill(&text.claim_expired, &[]),
            OtherReason::CaRefused { authority, detail, until } => {
                self.fill(&text.ca_refused, &[("ca", authority), ("detail", detail), ("time", &at(until))])
            }
            OtherReason::CaLimited { authority, detail, until } => {
                self.fill(&text.ca_limited, &[("ca", authority), ("detail", detail), ("time", &at(until))])
            }
            OtherReason::CaAccount { authority, detail: Some(detail), until } => {
                self.fill(&text.ca_account, &[("ca", authority), ("detail", detail), ("time", &at(until))])
            }
            OtherReason::CaAccount { authority, detail: None, until } => {
                self.fill(&text.ca_account_told, &[("ca", authority), ("time", &at(until))])
            }
            OtherReason::CaDown { authority, detail, until } => {
                self.fill(&text.ca_down, &[("ca", authority), ("detail", detail), ("time", &at(until))])
            }
            OtherReason::Unreachable { authority, host, challenge, detail, until } => {
                let (port, time) = (challenge.port().to_string(), at(until));
                let values = [("port", &*port), ("host", host), ("ca", authority), ("detail", detail), ("time", &time)];
                self.fill(&text.unreachable, &values)
            }
        }
    }

    /// A text with values in its places.
    fn fill(&self, text: &Text, values: &[(&str, &str)]) -> Vec<StepPart> {
        let mut parts = Vec::new();
        let mut words = String::new();
        for part in text.parts() {
            let name = part.strip_prefix('{').and_then(|place| place.strip_suffix('}'));
            match values.iter().find(|(of, _)| Some(*of) == name) {
                Some(("detail", detail)) if *detail == NO_RESOLVER => words += &self.text.no_resolver,
                Some(("detail", detail)) if *detail == NO_RESPONSE => words += &self.text.no_response,
                Some(("detail", detail)) => {
                    parts.push(StepPart::Words(std::mem::take(&mut words)));
                    parts.push(StepPart::Detail((*detail).to_owned()));
                }
                Some((_, value)) if *value == OF_THIS_GATEWAY => words += &self.text.of_this_gateway,
                Some((_, value)) => words += value,
                None => words += part,
            }
        }
        parts.push(StepPart::Words(words));
        parts
    }

    /// One sentence for each action: `Remove the …. Add the … and the ….`
    fn changes(&self, records: &[Record]) -> String {
        let sentence = |action: Action, text: &Text| {
            let of_action = records.iter().filter(|record| record.action == action);
            let listed: Vec<_> = of_action.map(|record| self.with_article(record)).collect();
            (!listed.is_empty()).then(|| text.with("records", listed.join(&self.text.and)))
        };
        let sentences = [sentence(Action::Remove, &self.text.remove), sentence(Action::Add, &self.text.add)];
        sentences.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    fn with_article(&self, record: &Record) -> String {
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
        let failures = &self.text.failures;
        match failure {
            Failure::Timeout => &failures.timeout,
            Failure::Unreachable => &failures.unreachable,
            Failure::Lame => &failures.lame,
            Failure::Malformed => &failures.malformed,
            Failure::Servfail => &failures.servfail,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::acme::ChallengeKind;
    use crate::dns::Kind;
    use crate::translation::assert_alike;

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
            OtherReason::CaAccount { authority: authority.clone(), detail: Some(detail.clone()), until },
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

    #[test]
    fn the_texts_of_all_languages_have_the_same_places() {
        assert!(assert_alike(file_of, &[]) > 30);
    }

    #[test]
    fn every_step_has_all_its_values_in_every_language() {
        for (reason, language) in all().flat_map(|reason| Language::ALL.map(|language| (reason.clone(), language))) {
            let parts = reason.step(language, &|at| at.to_string());
            let shown = format!("{parts:?}");
            assert!(!shown.contains('{'), "{shown}");
            let is_of_gateway = shown.contains(OF_THIS_GATEWAY);
            assert!(!is_of_gateway || language == Language::English, "{shown}");
            for record in reason.records() {
                assert!(shown.contains(&format!("`{}`", record.value)), "{shown}");
            }
            let stored = reason.stored();
            let is_own = [NO_RESOLVER, NO_RESPONSE].iter().any(|own| stored.contains(&format!("\"{own}\"")));
            assert!(!is_own || language == Language::English || !shown.contains("resol"), "{shown}");
            let has_detail = stored.contains("\"detail\":\"") && !is_own;
            assert_eq!(parts.iter().any(|part| matches!(part, StepPart::Detail(_))), has_detail, "{shown}");
        }
    }

    #[test]
    fn a_step_in_english_is_the_sentence_of_the_api() {
        let record = records().pop().unwrap();
        let (text, until) = (|reason| Reason::next_step(&reason), until());
        assert_eq!(
            text(Reason::Dns(DnsFault::Elsewhere { host: "forms.acme.org".into(), records: records() })),
            "Remove the AAAA record `forms` (`forms.acme.org`) with the value `2001:db8::1` and the A record \
             `forms.acme.org` with the value `192.0.2.1`. Add the CNAME record `forms` (`forms.acme.org`) with the value \
             `acme.edge.example`. Then `forms.acme.org` leads here."
        );
        let unseen = DnsFault::NotSeenYet { host: "a.org".into(), server: "192.0.2.53".into(), until: Some(until) };
        assert_eq!(
            text(Reason::Dns(unseen)),
            "Wait: the resolver 192.0.2.53 still has an older answer, until 2027-01-15 08:01 UTC."
        );
        let moves = OtherReason::Taken { record: Some(record), moves_at: Some(until) };
        let step = text(Reason::Other(moves));
        assert!(step.contains("The domain moves at 2027-01-15 08:00:01 UTC, unless"), "{step}");
        assert!(step.ends_with("It is served once it leads here too"), "{step}");
        let detail = "a ` of a CA".to_owned();
        let limited = OtherReason::CaLimited { authority: "main".into(), detail, until };
        assert!(text(Reason::Other(limited)).contains("(a ` of a CA)"));
        assert_eq!(text(Reason::None {}), "");
    }
}
