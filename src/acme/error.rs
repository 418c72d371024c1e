//! What went wrong with a CA, classified by whose fault it is.
//!
//! Owns the meaning of the problem types of RFC 8555, section 6.7. The text of a CA is kept as one line of limited length,
//! for logs, pages and the database.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::challenge::ChallengeKind;
use super::transport::Refusal;

/// How much of a CA's text is kept.
///
/// Larger: a faulty CA fills logs and rows. Smaller: explanations are cut off before their point.
const MAX_DETAIL: usize = 500;

/// Why a certificate was not obtained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", rename_all = "snake_case")]
pub enum AcmeError {
    /// The CA refuses to issue for this host.
    #[error("refused ({problem}): {detail}")]
    Refused {
        /// The problem type without its prefix, such as `rejectedIdentifier`.
        problem: String,
        /// The CA's text.
        detail: String,
    },
    /// The CA could not connect to the host.
    #[error("could not connect to the host for {}: {detail}", challenge.as_str())]
    Unreachable {
        /// The challenge that it wanted to verify.
        challenge: ChallengeKind,
        /// The CA's text.
        detail: String,
    },
    /// A rate limit of the CA is reached.
    #[error("rate limit: {detail}")]
    Limited {
        /// When to ask again, if the CA said so.
        until: Option<Timestamp>,
        /// The CA's text.
        detail: String,
    },
    /// The CA gives no usable response.
    #[error("{detail}")]
    Down {
        /// When to ask again, if the CA said so.
        until: Option<Timestamp>,
        /// What is wrong with it.
        detail: String,
    },
    /// The CA is not done yet. The order is unchanged: advance it again.
    #[error("the CA is still processing the order")]
    Pending {
        /// When to ask again, if the CA said so.
        until: Option<Timestamp>,
    },
    /// The CA refuses the account, or something else that is the same for all hosts.
    #[error("refused for every host ({problem}): {detail}")]
    Misconfigured {
        /// The problem type without its prefix, such as `externalAccountRequired`.
        problem: String,
        /// The CA's text.
        detail: String,
    },
    /// The CA no longer accepts the account: its owner or the CA has deactivated it. It never does again (RFC 8555, section
    /// 7.3.6), so another account is needed.
    #[error("the account is deactivated: {detail}")]
    AccountDeactivated {
        /// The CA's text.
        detail: String,
    },
    /// The order no longer exists, or can't be completed because of an earlier failure. Nothing was issued: open another
    /// order.
    #[error("the order is gone")]
    OrderGone,
    /// The CA does not open an order that replaces this certificate, or it refuses the order for a reason that may be
    /// this. Open one that replaces none: its response decides.
    #[error("the CA does not accept the certificate to replace: {detail}")]
    ReplacesRefused {
        /// The CA's text.
        detail: String,
    },
    /// The caller stopped.
    #[error("stopped")]
    Stopped,
}

/// Who can change something about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The CA: another one may work.
    Authority,
    /// The operator, for this CA: another one may work.
    Operator,
    /// The owner of the host: every CA would refuse.
    Host,
    /// Nobody: time or another call resolves it.
    None,
}

impl AcmeError {
    /// Who is at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Refused { .. } | Self::Unreachable { .. } => Fault::Host,
            Self::Down { .. } | Self::Pending { .. } => Fault::Authority,
            Self::Misconfigured { .. } | Self::AccountDeactivated { .. } => Fault::Operator,
            Self::Limited { .. } | Self::OrderGone | Self::ReplacesRefused { .. } | Self::Stopped => Fault::None,
        }
    }

    /// Whether it counts against the CA, so that another one is asked after some of these.
    #[must_use]
    pub fn is_fault_of_authority(&self) -> bool {
        matches!(self.fault(), Fault::Authority | Fault::Operator)
    }

    /// When to ask again, if the CA said so.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Limited { until, .. } | Self::Down { until, .. } | Self::Pending { until } => *until,
            Self::Refused { .. }
            | Self::Unreachable { .. }
            | Self::Misconfigured { .. }
            | Self::AccountDeactivated { .. }
            | Self::OrderGone
            | Self::ReplacesRefused { .. }
            | Self::Stopped => None,
        }
    }

    /// Whether a rate limit applies to the whole account, and not to one host. Read from its detail, since both have the same
    /// problem type, and a CA speaks of the account in both ("Your account is temporarily prevented from requesting
    /// certificates for forms.acme.org"): a limit that names any host belongs to the host of the order. So does an unrecognized
    /// limit; every other host then finds it with its own order.
    #[must_use]
    pub fn limits_every_order(&self, host: &str) -> bool {
        let Self::Limited { detail, .. } = self else { return false };
        let detail = detail.to_ascii_lowercase();
        if detail.contains(host) || named_hosts(&detail).next().is_some() {
            return false;
        }
        let mut words = detail.split(|letter: char| !letter.is_alphanumeric() && !".-".contains(letter));
        detail.contains("new orders")
            || words.any(|word| matches!(word.trim_end_matches('.'), "account" | "registrations"))
    }

    /// The same error; a refusal of everything that names the host of the order becomes a refusal of the host.
    #[must_use]
    pub fn of_host(self, host: &str) -> Self {
        match self {
            Self::Misconfigured { problem, detail } if detail.to_ascii_lowercase().contains(host) => {
                Self::Refused { problem, detail }
            }
            error => error,
        }
    }

    /// Whether the CA may have got no answer from DNS, or another one.
    #[must_use]
    pub fn may_be_dns(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { problem, .. } => matches!(&**problem, "dns" | "caa"),
            _ => false,
        }
    }

    pub(super) fn down(detail: &(impl ToString + ?Sized)) -> Self {
        Self::Down { until: None, detail: one_line(&detail.to_string()) }
    }
}

