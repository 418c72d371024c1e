//! SCIM 2.0 (RFC 7643, RFC 7644) below `/scim/v2`: directories provision users and groups here.
//!
//! A request passes the same gate as one of the API and spends a budget of its own. What a directory writes are the users
//! and the groups of the account; [`crate::store`] applies it, this module reads and writes its JSON. The API's
//! description in OpenAPI leaves these endpoints out: SCIM describes itself (`ServiceProviderConfig`, `Schemas`), and its
//! clients are not generated from OpenAPI. `README.md` in its folder is for those who connect a directory.
//!
//! Attributes that are not stored are accepted and ignored: directories send them whatever the schema declares. Names of
//! attributes, operators and operations are compared without case, and values are taken in every form that directories
//! send.

mod discovery;
mod error;
mod etag;
mod filter;
mod groups;
mod groups_patch;
mod json;
mod list;
mod patch;
mod projection;
mod search;
mod users;
mod users_patch;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, ETAG};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::endpoint::{BodyKind, Endpoint, Endpoints, Segments, TimeLimit, endpoint};
use crate::error::Refusal;
use crate::gate::{Admitted, Origin};
use crate::memory::RowMemory;
use crate::reply::{ContentType, Reply};
use crate::store::{Provisioner, Scope, Store, SyncedBy};
use error::ScimError;
pub use error::reply_of_refusal;
use etag::Version;

/// The path prefix of all endpoints.
const PREFIX: &str = "/scim/v2";

/// The scopes that every endpoint needs.
pub const SCOPES: &[Scope] = &[Scope::Scim];

/// The part of a request that handlers read.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// What the path has in the places of the endpoint's.
    pub segments: Segments<'a>,
    /// The origin that the client used, for links.
    pub origin: Origin<'a>,
    /// The query string, still percent-encoded.
    pub query: &'a str,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// The complete body.
    pub body: Bytes,
    /// Where the rows that it reads are counted.
    pub rows: &'a RowMemory,
}

impl<'a> Call<'a> {
    /// The tenant's open database, which counts the rows of this request.
    async fn store(&self, admitted: &Admitted) -> Result<Store, ScimError> {
        let store = admitted.tenant().database.store().await;
        let store = store.map_err(|error| Refusal::DatabaseUnavailable(Arc::new(error)))?;
        Ok(store.counting(self.rows))
    }

    /// The id in the path, as written there.
    fn id(&self) -> &'a str {
        self.segments.get("id")
    }

    /// The URL of a path below [`PREFIX`].
    fn url(&self, path: std::fmt::Arguments<'_>) -> String {
        format!("{}{PREFIX}{path}", self.origin)
    }
}

/// The directory that writes, and how much it may remove.
fn provisioner(admitted: &Admitted) -> Provisioner {
    let by = SyncedBy { name: Arc::clone(&admitted.token().name), token: Some(admitted.token().id) };
    Provisioner { by, guard: admitted.tenant().group_guard }
}

/// Carries out a request that passed the gate.
pub type Handler = for<'a> fn(&'a Admitted, Call<'a>) -> BoxFuture<'a, Result<Reply, Refusal>>;

/// Gives a closure the type of the table before an endpoint is made with it.
const fn by_handler(handler: Handler) -> Handler {
    handler
}

/// An endpoint of a method and a path, with an async function that carries it out.
macro_rules! scim {
    ($method:ident $path:literal, $handler:path) => {
        endpoint!($method "/scim/v2" $path, by_handler(|admitted, call| {
            Box::pin(async move { error::into_reply($handler(admitted, &call).await) })
        }))
    };
}

/// Every endpoint; paths are relative to `/scim/v2`.
pub static ENDPOINTS: Endpoints<Handler> = Endpoints::new(&TABLE);

/// What a list takes. Others are ignored.
const LIST: &[&str] = &["filter", "sortBy", "sortOrder", "startIndex", "count", "attributes", "excludedAttributes"];
/// What a single resource takes.
const ONE: &[&str] = &["attributes", "excludedAttributes"];

