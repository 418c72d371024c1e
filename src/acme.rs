//! Obtains certificates from CAs by ACME (RFC 8555), and asks them when to renew (ARI, RFC 9773).
//!
//! Knows no database and no DNS, and keeps nothing that matters: the caller stores what each step returns before it
//! takes the next one, and any process that has it can continue. The steps of a certificate:
//!
//! 1. [`CertificateRequest::generate`] creates its key and the request for it. Both are stored.
//! 2. [`Acme::open`] opens an order. Its URL is stored.
//! 3. [`Acme::advance`] resumes the order in whatever state it is, as often as necessary, and returns the chain. An order that
//!    was finalized before a crash is downloaded, not repeated.
//!
//! An [`AcmeError`] is classified by whose [`Fault`] it is, since only a CA's own fault is a reason to ask
//! another one.
//!
//! On the way: `session` reads a CA's directory and registers the account; `transport` carries the requests of
//! the library instant-acme, which signs them, over [`crate::outbound`]; `order` walks through an order; `error`
//! classifies what CAs refuse; `renewal` is ARI.
//!
//! Whatever a CA does, each call ends within a time limit and in bounded memory. The operator chose it, so it
//! may be at an address that is not public; link-local addresses and the metadata services of clouds are refused.

mod account_key;
mod certificate_request;
mod challenge;
mod error;
mod order;
mod renewal;
mod session;
mod settings;
mod transport;

use std::fmt;
use std::sync::Arc;

pub use account_key::{AccountKey, InvalidAccountKey};
pub use certificate_request::CertificateRequest;
pub use challenge::{Challenge, ChallengeKind, HTTP_PATH, TLS_ALPN_PROTOCOL, tls_alpn_certificate};
pub use error::{AcmeError, Fault};
pub use order::{Checkpoint, IssuedChain, LeaseLost, OpenedOrder};
pub use renewal::{RenewalWindow, certificate_id};
pub use settings::{AcmeSettings, Authority, ExternalAccount, InvalidHmacKey};

use session::Sessions;

/// The ACME client: the CAs of a configuration, and one account key for all of them.
pub struct Acme {
    settings: AcmeSettings,
    key: Arc<AccountKey>,
    sessions: Vec<Sessions>,
}

impl Acme {
    /// A client without a connection. Reads the system's CAs and DNS servers, which blocks on
    /// files.
    #[must_use]
    pub fn new(settings: AcmeSettings, key: AccountKey) -> Self {
        let key = Arc::new(key);
        let sessions = settings.authorities.iter().map(|authority| Sessions::new(authority, &settings, &key));
        Self { sessions: sessions.collect(), settings, key }
    }

    /// The CAs, in order of preference. A CA is named by its index here.
    #[must_use]
    pub fn authorities(&self) -> &[Authority] {
        &self.settings.authorities
    }

    /// The URL of the account at a CA; registers it if necessary.
    ///
    /// # Errors
    /// [`AcmeError`].
    ///
    /// # Panics
    /// If there is no such CA.
    pub async fn register(&self, authority: usize) -> Result<String, AcmeError> {
        Ok(self.sessions[authority].current().await?.account.id().to_owned())
    }

    /// The key of the accounts.
    #[must_use]
    pub fn account_key(&self) -> &Arc<AccountKey> {
        &self.key
    }
}

impl fmt::Debug for Acme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acme").field("settings", &self.settings).finish_non_exhaustive()
    }
}
