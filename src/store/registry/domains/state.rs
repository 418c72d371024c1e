//! The states of a domain, and what proves that it is a tenant's, by the names that rows have for them.

use jiff::Timestamp;

/// Where a domain is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DomainState {
    /// A tenant wants it, and DNS was not asked yet; or another tenant has it.
    Claimed,
    /// Its owner has to change records.
    Dns,
    /// Its records are right and its owner has proved it.
    Verified,
    /// An order waits for a budget or for its next try.
    Queued,
    /// An order is under way.
    Issuing,
    /// Its certificate is served.
    Live,
    /// It has a certificate, and will lose it if nothing changes.
    Failing,
    /// The tenant does not have it: another tenant does, or its claim has ended.
    Gone,
    /// No tenant has it any more.
    Removed,
}

impl DomainState {
    /// Every state, in the order of the life.
    pub const ALL: [Self; 9] = [
        Self::Claimed,
        Self::Dns,
        Self::Verified,
        Self::Queued,
        Self::Issuing,
        Self::Live,
        Self::Failing,
        Self::Gone,
        Self::Removed,
    ];

    /// The name that operators read.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Dns => "dns",
            Self::Verified => "verified",
            Self::Queued => "queued",
            Self::Issuing => "issuing",
            Self::Live => "live",
            Self::Failing => "failing",
            Self::Gone => "gone",
            Self::Removed => "removed",
        }
    }

    /// The state of a domain whose certificate ends at an instant. The one place that decides: nothing is live whose
    /// certificate has expired, whatever its row says.
    #[must_use]
    pub fn with_certificate(self, not_after: Option<Timestamp>, now: Timestamp) -> Self {
        let has_expired = not_after.is_some_and(|not_after| not_after <= now);
        if self == Self::Live && has_expired { Self::Failing } else { self }
    }

    /// The state with a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// What proves that a domain is the tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainProof {
    /// An alias to the tenant's own label.
    OwnLabel,
    /// The TXT record.
    Txt,
}

impl DomainProof {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::OwnLabel => "own_label",
            Self::Txt => "txt",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::OwnLabel, Self::Txt].into_iter().find(|proof| proof.as_str() == text)
    }
}
