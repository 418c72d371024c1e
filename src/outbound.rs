//! Sends one request to a webhook receiver, at a URL that a caller chose, or to a service that the operator configured.
//!
//! Knows no database, no tenant and no retries: the caller of [`Client::send`] decides what to send and when, and what
//! an outcome means. Read [`Client`] first. On the way of a request:
//!
//! 1. `target` parses the URL; `resolver` looks up its host.
//! 2. [`Guard`] refuses addresses that are not public (`addresses`), and `dialer` connects to one that it allows.
//! 3. `tls` verifies the certificate; `connector` gives the connection to the HTTP client, and `counted` bounds it.
//! 4. `signature` signs the request, and `answer` reads what comes back.
//!
//! `document` exchanges whole documents with an OpenID provider or a certificate authority on the same way.
//!
//! `probe` walks the same way step by step for an operator.
//!
//! Three guarantees: no connection is opened to an address that the guard refuses; every request ends within its time
//! limit and in bounded memory, whatever the receiver does; no text of an outcome contains an address.

mod addresses;
mod answer;
mod client;
mod connector;
mod counted;
mod dialer;
mod document;
mod error;
mod guard;
mod own_services;
mod probe;
mod reason;
mod resolver;
mod secrets;
mod settings;
mod signature;
mod target;
mod test_requests;
mod tls;

pub(crate) use addresses::is_public;
pub use answer::{Answer, retry_after};
pub use client::{Attempt, Client, Message, OnceSent};
pub use document::{Document, MAX_DOCUMENT_BYTES};
pub use error::{ConnectFault, DnsFault, Phase, ProtocolFault, SendError, TlsFault};
pub use guard::{AllowedTarget, AllowedTargets, BlockedAddress, Guard, InvalidAllowedTarget};
pub use probe::{ProbeFault, ProbeStep, Probed};
pub use reason::DeliveryReason;
pub use secrets::{UnusableSecret, signing_secrets};
pub use settings::Settings;
pub use signature::{EventId, InvalidEventId, InvalidSecret, SigningSecret};
pub use target::{InvalidTarget, Target, TargetHost, url_identity};
pub use test_requests::{NotSent, TestRequests};
