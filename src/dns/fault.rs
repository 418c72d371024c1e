//! What the owner of a host has to change in DNS: a code and its arguments.
//!
//! Owns the reasons and the records to set; [`super::Dns`] decides which one applies. A fault is stored as JSON with all
//! that its text needs; [`crate::domains`] has the text.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::record::Record;

/// Why no certificate can be issued for a host yet, as far as DNS shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum DnsFault {
    /// The name servers have no address and no alias for the host.
    NoRecords {
        /// The host.
        host: String,
        /// The registered domain, if it has no zone: it is not registered, or has no name servers.
        undelegated: Option<String>,
        /// What to add.
        records: Vec<Record>,
    },
    /// Some name servers have the right records, but others do not have them yet.
    NotSeenYet {
        /// The host.
        host: String,
        /// The server with another answer: the resolver, or a name server of the zone.
        server: String,
        /// When the cached answer of the resolver expires. `None` for a name server of the zone, which has not copied the
        /// change yet.
        until: Option<Timestamp>,
    },
    /// The host has an address, or an alias, that does not point here.
    Elsewhere {
        /// The host.
        host: String,
        /// What to remove, AAAA first, and what to add.
        records: Vec<Record>,
    },
    /// The host points to a CDN in front of this gateway, or in its place.
    BehindCdn {
        /// The host.
        host: String,
        /// The name of the CDN's operator.
        cdn: String,
        /// The address or name by which the CDN was recognized.
        found: String,
        /// What to remove and what to add, if the host is to point here without the CDN. Empty if the CDN is the DNS
        /// provider and hides the owner's records.
        records: Vec<Record>,
    },
    /// No CAA record allows any of the CAs.
    Caa {
        /// The host.
        host: String,
        /// The name that has the CAA records: the host, or the closest domain above it.
        holder: String,
        /// The record to add at that name; or the record to remove there, if it has a critical property that CAs do not
        /// know.
        records: Vec<Record>,
    },
    /// A name server fails, so that the host can't be resolved.
    DnsBroken {
        /// The host.
        host: String,
        /// The name in the question: the host, an alias on the way, or a name above it.
        name: String,
        /// The type of the records in the question.
        kind: String,
        /// The server: its name and address, or the address of a resolver.
        server: String,
        /// Whether it was a resolver that failed, about a zone without public name servers.
        is_resolver: bool,
        /// How it failed.
        failure: Failure,
    },
    /// The signatures of the zone are wrong, so validating resolvers reject its answers.
    Dnssec {
        /// The host.
        host: String,
        /// The zone of the host, if it is known.
        zone: Option<String>,
        /// The resolver that rejects them.
        resolver: String,
    },
    /// The host points here, but nothing proves its ownership.
    ProofMissing {
        /// The host.
        host: String,
        /// The TXT record to add.
        records: Vec<Record>,
    },
}

/// How a name server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// It did not answer in time.
    Timeout,
    /// It is unreachable.
    Unreachable,
    /// It refused to answer, or does not serve the zone.
    Lame,
    /// Its answer is malformed, or it does not understand the question.
    Malformed,
    /// It answered SERVFAIL.
    Servfail,
}

impl Failure {
    /// The rest of a sentence that begins with the server.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Timeout => "does not answer",
            Self::Unreachable => "can't be reached",
            Self::Lame => "does not serve the zone",
            Self::Malformed => "answers with an error",
            Self::Servfail => "answers SERVFAIL",
        }
    }
}

impl DnsFault {
    /// The word for the fault in the API, metrics and logs: `no_records`, `not_seen_yet` …
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoRecords { .. } => "no_records",
            Self::NotSeenYet { .. } => "not_seen_yet",
            Self::Elsewhere { .. } => "elsewhere",
            Self::BehindCdn { .. } => "behind_cdn",
            Self::Caa { .. } => "caa",
            Self::DnsBroken { .. } => "dns_broken",
            Self::Dnssec { .. } => "dnssec",
            Self::ProofMissing { .. } => "proof_missing",
        }
    }

    /// The records to add or to remove, those to remove first.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        match self {
            Self::NoRecords { records, .. }
            | Self::Elsewhere { records, .. }
            | Self::BehindCdn { records, .. }
            | Self::Caa { records, .. }
            | Self::ProofMissing { records, .. } => records,
            Self::NotSeenYet { .. } | Self::DnsBroken { .. } | Self::Dnssec { .. } => &[],
        }
    }
}
