//! What is wrong with a domain: one reason, which is a code and its arguments. [`super::steps`] says what to do.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::acme::{AcmeError, ChallengeKind};
use crate::config::DomainsConfig;
use crate::dns::{Action, DnsFault, Kind, Record, wanted};
use crate::host::HostName;
use crate::store::registry::{DomainProof, DomainRecord, DomainState};

/// The name below a host at which its proof is.
const PROOF_LABEL: &str = "_formgate";

/// The name of [`OtherReason::DnsDown`].
pub(super) const DNS_DOWN: &str = "dns_down";

/// The name of [`OtherReason::CaAccount`].
pub const CA_ACCOUNT: &str = "ca_account";

/// What is wrong with a domain. Stored as a JSON object: `{}` if nothing is known to be wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reason {
    /// Its owner has to change records.
    Dns(DnsFault),
    /// Something else.
    Other(OtherReason),
    /// Nothing.
    None {},
}

/// What is wrong, other than its records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum OtherReason {
    /// No node has checked it. Never stored: [`Reason::of`] derives it.
    NotCheckedYet {
        /// The host.
        host: String,
        /// The records that point it here, as far as the configuration has them.
        records: Vec<Record>,
    },
    /// Its certificate has expired, and nothing else is known to be wrong. Never stored: [`Reason::of`] derives it.
    Expired {
        /// When.
        at: Timestamp,
    },
    /// DNS was unreachable. What was known before still holds, so the state does not change.
    DnsDown {
        /// Why not.
        detail: String,
        /// When it is asked again.
        until: Timestamp,
        /// The records that point the host here, until it is known whether it has them.
        records: Vec<Record>,
    },
    /// Another tenant has it.
    Taken {
        /// The record that moves it. `None`: the tenant has lost it, and would have to add it again.
        record: Option<Record>,
        /// From when on it moves, if the record is there.
        moves_at: Option<Timestamp>,
    },
    /// The tenant did not prove it in time.
    ClaimExpired {},
    /// The CA refuses to issue for it.
    CaRefused {
        /// The CA.
        authority: String,
        /// What the CA said.
        detail: String,
        /// When it is tried again.
        until: Timestamp,
    },
    /// A budget is used up.
    CaLimited {
        /// The CA.
        authority: String,
        /// Which budget, or what the CA said.
        detail: String,
        /// When it is tried again.
        until: Timestamp,
    },
    /// The CA has deactivated the account of the gateway.
    CaAccount {
        /// The CA.
        authority: String,
        /// What the CA said. `None`: for the account of the domain, which can do nothing about it.
        detail: Option<String>,
        /// When it is tried again.
        until: Timestamp,
    },
    /// The CA gives no usable response.
    CaDown {
        /// The CA.
        authority: String,
        /// What is wrong with it.
        detail: String,
        /// When it is tried again.
        until: Timestamp,
    },
    /// The CA could not connect to the host.
    Unreachable {
        /// The CA.
        authority: String,
        /// The host.
        host: String,
        /// The challenge that it wanted to verify.
        challenge: ChallengeKind,
        /// What the CA said.
        detail: String,
        /// When it is tried again.
        until: Timestamp,
    },
}

impl Reason {
    /// What a row stores.
    #[must_use]
    pub fn stored(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are always JSON")
    }

    /// Reads what a row stores. A reason of another version reads as nothing wrong.
    #[must_use]
    pub fn read(stored: &str) -> Self {
        serde_json::from_str(stored).unwrap_or(Self::None {})
    }

    /// The reason of a row, as every surface shows it.
    #[must_use]
    pub fn of(domain: &DomainRecord, config: Option<&DomainsConfig>) -> Self {
        let stored = Self::read(&domain.reason);
        // A check moves a row out of this state or gives it a reason.
        if domain.state == DomainState::Claimed && stored.is_empty() {
            let label = config.and_then(|config| own_label(domain, config));
            return Self::not_checked_yet(&domain.host, label.as_ref(), config);
        }
        if domain.state == DomainState::Failing
            && stored.is_empty()
            && let Some(at) = domain.not_after
        {
            return Self::Other(OtherReason::Expired { at });
        }
        stored
    }

    /// The reason of a host of a tenant that no node has checked.
    #[must_use]
    pub fn not_checked_yet(host: &str, own_label: Option<&HostName>, config: Option<&DomainsConfig>) -> Self {
        let records = config.map_or_else(Vec::new, |config| records_to_set(host, own_label, config));
        Self::Other(OtherReason::NotCheckedYet { host: host.to_owned(), records })
    }

    /// The reason of an error of a CA.
    #[must_use]
    pub fn of_ca(authority: &str, host: &str, error: &AcmeError, until: Timestamp) -> Self {
        let (authority, detail) = (authority.to_owned(), error.to_string());
        Self::Other(match error {
            AcmeError::Refused { .. } => OtherReason::CaRefused { authority, detail, until },
            AcmeError::Unreachable { challenge, .. } => {
                OtherReason::Unreachable { authority, host: host.to_owned(), challenge: *challenge, detail, until }
            }
            AcmeError::Limited { .. } => OtherReason::CaLimited { authority, detail, until },
            AcmeError::AccountDeactivated { detail } => {
                OtherReason::CaAccount { authority, detail: Some(detail.clone()), until }
            }
            _ => OtherReason::CaDown { authority, detail, until },
        })
    }

