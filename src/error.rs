//! Refusals: every reason not to serve a request, and the only place where one becomes a response.
//!
//! A [`Refusal`] carries what the client may know and, for the log, the cause, which never reaches the client. The
//! match in [`Refusal::reply`] has no `_` arm, so a new refusal does not compile until it has a status and a message.

mod faults;
mod lost_changes;
mod reason;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::{ACCEPT_ENCODING, ALLOW, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::Serialize;

use crate::endpoint::NoEndpoint;
use crate::memory::MemorySpent;
use crate::quota::{BudgetOf, NamedShare};
use crate::reply::{PartsError, Reply};
use crate::store::StoreError;

pub use faults::{Faults, abbreviate};
pub use lost_changes::LostChanges;
pub use reason::RefusalReason;

/// The reason why a request is not served.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No `Host`, two, one that is not an authority, or one that contradicts the request target.
    #[error("the request names no valid host")]
    InvalidAuthority,
    /// The head is not valid HTTP.
    #[error("the request head is malformed")]
    MalformedHead,
    /// The head does not determine the length of the body.
    #[error("the length of the request is ambiguous")]
    AmbiguousLength,
    /// The target is not a resource: `*`, or the authority of `CONNECT`.
    #[error("the request target is no resource")]
    InvalidTarget,
    /// No resource has the method.
    #[error("the method is unknown")]
    UnknownMethod,
    /// The limit on requests in flight is reached.
    #[error("too many requests are in flight")]
    Overloaded,
    /// The address sent too many bad tokens, so this one is not looked up.
    #[error("too many bad tokens came from the address")]
    TooManyBadTokens {
        /// How long until the address may try another.
        wait: Duration,
    },
    /// A session of the administration area opened too many pages.
    #[error("a session of the administration area made too many requests")]
    TooManyPages {
        /// How long until it may open another.
        wait: Duration,
    },
    /// The connection's certificate does not cover the host.
    #[error("the host is not among the names of the connection's certificate")]
    Misdirected,
    /// No tenant has the host.
    #[error("no account at this address")]
    UnknownAccount,
    /// The request target is too long.
    #[error("the request target is too long")]
    TargetTooLong,
    /// The head has too many bytes or fields.
    #[error("the request head is too large")]
    HeadTooLarge,
    /// There is no resource at the path.
    #[error("no such path")]
    UnknownPath,
    /// The resource does not have this method.
    #[error("the path does not take this method")]
    MethodNotAllowed {
        /// Its methods, formatted for `Allow`.
        allow: &'static str,
    },
    /// The token is missing, malformed, unknown, revoked, or another account's. The client isn't told which.
    #[error("no valid token")]
    Unauthenticated(BadToken),
    /// The token is used from a network that is none of its own. The client gets the response to a bad token.
    #[error("the token is used from a wrong network")]
    WrongNetwork {
        /// The number of the token.
        token: i64,
    },
    /// The token does not have a scope that the route needs.
    #[error("the token lacks the scope {required}")]
    ScopeMissing {
        /// The name of the scope.
        required: &'static str,
    },
    /// A request budget is spent.
    #[error("the budget is spent")]
    QuotaExhausted {
        /// Whose it is.
        of: BudgetOf,
        /// How long until a request can be admitted.
        wait: Duration,
        /// Usage by token.
        usage: Vec<NamedShare>,
    },
    /// Redis does not answer, and `on_redis_failure` is `deny`.
    #[error("Redis does not answer, and on_redis_failure = \"deny\"")]
    QuotaUnavailable,
    /// The body exceeds the limit of the route.
    #[error("the request body is too large")]
    BodyTooLarge,
    /// The body did not arrive in time.
    #[error("the request body did not arrive in time")]
    BodyTooSlow,
    /// The body has an unsupported content coding.
    #[error("the request body has an unsupported content coding")]
    UnsupportedCoding,
    /// The body has an unsupported charset.
    #[error("the request body has an unsupported charset")]
    UnsupportedCharset,
    /// The body is an HTML form.
    #[error("the request body is {sent}")]
    UnsupportedForm {
        /// The type of the form.
        sent: &'static str,
    },
    /// The memory limit for bodies and responses is reached.
    #[error(transparent)]
    MemorySpent(#[from] MemorySpent),
    /// The body is malformed or incomplete.
    #[error("the request body broke off")]
    BodyBroken(#[source] hyper::Error),
    /// The request has invalid parameters.
    #[error("the request has faults: {0:?}")]
    Invalid(Faults),
    /// No form has the id.
    #[error("no such form")]
    FormNotFound,
    /// No submission that can be fetched by id has the id.
    #[error("no such submission")]
    SubmissionNotFound,
    /// No group has the id.
    #[error("no such group")]
    GroupNotFound,
    /// The built-in group can't be deleted.
    #[error("the built-in group can't be deleted")]
    BuiltInGroup,
    /// The group belongs to SCIM.
    #[error("the group belongs to SCIM")]
    GroupOfScim,
    /// No subscription has the id.
    #[error("no such subscription")]
    SubscriptionNotFound,
    /// The cursor of the feed leads nowhere.
    #[error("the cursor of the change feed is lost: {}", .0.reason)]
    ChangesLost(LostChanges),
    /// Another export of the account is being sent, by this node or another one.
    #[error("another export of the account is being sent")]
    ExportRunning,
    /// This node sends as many exports as it may.
    #[error("too many exports are being sent")]
    TooManyExports,
    /// The first part of an export could not be written.
    #[error("the first part of an export could not be written")]
    ExportFailed(#[source] PartsError),
    /// The tenant's database is unavailable.
    #[error("the tenant's database can't be used")]
    DatabaseUnavailable(#[source] Arc<StoreError>),
    /// The tenant's limit on requests in flight is reached.
    #[error("too many requests of the tenant are in flight")]
    TenantBusy,
    /// The request exceeded its time limit.
    #[error("the request took too long")]
    TooSlow,
    /// A statement failed, and a retry would not help.
    #[error("a statement failed")]
    StatementFailed(#[source] StoreError),
    /// A handler panicked.
    #[error("a handler panicked: {0}")]
    Panicked(String),
}

/// What is wrong with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadToken {
    /// There is none.
    Missing,
    /// It does not have the form of one, or there are several.
    Malformed,
    /// It is none of the account's, is revoked, or has expired.
    Unknown,
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_)
            | StoreError::Resting
            | StoreError::Busy
            | StoreError::Locked { .. }
            | StoreError::ReadOnly(_)
            | StoreError::OfDrill
            | StoreError::OfAnotherTenant { .. }
            | StoreError::OfOtherKind { .. }
            | StoreError::Unsettled
            | StoreError::RowLost
            | StoreError::SchemaOlder { .. }
            | StoreError::SchemaNewer { .. }
            | StoreError::SchemaUnreleased => Self::DatabaseUnavailable(Arc::new(error)),
            StoreError::GroupDeleted => Self::GroupNotFound,
            StoreError::MemorySpent(spent) => Self::MemorySpent(spent),
            StoreError::Folder { .. } | StoreError::Migration(_) | StoreError::Statement(_) => {
                Self::StatementFailed(error)
            }
        }
    }
}

/// `Retry-After` of temporary conditions: an unavailable database or Redis, a limit on requests in flight.
///
/// Larger: clients wait although the condition has ended. Smaller: 0 would have clients retry immediately.
const OUTAGE_RETRY_AFTER: Duration = Duration::from_secs(1);

/// `Retry-After` while another export is being sent.
///
/// Larger: clients wait although it has ended. Smaller: they spend more requests.
const EXPORT_RETRY_AFTER: Duration = Duration::from_secs(5);

impl From<NoEndpoint> for Refusal {
    fn from(none: NoEndpoint) -> Self {
        match none {
            NoEndpoint::UnknownPath => Self::UnknownPath,
            NoEndpoint::MethodNotAllowed { allow } => Self::MethodNotAllowed { allow },
        }
    }
}

impl Refusal {
    /// Whether the log and the metrics already report the condition once, so that a line per refusal would only repeat
    /// it: Redis or a database is unavailable, a tenant or the gateway is at a limit, a method is unknown.
    #[must_use]
    pub fn is_logged_elsewhere(&self) -> bool {
        match self {
            Self::QuotaUnavailable
            | Self::TenantBusy
            | Self::Overloaded
            | Self::TooManyExports
            | Self::MemorySpent(_)
            | Self::UnknownMethod => true,
            Self::DatabaseUnavailable(error) => matches!(**error, StoreError::Resting | StoreError::Busy),
            _ => false,
        }
    }

