//! What this service provider supports, for clients that ask (RFC 7643, sections 5 to 7), and what it refuses.

use std::sync::LazyLock;

use http::StatusCode;
use serde_json::{Value, json};

use super::Call;
use super::error::ScimError;
use super::list::{ListRequest, MAX_COUNT};
use crate::gate::Admitted;
use crate::reply::{ContentType, Reply};

/// The resource types and the schemas, without the URLs that depend on the caller's address.
static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("schemas.json")).expect("the file is JSON"));

fn reply(value: &Value) -> Reply {
    Reply::of_type(StatusCode::OK, ContentType::Scim, json_of(value).into())
}

fn json_of(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a value is JSON")
}

pub(super) async fn show_config(_: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    Ok(reply(&json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"],
        "patch": { "supported": true },
        "bulk": { "supported": false, "maxOperations": 0, "maxPayloadSize": 0 },
        "filter": { "supported": true, "maxResults": MAX_COUNT },
        "changePassword": { "supported": false },
        "sort": { "supported": true },
        "etag": { "supported": true },
        "authenticationSchemes": [{
            "type": "oauthbearertoken",
            "name": "API token",
            "description": "A token of the account with the scope scim, as a bearer token.",
            "primary": true,
        }],
        "meta": { "resourceType": "ServiceProviderConfig", "location": call.url(format_args!("/ServiceProviderConfig")) },
    })))
}

/// The documents of a kind, with their URLs.
fn documents(call: &Call<'_>, key: &str, kind: &str, path: &str) -> Vec<Value> {
    let all = DOCUMENT[key].as_array().into_iter().flatten();
    let with_meta = |document: &Value| {
        let mut document = document.clone();
        let id = document["id"].as_str().unwrap_or_default().to_owned();
        document["meta"] = json!({ "resourceType": kind, "location": call.url(format_args!("{path}/{id}")) });
        document
    };
    all.map(with_meta).collect()
}

fn resource_types(call: &Call<'_>) -> Vec<Value> {
    documents(call, "resourceTypes", "ResourceType", "/ResourceTypes")
}

fn schemas(call: &Call<'_>) -> Vec<Value> {
    documents(call, "schemas", "Schema", "/Schemas")
}

fn list(documents: &[Value]) -> Reply {
    let documents: Vec<_> = documents.iter().map(json_of).collect();
    ListRequest::default().reply(&documents, documents.len() as u64)
}

fn one(call: &Call<'_>, documents: Vec<Value>) -> Result<Reply, ScimError> {
    let found = documents.into_iter().find(|document| document["id"].as_str() == Some(call.id()));
    found.map(|document| reply(&document)).ok_or(ScimError::NotFound)
}

pub(super) async fn list_resource_types(_: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    Ok(list(&resource_types(call)))
}

pub(super) async fn show_resource_type(_: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    one(call, resource_types(call))
}

pub(super) async fn list_schemas(_: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    Ok(list(&schemas(call)))
}

pub(super) async fn show_schema(_: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    one(call, schemas(call))
}

pub(super) async fn refuse_me(_: &Admitted, _: &Call<'_>) -> Result<Reply, ScimError> {
    Err(ScimError::NotImplemented("A token belongs to the account and not to a user, so there is no Me."))
}

pub(super) async fn refuse_bulk(_: &Admitted, _: &Call<'_>) -> Result<Reply, ScimError> {
    Err(ScimError::NotImplemented("Bulk operations are not supported."))
}
