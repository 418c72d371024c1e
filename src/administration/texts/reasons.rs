//! Why a webhook fails, in the language of a page.
//!
//! In English this is the sentence of the API. Every other language has a table `[reasons]` with a text for each code of
//! a [`DeliveryReason`], and one for each kind of its argument, named `code.kind`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::Text;
use crate::outbound::DeliveryReason;

/// The table of a language; empty for English.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(in crate::administration) struct ReasonsTexts(BTreeMap<String, Text>);

impl ReasonsTexts {
    /// A reason in the language of this table.
    pub(in crate::administration) fn show(&self, reason: DeliveryReason) -> String {
        let fields = serde_json::to_value(reason).expect("names and numbers are always JSON");
        self.fill(&fields).unwrap_or_else(|| reason.to_string())
    }

    fn fill(&self, fields: &Value) -> Option<String> {
        let code = fields["code"].as_str()?;
        let text = self.0.get(code)?;
        let Some((name, argument)) = fields.as_object()?.iter().find(|(name, _)| *name != "code") else {
            return Some(text.to_string());
        };
        let value = match argument {
            Value::String(kind) => self.0.get(&format!("{code}.{kind}"))?.to_string(),
            Value::Object(kinds) => {
                let (kind, status) = kinds.iter().next()?;
                self.0.get(&format!("{code}.{kind}"))?.with("status", status)
            }
            number => number.to_string(),
        };
        Some(text.with(name, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::administration::texts::Texts;
    use crate::config::Language;
    use crate::outbound::{ConnectFault, InvalidTarget, Phase, ProtocolFault, TlsFault};

    /// Every reason of this version.
    fn reasons() -> Vec<DeliveryReason> {
        let connect = [ConnectFault::Refused, ConnectFault::Unreachable, ConnectFault::Failed];
        let tls = [
            TlsFault::Expired,
            TlsFault::NotYetValid,
            TlsFault::WrongHost,
            TlsFault::UnknownIssuer,
            TlsFault::InvalidCertificate,
            TlsFault::NotTls,
            TlsFault::UnrecognizedHost,
            TlsFault::Refused,
            TlsFault::Incompatible,
            TlsFault::Closed,
            TlsFault::Malformed,
        ];
        let protocol = [
            ProtocolFault::Closed,
            ProtocolFault::CutOff(200),
            ProtocolFault::HeadTooLarge,
            ProtocolFault::TooMuch,
            ProtocolFault::Malformed,
        ];
        let phases = [Phase::Connection, Phase::Head, Phase::Body(200)];
        let urls = [InvalidTarget::NotHttps, InvalidTarget::Credentials, InvalidTarget::Host];
        let connect = connect.map(|fault| DeliveryReason::Connect { fault });
        let tls = tls.map(|fault| DeliveryReason::Tls { fault });
        let protocol = protocol.map(|fault| DeliveryReason::Protocol { fault });
        let phases = phases.map(|phase| DeliveryReason::Timeout { phase });
        let urls = urls.map(|fault| DeliveryReason::InvalidUrl { fault });
        let others = [
            DeliveryReason::Paused,
            DeliveryReason::TokenEnded,
            DeliveryReason::Gone,
            DeliveryReason::Status { status: 503 },
            DeliveryReason::NotPublic,
            DeliveryReason::Unresolved,
            DeliveryReason::UnknownKey,
            DeliveryReason::DamagedSecret,
            DeliveryReason::InvalidSecret,
            DeliveryReason::UnusableUrl,
            DeliveryReason::NewerEvent,
            DeliveryReason::Newer,
        ];
        [&connect[..], &tls, &protocol, &phases, &urls, &others].concat()
    }

    #[test]
    fn every_reason_has_a_text_in_every_language_and_every_text_a_reason() {
        for language in Language::ALL {
            let table = &Texts::of(language).reasons;
            let mut unused = table.0.keys().cloned().collect::<BTreeSet<_>>();
            for reason in reasons() {
                let (shown, english) = (table.show(reason), reason.to_string());
                // A word that programs look for is none for people.
                let is_for_people = reason != DeliveryReason::TokenEnded;
                let is_english = language == Language::English && is_for_people;
                assert_eq!(shown == english, is_english, "{language:?}: {shown}");
                assert!(!shown.contains('{'), "{shown}");
                let fields = serde_json::to_value(reason).unwrap();
                let code = fields["code"].as_str().unwrap();
                unused.retain(|key| {
                    let is_kind = key.strip_prefix(code).and_then(|rest| rest.strip_prefix('.')).is_some_and(|kind| {
                        fields.as_object().unwrap().values().any(|value| *value == kind || value.get(kind).is_some())
                    });
                    key != code && !is_kind
                });
            }
            assert!(unused.is_empty(), "{language:?}: {unused:?}");
        }
    }

    #[test]
    fn a_text_has_the_arguments_of_its_reason() {
        let german = |reason| Texts::of(Language::German).reasons.show(reason);
        let refused = DeliveryReason::Connect { fault: ConnectFault::Refused };
        assert_eq!(german(refused), "keine Verbindung: Verbindung abgelehnt");
        assert_eq!(german(DeliveryReason::Status { status: 503 }), "der Empfänger antwortete mit 503");
        let body = DeliveryReason::Timeout { phase: Phase::Body(200) };
        assert_eq!(german(body), "die Zeit war um, mitten in einer Antwort mit Status 200");
    }
}
