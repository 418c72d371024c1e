//! What is wrong with a domain and what to do about it, as a page shows it.

use jiff::Timestamp;

use super::texts::Texts;
use crate::config::Language;
use crate::dns::DnsFault;
use crate::domains::{OtherReason, Reason, StepPart};
use crate::store::registry::DomainState;

/// A part of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Words(String),
    /// A name or a value, to be copied exactly.
    Code(String),
    /// The words of a third party, which are English.
    English(String),
}

/// A reason for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReasonWords {
    /// The code that the API has for it.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) step: Vec<Piece>,
}

impl ReasonWords {
    /// The words for a reason; `None` if nothing is wrong. `moment` writes an instant.
    pub(super) fn of(
        reason: &Reason,
        texts: &'static Texts,
        language: Language,
        moment: &dyn Fn(Timestamp) -> String,
    ) -> Option<Self> {
        let titles = &texts.domain_reasons;
        let title = match reason {
            Reason::None {} => return None,
            Reason::Dns(DnsFault::NoRecords { .. }) => &titles.no_records,
            Reason::Dns(DnsFault::NotSeenYet { .. }) => &titles.not_seen_yet,
            Reason::Dns(DnsFault::Elsewhere { .. }) => &titles.elsewhere,
            Reason::Dns(DnsFault::BehindCdn { .. }) => &titles.behind_cdn,
            Reason::Dns(DnsFault::Caa { .. }) => &titles.caa,
            Reason::Dns(DnsFault::DnsBroken { .. }) => &titles.dns_broken,
            Reason::Dns(DnsFault::Dnssec { .. }) => &titles.dnssec,
            Reason::Dns(DnsFault::ProofMissing { .. }) => &titles.proof_missing,
            Reason::Other(OtherReason::NotCheckedYet { .. }) => &titles.not_checked_yet,
            Reason::Other(OtherReason::Expired { .. }) => &titles.expired,
            Reason::Other(OtherReason::DnsDown { .. }) => &titles.dns_down,
            Reason::Other(OtherReason::Taken { .. }) => &titles.taken,
            Reason::Other(OtherReason::ClaimExpired {}) => &titles.claim_expired,
            Reason::Other(OtherReason::CaRefused { .. }) => &titles.ca_refused,
            Reason::Other(OtherReason::CaLimited { .. }) => &titles.ca_limited,
            Reason::Other(OtherReason::CaAccount { .. }) => &titles.ca_account,
            Reason::Other(OtherReason::CaDown { .. }) => &titles.ca_down,
            Reason::Other(OtherReason::Unreachable { .. }) => &titles.unreachable,
        };
        let mut step = Vec::new();
        for part in reason.step(language, moment) {
            match part {
                StepPart::Words(words) => cut(&words, &mut step),
                StepPart::Detail(detail) if language == Language::English => step.push(Piece::Words(detail)),
                StepPart::Detail(detail) => step.push(Piece::English(detail)),
            }
        }
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
    use super::*;

    #[test]
    fn a_step_marks_names_and_the_words_of_third_parties() {
        let until = Timestamp::from_second(1_800_000_001).unwrap();
        let words =
            |reason: &Reason, language| ReasonWords::of(reason, Texts::of(language), language, &|_| "now".into());
        let missing = Reason::Dns(DnsFault::NoRecords { host: "a.org".into(), undelegated: None, records: Vec::new() });
        let german = words(&missing, Language::German).unwrap();
        assert!(german.step.contains(&Piece::Code("a.org".to_owned())), "{german:?}");
        assert_eq!(
            (german.name, german.title),
            ("no_records", &*Texts::of(Language::German).domain_reasons.no_records)
        );
        let detail = || "no, `thanks`".to_owned();
        let refused = Reason::Other(OtherReason::CaRefused { authority: "main".into(), detail: detail(), until });
        assert!(words(&refused, Language::German).unwrap().step.contains(&Piece::English(detail())));
        assert!(words(&refused, Language::English).unwrap().step.contains(&Piece::Words(detail())));
        assert_eq!(words(&Reason::None {}, Language::German), None);
    }
}
