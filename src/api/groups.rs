//! `GET /group`, `PUT /group`, `GET /group/{id}`, `DELETE /group/{id}`.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use serde_json_borrow::Value;

use super::ask::{self, Body, Path};
use super::id::{Id, Kind};
use super::json::Json;
use super::{Call, page, query, store};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::Reply;
use crate::store::filter::folded;
use crate::store::{
    Deletion, Durability, GroupFilter, GroupSummary, GroupWrite, GroupWriteError, MemberChange, NewMember, NewMembers,
    Report, Written,
};

/// Groups on a page.
const PAGE_SIZE: u32 = 100;

/// Bodies from this size on are read while other tasks move to another thread; below it, that costs more than it saves.
const LARGE: usize = 256 * 1024;

/// The most characters of a name and of an external id.
const LONGEST_NAME: usize = 255;

/// The most characters of an e-mail address: 64 before the @ and 255 after it (RFC 5321, section 4.5.3.1).
const LONGEST_EMAIL: usize = 320;

#[derive(Serialize)]
struct GroupJson<'g> {
    id: Id,
    name: &'g str,
    external_id: Option<&'g str>,
    managed: bool,
    members_count: u64,
}

#[derive(Serialize)]
struct WholeGroupJson<'g> {
    #[serde(flatten)]
    summary: GroupJson<'g>,
    members: Vec<MemberJson<'g>>,
}

#[derive(Serialize)]
struct MemberJson<'g> {
    email: &'g str,
    name: &'g str,
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

/// What became of members: how many, or who.
#[derive(Serialize)]
struct ChangeJson<T> {
    attached: T,
    detached: T,
    created: T,
}

impl<'g> From<&'g GroupSummary> for GroupJson<'g> {
    fn from(group: &'g GroupSummary) -> Self {
        Self {
            id: Kind::Group.show(group.id),
            name: &group.name,
            external_id: group.external_id.as_deref(),
            managed: group.managed,
            members_count: group.members,
        }
    }
}

pub(super) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let mut faults = Faults::default();
    let request = page::requested(call, PAGE_SIZE, &mut faults);
    let external_id = query::value(call, "external_id");
    if external_id.as_ref().is_some_and(|id| id.contains('\0')) {
        faults.add("external_id", "The external_id must not contain NUL characters.");
    }
    let filter = GroupFilter {
        managed: query::switch(call, "managed", &mut faults),
        external_id: external_id.map(Cow::into_owned),
    };
    let filter = faults.or_else(filter)?;
    let groups = store(admitted).await?.list_groups(&filter, request).await?;
    Ok(page::reply(call, "/api/v1/group", request, groups, |json, group| _ = json.value(&GroupJson::from(&group))))
}

pub(super) async fn show(admitted: &Admitted, id: &str) -> Result<Reply, Refusal> {
    let id = Kind::Group.parse(id).ok_or(Refusal::GroupNotFound)?;
    let group = store(admitted).await?.find_group(id).await?.ok_or(Refusal::GroupNotFound)?;
    let members = group.members.iter().map(|member| MemberJson { email: &member.email, name: &member.name }).collect();
    let group = WholeGroupJson { summary: GroupJson::from(&group.summary), members };
    let mut json = Json::of_about(128 * (1 + group.members.len()));
    json.raw("{\"data\":").value(&group).raw("}");
    Ok(json.reply(StatusCode::OK))
}

pub(super) async fn delete(admitted: &Admitted, id: &str) -> Result<Reply, Refusal> {
    let id = Kind::Group.parse(id).ok_or(Refusal::GroupNotFound)?;
    let report = match store(admitted).await?.delete_group(id).await? {
        Deletion::Deleted { detached } => json!({ "deleted": true, "detached": detached }),
        Deletion::UsedInFlows { detached } => {
            json!({ "deleted": false, "reason": "used_in_flows", "detached": detached })
        }
        Deletion::BuiltIn => return Err(Refusal::BuiltInGroup),
        Deletion::NotFound => return Err(Refusal::GroupNotFound),
    };
    Ok(Reply::json(StatusCode::OK, &report))
}

pub(super) async fn write(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let mut faults = Faults::default();
    let dry_run = query::switch(call, "dry_run", &mut faults);
    let confirmed = query::switch(call, "confirm", &mut faults);
    let report = match query::value(call, "report").as_deref() {
        None => Report::Counts,
        Some("members") => Report::Members,
        Some(_) => {
            faults.add("report", "The report must be members.");
            Report::Counts
        }
    };
    let mut read = || {
        let body = Body::parse(&call.body)?;
        let write = parse(&body, &mut faults);
        Ok::<_, Refusal>((body, write))
    };
    // A hundred thousand members take a while to read, which other requests must not wait for.
    let (body, write) = if call.body.len() > LARGE { tokio::task::block_in_place(read)? } else { read()? };
    let write = faults.or_else(write)?;

    let guard = admitted.tenant().group_guard.filter(|_| !confirmed);
    let durability = if dry_run { Durability::DryRun } else { Durability::Commit };
    let written = store(admitted).await?.write_group(&write, guard, durability, report).await;
    let written = written.map_err(refusal)?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(body.name_ignored(Reply::json(status, &answer(&written, dry_run)), &["name", "external_id", "members"]))
}

fn answer(written: &Written, dry_run: bool) -> WrittenJson<'_> {
    let MemberChange { attached, detached, created, report } = &written.members;
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
            Faults::only("name", "The name is that of two or more groups: an external_id must tell which is meant.")
        }
        GroupWriteError::BuiltIn => {
            Faults::only("name", "The name is that of the built-in group, which cannot be written.")
        }
        GroupWriteError::BuiltInIdentified => {
            Faults::only("external_id", "The external_id is that of the built-in group, which cannot be written.")
        }
        GroupWriteError::Guarded { detached, members } => Faults::only(
            "members",
            format_args!(
                "The members leave out {detached} of the group's {members}, more than this account lets one call \
                 detach. Add ?confirm=1 to do it all the same."
            ),
        ),
        GroupWriteError::Store(error) => error.into(),
    }
}

