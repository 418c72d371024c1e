//! `POST /group/{id}/managed_by`: who writes the group from now on. `POST /group/{id}/held`: what becomes of the removals that the
//! guard of SCIM holds.

use http::StatusCode;
use serde_json::json;

use std::sync::Arc;

use super::{GroupJson, StandingJson};
use crate::api::Call;
use crate::api::body::Body;
use crate::api::id::IdKind;
use crate::api::reader::Scalar;
use crate::api::values::{self, FieldPath};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::Reply;
use crate::store::{Actor, AuditSource, GivenGroup, GroupManager, HeldDecision, SyncedBy};

/// The key in the body.
const KEY: &str = "managed_by";

/// The key in the body of a decision.
const APPLY: &str = "apply";

pub(in crate::api) async fn give(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = IdKind::Group.parse(call.id()).ok_or(Refusal::GroupNotFound)?;
    let body = Body::of(call, &[KEY])?;
    let mut faults = Faults::default();
    if !body.has_key(KEY) {
        faults.add(KEY, format_args!("The {KEY} is required: \"api\", \"scim\" or null."));
    }
    let sent = body.entries().next().map(|entry| values::scalar(entry, &mut faults, manager)).transpose()?;
    // An explicit null gives the group back to the account.
    let manager = faults.into_result(sent.flatten())?.unwrap_or(GroupManager::Product);
    match call.store(admitted).await?.give_group(id, manager, &actor(admitted)).await? {
        GivenGroup::Given(group) => Ok(Reply::json(StatusCode::OK, &json!({ "data": GroupJson::from(&group) }))),
        GivenGroup::BuiltIn => Err(Faults::single(KEY, "The group is the built-in one, which nobody writes.")),
        GivenGroup::NotFound => Err(Refusal::GroupNotFound),
    }
}

fn manager(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<GroupManager> {
    match value {
        Scalar::String(text) if *text == "api" => Some(GroupManager::Api),
        Scalar::String(text) if *text == "scim" => Some(GroupManager::Scim),
        _ => {
            faults.add(path, format_args!("The {path} must be \"api\", \"scim\" or null."));
            None
        }
    }
}

pub(in crate::api) async fn decide(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = IdKind::Group.parse(call.id()).ok_or(Refusal::GroupNotFound)?;
    let body = Body::of(call, &[APPLY])?;
    let decision = match body.entries().next().map(|entry| entry.json.get()) {
        Some("true") => HeldDecision::Apply,
        Some("false") => HeldDecision::Drop,
        Some(_) => return Err(Faults::single(APPLY, "The apply must be true or false.")),
        None => return Err(Faults::single(APPLY, "The apply is required: true or false.")),
    };
    let by = SyncedBy { name: Arc::clone(&admitted.token().name), token: Some(admitted.token().id) };
    let decided = call.store(admitted).await?.decide_held(id, decision, &by, &actor(admitted)).await?;
    let (group, _) = decided.ok_or(Refusal::GroupNotFound)?;
    Ok(Reply::json(StatusCode::OK, &json!({ "data": StandingJson::from(&group) })))
}

/// The token, for the audit log.
fn actor(admitted: &Admitted) -> Actor {
    let name = format!("token {}", admitted.token().id);
    Actor { name, source: AuditSource::Gateway, network: None, identity: None }
}
