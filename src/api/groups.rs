//! `GET /group`, `PUT /group`, `GET /group/{id}`, `DELETE /group/{id}`; the others are in [`managing`].
//!
//! Owns the JSON of a group and the parameters of a write, except for the members, which [`members`] reads. How a
//! group is found, written or deleted is the store's.

pub(super) mod managing;

use std::borrow::Cow;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::try_unfold;
use http::StatusCode;
use serde::Serialize;
use serde_json::json;

use super::body::Body;
use super::id::{Id, IdKind};
use super::json::Json;
use super::members;
use super::reader::Scalar;
use super::values::{self, FieldPath};
use super::{Call, page, query};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::{PartsError, Reply, WHOLE_BYTES};
use crate::store::{
    Deletion, Durability, Group, GroupFilter, GroupSummary, GroupWrite, GroupWriteError, MemberChange, MemberReader,
    Members, Report, SyncedBy, WriteMode, WrittenGroup,
};

/// The number of groups on a page.
///
/// Larger: a response takes longer and more memory. Smaller: listing all groups takes more requests of the budget.
const PAGE_SIZE: u32 = 100;

/// The size from which a body is parsed in `block_in_place`.
///
/// Larger: other requests wait longer. Smaller: moving the worker's other tasks to another thread costs more than it
/// saves.
const BLOCKING_BODY_BYTES: usize = 256 * 1024;

/// The number of members on a page.
///
/// Larger: a page takes longer. Smaller: a long list takes more requests.
const MEMBERS_PAGE_SIZE: u32 = 1_000;

/// The maximum length of a name and of an external id, in characters.
///
/// Larger: the schema of the databases refuses what passes here. Smaller: names that an import accepts are refused.
const MAX_NAME: usize = 255;

#[derive(Serialize)]
struct GroupJson<'g> {
    id: Id,
    name: &'g str,
    external_id: Option<&'g str>,
    managed: bool,
    managed_by: Option<&'static str>,
    members_count: u64,
}

/// A group, and how it stands to its directory.
#[derive(Serialize)]
struct StandingJson<'g> {
    #[serde(flatten)]
    group: GroupJson<'g>,
    held: u64,
    diverged: bool,
}

#[derive(Serialize)]
struct WrittenJson<'g> {
    data: GroupJson<'g>,
    result: &'static str,
    members: ChangeJson<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<ChangeJson<&'g Vec<String>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<bool>,
}

/// How members changed: counts, or lists of addresses.
#[derive(Serialize)]
struct ChangeJson<T> {
    attached: T,
    detached: T,
    created: T,
}

impl<'g> From<&'g GroupSummary> for GroupJson<'g> {
    fn from(group: &'g GroupSummary) -> Self {
        Self {
            id: IdKind::Group.id(group.id),
            name: &group.name,
            external_id: group.external_id.as_deref(),
            managed: group.managed,
            managed_by: managed_by(group),
            members_count: group.members,
        }
    }
}

impl<'g> From<&'g Group> for StandingJson<'g> {
    fn from(group: &'g Group) -> Self {
        Self { group: GroupJson::from(&group.summary), held: group.held, diverged: group.diverged }
    }
}

/// What writes the group, if a directory does.
fn managed_by(group: &GroupSummary) -> Option<&'static str> {
    match (group.managed, group.is_of_scim) {
        (_, true) => Some("scim"),
        (true, false) => Some("api"),
        (false, false) => None,
    }
}

pub(super) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let mut faults = Faults::default();
    let request = page::parse(call, PAGE_SIZE, &mut faults);
    let external_id = query::value(call, "external_id", &mut faults);
    if external_id.as_ref().is_some_and(|id| id.contains('\0')) {
        faults.add("external_id", "The external_id must not contain NUL characters.");
    }
    let filter = GroupFilter {
        managed: query::flag(call, "managed", &mut faults),
        external_id: external_id.map(Cow::into_owned),
    };
    let filter = faults.into_result(filter)?;
    let groups = call.store(admitted).await?.list_groups(&filter, request).await?;
    Ok(page::reply(call, "/api/v1/group", request, groups, |json, group| _ = json.value(&GroupJson::from(&group))))
}