    /// In one word, such as `no_records`; empty if nothing is wrong.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::None {} => "",
            Self::Dns(fault) => fault.reason(),
            Self::Other(OtherReason::NotCheckedYet { .. }) => "not_checked_yet",
            Self::Other(OtherReason::Expired { .. }) => "expired",
            Self::Other(OtherReason::DnsDown { .. }) => DNS_DOWN,
            Self::Other(OtherReason::Taken { .. }) => "taken",
            Self::Other(OtherReason::ClaimExpired {}) => "claim_expired",
            Self::Other(OtherReason::CaRefused { .. }) => "ca_refused",
            Self::Other(OtherReason::CaLimited { .. }) => "ca_limited",
            Self::Other(OtherReason::CaAccount { .. }) => CA_ACCOUNT,
            Self::Other(OtherReason::CaDown { .. }) => "ca_down",
            Self::Other(OtherReason::Unreachable { .. }) => "unreachable",
        }
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.name().is_empty()
    }

    /// Whether the owner of the domain has to act. If not, the step says to wait or to do nothing.
    #[must_use]
    pub fn needs_owner(&self) -> bool {
        match self {
            Self::None {} | Self::Dns(DnsFault::NotSeenYet { .. }) => false,
            Self::Dns(_) => true,
            Self::Other(other) => match other {
                OtherReason::Taken { moves_at, .. } => moves_at.is_none(),
                OtherReason::ClaimExpired {} | OtherReason::CaRefused { .. } | OtherReason::Unreachable { .. } => true,
                OtherReason::NotCheckedYet { .. }
                | OtherReason::Expired { .. }
                | OtherReason::DnsDown { .. }
                | OtherReason::CaAccount { .. }
                | OtherReason::CaLimited { .. }
                | OtherReason::CaAccount { .. }
                | OtherReason::CaDown { .. } => false,
            },
        }
    }

    /// The records to add or to remove.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        match self {
            Self::Dns(fault) => fault.records(),
            Self::Other(OtherReason::NotCheckedYet { records, .. } | OtherReason::DnsDown { records, .. }) => records,
            Self::Other(OtherReason::Taken { record: Some(record), moves_at: None }) => std::slice::from_ref(record),
            _ => &[],
        }
    }
}

/// The label of the tenant of a row, if an alias to it is a proof.
pub(super) fn own_label(domain: &DomainRecord, config: &DomainsConfig) -> Option<HostName> {
    config.label(&domain.slug).filter(|_| domain.label_proves)
}

/// The records that point a host of a tenant with this label here, as far as the configuration has them.
pub(super) fn records_to_set(host: &str, own_label: Option<&HostName>, config: &DomainsConfig) -> Vec<Record> {
    wanted(host, None, own_label.or(config.target.as_ref()), &config.addresses)
}

/// The record that proves a domain: to keep, if the last check has found it, or else to add. `None` if there is nothing to
/// prove: the host is in a table, or the domain is gone.
#[must_use]
pub fn proof_of(domain: &DomainRecord, config: &DomainsConfig) -> Option<Record> {
    let DomainRecord { host, slug, proof, proved_by, .. } = domain;
    let txt = proof_record(host, proof);
    (domain.is_added && domain.state != DomainState::Gone).then(|| match (proved_by, config.label(slug)) {
        (None, _) => txt,
        (Some(DomainProof::OwnLabel), Some(label)) => Record {
            action: Action::Keep,
            kind: Kind::Cname,
            name: host.clone(),
            relative: None,
            value: label.to_string(),
        },
        (Some(_), _) => Record { action: Action::Keep, ..txt },
    })
}

/// The TXT record that proves a domain.
#[must_use]
pub fn proof_record(host: &str, proof: &str) -> Record {
    Record {
        action: Action::Add,
        kind: Kind::Txt,
        name: format!("{PROOF_LABEL}.{host}"),
        relative: None,
        value: proof.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_reads_what_it_stored() {
        let until = Timestamp::from_second(1_800_000_000).unwrap();
        let error = AcmeError::Unreachable { challenge: ChallengeKind::Http01, detail: "refused".to_owned() };
        let reasons = [
            Reason::None {},
            Reason::of_ca("main", "forms.acme.org", &error, until),
            Reason::Other(OtherReason::DnsDown { detail: "no resolver works".to_owned(), until, records: Vec::new() }),
            Reason::Other(OtherReason::Taken {
                record: Some(proof_record("forms.acme.org", "x")),
                moves_at: Some(until),
            }),
            Reason::Other(OtherReason::Taken { record: None, moves_at: None }),
            Reason::Other(OtherReason::ClaimExpired {}),
        ];
        for reason in reasons {
            assert_eq!(Reason::read(&reason.stored()), reason);
            let is_wait = reason.next_step().starts_with("Nothing to do.") || reason.is_empty();
            assert!(!is_wait || !reason.needs_owner(), "{reason:?}");
            assert_eq!(reason.next_step().is_empty(), reason.name().is_empty());
        }
        assert_eq!(Reason::None {}.stored(), "{}");
        assert_eq!(Reason::read("{\"reason\":\"of a later version\"}"), Reason::None {});
        let step = Reason::of_ca("main", "forms.acme.org", &error, until).next_step();
        assert!(step.starts_with("Port 80 of forms.acme.org must be open"), "{step}");
    }
}
