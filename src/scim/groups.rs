//! `/Groups`: reads all groups, and writes those that belong to SCIM.

use std::collections::HashMap;

use http::StatusCode;
use http::header::{ETAG, HeaderName, HeaderValue, LOCATION};
use serde_json::{Map, Value, json};

use super::error::{Fault, FaultKind, ScimError};
use super::etag::Version;
use super::filter::Test;
use super::groups_patch::{GroupPatch, GroupResource, Skipped};
use super::list::{self, ListRequest};
use super::projection::Projection;
use super::{Call, parse_id, provisioner, shown_id, users};
use crate::gate::Admitted;
use crate::reply::{ContentType, Reply};
use crate::store::{Comparison, DirectoryGroup, Filter, GroupMember, GroupOrder, GroupTest, SkippedMembers, Store};

/// The schema of a group.
pub(super) const SCHEMA: &str = "urn:ietf:params:scim:schemas:core:2.0:Group";

/// What the ids begin with.
const ID: &str = "grp_";

/// Names the members that were skipped.
const SKIPPED: HeaderName = HeaderName::from_static("formgate-skipped-members");

/// How many members all groups of a list have together. A group whose members do not fit has none in the list: a list of
/// members is whole or absent.
///
/// Larger: a list takes more memory. Smaller: directories that compare lists read more groups one by one.
const MAX_LISTED_MEMBERS: i64 = 20_000;

pub(super) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    find_all(admitted, call, ListRequest::of_query(call)?).await
}

pub(super) async fn search(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    find_all(admitted, call, ListRequest::of_body(&call.body)?).await
}

async fn find_all(admitted: &Admitted, call: &Call<'_>, request: ListRequest) -> Result<Reply, ScimError> {
    let listing = request.listing(&resolve, order)?;
    let store = call.store(admitted).await?;
    let (groups, total) = store.list_directory_groups(&listing).await?;
    let projection = &request.projection;
    let members = members_of(&store, groups.iter(), projection).await?;
    let resources: Vec<_> = groups
        .iter()
        .map(|group| json_of(call, group, members.get(&group.id).map(Vec::as_slice), projection))
        .collect();
    Ok(request.reply(&resources, total))
}

/// The members of the groups of a list that fit into it, if they are shown.
pub(super) async fn members_of(
    store: &Store,
    groups: impl Iterator<Item = &DirectoryGroup>,
    projection: &Projection,
) -> Result<HashMap<i64, Vec<GroupMember>>, ScimError> {
    if !projection.shows("members") {
        return Ok(HashMap::new());
    }
    let mut room = MAX_LISTED_MEMBERS;
    let mut fits = |group: &&DirectoryGroup| {
        let [count, ..] = group.members.unwrap_or_default();
        let fits = !group.built_in && count <= room;
        room -= if fits { count } else { 0 };
        fits
    };
    let ids: Vec<i64> = groups.filter(|group| fits(group)).map(|group| group.id).collect();
    let mut found: HashMap<i64, Vec<GroupMember>> = ids.iter().map(|id| (*id, Vec::new())).collect();
    for member in store.list_directory_members(&ids).await? {
        found.entry(member.group).or_default().push(member);
    }
    Ok(found)
}

pub(super) async fn show(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let id = parse_id(ID, call.id()).ok_or(ScimError::NotFound)?;
    let store = call.store(admitted).await?;
    let (group, members) = find(&store, id, &list::projection(call)).await?;
    let version = Version::of_group(&group);
    if version.is_known(call.headers) {
        return Ok(super::not_modified(&version));
    }
    Ok(reply(call, StatusCode::OK, &group, members.as_deref()))
}

/// A group, and its members if they are shown.
async fn find(
    store: &Store,
    id: i64,
    projection: &Projection,
) -> Result<(DirectoryGroup, Option<Vec<GroupMember>>), ScimError> {
    if !projection.shows("members") {
        let group = store.find_directory_group(id).await?.ok_or(ScimError::NotFound)?;
        return Ok((group, None));
    }
    let (group, members) = store.find_directory_group_with_members(id).await?.ok_or(ScimError::NotFound)?;
    let members = (!group.built_in).then_some(members);
    Ok((group, members))
}

