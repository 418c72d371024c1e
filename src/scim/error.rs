//! Errors in the form of SCIM (RFC 7644, section 3.12).

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::error::Refusal;
use crate::quota::BudgetOf;
use crate::reply::{ContentType, Reply};
use crate::store::{DirectoryError, GroupManager, StoreError};

/// The schema of an error.
const SCHEMA: &str = "urn:ietf:params:scim:api:messages:2.0:Error";

/// Why a request is not carried out.
#[derive(Debug)]
pub(super) enum ScimError {
    /// For a reason that requests of the API have too.
    Refused(Refusal),
    /// The request is at fault.
    Invalid(Fault),
    /// What the directory wants can't be written.
    Directory(DirectoryError),
    /// There is no such resource.
    NotFound,
    /// It is not supported.
    NotImplemented(&'static str),
}

/// A fault of a request: 400, with the type by which SCIM knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The type.
    pub(super) kind: FaultKind,
    /// What is wrong, for people.
    pub(super) detail: String,
}

/// The types of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    Filter,
    Mutability,
    Path,
    Syntax,
    Target,
    Value,
}

impl Fault {
    pub(super) fn new(kind: FaultKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }

    pub(super) fn value(detail: impl Into<String>) -> Self {
        Self::new(FaultKind::Value, detail)
    }

    pub(super) fn syntax(detail: impl Into<String>) -> Self {
        Self::new(FaultKind::Syntax, detail)
    }
}

impl FaultKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "invalidFilter",
            Self::Mutability => "mutability",
            Self::Path => "invalidPath",
            Self::Syntax => "invalidSyntax",
            Self::Target => "noTarget",
            Self::Value => "invalidValue",
        }
    }
}

impl From<Fault> for ScimError {
    fn from(fault: Fault) -> Self {
        Self::Invalid(fault)
    }
}

impl From<Refusal> for ScimError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for ScimError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error.into())
    }
}

impl From<DirectoryError> for ScimError {
    fn from(error: DirectoryError) -> Self {
        Self::Directory(error)
    }
}

/// The reply of a handler. A refusal becomes one in [`reply_of_refusal`], after it was logged.
pub(super) fn into_reply(outcome: Result<Reply, ScimError>) -> Result<Reply, Refusal> {
    let conflict = |kind, detail: &str| Ok(reply(StatusCode::CONFLICT, kind, detail));
    match outcome {
        Ok(reply) => Ok(reply),
        Err(ScimError::Refused(refusal)) => Err(refusal),
        Err(ScimError::Invalid(Fault { kind, detail })) => {
            Ok(reply(StatusCode::BAD_REQUEST, Some(kind.as_str()), &detail))
        }
        Err(ScimError::NotFound) => Ok(reply(StatusCode::NOT_FOUND, None, "There is no such resource.")),
        Err(ScimError::NotImplemented(detail)) => Ok(reply(StatusCode::NOT_IMPLEMENTED, None, detail)),
        Err(ScimError::Directory(error)) => match error {
            DirectoryError::Store(error) => Err(error.into()),
            DirectoryError::NotFound => Ok(reply(StatusCode::NOT_FOUND, None, "There is no such resource.")),
            DirectoryError::OtherVersion => Ok(reply(
                StatusCode::PRECONDITION_FAILED,
                None,
                "The resource is not the version that If-Match names. Read it again.",
            )),
            DirectoryError::NoAddress => Ok(reply(
                StatusCode::BAD_REQUEST,
                Some("invalidValue"),
                "Neither userName nor the primary of emails is an e-mail address.",
            )),
            DirectoryError::UserNameTaken => {
                conflict(Some("uniqueness"), "Another user has this userName or e-mail address.")
            }
            DirectoryError::ExternalIdTaken => conflict(Some("uniqueness"), "The externalId is taken."),
            DirectoryError::GroupNameTaken => {
                conflict(Some("uniqueness"), "Another group has this displayName, and no externalId tells them apart.")
            }
            DirectoryError::OtherManager(GroupManager::Api) => {
                conflict(None, "PUT /group maintains this group; SCIM only reads it.")
            }
            DirectoryError::OtherManager(GroupManager::Product | GroupManager::Scim) => {
                conflict(None, "The account maintains this group itself; SCIM only reads it.")
            }
        },
    }
}

/// The response to a refused request.
#[must_use]
pub fn reply_of_refusal(refusal: &Refusal) -> Reply {
    let plain = refusal.reply();
    let message = serde_json::from_slice::<Value>(&plain.body).unwrap_or_default();
    let detail = message["message"].as_str().unwrap_or_default();
    let shown = match refusal {
        Refusal::QuotaExhausted { of, .. } => {
            let spent = match of {
                BudgetOf::Account | BudgetOf::Scim => {
                    "The account's budget for SCIM (scim_requests_per_minute) is spent."
                }
                BudgetOf::Token => "The token's own budget (requests_per_minute) is spent.",
            };
            let mut error = error(plain.status, None, &format!("{detail} {spent}"));
            error.insert("limit".to_owned(), json!(of));
            error
        }
        _ => error(plain.status, None, detail),
    };
    Reply { headers: plain.headers, ..reply_with(plain.status, &shown) }
}

fn reply(status: StatusCode, kind: Option<&str>, detail: &str) -> Reply {
    reply_with(status, &error(status, kind, detail))
}

fn reply_with(status: StatusCode, error: &Map<String, Value>) -> Reply {
    let body = serde_json::to_vec(error).expect("texts are JSON");
    Reply::of_type(status, ContentType::Scim, body.into())
}

fn error(status: StatusCode, kind: Option<&str>, detail: &str) -> Map<String, Value> {
    let mut error = Map::new();
    error.insert("schemas".to_owned(), json!([SCHEMA]));
    error.insert("status".to_owned(), json!(status.as_str()));
    if let Some(kind) = kind {
        error.insert("scimType".to_owned(), json!(kind));
    }
    error.insert("detail".to_owned(), json!(detail));
    error
}