pub(super) async fn show(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = IdKind::Group.parse(call.id()).ok_or(Refusal::GroupNotFound)?;
    if query::values(call, "page").next().is_none() {
        let group = call.store(admitted).await?.find_group(id).await?.ok_or(Refusal::GroupNotFound)?;
        return reply(group, End::Group).await;
    }
    let mut faults = Faults::default();
    let request = page::parse(call, MEMBERS_PAGE_SIZE, &mut faults);
    let request = faults.into_result(request)?;
    let group = call.store(admitted).await?.find_group_page(id, request).await?.ok_or(Refusal::GroupNotFound)?;
    let path = format!("/api/v1/group/{}", IdKind::Group.id(id));
    let envelope = page::Envelope::new(call, &path, request, group.summary.members);
    reply(group, End::Page(Box::new(envelope))).await
}

/// What follows the members of a group.
enum End {
    Group,
    Page(Box<page::Envelope>),
}

impl End {
    fn write(&self, json: &mut Json, members: u64) {
        json.raw("]}");
        match self {
            Self::Group => _ = json.raw("}"),
            Self::Page(envelope) => envelope.write_end(json, members),
        }
    }
}

/// A group with its members; the members of a long list are read while the client reads them.
async fn reply(group: Group, end: End) -> Result<Reply, Refusal> {
    let Group { summary, built_in: _, held, diverged, members, rest } = group;
    let mut json = Json::with_capacity(256 + 64 * members.len());
    let GroupSummary { id, name, external_id, managed, is_of_scim: _, members: count } = &summary;
    json.raw("{\"data\":{\"id\":").id(IdKind::Group.id(*id)).raw(",\"name\":").text(name);
    json.raw(",\"external_id\":").value(external_id).raw(",\"managed\":").value(managed);
    json.raw(",\"managed_by\":").value(&managed_by(&summary));
    if summary.is_of_scim || held > 0 {
        json.raw(",\"held\":").value(&held).raw(",\"diverged\":").value(&diverged);
    }
    json.raw(",\"members_count\":").value(count).raw(",\"members\":[");
    let mut list = MemberList { json, written: 0, rest, end };
    list.write(&members);
    while list.json.position() < WHOLE_BYTES {
        let Some(rest) = &mut list.rest else { break };
        match rest.next().await? {
            Some(members) => list.write(&members),
            None => list.rest = None,
        }
    }
    if list.rest.is_none() {
        list.end.write(&mut list.json, list.written);
        return Ok(list.json.reply(StatusCode::OK).with_rows(1));
    }
    let first = Reply::of_json(StatusCode::OK, list.json.take_part().into()).with_rows(1);
    let parts = try_unfold(Some(list), |list| async move {
        let Some(mut list) = list else { return Ok::<_, PartsError>(None) };
        let more = match &mut list.rest {
            Some(rest) => rest.next().await?,
            None => None,
        };
        Ok(match more {
            Some(members) => {
                list.write(&members);
                Some((list.json.take_part(), Some(list)))
            }
            None => {
                list.end.write(&mut list.json, list.written);
                Some((list.json.take_part(), None))
            }
        })
    });
    Ok(first.with_rest(parts.boxed()))
}

/// A list of members that is being written.
struct MemberList {
    json: Json,
    written: u64,
    rest: Option<MemberReader>,
    end: End,
}

impl MemberList {
    fn write(&mut self, members: &Members) {
        for (email, name) in members.emails.iter().zip(members.names.iter()) {
            self.json.raw(if self.written == 0 { "{\"email\":" } else { ",{\"email\":" });
            self.json.text(email).raw(",\"name\":").text(name).raw("}");
            self.written += 1;
        }
    }
}

pub(super) async fn delete(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = IdKind::Group.parse(call.id()).ok_or(Refusal::GroupNotFound)?;
    let report = match call.store(admitted).await?.delete_group(id).await? {
        Deletion::Deleted { detached } => json!({ "deleted": true, "detached": detached }),
        Deletion::UsedInFlows { detached } => {
            json!({ "deleted": false, "reason": "used_in_flows", "detached": detached })
        }
        Deletion::BuiltIn => return Err(Refusal::BuiltInGroup),
        Deletion::OfScim => return Err(Refusal::GroupOfScim),
        Deletion::NotFound => return Err(Refusal::GroupNotFound),
    };
    Ok(Reply::json(StatusCode::OK, &report))
}

