//! English words that are stored, such as why a webhook fails, in the language of a page.
//!
//! The database has them as the API and the log have them. The table `[stored]` of each file has the same keys; a text
//! that is found in the English one is shown as in the file of the page. A place in it takes the words there, which
//! are looked for again. What is not found, such as words of a newer version, stays English.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Text, Texts};
use crate::config::Language;

/// The table of a language.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(in crate::administration) struct StoredTexts(BTreeMap<String, Text>);

/// Words for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::administration) struct Words {
    pub(in crate::administration) text: String,
    /// Their language if it is not that of the page.
    pub(in crate::administration) lang: Option<&'static str>,
}

impl StoredTexts {
    /// Stored words in the language of this table.
    pub(in crate::administration) fn translate(&self, stored: String) -> Words {
        let english = &Texts::of(Language::English).stored;
        if std::ptr::eq(self, english) {
            return Words { text: stored, lang: None };
        }
        match self.find(english, &stored) {
            Some(text) => Words { text, lang: None },
            None => Words { text: stored, lang: Some(Language::English.tag()) },
        }
    }

    fn find(&self, english: &Self, stored: &str) -> Option<String> {
        // A text without a place first: it is the most specific one.
        if let Some((key, _)) = english.0.iter().find(|(_, text)| text.0 == stored) {
            return self.0.get(key).map(ToString::to_string);
        }
        english.0.iter().find_map(|(key, text)| {
            let (before, rest) = text.0.split_once('{')?;
            let (place, after) = rest.split_once('}')?;
            let words = stored.strip_prefix(before)?.strip_suffix(after)?;
            let is_number = words.bytes().all(|byte| byte.is_ascii_digit());
            let shown = if is_number { words.to_owned() } else { self.find(english, words)? };
            Some(self.0.get(key)?.with(place, shown))
        })
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::outbound::{BlockedAddress, ConnectFault, DnsFault, Phase, ProtocolFault, SendError, TlsFault};

    fn in_german(stored: &str) -> Words {
        Texts::of(Language::German).stored.translate(stored.to_owned())
    }

    #[test]
    fn every_error_of_a_delivery_is_known_in_every_language() {
        let dns = [DnsFault::UnknownName, DnsFault::NoAddress, DnsFault::TimedOut, DnsFault::Failed];
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
            ProtocolFault::CutOff(StatusCode::OK),
            ProtocolFault::HeadTooLarge,
            ProtocolFault::TooMuch,
            ProtocolFault::Malformed,
        ];
        let phases = [Phase::Connection, Phase::Head, Phase::Body(StatusCode::OK)];
        let errors = dns.map(SendError::from).into_iter().chain(connect.map(SendError::from));
        let errors = errors.chain(tls.map(SendError::from)).chain(protocol.map(SendError::from));
        let errors = errors
            .chain(phases.map(SendError::Timeout))
            .chain([BlockedAddress.into()])
            .flat_map(|error: SendError| [error.to_string(), error.told()]);
        let others = ["paused by request", "the receiver answered 410 Gone", "the receiver answered 503"];
        for stored in errors.chain(others.map(str::to_owned)) {
            let words = in_german(&stored);
            assert!(words.lang.is_none() && words.text != stored, "{stored}: {words:?}");
            let english = Texts::of(Language::English).stored.translate(stored.clone());
            assert_eq!(english, Words { text: stored, lang: None });
        }
    }

    #[test]
    fn words_are_translated_with_those_in_their_places_and_unknown_ones_stay() {
        let german = |stored: &str| in_german(stored).text;
        assert_eq!(german("no connection: connection refused"), "keine Verbindung: Verbindung abgelehnt");
        assert_eq!(german("the receiver answered 503"), "der Empfänger antwortete mit 503");
        for unknown in ["no connection: <b>", "the receiver answered", "the receiver answered 5x3", "", "{why}"] {
            assert_eq!(in_german(unknown), Words { text: unknown.to_owned(), lang: Some("en") });
        }
    }
}