pub(super) async fn create(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let GroupResource { name, external_id, members, skipped } = read_body(call, GroupResource::read)?;
    let store = call.store(admitted).await?;
    let members = members.unwrap_or_default();
    let by = provisioner(admitted).by;
    let (group, unknown) = store.create_directory_group(&name, external_id.as_deref(), &members, &by).await?;
    let (group, members) = find(&store, group.id, &list::projection(call)).await?;
    let reply = reply(call, StatusCode::CREATED, &group, members.as_deref());
    Ok(with_skipped(reply, skipped, &unknown))
}

pub(super) async fn replace(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let id = parse_id(ID, call.id()).ok_or(ScimError::NotFound)?;
    let patch = read_body(call, GroupResource::read)?.into_patch();
    write(admitted, call, id, patch, Shown::Always).await
}

pub(super) async fn patch(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let id = parse_id(ID, call.id()).ok_or(ScimError::NotFound)?;
    let patch = read_body(call, GroupPatch::of_operations)?;
    write(admitted, call, id, patch, Shown::IfAttributesAreNamed).await
}

/// Whether the response to a write has the group. A PATCH of one member is answered without the other fifty thousand, unless
/// the client names attributes (RFC 7644, section 3.5.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Always,
    IfAttributesAreNamed,
}

async fn write(
    admitted: &Admitted,
    call: &Call<'_>,
    id: i64,
    patch: GroupPatch,
    shown: Shown,
) -> Result<Reply, ScimError> {
    let store = call.store(admitted).await?;
    let check = |group: &DirectoryGroup| Version::of_group(group).check(call.headers);
    let (group, unknown) = store.change_directory_group(id, &check, &patch.steps, &provisioner(admitted)).await?;
    let projection = list::projection(call);
    let reply = if shown == Shown::IfAttributesAreNamed && projection == Projection::Whole {
        let reply = super::no_content();
        // The version is known if the request named one. To count all members for it would take longer than to add one.
        if group.members.is_some() { reply.with_header(ETAG, Version::of_group(&group).header()) } else { reply }
    } else {
        let (group, members) = find(&store, id, &projection).await?;
        reply(call, StatusCode::OK, &group, members.as_deref())
    };
    Ok(with_skipped(reply, patch.skipped, &unknown))
}