pub(super) async fn write(admitted: &Admitted, call: Call<'_>) -> Result<Reply, Refusal> {
    let mut faults = Faults::default();
    let dry_run = query::flag(&call, "dry_run", &mut faults);
    let confirmed = query::flag(&call, "confirm", &mut faults);
    let report = match query::value(&call, "report", &mut faults).as_deref() {
        None => Report::Counts,
        Some("members") => Report::Members,
        Some(_) => {
            faults.add("report", "The report must be members.");
            Report::Counts
        }
    };
    let mut read = || {
        let body = Body::of(&call, &["name", "external_id", members::KEY])?;
        parse(&body, &mut faults)
    };
    // Parsing a hundred thousand members takes a while, for which other requests must not wait.
    let write = if call.body.len() > BLOCKING_BODY_BYTES { tokio::task::block_in_place(read)? } else { read()? };
    let write = faults.into_result(write)?;
    let store = call.store(admitted).await?;
    // Everything the database needs is in the columns now, and the driver needs as much memory again.
    drop(call);

    let guard = admitted.tenant().group_guard.filter(|_| !confirmed);
    let durability = if dry_run { Durability::DryRun } else { Durability::Commit };
    let mode = WriteMode { guard, durability, report };
    let by = SyncedBy { name: Arc::clone(&admitted.token().name), token: Some(admitted.token().id) };
    let written = store.write_group(&write, mode, &by).await;
    let written = written.map_err(refusal)?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Reply::json(status, &response(&written, dry_run)).with_rows(1))
}

fn response(written: &WrittenGroup, dry_run: bool) -> WrittenJson<'_> {
    let MemberChange { attached, detached, created, inactive: _, report } = &written.members;
    WrittenJson {
        data: GroupJson::from(&written.group),
        result: if written.created { "created" } else { "updated" },
        members: ChangeJson { attached: *attached, detached: *detached, created: *created },
        report: report.as_ref().map(|[attached, detached, created]| ChangeJson { attached, detached, created }),
        dry_run: dry_run.then_some(true),
    }
}

fn refusal(error: GroupWriteError) -> Refusal {
    match error {
        GroupWriteError::AmbiguousName => {
            Faults::single("name", "The name is that of two or more groups: an external_id must tell which is meant.")
        }
        GroupWriteError::BuiltIn => {
            Faults::single("name", "The name is that of the built-in group, which cannot be written.")
        }
        GroupWriteError::BuiltInIdentified => {
            Faults::single("external_id", "The external_id is that of the built-in group, which cannot be written.")
        }
        GroupWriteError::OfScim => Refusal::GroupOfScim,
        GroupWriteError::Guarded { detached, members } => Faults::single(
            "members",
            format_args!(
                "The members leave out {detached} of the group's {members}, more than this account lets one call \
                 detach. Add ?confirm=1 to do it all the same."
            ),
        ),
        GroupWriteError::Store(error) => error.into(),
    }
}

fn parse(body: &Body<'_>, faults: &mut Faults) -> Result<GroupWrite, Refusal> {
    let mut write = GroupWrite { name: String::new(), external_id: None, members: None };
    if body.entries().all(|entry| entry.name != "name") {
        faults.add("name", "The name is required.");
    }
    for entry in body.entries() {
        match entry.name {
            "name" => write.name = values::scalar(entry, faults, short_text)?.unwrap_or_default(),
            "external_id" => write.external_id = values::scalar(entry, faults, short_text)?,
            members::KEY => write.members = Some(members::read(entry, faults)?),
            _ => {}
        }
    }
    Ok(write)
}

/// Parses a text of 1 to 255 characters.
fn short_text(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<String> {
    let text = values::text(value, path, faults)?;
    let fits = !text.is_empty() && text.chars().nth(MAX_NAME).is_none();
    if !fits {
        faults.add(path, format_args!("The {path} must have 1 to {MAX_NAME} characters."));
    }
    fits.then(|| text.to_owned())
}