fn parse(body: &Body<'_>, faults: &mut Faults) -> GroupWrite {
    let mut write = GroupWrite { name: String::new(), external_id: None, members: None };
    if body.sent().all(|(name, _)| name != "name") {
        faults.add("name", "The name is required.");
    }
    for (name, value) in body.sent() {
        match name {
            "name" => write.name = label(value, name.into(), faults).unwrap_or_default(),
            "external_id" => write.external_id = label(value, name.into(), faults),
            "members" => {
                let members = each_once(ask::list(value, name.into(), faults, member));
                write.members = Some(NewMembers::from(&members[..]));
            }
            _ => {}
        }
    }
    write
}

/// A text of 1 to 255 characters.
fn label(value: &Value<'_>, path: Path<'_>, faults: &mut Faults) -> Option<String> {
    let text = ask::text(value, path, faults)?;
    let fits = (1..=LONGEST_NAME).contains(&text.chars().count());
    if !fits {
        faults.add(path, format_args!("The {path} must have 1 to {LONGEST_NAME} characters."));
    }
    fits.then(|| text.to_owned())
}

fn member<'v>(value: &'v Value<'_>, path: Path<'_>, faults: &mut Faults) -> Option<NewMember<'v>> {
    let Some(object) = value.as_object() else {
        faults.add(path, format_args!("The {path} must be an object with an email."));
        return None;
    };
    let (mut email, mut name, mut email_was_sent) = (None, Some(""), false);
    for (key, value) in ask::sent(object) {
        match key {
            "email" => {
                email_was_sent = true;
                email = address(value, Path::Key(&path, key), faults);
            }
            "name" => name = ask::text(value, Path::Key(&path, key), faults),
            _ => {}
        }
    }
    if !email_was_sent {
        faults.add(Path::Key(&path, "email"), format_args!("The {path}.email is required."));
    }
    let (email, name) = (email?, name?);
    Some(NewMember { email, folded: folded(email), name })
}

fn address<'a>(value: &'a Value<'_>, path: Path<'_>, faults: &mut Faults) -> Option<&'a str> {
    let text = ask::text(value, path, faults)?;
    if !is_email(text) {
        faults.add(path, format_args!("The {path} must be a valid email address."));
        return None;
    }
    Some(text)
}

/// Whether a text can be an address: something, an @, and a domain without empty labels. What is beyond that only the
/// mail server knows.
fn is_email(text: &str) -> bool {
    let short = text.len() <= LONGEST_EMAIL || text.chars().count() <= LONGEST_EMAIL;
    let visible = text.is_ascii() || !text.chars().any(|c| c.is_whitespace() || c.is_control());
    // One pass, since a group has thousands of them; and where the domain's last label begins.
    let (mut in_domain, mut label) = (false, 0);
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            b'@' if !in_domain && place > 0 => (in_domain, label) = (true, place + 1),
            b'.' if in_domain && place > label => label = place + 1,
            b'.' if !in_domain => {}
            b';' | b'<' | b'>' if in_domain => {}
            b'@' | b'.' | b',' | b';' | b'<' | b'>' | 0..=b' ' | 0x7f => return false,
            _ => {}
        }
    }
    short && visible && in_domain && label < text.len()
}

/// Each address once: the last name that was given wins, and the first place stays.
fn each_once(members: Vec<NewMember<'_>>) -> Vec<NewMember<'_>> {
    let distinct: HashSet<&str> = members.iter().map(|member| &*member.folded).collect();
    if distinct.len() == members.len() {
        return members;
    }
    let mut places: HashMap<Cow<'_, str>, usize> = HashMap::with_capacity(distinct.len());
    let mut once: Vec<NewMember<'_>> = Vec::with_capacity(distinct.len());
    for mut member in members {
        match places.get(&member.folded) {
            Some(&at) => {
                if member.name.is_empty() {
                    member.name = once[at].name;
                }
                once[at] = member;
            }
            None => {
                places.insert(member.folded.clone(), once.len());
                once.push(member);
            }
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_email_address_has_one_at_sign_and_a_domain() {
        for email in ["ana@example.com", "a.b+c@sub.example.com", "ünï@bücher.example", "root@localhost"] {
            assert!(is_email(email), "{email}");
        }
        let long = format!("{}@example.com", "x".repeat(320));
        for text in [
            "",
            "ana",
            "@example.com",
            "ana@",
            "a b@example.com",
            "ana@ex..com",
            "a@b@c",
            "a@.com",
            "a,b@c.de",
            "a@c.de,",
            "a@c.de.",
            "a;b@c.de",
            "a@c\t.de",
            "a\u{a0}b@c.de",
            "a\u{7f}b@c.de",
            long.as_str(),
        ] {
            assert!(!is_email(text), "{text}");
        }
    }

    #[test]
    fn an_address_listed_twice_counts_once_and_the_last_name_wins() {
        let body = Body::parse(
            br#"{"name": "G", "members": [{"email": "A@x.de", "name": "1"}, {"email": "b@x.de"},
                {"email": "a@X.de", "name": "2"}, {"email": "a@x.DE"}]}"#,
        );
        let members = parse(&body.unwrap(), &mut Faults::default()).members.unwrap();
        let read: Vec<_> = members.folded.iter().zip(members.names.iter()).collect();
        assert_eq!(read, [("a@x.de", "2"), ("b@x.de", "")]);
    }
}
