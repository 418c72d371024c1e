//! The operations of the API, and what each one takes: its query parameters, a body, how long it may run.

use std::time::Duration;

use super::changes;
use super::ignored::IgnoredParameters;
use crate::config::RequestLimits;

/// The operation that a request selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `GET /me`
    ShowMe,
    /// `GET /openapi.json`
    ShowOpenApi,
    /// `GET /form`
    ListForms,
    /// `GET /form/{id}`
    ShowForm {
        /// The id as written in the path.
        id: String,
    },
    /// `POST /submission`
    SearchSubmissions,
    /// `GET /submission/{id}`
    ShowSubmission {
        /// The id as written in the path.
        id: String,
    },
    /// `GET /submission/changes`
    ListChanges,
    /// `GET /group`
    ListGroups,
    /// `PUT /group`
    WriteGroup,
    /// `GET /group/{id}`
    ShowGroup {
        /// The id as written in the path.
        id: String,
    },
    /// `DELETE /group/{id}`
    DeleteGroup {
        /// The id as written in the path.
        id: String,
    },
    /// `GET /subscribe`
    ListSubscriptions,
    /// `POST /subscribe`
    Subscribe,
    /// `GET /subscribe/{id}`
    ShowSubscription {
        /// The id as written in the path.
        id: String,
    },
    /// `DELETE /subscribe/{id}`
    DeleteSubscription {
        /// The id as written in the path.
        id: String,
    },
    /// `POST /subscribe/{id}/pause`
    PauseSubscription {
        /// The id as written in the path.
        id: String,
    },
    /// `POST /subscribe/{id}/resume`
    ResumeSubscription {
        /// The id as written in the path.
        id: String,
    },
    /// `POST /subscribe/{id}/rotate`
    RotateSecret {
        /// The id as written in the path.
        id: String,
    },
    /// `POST /subscribe/{id}/replay`
    Replay {
        /// The id as written in the path.
        id: String,
    },
    /// `GET /subscribe/{id}/deliveries`
    ListDeliveries {
        /// The id as written in the path.
        id: String,
    },
    /// `POST /subscribe/{id}/test`
    TestSubscription {
        /// The id as written in the path.
        id: String,
    },
    /// `GET /subscribe/sample`
    SampleEvents,
    /// `POST /unsubscribe`
    Unsubscribe,
}

impl Route {
    /// The route's name in metrics and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::ShowMe => "GET /me",
            Self::ShowOpenApi => "GET /openapi.json",
            Self::ListForms => "GET /form",
            Self::ShowForm { .. } => "GET /form/{id}",
            Self::SearchSubmissions => "POST /submission",
            Self::ShowSubmission { .. } => "GET /submission/{id}",
            Self::ListChanges => "GET /submission/changes",
            Self::ListGroups => "GET /group",
            Self::WriteGroup => "PUT /group",
            Self::ShowGroup { .. } => "GET /group/{id}",
            Self::DeleteGroup { .. } => "DELETE /group/{id}",
            Self::ListSubscriptions => "GET /subscribe",
            Self::Subscribe => "POST /subscribe",
            Self::ShowSubscription { .. } => "GET /subscribe/{id}",
            Self::DeleteSubscription { .. } => "DELETE /subscribe/{id}",
            Self::PauseSubscription { .. } => "POST /subscribe/{id}/pause",
            Self::ResumeSubscription { .. } => "POST /subscribe/{id}/resume",
            Self::RotateSecret { .. } => "POST /subscribe/{id}/rotate",
            Self::Replay { .. } => "POST /subscribe/{id}/replay",
            Self::ListDeliveries { .. } => "GET /subscribe/{id}/deliveries",
            Self::TestSubscription { .. } => "POST /subscribe/{id}/test",
            Self::SampleEvents => "GET /subscribe/sample",
            Self::Unsubscribe => "POST /unsubscribe",
        }
    }

    /// The query parameters of the route. Others are ignored and listed in a response header.
    #[must_use]
    pub fn parameters(&self) -> &'static [&'static str] {
        match self {
            Self::ListForms | Self::SearchSubmissions | Self::ListSubscriptions | Self::ShowGroup { .. } => &["page"],
            Self::ListDeliveries { .. } => &["status", "page"],
            Self::SampleEvents => &["event", "form"],
            Self::ListChanges => &["cursor", "limit", "forms", "wait"],
            Self::ListGroups => &["managed", "external_id", "page"],
            Self::WriteGroup => &["dry_run", "confirm", "report"],
            Self::ShowMe
            | Self::ShowOpenApi
            | Self::ShowForm { .. }
            | Self::ShowSubmission { .. }
            | Self::DeleteGroup { .. }
            | Self::Subscribe
            | Self::ShowSubscription { .. }
            | Self::TestSubscription { .. }
            | Self::DeleteSubscription { .. }
            | Self::PauseSubscription { .. }
            | Self::ResumeSubscription { .. }
            | Self::RotateSecret { .. }
            | Self::Replay { .. }
            | Self::Unsubscribe => &[],
        }
    }

    /// The parameters in a query that the route does not know.
    #[must_use]
    pub fn ignored(&self, query: &str) -> IgnoredParameters {
        IgnoredParameters::from_query(query, self.parameters())
    }

    /// Whether the route reads a body.
    #[must_use]
    pub fn takes_body(&self) -> bool {
        matches!(
            self,
            Self::SearchSubmissions
                | Self::WriteGroup
                | Self::Subscribe
                | Self::RotateSecret { .. }
                | Self::Replay { .. }
                | Self::Unsubscribe
        )
    }

    /// The maximum size of the body in bytes.
    #[must_use]
    pub fn body_limit(&self, limits: &RequestLimits) -> usize {
        if *self == Self::WriteGroup { limits.group_body_bytes } else { limits.body_bytes }
    }

    /// The time limit of the request, not counting its body.
    #[must_use]
    pub fn time_limit(&self, limits: &RequestLimits) -> Duration {
        match self {
            Self::WriteGroup => limits.group_request,
            Self::ListChanges => limits.request + changes::MAX_WAIT,
            _ => limits.request,
        }
    }
}