    /// The response to the client.
    #[must_use]
    pub fn reply(&self) -> Reply {
        match self {
            Self::InvalidAuthority => message(StatusCode::BAD_REQUEST, "Invalid host"),
            Self::MalformedHead => message(StatusCode::BAD_REQUEST, "Malformed request"),
            Self::AmbiguousLength => message(StatusCode::BAD_REQUEST, "The length of the request body is ambiguous"),
            Self::InvalidTarget => message(StatusCode::BAD_REQUEST, "Invalid request target"),
            Self::UnknownMethod => message(StatusCode::NOT_IMPLEMENTED, "Unknown method"),
            Self::TooManyBadTokens { wait } | Self::TooManyPages { wait } => {
                retry_after(message(StatusCode::TOO_MANY_REQUESTS, "Too Many Attempts."), *wait)
            }
            Self::Misdirected => message(StatusCode::MISDIRECTED_REQUEST, "Misdirected request"),
            Self::UnknownAccount => message(StatusCode::NOT_FOUND, "Account not found"),
            Self::TargetTooLong => message(StatusCode::URI_TOO_LONG, "The request target is too long"),
            Self::HeadTooLarge => {
                message(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "The request header fields are too large")
            }
            Self::UnknownPath => message(StatusCode::NOT_FOUND, "Not found"),
            Self::MethodNotAllowed { allow } => message(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed")
                .with_header(ALLOW, HeaderValue::from_static(allow)),
            Self::Unauthenticated(_) | Self::WrongNetwork { .. } => {
                message(StatusCode::UNAUTHORIZED, "Unauthenticated.")
                    .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
            }
            Self::ScopeMissing { required } => {
                let message = format!("The token lacks the scope {required}");
                Reply::json(StatusCode::FORBIDDEN, &ScopeMissingJson { message, required })
            }
            Self::QuotaExhausted { of, wait, usage } => {
                let body = QuotaExhaustedJson { message: "Too Many Attempts.", limit: *of, usage };
                retry_after(Reply::json(StatusCode::TOO_MANY_REQUESTS, &body), *wait)
            }
            Self::Overloaded
            | Self::QuotaUnavailable
            | Self::DatabaseUnavailable(_)
            | Self::TenantBusy
            | Self::MemorySpent(_) => {
                retry_after(message(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable"), OUTAGE_RETRY_AFTER)
            }
            Self::BodyTooLarge => message(StatusCode::PAYLOAD_TOO_LARGE, "The request body is too large"),
            // RFC 9110, section 15.5.16.
            Self::UnsupportedCoding => message(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "The content coding of the request body must be gzip or none",
            )
            .with_header(ACCEPT_ENCODING, HeaderValue::from_static("gzip")),
            Self::UnsupportedCharset => {
                message(StatusCode::UNSUPPORTED_MEDIA_TYPE, "The charset of the request body must be UTF-8")
            }
            Self::UnsupportedForm { sent } => message(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                &format!("The request body must be JSON (Content-Type: application/json), not {sent}"),
            ),
            Self::BodyTooSlow => message(StatusCode::REQUEST_TIMEOUT, "The request body did not arrive in time"),
            Self::BodyBroken(_) => message(StatusCode::BAD_REQUEST, "The request body is malformed or incomplete"),
            Self::Invalid(faults) => Reply::json(StatusCode::UNPROCESSABLE_ENTITY, faults),
            Self::FormNotFound => message(StatusCode::NOT_FOUND, "Form not found"),
            Self::SubmissionNotFound => message(StatusCode::NOT_FOUND, "Submission not found"),
            Self::GroupNotFound => message(StatusCode::NOT_FOUND, "Group not found"),
            Self::BuiltInGroup => message(StatusCode::FORBIDDEN, "The All Users group cannot be deleted"),
            Self::GroupOfScim => message(
                StatusCode::CONFLICT,
                "A directory maintains the group through SCIM; it can only be changed there",
            ),
            Self::SubscriptionNotFound => message(StatusCode::NOT_FOUND, "Subscription not found"),
            Self::ChangesLost(lost) => Reply::json(StatusCode::GONE, lost),
            Self::ExportRunning => retry_after(
                message(StatusCode::CONFLICT, "Another export of the account is being sent"),
                EXPORT_RETRY_AFTER,
            ),
            Self::TooManyExports => retry_after(
                message(StatusCode::SERVICE_UNAVAILABLE, "Too many exports are being sent"),
                EXPORT_RETRY_AFTER,
            ),
            Self::TooSlow => message(StatusCode::GATEWAY_TIMEOUT, "The request took too long"),
            Self::StatementFailed(_) | Self::ExportFailed(_) | Self::Panicked(_) => {
                message(StatusCode::INTERNAL_SERVER_ERROR, "Server Error")
            }
        }
    }
}

#[derive(Serialize)]
struct QuotaExhaustedJson<'r> {
    message: &'static str,
    limit: BudgetOf,
    usage: &'r [NamedShare],
}

#[derive(Serialize)]
struct ScopeMissingJson<'r> {
    message: String,
    required: &'r str,
}

#[derive(Serialize)]
struct MessageJson<'r> {
    message: &'r str,
}

fn message(status: StatusCode, message: &str) -> Reply {
    Reply::json(status, &MessageJson { message })
}

/// `Retry-After` in whole seconds, rounded up, at least 1 (RFC 9110, section 10.2.3).
fn retry_after(reply: Reply, wait: Duration) -> Reply {
    let seconds = wait.as_secs().saturating_add((wait.subsec_nanos() > 0).into()).max(1);
    reply.with_header(RETRY_AFTER, seconds.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_rounded_up_to_whole_seconds_and_is_never_zero() {
        for (micros, seconds) in [(0, "1"), (1, "1"), (1_000_000, "1"), (1_000_001, "2"), (59_999_000, "60")] {
            let (of, wait) = (BudgetOf::Account, Duration::from_micros(micros));
            let reply = Refusal::QuotaExhausted { of, wait, usage: Vec::new() }.reply();
            assert_eq!(reply.headers[RETRY_AFTER], seconds);
        }
    }

    #[test]
    fn the_cause_of_a_failure_never_reaches_the_client() {
        const MARKER: &str = "MARKER-7f3a";
        let cause = || sqlx::Error::Protocol(MARKER.to_owned());
        let refusals = [
            Refusal::from(StoreError::Unavailable(cause())),
            Refusal::from(StoreError::Statement(cause())),
            Refusal::Panicked(MARKER.to_owned()),
        ];
        for refusal in refusals {
            let reply = refusal.reply();
            assert!(reply.status.is_server_error());
            assert!(!String::from_utf8_lossy(&reply.body).contains(MARKER));
            assert!(!format!("{:?}", reply.headers).contains(MARKER));
        }
    }
}
