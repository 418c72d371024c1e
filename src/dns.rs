//! Asks DNS about one host: whose it is, as far as records prove it, and whether a certificate can be issued for it or
//! what its owner has to change first.
//!
//! Knows no database, no tenant and no ACME: the caller stores a finding and decides what follows from it. Read
//! [`Question`], [`Look`] and [`Dns::look`] first.
//!
//! Answers come from the authoritative servers of each zone, each asked directly, so that a change is seen at once; a
//! resolver finds these servers, and shows last what the rest of the world sees. On the way of a look:
//!
//! 1. `look` asks the questions, and decides in which order faults are reported.
//! 2. `pointing` follows the host to its addresses; `caa` finds out which authorities may issue; `public` compares with
//!    a resolver.
//! 3. `authority` asks all servers of a zone, which `zone` finds through `resolvers`; `wire` sends one question.
//! 4. `fault` and `record` word what the owner has to change, `wanted` has the records that lead here; `cdn` knows
//!    addresses that others answer at.

mod authority;
mod caa;
mod cdn;
mod fault;
mod look;
mod pointing;
mod public;
mod record;
mod resolvers;
mod wanted;
mod wire;
mod zone;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use authority::{Authority, Stop};
use resolvers::Resolvers;
use zone::Reach;

pub use fault::{DnsFault, Failure};
pub use record::{Action, Kind, Record};
pub use wanted::wanted;

use crate::host::HostName;

/// What is asked about a host.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// The host: a DNS name, no IP literal.
    pub host: &'q HostName,
    /// The tenant's own label, `<slug>.<target>`. A CNAME to it points here, and proves ownership.
    pub own_label: Option<&'q HostName>,
    /// `[gateway.domains] target`. A CNAME to it points here, but proves nothing.
    pub target: Option<&'q HostName>,
    /// `[gateway.domains] addresses`. If there are none, the addresses of `target` are looked up; without a target
    /// too, every address counts as here.
    pub addresses: &'q [IpAddr],
    /// The text that a TXT record at `_formgate.<host>` has to have. `None`: the operator vouches for the host.
    pub proof: Option<&'q str>,
    /// The certificate authorities, in order of preference.
    pub issuers: &'q [Issuer<'q>],
    /// The validation methods that are used, as CAA records name them: `http-01`, `tls-alpn-01`.
    pub methods: &'q [&'q str],
}

/// A certificate authority, as CAA records name it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Issuer<'q> {
    /// Its domain in `issue` properties: `letsencrypt.org`. Empty if the authority does not look at CAA.
    pub name: &'q str,
    /// The URL of the account, for `accounturi` (RFC 8657). `None` if there is no account yet: any one fits then.
    pub account: Option<&'q str>,
}

/// What DNS shows about a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether its ownership is proved, wherever it leads.
    pub ownership: Ownership,
    /// Whether a certificate can be issued for it.
    pub finding: Finding,
}

/// Whether the ownership of a host is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// It is, in this way.
    Proved(Proof),
    /// DNS was asked, and has no proof.
    Missing,
    /// It could not be found out.
    Unknown,
}

/// Whether a certificate can be issued for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The host points here, and its ownership is proved.
    Ready {
        /// The indexes in [`Question::issuers`] of the authorities that CAA allows, in the same order; never empty.
        issuers: Vec<usize>,
    },
    /// The owner of the host has to change something, or to wait.
    Fault(DnsFault),
    /// DNS could not be asked, and why: this changes nothing.
    Unknown(String),
}

/// How the ownership of a host was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A CNAME record to the tenant's own label.
    OwnLabel,
    /// The TXT record.
    Txt,
    /// [`Question::proof`] asks for none.
    NotNeeded,
}

/// How long a look may take.
///
/// Larger: a host whose servers hang holds up the looks behind it. Smaller: slow servers count as broken.
const TIME_LIMIT: Duration = Duration::from_secs(15);

/// Asks DNS.
///
/// A host's owner chooses its name servers and what they answer. So a look is bounded in time, in the number of servers
/// (`zone`), referrals (`authority`) and aliases (`pointing`) and in the size of answers (`wire`); and only
/// public name servers are asked directly. All that is sent anywhere are DNS queries.
#[derive(Clone, Debug)]
pub struct Dns {
    resolvers: Resolvers,
    reach: Reach,
}

impl Dns {
    /// Uses these resolvers, in this order, or those of the system, which are read now.
    #[must_use]
    pub fn new(resolvers: &[SocketAddr]) -> Self {
        Self { resolvers: Resolvers::new(resolvers), reach: Reach { port: 53, private: false } }
    }

    /// For tests: asks authoritative servers at this port, also on loopback and in private networks.
    #[must_use]
    pub fn with_private_servers(self, port: u16) -> Self {
        Self { reach: Reach { port, private: true }, ..self }
    }

    /// Asks about a host. Takes 15 seconds at most; may be dropped at any time.
    pub async fn look(&self, question: &Question<'_>) -> Look {
        let mut authority = Authority::new(&self.resolvers, self.reach, question.host.as_str());
        let mut ownership = Ownership::Unknown;
        let found = tokio::time::timeout(TIME_LIMIT, look::look(&mut authority, question, &mut ownership)).await;
        let finding = match found {
            Ok(Ok(finding)) => finding,
            Ok(Err(Stop::Fault(fault))) => Finding::Fault(fault),
            Ok(Err(Stop::Unknown(why))) => Finding::Unknown(why),
            Err(_) => match authority.late {
                Some(fault) => Finding::Fault(fault),
                None => Finding::Unknown("DNS took longer than 15 s".to_owned()),
            },
        };
        Look { ownership, finding }
    }
}
