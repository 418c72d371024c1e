//! Checks one host in DNS: whether records prove its ownership, and whether a certificate can be issued for it or what its
//! owner has to change first.
//!
//! Knows no database, no tenant and no ACME: the caller stores a finding and decides what follows from it. Read
//! [`Question`], [`DnsCheck`] and [`Dns::check`] first.
//!
//! The name servers of each zone are asked directly, so that a change is seen at once. A resolver finds them and, at the end,
//! shows what the public sees. A check runs:
//!
//! 1. `check` asks the questions, and decides in which order faults are reported.
//! 2. `pointing` follows the host to its addresses; `caa` finds out which CAs may issue; `public` compares with a resolver.
//! 3. `zone_servers` asks all name servers of a zone, which `zone` finds through `resolvers`; `wire` sends one question.
//! 4. `fault` and `record`: what the owner has to change; `wanted`: the records that point here; `cdn`: the networks of
//!    CDNs.

mod caa;
mod cdn;
mod check;
mod fault;
mod pointing;
mod public;
mod record;
mod resolvers;
mod wanted;
mod wire;
mod zone;
mod zone_servers;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use resolvers::Resolvers;
use zone::ServerPolicy;
use zone_servers::{CheckError, ZoneServers};

pub use fault::{DnsFault, Failure};
pub use record::{Action, Kind, Record};
pub use wanted::wanted;

use crate::host::HostName;

/// What is asked about a host.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// The host: a DNS name, not an IP literal.
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
    /// The CAs, in order of preference.
    pub issuers: &'q [Issuer<'q>],
    /// The validation methods that are used, as CAA records name them: `http-01`, `tls-alpn-01`.
    pub methods: &'q [&'q str],
}

/// A CA, as CAA records name it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Issuer<'q> {
    /// Its domain in `issue` properties: `letsencrypt.org`. Empty if the CA ignores CAA.
    pub name: &'q str,
    /// The URL of the account, for `accounturi` (RFC 8657). `None` if there is no account yet: then every account URL matches.
    pub account: Option<&'q str>,
}

/// What DNS shows about a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsCheck {
    /// Whether its ownership is proved, wherever it points.
    pub ownership: Ownership,
    /// Whether a certificate can be issued for it.
    pub finding: Finding,
}

/// Whether the ownership of a host is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// It is proved, in this way.
    Proved(Proof),
    /// DNS has no proof.
    Missing,
    /// DNS was unreachable, or a name server failed.
    Unknown,
}

/// Whether a certificate can be issued for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The host points here, and its ownership is proved.
    Ready {
        /// The indexes in [`Question::issuers`] of the CAs that CAA allows, in the same order; never empty.
        issuers: Vec<usize>,
    },
    /// The owner of the host has to change something, or to wait.
    Fault(DnsFault),
    /// DNS was unreachable, and why; the domain's state is unchanged.
    Unknown(String),
}

/// How the ownership of a host was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A CNAME record to the tenant's own label.
    OwnLabel,
    /// The TXT record.
    Txt,
    /// [`Question::proof`] requires none.
    NotNeeded,
}

/// How long a check may take.
///
/// Larger: a host whose servers hang delays the checks after it. Smaller: slow servers count as broken.
const TIME_LIMIT: Duration = Duration::from_secs(15);

/// Asks DNS.
///
/// The owner of a host chooses its name servers and what they answer. So a check is bounded in time, in the number of servers
/// (`zone`), referrals (`zone_servers`) and aliases (`pointing`) and in the size of answers (`wire`); only public name
/// servers are asked directly, and nothing but DNS queries is sent.
#[derive(Clone, Debug)]
pub struct Dns {
    resolvers: Resolvers,
    policy: ServerPolicy,
}

impl Dns {
    /// Uses these resolvers, in this order, or those of the system, which are read now.
    #[must_use]
    pub fn new(resolvers: &[SocketAddr]) -> Self {
        Self { resolvers: Resolvers::new(resolvers), policy: ServerPolicy { port: 53, private: false } }
    }

    /// For tests: asks authoritative servers at this port, also on loopback and in private networks.
    #[must_use]
    pub fn with_private_servers(self, port: u16) -> Self {
        Self { policy: ServerPolicy { port, private: true }, ..self }
    }

    /// Checks a host. Takes 15 seconds at most; may be dropped at any time.
    pub async fn check(&self, question: &Question<'_>) -> DnsCheck {
        let mut servers = ZoneServers::new(&self.resolvers, self.policy, question.host.as_str());
        let mut ownership = Ownership::Unknown;
        let found = tokio::time::timeout(TIME_LIMIT, check::check(&mut servers, question, &mut ownership)).await;
        let finding = match found {
            Ok(Ok(finding)) => finding,
            Ok(Err(CheckError::Fault(fault))) => Finding::Fault(fault),
            Ok(Err(CheckError::Unknown(why))) => Finding::Unknown(why),
            Err(_) => match servers.late {
                Some(fault) => Finding::Fault(fault),
                None => Finding::Unknown("DNS took longer than 15 s".to_owned()),
            },
        };
        DnsCheck { ownership, finding }
    }
}