/// The hosts that a text names, apart from the addresses of pages and people in it.
fn named_hosts(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(char::is_whitespace).filter(|word| !word.contains(['/', '@']));
    let parts = words.flat_map(|word| word.split(|letter: char| !letter.is_alphanumeric() && !".-_*".contains(letter)));
    parts.map(|part| part.trim_matches('.').trim_start_matches("*.")).filter(|part| is_host(part))
}

/// Whether it has the form of a host with a domain, unlike `3h0m0s`, `v2.1` and `e.g`.
fn is_host(word: &str) -> bool {
    let Some((_, domain)) = word.rsplit_once('.') else { return false };
    let is_domain = domain.starts_with("xn--") || domain.chars().count() > 1 && domain.chars().all(char::is_alphabetic);
    is_domain && word.split('.').all(|label| !label.is_empty())
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To register or find the account.
    Register,
    /// To open an order.
    Open {
        /// Whether it replaces a certificate.
        replaces: bool,
    },
    /// To read the order or an authorization, or to download the certificate.
    Read,
    /// To begin a validation, or to finalize.
    Advance,
    /// To read when to renew.
    Renewal,
}

impl Refusal {
    /// Whether a refused order may be accepted if it replaces no certificate. CAs refuse it with several types and many
    /// texts, and some fail, so this is true of every refusal but a rate limit, an unregistered account, an invalid nonce,
    /// and a CA that is down and says until when.
    fn may_be_of_replaced(&self) -> bool {
        let kind = self.problem.as_ref().map(Problem::kind);
        let is_of_other = matches!(kind.as_deref(), Some("rateLimited" | "accountDoesNotExist" | "badNonce"));
        self.status.as_u16() != 429 && !is_of_other && (self.status.is_client_error() || self.until.is_none())
    }

    /// What a refused request means.
    pub(super) fn during(self, step: Step) -> AcmeError {
        if step == (Step::Open { replaces: true }) && self.may_be_of_replaced() {
            let status = self.status.as_u16();
            let detail =
                self.problem.map_or_else(|| format!("responded with status {status}"), |problem| problem.words());
            return AcmeError::ReplacesRefused { detail };
        }
        let Some(problem) = self.problem else {
            if step == Step::Read && matches!(self.status.as_u16(), 404 | 410) {
                return AcmeError::OrderGone;
            }
            let detail = format!("responded with status {} and no explanation", self.status.as_u16());
            return AcmeError::Down { until: self.until, detail };
        };
        let kind = problem.kind();
        let detail = problem.words();
        let is_refused = self.status.is_client_error();
        if self.status.as_u16() == 429 || kind == "rateLimited" {
            return AcmeError::Limited { until: self.until, detail };
        }
        if !is_refused || step == Step::Renewal || kind == "serverInternal" || kind == "badNonce" {
            return AcmeError::Down { until: self.until, detail };
        }
        match (&*kind, step) {
            // The CA lost its state: the account and its orders.
            ("accountDoesNotExist", Step::Read | Step::Advance) => AcmeError::OrderGone,
            // Also for an order of another account.
            ("unauthorized", Step::Read) => AcmeError::OrderGone,
            _ if step == Step::Read && matches!(self.status.as_u16(), 404 | 410) => AcmeError::OrderGone,
            ("unauthorized", Step::Register | Step::Open { .. })
            | (
                "accountDoesNotExist"
                | "badCSR"
                | "badPublicKey"
                | "badSignatureAlgorithm"
                | "externalAccountRequired"
                | "invalidContact"
                | "invalidProfile"
                | "unsupportedContact"
                | "userActionRequired",
                _,
            )
            | (_, Step::Register) => AcmeError::Misconfigured { problem: kind, detail },
            _ => AcmeError::Refused { problem: kind, detail },
        }
    }
}

