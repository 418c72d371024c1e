//! Why a request got no complete answer.
//!
//! Owns the kinds of failure, and their texts: they contain neither an address, nor a name from a certificate, nor
//! anything else that the receiver or the network chose, since a caller can point a target at any host. Every variant
//! is therefore a plain value without a cause to print. An account reads [`super::DeliveryReason`], which also does not
//! show what the operator's DNS servers know.

use std::error::Error;
use std::io;

use rustls::pki_types::InvalidDnsNameError;
use rustls::{AlertDescription, CertificateError, InvalidMessage};
use serde::{Deserialize, Serialize};

use super::guard::BlockedAddress;

/// A failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The host has no address.
    #[error("the host name was not resolved: {0}")]
    Dns(#[from] DnsFault),
    /// The host has only addresses that the guard refuses.
    #[error(transparent)]
    Blocked(#[from] BlockedAddress),
    /// No TCP connection.
    #[error("no connection: {0}")]
    Connect(#[from] ConnectFault),
    /// No TLS session, or not with this host.
    #[error("the TLS handshake failed: {0}")]
    Tls(#[from] TlsFault),
    /// The time limit ended first.
    #[error("the time limit ended {0}")]
    Timeout(Phase),
    /// The answer was not HTTP, or not complete.
    #[error("no valid answer: {0}")]
    Protocol(#[from] ProtocolFault),
}

impl SendError {
    /// Whether the receiver may have got the request.
    #[must_use]
    pub fn may_have_been_sent(self) -> bool {
        match self {
            Self::Dns(_) | Self::Blocked(_) | Self::Connect(_) | Self::Tls(_) => false,
            Self::Timeout(_) | Self::Protocol(_) => true,
        }
    }

    /// The kind of failure, in the delivery log and as a metric's label.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::Dns(_) => "dns",
            Self::Blocked(_) => "blocked",
            Self::Connect(_) => "connect",
            Self::Tls(_) => "tls",
            Self::Timeout(_) => "timeout",
            Self::Protocol(_) => "protocol",
        }
    }
}

/// Why a host name has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DnsFault {
    /// The name does not exist.
    #[error("the name does not exist")]
    UnknownName,
    /// The name exists, without an address.
    #[error("the name has no address")]
    NoAddress,
    /// The DNS servers did not answer in time.
    #[error("the DNS servers did not answer")]
    TimedOut,
    /// The DNS servers refused or failed.
    #[error("the DNS servers failed")]
    Failed,
}

/// Why a connection was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum ConnectFault {
    /// Nothing listens on the port.
    #[error("connection refused")]
    Refused,
    /// No route to the host.
    #[error("host unreachable")]
    Unreachable,
    /// This node can't open a connection.
    #[error("failed")]
    Failed,
}

impl From<io::Error> for ConnectFault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::TimedOut => {
                Self::Unreachable
            }
            _ => Self::Failed,
        }
    }
}

/// Why a TLS handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum TlsFault {
    /// The certificate's validity is over.
    #[error("the certificate has expired")]
    Expired,
    /// The certificate's validity has not begun.
    #[error("the certificate is not valid yet")]
    NotYetValid,
    /// The certificate is for other names.
    #[error("the certificate is not for this host")]
    WrongHost,
    /// The chain does not lead to a trusted authority.
    #[error("the certificate was not issued by a trusted authority, or the chain lacks an intermediate certificate")]
    UnknownIssuer,
    /// Any other fault of a certificate.
    #[error("the certificate is not valid")]
    InvalidCertificate,
    /// The receiver does not speak TLS on this port.
    #[error("the receiver does not speak TLS on this port")]
    NotTls,
    /// The receiver refused the host name.
    #[error("the receiver does not serve this host")]
    UnrecognizedHost,
    /// The receiver refused for another reason.
    #[error("the receiver refused it")]
    Refused,
    /// The two have no version, cipher suite or protocol in common.
    #[error("no TLS version, cipher suite or HTTP version in common")]
    Incompatible,
    /// The receiver closed the connection.
    #[error("the receiver closed the connection")]
    Closed,
    /// The receiver broke the protocol.
    #[error("the receiver broke the protocol")]
    Malformed,
}

impl TlsFault {
    /// The fault in an error of a handshake, however deep it is wrapped. Without an error of TLS, the connection ended.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Self {
        if find_cause::<InvalidDnsNameError>(error).is_some() {
            // No certificate can be for it.
            return Self::WrongHost;
        }
        find_cause::<rustls::Error>(error).map_or(Self::Closed, Self::from)
    }
}

/// The first error of a type among an error and its causes. `source` of an [`io::Error`] skips the error that it wraps.
pub(super) fn find_cause<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = match error.downcast_ref::<io::Error>() {
            Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

impl From<&rustls::Error> for TlsFault {
    fn from(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(error) => error.into(),
            rustls::Error::InvalidMessage(
                InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
            ) => Self::NotTls,
            rustls::Error::AlertReceived(AlertDescription::UnrecognisedName) => Self::UnrecognizedHost,
            rustls::Error::AlertReceived(
                AlertDescription::ProtocolVersion
                | AlertDescription::HandshakeFailure
                | AlertDescription::InsufficientSecurity
                | AlertDescription::NoApplicationProtocol,
            )
            | rustls::Error::PeerIncompatible(_)
            | rustls::Error::NoApplicationProtocol => Self::Incompatible,
            rustls::Error::AlertReceived(_) => Self::Refused,
            _ => Self::Malformed,
        }
    }
}

impl From<&CertificateError> for TlsFault {
    fn from(error: &CertificateError) -> Self {
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Self::WrongHost,
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            _ => Self::InvalidCertificate,
        }
    }
}

/// What a request was waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// For DNS, TCP or TLS.
    #[error("before the connection was established")]
    Connection,
    /// For the status.
    #[error("before the receiver answered")]
    Head,
    /// For the end of the answer with this status.
    #[error("within an answer with status {0}")]
    Body(u16),
}

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum ProtocolFault {
    /// The connection ended before the head of the answer.
    #[error("the receiver closed the connection without an answer")]
    Closed,
    /// The body of the answer broke off, or is malformed.
    #[error("the answer with status {0} is not complete")]
    CutOff(u16),
    /// The head is over the limit.
    #[error("the head of the answer is too large")]
    HeadTooLarge,
    /// The receiver sent more than any answer needs.
    #[error("the receiver sent too much")]
    TooMuch,
    /// Not HTTP.
    #[error("the answer is not HTTP")]
    Malformed,
}