pub(super) async fn delete(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, ScimError> {
    let id = parse_id(ID, call.id()).ok_or(ScimError::NotFound)?;
    let check = |group: &DirectoryGroup| Version::of_group(group).check(call.headers);
    call.store(admitted).await?.delete_directory_group(id, &check, &provisioner(admitted).by).await?;
    Ok(super::no_content())
}

/// The size from which a body is parsed in `block_in_place`.
///
/// Larger: other requests wait longer. Smaller: moving the worker's other tasks to another thread costs more than it
/// saves.
const BLOCKING_BODY_BYTES: usize = 256 * 1024;

/// Reads a body, which may name a hundred thousand members.
fn read_body<T>(call: &Call<'_>, read: fn(&[u8]) -> Result<T, Fault>) -> Result<T, Fault> {
    if call.body.len() > BLOCKING_BODY_BYTES {
        tokio::task::block_in_place(|| read(&call.body))
    } else {
        read(&call.body)
    }
}

/// What an attribute by which lists are sorted means for a group.
pub(super) fn order(attribute: &str) -> Option<GroupOrder> {
    match attribute {
        "displayname" => Some(GroupOrder::DisplayName),
        "externalid" => Some(GroupOrder::ExternalId),
        _ => None,
    }
}

/// What a comparison means for a group; `None` if groups do not have the attribute.
pub(super) fn resolve(test: Test) -> Result<Option<Filter<GroupTest>>, Fault> {
    let by_id = |test: Test, prefix, of: fn(i64) -> GroupTest| {
        if test.comparison != Comparison::Equal {
            let detail = format!("The attribute {} can only be compared by eq.", test.attribute);
            return Err(Fault::new(FaultKind::Filter, detail));
        }
        test.on_text(|_, text| text).map(|filter| match filter {
            Filter::Test(text) => parse_id(prefix, &text).map_or_else(Filter::none, |id| Filter::Test(of(id))),
            _ => Filter::none(),
        })
    };
    let filter = match test.attribute.as_str() {
        "meta.resourcetype" => test.on_constant("group"),
        "id" => by_id(test, ID, GroupTest::Id),
        "members" | "members.value" => by_id(test, users::ID, GroupTest::Member),
        "displayname" => test.on_text(GroupTest::DisplayName),
        "externalid" => test.on_text(GroupTest::ExternalId),
        _ => return Ok(None),
    };
    filter.map(Some)
}

/// Names the members that were skipped in a header.
fn with_skipped(reply: Reply, mut skipped: Skipped, unknown: &SkippedMembers) -> Reply {
    for id in unknown {
        skipped.add(|| shown_id(users::ID, *id));
    }
    if skipped.count == 0 {
        return reply;
    }
    let visible = |text: &String| {
        text.chars()
            .map(|letter| if letter.is_ascii_graphic() && letter != ',' { letter } else { '?' })
            .collect::<String>()
    };
    let mut text = skipped.named.iter().map(visible).collect::<Vec<_>>().join(", ");
    let others = skipped.count - skipped.named.len();
    if others > 0 {
        text.push_str(&format!(", and {others} more"));
    }
    reply.with_header(SKIPPED, HeaderValue::from_str(&text).expect("it is visible ASCII"))
}

/// A group as a response shows it.
fn reply(call: &Call<'_>, status: StatusCode, group: &DirectoryGroup, members: Option<&[GroupMember]>) -> Reply {
    let body = json_of(call, group, members, &list::projection(call));
    let location = HeaderValue::from_str(&location(call, group)).expect("a URL is ASCII");
    Reply::of_type(status, ContentType::Scim, body.into())
        .with_header(ETAG, Version::of_group(group).header())
        .with_header(LOCATION, location)
}

fn location(call: &Call<'_>, group: &DirectoryGroup) -> String {
    call.url(format_args!("/Groups/{}", shown_id(ID, group.id)))
}

/// A group as lists show it.
pub(super) fn json_of(
    call: &Call<'_>,
    group: &DirectoryGroup,
    members: Option<&[GroupMember]>,
    projection: &Projection,
) -> Vec<u8> {
    let mut shown: Map<String, Value> = Map::new();
    shown.insert("schemas".to_owned(), json!([SCHEMA]));
    shown.insert("id".to_owned(), json!(shown_id(ID, group.id)));
    if let Some(external_id) = &group.external_id {
        shown.insert("externalId".to_owned(), json!(external_id));
    }
    shown.insert("displayName".to_owned(), json!(group.name));
    let version = Version::of_group(group);
    shown.insert("meta".to_owned(), super::meta("Group", group.written, &location(call, group), &version));
    projection.apply(&mut shown);
    let mut body = serde_json::to_vec(&shown).expect("texts are JSON");
    if let Some(members) = members {
        body.pop();
        body.extend(b",\"members\":");
        write_members(call, &mut body, members, projection);
        body.push(b'}');
    }
    body
}

/// Writes members without a value for each of them: a group may have a hundred thousand.
fn write_members(call: &Call<'_>, body: &mut Vec<u8>, members: &[GroupMember], projection: &Projection) {
    let [shows_value, shows_url, shows_name] =
        ["value", "$ref", "display"].map(|part| projection.shows_part("members", part));
    let base = call.url(format_args!("/Users/"));
    let part = |body: &mut Vec<u8>, name: &str, text: &str| {
        let between = if body.ends_with(b"{") { "" } else { "," };
        body.extend_from_slice(format!("{between}\"{name}\":").as_bytes());
        serde_json::to_writer(body, text).expect("memory takes it");
    };
    body.push(b'[');
    for (at, member) in members.iter().enumerate() {
        body.extend_from_slice(if at == 0 { b"{" } else { b",{" });
        let id = shown_id(users::ID, member.user);
        if shows_value {
            part(body, "value", &id);
        }
        if shows_url {
            part(body, "$ref", &format!("{base}{id}"));
        }
        if shows_name && !member.name.is_empty() {
            part(body, "display", &member.name);
        }
        body.push(b'}');
    }
    body.push(b']');
}
