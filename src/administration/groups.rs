//! Group syncs: every write of a group through the API that changed something, and undoing one.
//!
//! A sync's page shows what an undo would change now. Looking only reads, and waits for no write of a group.

use askama::Template;
use http::StatusCode;

use super::forms::{parameter, parse_id};
use super::frame::{Frame, page};
use super::group::{DirectoryRow, GroupPanel};
use super::texts::{GroupSyncTexts, GroupsTexts};
use super::times::Moment;
use super::visit::{Change, Member};
use crate::error::Refusal;
use crate::reply::Reply;
use crate::shown_text::shown_name;
use crate::store::{GroupSync, SyncMembers, Undone};

/// How many syncs a page has. Larger: a page takes longer. Smaller: more pages.
const PAGE: u32 = 50;

/// How many addresses a list shows. Larger: a page of a large sync is too long to read. Smaller: fewer mistakes are found
/// by eye.
const SHOWN: usize = 200;

struct SyncRow {
    id: i64,
    at: Moment,
    /// When a directory last changed something in it, if that is later.
    changed_at: Option<Moment>,
    group: i64,
    group_name: String,
    is_new: bool,
    actor: String,
    token: Option<i64>,
    undoes: Option<i64>,
    attached: u64,
    detached: u64,
}

impl SyncRow {
    fn of(sync: GroupSync, member: &Member<'_>) -> Self {
        Self {
            id: sync.id,
            at: member.moment(sync.at),
            changed_at: sync.changed_at.filter(|at| *at > sync.at).map(|at| member.moment(at)),
            group: sync.group,
            group_name: shown_name(&sync.group_name),
            is_new: sync.is_new,
            actor: sync.actor,
            token: sync.token,
            undoes: sync.undoes,
            attached: sync.attached,
            detached: sync.detached,
        }
    }
}

#[derive(Template)]
#[template(path = "groups.html", config = "src/administration/askama.toml")]
struct GroupsPage {
    frame: Frame,
    text: &'static GroupsTexts,
    rows: Vec<SyncRow>,
    is_first: bool,
    /// The number of the group whose syncs are shown.
    group: Option<i64>,
    /// That group.
    panel: Option<GroupPanel>,
    /// The groups of which something is held, and the directories; only without a group.
    held: Vec<GroupPanel>,
    directories: Vec<DirectoryRow>,
    /// The query of the next page.
    next: Option<String>,
}

/// Addresses, of which the first ones are shown.
struct AddressList {
    heading: &'static str,
    shown: Vec<String>,
    /// How many others there are.
    more: u64,
}

impl AddressList {
    fn new(heading: &'static str, mut addresses: Vec<String>, count: u64) -> Self {
        addresses.truncate(SHOWN);
        let more = count.saturating_sub(addresses.len() as u64);
        Self { heading, shown: addresses.iter().map(|address| shown_name(address)).collect(), more }
    }
}

/// What an undo would do.
enum Undo {
    /// It changes these members.
    Changes { lists: [AddressList; 2], skipped: u64 },
    /// It would change nothing, or can't be done.
    Refused(String),
}

#[derive(Template)]
#[template(path = "group_sync.html", config = "src/administration/askama.toml")]
struct SyncPage {
    frame: Frame,
    text: &'static GroupSyncTexts,
    sync: SyncRow,
    lists: [AddressList; 2],
    undo: Undo,
    warning: Option<&'static str>,
}

impl SyncPage {
    fn heading(&self) -> String {
        self.text.heading.fill(&[("number", &self.sync.id), ("group", &self.sync.group_name)])
    }
}

