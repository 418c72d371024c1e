//! One group: who writes it, what the guard of SCIM holds of it, and what an administrator decides. And the list of all groups,
//! from which each is found.
//!
//! A group has no page of its own: what is here stands above its syncs.

use std::num::NonZeroU64;
use std::sync::Arc;

use askama::Template;
use http::StatusCode;

use super::forms::{parameter, parse_id};
use super::frame::{Frame, page};
use super::texts::{GroupTexts, GroupsTexts};
use super::times::Moment;
use super::visit::{Change, Member};
use crate::error::Refusal;
use crate::reply::Reply;
use crate::shown_text::shown_name;
use crate::store::{
    DirectoryGroup, GivenGroup, GroupFilter, GroupManager, GroupSummary, HeldDecision, HeldKind, HeldMember,
    PageRequest, Provisioned, SyncedBy,
};

/// How many held members are listed. Larger: the page of a large group takes longer. Smaller: fewer of them can be compared by eye.
const SHOWN: u32 = 200;

/// The same in the list of held groups, and how many groups that has.
const SHOWN_IN_LIST: u32 = 10;
const HELD_GROUPS: usize = 20;

/// How many groups a page has. Larger: a page takes longer. Smaller: more pages.
const PAGE: u32 = 100;

/// A group as it is shown above its syncs.
pub(super) struct GroupPanel {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) of: &'static str,
    pub(super) is_of_scim: bool,
    pub(super) built_in: bool,
    pub(super) diverged: bool,
    /// How many members are held.
    pub(super) count: u64,
    /// The first of them.
    pub(super) held: Vec<HeldRow>,
    pub(super) text: &'static GroupTexts,
}

pub(super) struct HeldRow {
    pub(super) email: String,
    pub(super) what: &'static str,
    pub(super) at: Moment,
    pub(super) actor: String,
    pub(super) token: Option<i64>,
}

impl HeldRow {
    fn of(held: HeldMember, member: &Member<'_>) -> Self {
        let text = &member.area.texts.group;
        Self {
            email: shown_name(&held.email),
            what: match held.kind {
                HeldKind::Removed => &text.removed,
                HeldKind::Deactivated => &text.deactivated,
                HeldKind::Deleted => &text.deleted,
            },
            at: member.moment(held.at),
            actor: held.actor,
            token: held.token,
        }
    }
}

impl GroupPanel {
    /// A group, if there is one with this number.
    pub(super) async fn find(member: &Member<'_>, id: i64) -> Result<Option<Self>, Refusal> {
        let held = member.store.list_held_groups().await?.into_iter().find(|held| held.id == id);
        Self::with(member, id, held.map_or(0, |held| held.held), SHOWN).await
    }

    /// The groups of which something is held.
    pub(super) async fn all_held(member: &Member<'_>) -> Result<Vec<Self>, Refusal> {
        let mut panels = Vec::new();
        for held in member.store.list_held_groups().await?.into_iter().take(HELD_GROUPS) {
            panels.extend(Self::with(member, held.id, held.held, SHOWN_IN_LIST).await?);
        }
        Ok(panels)
    }

    async fn with(member: &Member<'_>, id: i64, count: u64, shown: u32) -> Result<Option<Self>, Refusal> {
        let Some(group) = member.store.find_directory_group(id).await? else { return Ok(None) };
        let rows = if count > 0 { member.store.list_held_members(id, shown).await? } else { Vec::new() };
        let DirectoryGroup { name, manager, built_in, diverged, .. } = group;
        Ok(Some(Self {
            id,
            name: shown_name(&name),
            of: written_by(manager, built_in, &member.area.texts.group),
            is_of_scim: manager == GroupManager::Scim,
            built_in,
            diverged,
            count,
            held: rows.into_iter().map(|row| HeldRow::of(row, member)).collect(),
            text: &member.area.texts.group,
        }))
    }
}

