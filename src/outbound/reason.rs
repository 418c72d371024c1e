//! Why a subscription is not delivered, or why an attempt got no response: a code with its arguments.
//!
//! Stored as JSON, such as `{"code":"status","status":503}`. [`Display`](std::fmt::Display) is the English sentence of
//! the API, the log and the commands; pages show it in their language from the code and the arguments.

use serde::{Deserialize, Serialize};

use super::error::{ConnectFault, DnsFault, Phase, ProtocolFault, SendError, TlsFault};
use super::secrets::UnusableSecret;
use super::target::InvalidTarget;
use crate::seal::Unopened;

/// Why nothing is delivered, as far as an account may know it. A name of the operator's network reads like one that does
/// not exist, so that an account can't find out which there are; how the operator's DNS servers fail is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum DeliveryReason {
    /// The owner of the subscription paused it.
    #[error("paused by request")]
    Paused,
    /// The token to which the subscription is bound was revoked, or has expired. Programs look for this word.
    #[error("token_ended")]
    TokenEnded,
    /// The receiver responded 410 Gone.
    #[error("the receiver answered 410 Gone")]
    Gone,
    /// The receiver did not accept the event.
    #[error("the receiver answered {status}")]
    Status {
        /// The status of its response.
        status: u16,
    },
    /// The host does not exist, or has no address that a connection may be opened to.
    #[error("the host does not exist, or has no public address")]
    NotPublic,
    /// The DNS servers of the operator fail.
    #[error("the host name was not resolved")]
    Unresolved,
    /// No TCP connection.
    #[error("{}", SendError::from(*fault))]
    Connect {
        /// Why.
        fault: ConnectFault,
    },
    /// No TLS session.
    #[error("{}", SendError::from(*fault))]
    Tls {
        /// Why.
        fault: TlsFault,
    },
    /// The time limit ended first.
    #[error("{}", SendError::Timeout(*phase))]
    Timeout {
        /// What the request was waiting for.
        phase: Phase,
    },
    /// The response was not HTTP, or not complete.
    #[error("{}", SendError::from(*fault))]
    Protocol {
        /// Why.
        fault: ProtocolFault,
    },
    /// No key of the node has the id that the secret was sealed with.
    #[error("{}", Unopened::UnknownKey)]
    UnknownKey,
    /// The sealed secret was changed.
    #[error("{}", Unopened::Damaged)]
    DamagedSecret,
    /// The secret is not one for webhooks.
    #[error("{}", UnusableSecret::from(super::InvalidSecret))]
    InvalidSecret,
    /// The URL does not name a receiver.
    #[error("{fault}")]
    InvalidUrl {
        /// Why.
        fault: InvalidTarget,
    },
    /// The URL does not name a receiver any more.
    #[error("its URL can't be used any more")]
    UnusableUrl,
    /// Only a newer version knows the event.
    #[error("its event is that of a newer version")]
    NewerEvent,
    /// Only a newer version knows the reason.
    #[error("its reason is that of a newer version")]
    #[serde(other)]
    Newer,
}

impl DeliveryReason {
    /// What the database stores.
    #[must_use]
    pub fn stored(&self) -> String {
        serde_json::to_string(self).expect("names and numbers are always JSON")
    }

    /// Reads what the database stores.
    #[must_use]
    pub fn read(stored: &str) -> Self {
        serde_json::from_str(stored).unwrap_or(Self::Newer)
    }
}

impl From<SendError> for DeliveryReason {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Dns(DnsFault::UnknownName | DnsFault::NoAddress) | SendError::Blocked(_) => Self::NotPublic,
            SendError::Dns(DnsFault::TimedOut | DnsFault::Failed) => Self::Unresolved,
            SendError::Connect(fault) => Self::Connect { fault },
            SendError::Tls(fault) => Self::Tls { fault },
            SendError::Timeout(phase) => Self::Timeout { phase },
            SendError::Protocol(fault) => Self::Protocol { fault },
        }
    }
}

impl From<UnusableSecret> for DeliveryReason {
    fn from(error: UnusableSecret) -> Self {
        match error {
            UnusableSecret::Sealed(Unopened::UnknownKey) => Self::UnknownKey,
            UnusableSecret::Sealed(Unopened::Damaged) => Self::DamagedSecret,
            UnusableSecret::Invalid(_) => Self::InvalidSecret,
        }
    }
}

impl From<InvalidTarget> for DeliveryReason {
    fn from(fault: InvalidTarget) -> Self {
        Self::InvalidUrl { fault }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_reads_what_it_stored() {
        let stored = [
            (DeliveryReason::Paused, r#"{"code":"paused"}"#, "paused by request"),
            (DeliveryReason::TokenEnded, r#"{"code":"token_ended"}"#, "token_ended"),
            (DeliveryReason::Status { status: 503 }, r#"{"code":"status","status":503}"#, "the receiver answered 503"),
            (
                DeliveryReason::Connect { fault: ConnectFault::Refused },
                r#"{"code":"connect","fault":"refused"}"#,
                "no connection: connection refused",
            ),
            (
                DeliveryReason::Timeout { phase: Phase::Body(200) },
                r#"{"code":"timeout","phase":{"body":200}}"#,
                "the time limit ended within an answer with status 200",
            ),
        ];
        for (reason, json, english) in stored {
            assert_eq!((&*reason.stored(), &*reason.to_string()), (json, english));
            assert_eq!(DeliveryReason::read(json), reason);
        }
        for unknown in [r#"{"code":"of a newer version","count":1}"#, r#"{"code":"tls","fault":"new"}"#, "words"] {
            assert_eq!(DeliveryReason::read(unknown), DeliveryReason::Newer);
        }
    }

    #[test]
    fn an_account_learns_nothing_about_the_network_of_the_operator() {
        let dns = [DnsFault::UnknownName, DnsFault::NoAddress].map(SendError::from);
        for error in dns.into_iter().chain([super::super::BlockedAddress.into()]) {
            assert_eq!(DeliveryReason::from(error), DeliveryReason::NotPublic);
        }
        for error in [DnsFault::TimedOut, DnsFault::Failed].map(SendError::from) {
            assert_eq!(DeliveryReason::from(error), DeliveryReason::Unresolved);
        }
    }
}
