//! Why a request was refused, as one stable word: in the log of requests, its pages and its documentation.
//!
//! Scripts compare these words, so they change only deliberately. The match has no `_` arm, so a new refusal does not
//! compile until it has one.

use http::StatusCode;

use super::{BadToken, Refusal};
use crate::quota::BudgetOf;

macro_rules! reasons {
    ($($(#[$meta:meta])* $name:ident = $word:literal;)*) => {
        /// Why a request was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RefusalReason {
            $($(#[$meta])* $name,)*
        }

        impl RefusalReason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The word.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

reasons! {
    /// There was no token.
    TokenMissing = "token_missing";
    /// What was sent does not have the form of a token.
    TokenMalformed = "token_malformed";
    /// The account has no such token.
    TokenUnknown = "token_unknown";
    /// The token was revoked. The log finds that out, after the gate has refused it as unknown.
    TokenRevoked = "token_revoked";
    /// The token had expired. The log finds that out too.
    TokenExpired = "token_expired";
    /// The token is not accepted from the network.
    WrongNetwork = "wrong_network";
    /// The address had sent too many bad tokens.
    TooManyBadTokens = "too_many_bad_tokens";
    /// The token lacks a scope.
    ScopeMissing = "scope_missing";
    /// The budget of the account was spent.
    RateLimitedAccount = "rate_limited_account";
    /// The budget of the account for SCIM was spent.
    RateLimitedScim = "rate_limited_scim";
    /// The budget of the token was spent.
    RateLimitedToken = "rate_limited_token";
    /// The budget could not be asked, and requests are refused then.
    BudgetUnavailable = "budget_unavailable";
    /// There is no such path.
    UnknownPath = "unknown_path";
    /// The path does not have the method, or nothing has.
    MethodNotAllowed = "method_not_allowed";
    /// Nothing has the id, or it is out of the token's reach.
    NotFound = "not_found";
    /// Parameters or the body are invalid.
    Invalid = "invalid";
    /// The request is no valid HTTP, or not for this address.
    Malformed = "malformed";
    /// The target, the head or the body is too large.
    TooLarge = "too_large";
    /// The body has an unsupported type or coding.
    UnsupportedBody = "unsupported_body";
    /// The body did not arrive, or not in time.
    BodyIncomplete = "body_incomplete";
    /// The built-in group can't be deleted.
    BuiltInGroup = "built_in_group";
    /// A directory maintains the group.
    GroupOfScim = "group_of_scim";
    /// What a directory sent contradicts what is there, or it expected another version of it.
    Conflict = "conflict";
    /// The cursor of the change feed is lost.
    CursorLost = "cursor_lost";
    /// Another export of the account was being sent.
    ExportRunning = "export_running";
    /// Too many requests were in flight, or too many exports.
    Busy = "busy";
    /// The database could not be used.
    DatabaseUnavailable = "database_unavailable";
    /// The request took too long.
    TooSlow = "too_slow";
    /// It is a fault of the gateway.
    InternalError = "internal_error";
}

impl RefusalReason {
    /// The reason of a response that is no [`Refusal`], as those of SCIM.
    #[must_use]
    pub fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => Self::Conflict,
            StatusCode::NOT_IMPLEMENTED => Self::MethodNotAllowed,
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            status if status.is_server_error() => Self::InternalError,
            _ => Self::Invalid,
        }
    }
}

impl Refusal {
    /// The reason as the log of requests has it.
    #[must_use]
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::Unauthenticated(BadToken::Missing) => RefusalReason::TokenMissing,
            Self::Unauthenticated(BadToken::Malformed) => RefusalReason::TokenMalformed,
            Self::Unauthenticated(BadToken::Unknown) => RefusalReason::TokenUnknown,
            Self::WrongNetwork { .. } => RefusalReason::WrongNetwork,
            Self::TooManyBadTokens { .. } | Self::TooManyPages { .. } => RefusalReason::TooManyBadTokens,
            Self::ScopeMissing { .. } => RefusalReason::ScopeMissing,
            Self::QuotaExhausted { of: BudgetOf::Account, .. } => RefusalReason::RateLimitedAccount,
            Self::QuotaExhausted { of: BudgetOf::Scim, .. } => RefusalReason::RateLimitedScim,
            Self::QuotaExhausted { of: BudgetOf::Token, .. } => RefusalReason::RateLimitedToken,
            Self::QuotaUnavailable => RefusalReason::BudgetUnavailable,
            Self::UnknownPath => RefusalReason::UnknownPath,
            Self::MethodNotAllowed { .. } | Self::UnknownMethod => RefusalReason::MethodNotAllowed,
            Self::FormNotFound | Self::SubmissionNotFound | Self::GroupNotFound | Self::SubscriptionNotFound => {
                RefusalReason::NotFound
            }
            Self::Invalid(_) => RefusalReason::Invalid,
            Self::InvalidAuthority
            | Self::MalformedHead
            | Self::AmbiguousLength
            | Self::InvalidTarget
            | Self::Misdirected
            | Self::UnknownAccount => RefusalReason::Malformed,
            Self::TargetTooLong | Self::HeadTooLarge | Self::BodyTooLarge => RefusalReason::TooLarge,
            Self::UnsupportedCoding | Self::UnsupportedCharset | Self::UnsupportedForm { .. } => {
                RefusalReason::UnsupportedBody
            }
            Self::BodyTooSlow | Self::BodyBroken(_) => RefusalReason::BodyIncomplete,
            Self::BuiltInGroup => RefusalReason::BuiltInGroup,
            Self::GroupOfScim => RefusalReason::GroupOfScim,
            Self::ChangesLost(_) => RefusalReason::CursorLost,
            Self::ExportRunning => RefusalReason::ExportRunning,
            Self::Overloaded | Self::TenantBusy | Self::TooManyExports | Self::MemorySpent(_) => RefusalReason::Busy,
            Self::DatabaseUnavailable(_) => RefusalReason::DatabaseUnavailable,
            Self::TooSlow => RefusalReason::TooSlow,
            Self::StatementFailed(_) | Self::ExportFailed(_) | Self::Panicked(_) => RefusalReason::InternalError,
        }
    }

    /// Whether no budget limits how often a client may be refused like this, so that the log counts such refusals.
    #[must_use]
    pub fn is_free(&self) -> bool {
        matches!(self, Self::QuotaExhausted { .. } | Self::QuotaUnavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_described_where_callers_look_for_it() {
        let documents = [include_str!("../../deploy/openapi.yaml"), include_str!("../api/README.md")];
        for reason in RefusalReason::ALL {
            for document in documents {
                assert!(document.contains(&format!("`{}`", reason.as_str())), "{reason:?}");
            }
        }
    }
}
