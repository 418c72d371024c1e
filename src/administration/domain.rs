//! One domain: its state, what to do about it, the records to set, checking it now, and removing it.

use askama::Template;
use http::StatusCode;
use http::header::RETRY_AFTER;

use super::domain_words::Piece;
use super::domains::{CHECK_LIMIT, HostRow, domains_of};
use super::forms::parameter;
use super::frame::{Frame, page};
use super::texts::DomainTexts;
use super::times::Moment;
use super::visit::{Change, Member};
use crate::dns::{Action, Record};
use crate::domains::{HostCheck, Serving, entry_of_removed};
use crate::error::Refusal;
use crate::host::HostName;
use crate::reply::Reply;
use crate::store::registry::DomainState;

/// After how many seconds one of the checks that an account may ask for in a minute is surely free again.
const CHECKED_AGAIN: u64 = 60;

#[derive(Template)]
#[template(path = "domain.html", config = "src/administration/askama.toml")]
struct DomainPage {
    frame: Frame,
    text: &'static DomainTexts,
    row: HostRow,
    /// The records to add or to remove.
    records: Vec<Record>,
    /// The record that proves the domain, unless it is one of those.
    proof: Option<Record>,
    /// The name that proves the domain if it is an alias of that, unless it is proved.
    label: Option<HostName>,
    checked: Option<Moment>,
    next_check: Option<Moment>,
    renews: Option<Moment>,
    done: Option<&'static str>,
    warning: Option<&'static str>,
    /// Whether the domain can be removed here.
    can_remove: bool,
}

impl DomainPage {
    fn heading(&self) -> String {
        self.text.heading.with("host", &self.row.host)
    }

    fn action(&self, record: &Record) -> &'static str {
        match record.action {
            Action::Add => &self.text.add,
            Action::Remove => &self.text.remove_record,
            Action::Keep => &self.text.keep,
        }
    }
}

/// The host that a path names.
fn parse(segment: &str) -> Option<HostName> {
    HostName::parse(segment).ok().filter(|host| host.as_str() == segment)
}

pub(super) async fn show(member: &Member<'_>, segment: &str) -> Result<Reply, Refusal> {
    let text = &member.area.texts.domain;
    let done = match &*parameter(member.visit.head.uri.query(), "done") {
        "added" => Some(&*text.was_added),
        "same" => Some(&*text.was_same),
        "checked" => Some(&*text.was_checked),
        "asked" => Some(&*text.was_asked),
        _ => None,
    };
    show_with(member, segment, StatusCode::OK, done, None).await
}

async fn show_with(
    member: &Member<'_>,
    segment: &str,
    status: StatusCode,
    done: Option<&'static str>,
    warning: Option<&'static str>,
) -> Result<Reply, Refusal> {
    let domains = domains_of(member)?;
    let text = &member.area.texts.domain;
    let Some(host) = parse(segment) else { return Ok(unknown(member)) };
    let Some(found) = domains.find(&host).await? else { return Ok(unknown(member)) };
    let (domain, records) = match &found.serving {
        Serving::OfFile => (None, Vec::new()),
        Serving::Own(domain) => {
            let domain = domain.as_deref();
            (domain, domains.reason(&found.host, domain).records().to_vec())
        }
    };
    let proof = domain.and_then(|domain| domains.proof(domain));
    let is_listed =
        |proof: &Record| records.iter().any(|record| record.name == proof.name && record.kind == proof.kind);
    let domain_page = DomainPage {
        frame: Frame::of(member, "domains"),
        text,
        row: HostRow::of(&found, &domains, member),
        proof: proof.filter(|proof| !is_listed(proof)),
        records,
        label: domain.filter(|domain| domain.proved_by.is_none()).and_then(|domain| domains.label(domain)),
        checked: domain.and_then(|domain| domain.checked_at).map(|at| member.moment(at)),
        next_check: domain.filter(|it| it.state != DomainState::Gone).map(|domain| member.moment(domain.next_at)),
        renews: domain.and_then(|domain| domain.renew_at).map(|at| member.moment(at)),
        done,
        warning,
        can_remove: found.is_added && domains.can_change(),
    };
    Ok(page(status, &domain_page))
}

/// What the field `action` asks for.
pub(super) async fn change(change: &Change<'_>, segment: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let domains = domains_of(member)?;
    let Some(host) = parse(segment) else { return Ok(unknown(member)) };
    match change.form.field("action") {
        "check" => {
            if domains.find(&host).await?.is_none() {
                return Ok(unknown(member));
            }
            let done = match domains.check(&host, CHECK_LIMIT).await? {
                HostCheck::Done => "checked",
                HostCheck::Soon => "asked",
                HostCheck::TooOften => {
                    let text = &member.area.texts.domain.too_often;
                    let refused = show_with(member, segment, StatusCode::TOO_MANY_REQUESTS, None, Some(text)).await?;
                    return Ok(refused.with_header(RETRY_AFTER, CHECKED_AGAIN.into()));
                }
            };
            Ok(member.area.see_other(&format!("/domains/{host}?done={done}")))
        }
        "remove" => {
            if !domains.remove(&host, &change.actor.name).await? {
                return Ok(unknown(member));
            }
            member.store.audit(&change.actor, entry_of_removed(&host), member.now).await?;
            let (tenant, actor, host) = (&*member.visit.tenant.slug, &change.actor.name, host.as_str());
            tracing::info!(tenant, actor, host, "an administrator removed a domain");
            Ok(member.area.see_other("/domains?done=removed"))
        }
        _ => Ok(member.area.unknown(&member.area.texts.domain.no_action)),
    }
}

fn unknown(member: &Member<'_>) -> Reply {
    member.area.unknown(&member.area.texts.domain.unknown)
}
