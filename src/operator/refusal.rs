//! Answers to what can't be done.

use std::io;
use std::sync::Arc;

use http::StatusCode;
use http::header::{ALLOW, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde_json::{Map, Value, json};

use crate::config::TenantConfig;
use crate::config::registered::json::{Faults, by_key};
use crate::endpoint::NoEndpoint;
use crate::registry::FollowError;
use crate::registry::editing::EditRefused;
use crate::reply::Reply;
use crate::store::registry::{WriteRefused, registry_remedy};
use crate::store::{StoreError, with_causes};

/// Why a request is refused.
#[derive(Debug)]
pub(super) enum OperatorRefusal {
    /// 401.
    Unauthenticated,
    /// 403: a page of a browser calls.
    OfPage,
    /// 429: too many calls of the caller wait, for changes or for databases.
    TooManyWait,
    /// 404.
    UnknownPath,
    /// 405.
    MethodNotAllowed { allow: &'static str },
    /// 404: no such tenant.
    UnknownTenant { slug: String },
    /// 404: the tenant has no such token or session.
    Unknown { what: &'static str, id: String },
    /// 404: the tenant has no such host.
    UnknownDomain { host: String },
    /// 404: its owner has not proved it yet.
    UnprovedDomain { host: String },
    /// 400: the body, or a part of the target, can't be read at all.
    Malformed(String),
    /// 422: faults by key.
    Faults(Faults),
    /// 409: it belongs to a file or to another tenant.
    Conflict { key: String, message: String },
    /// 412: `If-Match` or `If-None-Match` does not hold.
    Precondition { slug: String, expected: Option<i64>, revision: Option<i64> },
    /// 409: there is nothing to write to.
    NoRegistry,
    /// 409: this node does not write to the registry.
    Drill,
    /// 409: `[gateway.domains]` is not configured.
    NoDomains,
    /// 422: the tables of a tenant can't be created.
    Migration { cause: String },
    /// 503: a body can't be kept in a file.
    NoRoom(io::Error),
    /// 503: a tenant's database can't be used.
    TenantDatabase { cause: String },
    /// 410: the changes that a caller has read are no longer those of the registry.
    OtherHistory { after: i64, head: i64 },
    /// 503: the registry can't be used.
    Registry(FollowError),
    /// The row is written, but an additional request of the call failed.
    AfterWrite(Box<OperatorRefusal>),
}

impl From<FollowError> for OperatorRefusal {
    fn from(error: FollowError) -> Self {
        Self::Registry(error)
    }
}

impl From<StoreError> for OperatorRefusal {
    fn from(error: StoreError) -> Self {
        Self::Registry(error.into())
    }
}

impl From<WriteRefused> for OperatorRefusal {
    fn from(refused: WriteRefused) -> Self {
        Self::of_write(refused, &[])
    }
}

impl From<NoEndpoint> for OperatorRefusal {
    fn from(none: NoEndpoint) -> Self {
        match none {
            NoEndpoint::UnknownPath => Self::UnknownPath,
            NoEndpoint::MethodNotAllowed { allow } => Self::MethodNotAllowed { allow },
        }
    }
}

impl OperatorRefusal {
    /// Why tenants can't be written. Each has what comes before its keys.
    pub(super) fn of_write(refused: WriteRefused, tenants: &[(String, &Arc<TenantConfig>)]) -> Self {
        match refused {
            WriteRefused::Taken { slug, kind, value, owner } => {
                let tenant = tenants.iter().find(|(_, tenant)| *tenant.slug == slug);
                let is_address = tenant.is_some_and(|(_, tenant)| tenant.address.as_str() == value);
                let (key, what) = match kind {
                    "host" if is_address => ("address", format!("the host `{value}`")),
                    "host" => ("domains", format!("the host `{value}`")),
                    _ => ("database", "the database".to_owned()),
                };
                let key = format!("{}{key}", tenant.map_or("", |(prefix, _)| prefix));
                Self::Conflict { key, message: format!("{what} is that of the tenant `{owner}`") }
            }
            WriteRefused::NotAsExpected { slug, expected, revision } => Self::Precondition { slug, expected, revision },
            WriteRefused::BeingErased { slug } => Self::being_erased(&slug),
            WriteRefused::TooManyUnproved => Self::of("host", refused.to_string()),
            WriteRefused::Store(error) => Self::Registry(error.into()),
        }
    }
}

impl From<EditRefused> for OperatorRefusal {
    fn from(refused: EditRefused) -> Self {
        match refused {
            EditRefused::Faults { problems, text } => Self::Faults(by_key(&problems, &text)),
            EditRefused::Unfit { key, message } => Self::of(key, message),
            EditRefused::OfFile { key, .. } => Self::Conflict { key: key.to_owned(), message: refused.to_string() },
            EditRefused::Write(refused) => refused.into(),
        }
    }
}

impl OperatorRefusal {
    /// 409: what a tenant had that was removed is not erased yet.
    pub(super) fn being_erased(slug: &str) -> Self {
        let message = format!("The tenant `{slug}` is being erased: repeat `DELETE …?erase=1` until it answers 200");
        Self::Conflict { key: "slug".to_owned(), message }
    }

    /// The same with the faulty keys below another one.
    pub(super) fn below(self, prefix: &str) -> Self {
        let below = |key: String| if key.is_empty() { prefix.to_owned() } else { format!("{prefix}.{key}") };
        match self {
            Self::Faults(faults) => Self::Faults(faults.into_iter().map(|(key, texts)| (below(key), texts)).collect()),
            Self::Conflict { key, message } => Self::Conflict { key: below(key), message },
            other => other,
        }
    }

    /// Says that the change itself is written.
    pub(super) fn after_write(self) -> Self {
        Self::AfterWrite(Box::new(self))
    }

    /// A fault of one key.
    pub(super) fn of(key: &str, message: impl Into<String>) -> Self {
        Self::Faults(Faults::from([(key.to_owned(), vec![message.into()])]))
    }

    /// What its reply says.
    pub(super) fn message(self) -> String {
        let body: Value = serde_json::from_slice(&self.reply().body).unwrap_or_default();
        body["message"].as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn reply(self) -> Reply {
        match self {
            Self::Unauthenticated => message(StatusCode::UNAUTHORIZED, "Unauthenticated.")
                .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            Self::OfPage => message(StatusCode::FORBIDDEN, "Pages of browsers may not call the operator API"),
            Self::TooManyWait => message(
                StatusCode::TOO_MANY_REQUESTS,
                "Too many calls of this caller wait for changes or for databases",
            )
            .with_header(RETRY_AFTER, HeaderValue::from_static("1")),
            Self::UnknownPath => message(StatusCode::NOT_FOUND, "Not found"),
            Self::MethodNotAllowed { allow } => {
                let allow = HeaderValue::from_static(allow);
                message(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed").with_header(ALLOW, allow)
            }
            Self::UnknownTenant { slug } => message(StatusCode::NOT_FOUND, &format!("There is no tenant `{slug}`")),
            Self::Unknown { what, id } => message(StatusCode::NOT_FOUND, &format!("There is no {what} `{id}`")),
            Self::UnknownDomain { host } => message(StatusCode::NOT_FOUND, &format!("There is no domain `{host}`")),
            Self::UnprovedDomain { host } => {
                message(StatusCode::NOT_FOUND, &format!("The domain `{host}` is not proved yet"))
            }
            Self::Malformed(text) => message(StatusCode::BAD_REQUEST, &text),
            Self::Faults(faults) => with_errors(StatusCode::UNPROCESSABLE_ENTITY, &faults),
            Self::Conflict { key, message } => with_errors(StatusCode::CONFLICT, &Faults::from([(key, vec![message])])),
            Self::Precondition { slug, expected, revision } => {
                let text = match (expected, revision) {
                    (None, _) => format!("The tenant `{slug}` exists"),
                    (Some(_), None) => format!("There is no tenant `{slug}`"),
                    (Some(_), Some(_)) => format!("The tenant `{slug}` was changed meanwhile"),
                };
                let body = json!({ "message": text, "revision": revision });
                Reply::json(StatusCode::PRECONDITION_FAILED, &body)
            }
            Self::NoRegistry => message(
                StatusCode::CONFLICT,
                "There is no registry: set `registry` in `[gateway]`, so that tenants can be added here",
            ),
            Self::Drill => message(StatusCode::CONFLICT, &StoreError::OfDrill.to_string()),
            Self::NoDomains => message(
                StatusCode::CONFLICT,
                "Domains are not configured: say in `[gateway.domains]` where they have to point",
            ),
            Self::Migration { cause } => {
                with_errors(StatusCode::UNPROCESSABLE_ENTITY, &Faults::from([("database".to_owned(), vec![cause])]))
            }
            Self::NoRoom(error) => unavailable(&format!("The body can't be kept in a file: {error}")),
            Self::TenantDatabase { cause } => unavailable(&cause),
            Self::OtherHistory { after, head } => {
                let text = format!(
                    "The registry has other changes up to {after} than those that were read: it was restored, and is at \
                     revision {head}, or they were read more than 30 days ago. Begin without `after`"
                );
                Reply::json(StatusCode::GONE, &json!({ "message": text, "reason": "reset", "revision": head }))
            }
            Self::AfterWrite(refusal) => {
                let Reply { status, headers, body, .. } = refusal.reply();
                let mut body: Map<String, Value> = serde_json::from_slice(&body).unwrap_or_default();
                body.insert("written".to_owned(), Value::Bool(true));
                Reply { headers, ..Reply::json(status, &body) }
            }
            Self::Registry(error) => {
                let cause = with_causes(&error);
                tracing::error!(cause, "the registry can't be used by the operator API");
                match &error {
                    FollowError::Store(error) => {
                        unavailable(&format!("The registry can't be used: {cause}; {}", registry_remedy(error)))
                    }
                    // Its text has the next step.
                    FollowError::OtherRegistry => unavailable(&format!("The registry can't be used: {cause}")),
                }
            }
        }
    }
}

fn unavailable(text: &str) -> Reply {
    message(StatusCode::SERVICE_UNAVAILABLE, text).with_header(RETRY_AFTER, HeaderValue::from_static("1"))
}

fn message(status: StatusCode, text: &str) -> Reply {
    Reply::json(status, &json!({ "message": text }))
}

/// `{message, errors}`, as in the API of the accounts. Faults without a key are only in the message.
fn with_errors(status: StatusCode, faults: &Faults) -> Reply {
    let first = faults.values().flatten().next().cloned().unwrap_or_default();
    let count = faults.values().map(Vec::len).sum::<usize>();
    let text = match count {
        0 | 1 => first,
        2 => format!("{first} (and 1 more error)"),
        more => format!("{first} (and {} more errors)", more - 1),
    };
    let errors: Map<String, Value> =
        faults.iter().filter(|(key, _)| !key.is_empty()).map(|(key, faults)| (key.clone(), json!(faults))).collect();
    Reply::json(status, &json!({ "message": text, "errors": errors }))
}