pub(super) async fn list(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    let query = member.visit.head.uri.query();
    let group = parse_id(&parameter(query, "group"));
    let before = parse_id(&parameter(query, "before"));
    let mut syncs = member.store.list_group_syncs(group, before, PAGE + 1).await?;
    let has_more = syncs.len() > PAGE as usize;
    syncs.truncate(PAGE as usize);
    let next = syncs.last().filter(|_| has_more).map(|last| match group {
        Some(group) => format!("?group={group}&before={}", last.id),
        None => format!("?before={}", last.id),
    });
    let (mut panel, mut held, mut directories) = (None, Vec::new(), Vec::new());
    if let Some(group) = group {
        panel = GroupPanel::find(member, group).await?;
    } else if before.is_none() {
        held = GroupPanel::all_held(member).await?;
        directories = member.store.list_provisioned().await?;
    }
    let groups_page = GroupsPage {
        frame: Frame::of(member, "groups"),
        text: &member.area.texts.groups,
        rows: syncs.into_iter().map(|sync| SyncRow::of(sync, member)).collect(),
        is_first: before.is_none(),
        group,
        panel,
        held,
        directories: directories.into_iter().map(|directory| DirectoryRow::of(directory, member)).collect(),
        next,
    };
    Ok(page(StatusCode::OK, &groups_page))
}

pub(super) async fn show(member: &Member<'_>, id: &str) -> Result<Reply, Refusal> {
    show_with(member, id, StatusCode::OK, None).await
}

async fn show_with(
    member: &Member<'_>,
    id: &str,
    status: StatusCode,
    warning: Option<&'static str>,
) -> Result<Reply, Refusal> {
    let found = match parse_id(id) {
        Some(id) => member.store.find_group_sync(id).await?,
        None => None,
    };
    let Some((sync, SyncMembers { attached, detached })) = found else { return Ok(unknown(member)) };
    let text = &member.area.texts.group_sync;
    let lists =
        [AddressList::new(&text.came, attached, sync.attached), AddressList::new(&text.went, detached, sync.detached)];
    let undo = member.store.preview_undo(sync.id).await?;
    let Some(undo) = describe(undo, text) else { return Ok(unknown(member)) };
    let sync = SyncRow::of(sync, member);
    Ok(page(status, &SyncPage { frame: Frame::of(member, "groups"), text, sync, lists, undo, warning }))
}

/// An undo as the page shows it; `None` if there is no such sync.
fn describe(undone: Undone, text: &'static GroupSyncTexts) -> Option<Undo> {
    Some(match undone {
        Undone::Undone { attached, detached, skipped } if attached.is_empty() && detached.is_empty() => {
            Undo::Refused(match skipped {
                0 => text.no_members.to_string(),
                _ => text.all_changed.to_string(),
            })
        }
        Undone::Undone { attached, detached, skipped } => {
            let counts = [attached.len() as u64, detached.len() as u64];
            let lists = [
                AddressList::new(&text.would_come, attached, counts[0]),
                AddressList::new(&text.would_go, detached, counts[1]),
            ];
            Undo::Changes { lists, skipped }
        }
        Undone::GroupDeleted => Undo::Refused(text.group_deleted.to_string()),
        Undone::TouchedLater { sync, is_undo: true } => Undo::Refused(text.undone.with("number", sync)),
        Undone::TouchedLater { sync, is_undo: false } => Undo::Refused(text.touched.with("number", sync)),
        Undone::NotFound => return None,
    })
}

pub(super) async fn undo(change: &Change<'_>, id: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let Some(sync) = parse_id(id) else { return Ok(unknown(member)) };
    let text = &member.area.texts.group_sync;
    match member.store.undo_group_sync(sync, &change.actor).await? {
        Undone::Undone { attached, detached, .. } if attached.is_empty() && detached.is_empty() => {
            show_with(member, id, StatusCode::CONFLICT, Some(&text.nothing_changed)).await
        }
        Undone::Undone { attached, detached, .. } => {
            let (tenant, attached, detached) = (&*member.visit.tenant.slug, attached.len(), detached.len());
            tracing::info!(
                tenant,
                actor = change.actor.name,
                sync,
                attached,
                detached,
                "an administrator undid a group sync"
            );
            Ok(member.area.see_other("/groups"))
        }
        Undone::NotFound => Ok(unknown(member)),
        Undone::GroupDeleted | Undone::TouchedLater { .. } => {
            show_with(member, id, StatusCode::CONFLICT, Some(&text.not_undone)).await
        }
    }
}

fn unknown(member: &Member<'_>) -> Reply {
    member.area.unknown(&member.area.texts.group_sync.unknown)
}