fn written_by(manager: GroupManager, built_in: bool, text: &'static GroupTexts) -> &'static str {
    match manager {
        _ if built_in => &text.built_in,
        GroupManager::Scim => &text.of_scim,
        GroupManager::Api => &text.of_api,
        GroupManager::Product => &text.of_account,
    }
}

/// What a directory last sent.
pub(super) struct DirectoryRow {
    pub(super) token: i64,
    pub(super) name: String,
    /// Its last request.
    pub(super) request: Option<(Moment, String)>,
    /// Its last change of a group.
    pub(super) change: Option<LastChange>,
}

pub(super) struct LastChange {
    pub(super) sync: i64,
    pub(super) group: String,
    pub(super) at: Moment,
    pub(super) attached: u64,
    pub(super) detached: u64,
}

impl DirectoryRow {
    pub(super) fn of(provisioned: Provisioned, member: &Member<'_>) -> Self {
        let Provisioned { token, name, last_request, last_change } = provisioned;
        Self {
            token,
            name,
            request: last_request.map(|(at, route)| (member.moment(at), route)),
            change: last_change.map(|sync| LastChange {
                sync: sync.id,
                group: shown_name(&sync.group_name),
                at: member.moment(sync.changed_at.unwrap_or(sync.at)),
                attached: sync.attached,
                detached: sync.detached,
            }),
        }
    }
}

#[derive(Template)]
#[template(path = "all_groups.html", config = "src/administration/askama.toml")]
struct AllGroupsPage {
    frame: Frame,
    text: &'static GroupsTexts,
    rows: Vec<GroupRow>,
    /// The number of the next page.
    next: Option<u64>,
}

struct GroupRow {
    id: i64,
    name: String,
    of: &'static str,
    members: u64,
}

/// Every group of the account.
pub(super) async fn list(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    let number = parameter(member.visit.head.uri.query(), "page").parse().unwrap_or(NonZeroU64::MIN);
    let groups = member.store.list_groups(&GroupFilter::default(), PageRequest { number, size: PAGE }).await?;
    let of = |group: &GroupSummary| match (group.is_of_scim, group.managed) {
        (true, _) => GroupManager::Scim,
        (false, true) => GroupManager::Api,
        (false, false) => GroupManager::Product,
    };
    let text = &member.area.texts.group;
    let rows = groups.items.iter().map(|group| GroupRow {
        id: group.id,
        name: shown_name(&group.name),
        of: written_by(of(group), false, text),
        members: group.members,
    });
    let rows = rows.collect();
    let next = (number.get().saturating_mul(u64::from(PAGE)) < groups.total).then(|| number.get() + 1);
    Ok(page(
        StatusCode::OK,
        &AllGroupsPage { frame: Frame::of(member, "groups"), text: &member.area.texts.groups, rows, next },
    ))
}

/// Applies or drops what is held of a group, or gives it to who writes it from now on.
pub(super) async fn change(change: &Change<'_>, _: &str) -> Result<Reply, Refusal> {
    let (member, form) = (&change.member, &change.form);
    let text = &member.area.texts.group;
    let Some(id) = parse_id(form.field("group")) else { return Ok(member.area.unknown(&text.unknown)) };
    let by = SyncedBy { name: Arc::from(change.actor.name.as_str()), token: None };
    let action = form.field("action");
    let is_known = match action {
        "apply" | "drop" => {
            let decision = if action == "apply" { HeldDecision::Apply } else { HeldDecision::Drop };
            member.store.decide_held(id, decision, &by, &change.actor).await?.is_some()
        }
        "scim" | "api" | "account" => {
            let manager = match action {
                "scim" => GroupManager::Scim,
                "api" => GroupManager::Api,
                _ => GroupManager::Product,
            };
            matches!(member.store.give_group(id, manager, &change.actor).await?, GivenGroup::Given(_))
        }
        _ => return Ok(member.area.unknown(&text.no_action)),
    };
    if !is_known {
        return Ok(member.area.unknown(&text.unknown));
    }
    let tenant = &*member.visit.tenant.slug;
    tracing::info!(tenant, actor = change.actor.name, group = id, action, "an administrator decided about a group");
    Ok(member.area.see_other(&format!("/groups?group={id}")))
}
