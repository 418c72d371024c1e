//! `POST /group/{id}/managed_by`: who writes the group from now on.

use http::StatusCode;
use serde_json::json;

use super::GroupJson;
use crate::api::Call;
use crate::api::body::Body;
use crate::api::id::IdKind;
use crate::api::reader::Scalar;
use crate::api::values::{self, FieldPath};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::Reply;
use crate::store::{GivenGroup, GroupManager};

/// The key in the body.
const KEY: &str = "managed_by";

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
    match call.store(admitted).await?.give_group(id, manager).await? {
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
