//! `/Users`: reads and writes users.

use http::StatusCode;
use http::header::{ETAG, HeaderValue, LOCATION};
use serde_json::{Map, Value, json};

use super::error::{Fault, ScimError};
use super::etag::Version;
use super::filter::Test;
use super::list::{self, ListRequest};
use super::projection::Projection;
use super::users_patch::UserPatch;
use super::{Call, parse_id, provisioner, shown_id};
use crate::gate::Admitted;
use crate::reply::{ContentType, Reply};
use crate::store::{Comparison, DirectoryUser, DirectoryUserChange, Filter, UserOrder, UserTest};

/// The schema of a user.
pub(super) const SCHEMA: &str = "urn:ietf:params:scim:schemas:core:2.0:User";

/// What the ids begin with.
pub(super) const ID: &str = "usr_";

pub(super) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    find_all(admitted, call, ListRequest::of_query(call)?).await
}

pub(super) async fn search(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    find_all(admitted, call, ListRequest::of_body(&call.body)?).await
}

async fn find_all(admitted: &Admitted, call: &Call<'_>, request: ListRequest) -> Result<Reply, ScimError> {
    let listing = request.listing(&resolve, order)?;
    let (users, total) = call.store(admitted).await?.list_directory_users(&listing).await?;
    let resources: Vec<_> = users.iter().map(|user| json_of(call, user, &request.projection)).collect();
    Ok(request.reply(&resources, total))
}

pub(super) async fn show(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let id = parse_id(ID, call.id()).ok_or(ScimError::NotFound)?;
    let user = call.store(admitted).await?.find_directory_user(id).await?.ok_or(ScimError::NotFound)?;
    let version = Version::of_user(&user);
    if version.is_known(call.headers) {
        return Ok(super::not_modified(&version));
    }
    Ok(reply(call, StatusCode::OK, &user))
}

pub(super) async fn create(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let patch = UserPatch::of_resource(&call.body)?;
    let values = patch.create()?;
    let user = call.store(admitted).await?.create_directory_user(&values).await?;
    Ok(reply(call, StatusCode::CREATED, &user))
}

pub(super) async fn replace(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let id = parse_id(ID, call.id()).ok_or(ScimError::NotFound)?;
    let patch = UserPatch::of_resource(&call.body)?.whole()?;
    write(admitted, call, id, &patch).await
}

pub(super) async fn patch(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let id = parse_id(ID, call.id()).ok_or(ScimError::NotFound)?;
    let patch = UserPatch::of_operations(&call.body)?;
    write(admitted, call, id, &patch).await
}

async fn write(admitted: &Admitted, call: &Call<'_>, id: i64, patch: &UserPatch) -> Result<Reply, ScimError> {
    let store = call.store(admitted).await?;
    let change = |user: &DirectoryUser| {
        Version::of_user(user).check(call.headers)?;
        Ok(DirectoryUserChange { values: patch.apply(&user.values)?, activates: patch.activates() })
    };
    let user = store.update_directory_user(id, &change, &provisioner(admitted)).await?;
    Ok(reply(call, StatusCode::OK, &user))
}

pub(super) async fn delete(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let id = parse_id(ID, call.id()).ok_or(ScimError::NotFound)?;
    let check = |user: &DirectoryUser| Version::of_user(user).check(call.headers);
    call.store(admitted).await?.delete_directory_user(id, &check, &provisioner(admitted)).await?;
    Ok(super::no_content())
}

/// What an attribute by which lists are sorted means for a user.
pub(super) fn order(attribute: &str) -> Option<UserOrder> {
    match attribute {
        "username" => Some(UserOrder::UserName),
        "emails" | "emails.value" => Some(UserOrder::Email),
        "displayname" => Some(UserOrder::DisplayName),
        "externalid" => Some(UserOrder::ExternalId),
        "name.formatted" => Some(UserOrder::FormattedName),
        "name.givenname" => Some(UserOrder::GivenName),
        "name.familyname" => Some(UserOrder::FamilyName),
        "active" => Some(UserOrder::Active),
        _ => None,
    }
}

/// What a comparison means for a user, which has one address; `None` if users do not have the attribute.
pub(super) fn resolve(test: Test) -> Result<Option<Filter<UserTest>>, Fault> {
    let filter = match test.attribute.as_str() {
        "id" => test.on_text(|comparison, text| (comparison, text)).and_then(|filter| match filter {
            Filter::Test((Comparison::Equal, text)) => {
                Ok(parse_id(ID, &text).map_or_else(Filter::none, |id| Filter::Test(UserTest::Id(id))))
            }
            Filter::Test(_) => Err(Fault::new(super::error::FaultKind::Filter, "The id can only be compared by eq.")),
            _ => Ok(Filter::none()),
        }),
        "meta.resourcetype" => test.on_constant("user"),
        "active" => test.on_truth(|truth| Filter::Test(UserTest::Active(truth))),
        "username" => test.on_text(UserTest::UserName),
        "displayname" => test.on_text(UserTest::DisplayName),
        "externalid" => test.on_text(UserTest::ExternalId),
        "emails" | "emails.value" => test.on_text(UserTest::Email),
        "emails.type" => test.on_constant("work"),
        "emails.primary" => test.on_truth(|truth| if truth { Filter::all() } else { Filter::none() }),
        "name.givenname" => test.on_text(UserTest::GivenName),
        "name.familyname" => test.on_text(UserTest::FamilyName),
        "name.formatted" => test.on_text(UserTest::FormattedName),
        _ => return Ok(None),
    };
    filter.map(Some)
}

/// A user as a response shows it.
fn reply(call: &Call<'_>, status: StatusCode, user: &DirectoryUser) -> Reply {
    let body = json_of(call, user, &list::projection(call));
    let location = HeaderValue::from_str(&location(call, user)).expect("a URL is ASCII");
    Reply::of_type(status, ContentType::Scim, body.into())
        .with_header(ETAG, Version::of_user(user).header())
        .with_header(LOCATION, location)
}

fn location(call: &Call<'_>, user: &DirectoryUser) -> String {
    call.url(format_args!("/Users/{}", shown_id(ID, user.id)))
}

/// A user as lists show it.
pub(super) fn json_of(call: &Call<'_>, user: &DirectoryUser, projection: &Projection) -> Vec<u8> {
    let values = &user.values;
    let mut shown = Map::new();
    shown.insert("schemas".to_owned(), json!([SCHEMA]));
    shown.insert("id".to_owned(), json!(shown_id(ID, user.id)));
    if let Some(external_id) = &values.external_id {
        shown.insert("externalId".to_owned(), json!(external_id));
    }
    shown.insert("userName".to_owned(), json!(values.user_name));
    let names =
        [("formatted", &values.formatted_name), ("familyName", &values.family_name), ("givenName", &values.given_name)];
    let name: Map<String, Value> =
        names.into_iter().filter_map(|(key, name)| Some((key.to_owned(), json!(name.as_ref()?)))).collect();
    if !name.is_empty() {
        shown.insert("name".to_owned(), name.into());
    }
    if !values.display_name.is_empty() {
        shown.insert("displayName".to_owned(), json!(values.display_name));
    }
    shown.insert("emails".to_owned(), json!([{ "value": values.email, "type": "work", "primary": true }]));
    shown.insert("active".to_owned(), json!(values.active));
    let version = Version::of_user(user);
    shown.insert("meta".to_owned(), super::meta("User", user.written, &location(call, user), &version));
    projection.apply(&mut shown);
    serde_json::to_vec(&shown).expect("texts are JSON")
}