/// A problem document (RFC 7807).
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Problem {
    #[serde(rename = "type", default)]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) detail: Option<String>,
}

impl Problem {
    /// The type without its prefix.
    pub(super) fn kind(&self) -> String {
        let kind = self.kind.as_deref().unwrap_or("about:blank");
        one_line(kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind))
    }

    /// Whether it is about the nonce of a request, which is then repeated with another one.
    pub(super) fn is_bad_nonce(&self) -> bool {
        self.kind() == "badNonce"
    }

    /// The explanation, as one line.
    pub(super) fn words(&self) -> String {
        one_line(self.detail.as_deref().unwrap_or("without an explanation"))
    }

    /// What the error of an order means.
    pub(super) fn of_order(&self) -> AcmeError {
        let (kind, detail) = (self.kind(), self.words());
        match &*kind {
            "serverInternal" => AcmeError::Down { until: None, detail },
            "rateLimited" => AcmeError::Limited { until: None, detail },
            _ => AcmeError::Refused { problem: kind, detail },
        }
    }

    /// What a failed validation means.
    pub(super) fn of_validation(&self, challenge: ChallengeKind) -> AcmeError {
        match &*self.kind() {
            "connection" | "tls" => AcmeError::Unreachable { challenge, detail: self.words() },
            _ => self.of_order(),
        }
    }
}

impl From<&instant_acme::Problem> for Problem {
    fn from(problem: &instant_acme::Problem) -> Self {
        Self { kind: problem.r#type.clone(), detail: problem.detail.clone() }
    }
}

/// A text of a CA without line breaks and other control characters, and not too long.
pub(super) fn one_line(text: &str) -> String {
    let words =
        text.split(|letter: char| letter.is_control() || letter.is_whitespace()).filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_DETAIL) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_account_holds_for_every_order_and_one_of_a_host_does_not() {
        let limited = |detail: &str| AcmeError::Limited { until: None, detail: detail.to_owned() };
        let holds = |detail: &str| limited(detail).limits_every_order("forms.acme.org");
        for detail in [
            "too many new orders (300) from this account in the last 3h0m0s, retry after 2026-11-27 18:00:00 UTC",
            "too many new registrations (10) from this IP address in the last 3h0m0s",
            "Rate limit for your account.",
            "too many new orders recently for your account, e.g. 300 in 3h0m0s: see https://authority.example/docs/limits",
            "Your account has exceeded v2.1 limits. Write to help@authority.example.",
        ] {
            assert!(holds(detail), "{detail}");
        }
        for detail in [
            "too many certificates (50) already issued for \"account.example\" in the last 168h0m0s",
            "too many failed authorizations (5) for my-account.example.org in the last 1h0m0s",
            "Your account is temporarily prevented from requesting certificates for forms.acme.org and possibly others. \
             Please visit: https://authority.example/unpause?jwt=eyJhbGciOiJIUzI1NiJ9",
            "Your account is paused for FORMS.ACME.ORG.",
            "too many new orders for [\"*.acme.org\"] from your account",
            "your account may not order for bücher.example",
            "your account may not order for shop.xn--p1ai",
            "your account is paused for https://forms.acme.org/",
            "your account is paused for [FORMS.acme.org](https://authority.example/unpause)",
            "your account is paused for dns/forms.acme.org:https://authority.example",
            "too many",
        ] {
            assert!(!holds(detail), "{detail}");
        }
        assert!(!AcmeError::down("the account is unknown").limits_every_order("forms.acme.org"));
    }

    #[test]
    fn a_refusal_of_everything_that_names_the_host_is_one_of_the_host() {
        let refused =
            |detail: &str| AcmeError::Misconfigured { problem: "unauthorized".to_owned(), detail: detail.to_owned() };
        assert_eq!(refused("not for Forms.Acme.org").of_host("forms.acme.org").fault(), Fault::Host);
        assert_eq!(refused("the account is deactivated").of_host("forms.acme.org").fault(), Fault::Operator);
    }
}