static TABLE: [Endpoint<Handler>; 26] = [
    scim!(GET "/ServiceProviderConfig", discovery::show_config),
    scim!(GET "/ResourceTypes", discovery::list_resource_types),
    scim!(GET "/ResourceTypes/{id}", discovery::show_resource_type),
    scim!(GET "/Schemas", discovery::list_schemas),
    scim!(GET "/Schemas/{id}", discovery::show_schema),
    scim!(GET "/Me", discovery::refuse_me),
    scim!(POST "/Me", discovery::refuse_me),
    scim!(PUT "/Me", discovery::refuse_me),
    scim!(PATCH "/Me", discovery::refuse_me),
    scim!(DELETE "/Me", discovery::refuse_me),
    scim!(POST "/Bulk", discovery::refuse_bulk),
    scim!(POST "/.search", search::search).body(BodyKind::Ordinary),
    scim!(GET "/Users", users::list).query(LIST),
    scim!(POST "/Users", users::create).query(ONE).body(BodyKind::Ordinary),
    scim!(POST "/Users/.search", users::search).body(BodyKind::Ordinary),
    scim!(GET "/Users/{id}", users::show).query(ONE),
    scim!(PUT "/Users/{id}", users::replace).query(ONE).body(BodyKind::Ordinary),
    scim!(PATCH "/Users/{id}", users::patch).query(ONE).body(BodyKind::Ordinary),
    scim!(DELETE "/Users/{id}", users::delete),
    scim!(GET "/Groups", groups::list).query(LIST),
    scim!(POST "/Groups", groups::create).query(ONE).body(BodyKind::Group).time(TimeLimit::Group),
    scim!(POST "/Groups/.search", groups::search).body(BodyKind::Ordinary),
    scim!(GET "/Groups/{id}", groups::show).query(ONE),
    scim!(PUT "/Groups/{id}", groups::replace).query(ONE).body(BodyKind::Group).time(TimeLimit::Group),
    scim!(PATCH "/Groups/{id}", groups::patch).query(ONE).body(BodyKind::Group).time(TimeLimit::Group),
    scim!(DELETE "/Groups/{id}", groups::delete).time(TimeLimit::Group),
];

/// The path below `/scim/v2`, if a request is for it.
#[must_use]
pub fn path_below(path: &str) -> Option<&str> {
    path.strip_prefix(PREFIX).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The type of the answers to a client: that of SCIM, unless it only takes JSON.
#[must_use]
pub fn content_type(headers: &HeaderMap) -> ContentType {
    let accepted =
        || headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    let takes = |wanted: &str| {
        accepted().any(|kind| kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(wanted))
    };
    if takes("application/json") && !takes("application/scim+json") && !takes("*/*") {
        ContentType::Json
    } else {
        ContentType::Scim
    }
}

/// The number of an id: digits after a prefix.
fn parse_id(prefix: &str, text: &str) -> Option<i64> {
    let digits = text.strip_prefix(prefix)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|&number: &i64| is_number && number > 0)
}

/// An id as responses show it.
fn shown_id(prefix: &str, number: i64) -> String {
    format!("{prefix}{number}")
}

/// The common attribute `meta`. Times are known of what a directory wrote.
fn meta(kind: &str, written: Option<[Timestamp; 2]>, location: &str, version: &Version) -> Value {
    let mut meta = json!({ "resourceType": kind, "location": location, "version": version.as_str() });
    if let Some([created, updated]) = written {
        // Always with microseconds, so that instants are as long as each other.
        meta["created"] = json!(format!("{created:.6}"));
        meta["lastModified"] = json!(format!("{updated:.6}"));
    }
    meta
}

fn no_content() -> Reply {
    Reply::of_type(StatusCode::NO_CONTENT, ContentType::Scim, Bytes::new())
}

fn not_modified(version: &Version) -> Reply {
    Reply::of_type(StatusCode::NOT_MODIFIED, ContentType::Scim, Bytes::new()).with_header(ETAG, version.header())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn json_is_sent_to_clients_that_take_nothing_else() {
        for (accept, expected) in [
            (None, ContentType::Scim),
            (Some("application/scim+json"), ContentType::Scim),
            (Some("application/json"), ContentType::Json),
            (Some("text/plain, application/JSON; charset=utf-8"), ContentType::Json),
            (Some("application/scim+json, application/json"), ContentType::Scim),
            (Some("application/json, */*"), ContentType::Scim),
        ] {
            let headers = accept.into_iter().map(|value| (ACCEPT, HeaderValue::from_static(value))).collect();
            assert_eq!(content_type(&headers), expected, "{accept:?}");
        }
    }

    #[test]
    fn ids_have_their_prefix() {
        for (text, id) in
            [("usr_7", Some(7)), ("7", None), ("grp_7", None), ("usr_", None), ("usr_0", None), ("usr_+7", None)]
        {
            assert_eq!(parse_id(users::ID, text), id, "{text}");
        }
    }
}
