//! Domains: every host of the account with what serves it, and adding one.

use std::time::Duration;

use askama::Template;
use http::StatusCode;

use super::domain_faults;
use super::domain_words::{Piece, ReasonWords, words_of};
use super::forms::parameter;
use super::frame::{Frame, page};
use super::texts::DomainsTexts;
use super::times::Moment;
use super::visit::{Change, Member};
use crate::domains::{AccountDomains, AccountHost, HostAddition, Serving, entry_of_added};
use crate::error::Refusal;
use crate::host::HostName;
use crate::reply::Reply;
use crate::store::registry::DomainState;

/// How many hosts a page has. Larger: a page takes longer. Smaller: more pages.
const PAGE: usize = 100;

/// How long a form waits until a domain was checked.
///
/// Larger: an administrator waits for name servers that do not answer. Smaller: the page has the state before the check.
pub(super) const CHECK_LIMIT: Duration = Duration::from_secs(4);

/// A host, as both pages show it.
pub(super) struct HostRow {
    pub(super) host: String,
    /// The host as people write it, if that differs.
    pub(super) unicode: Option<String>,
    pub(super) is_added: bool,
    /// Whether its certificate is that of a file.
    pub(super) is_of_file: bool,
    /// The name of the state in the API.
    pub(super) state: &'static str,
    pub(super) state_label: &'static str,
    pub(super) meaning: &'static str,
    pub(super) reason: Option<ReasonWords>,
    pub(super) since: Option<Moment>,
    pub(super) expires: Option<Moment>,
}

impl HostRow {
    pub(super) fn of(host: &AccountHost, domains: &AccountDomains<'_>, member: &Member<'_>) -> Self {
        let texts = member.area.texts;
        let AccountHost { host, is_added, serving } = host;
        let unicode = HostName::parse(host).ok().and_then(|host| host.in_unicode());
        let domain = match serving {
            Serving::OfFile => {
                let (state_label, meaning) = (&*texts.domain_states.served, &*texts.domain_meanings.served);
                return Self {
                    host: host.clone(),
                    unicode,
                    is_added: *is_added,
                    is_of_file: true,
                    state: "live",
                    state_label,
                    meaning,
                    reason: None,
                    since: None,
                    expires: None,
                };
            }
            Serving::Own(domain) => domain.as_deref(),
        };
        let state = domain.map_or(DomainState::Claimed, |domain| domain.state);
        let (state_label, meaning) = words_of(state, texts);
        let moment = |at| member.moment(at);
        let reason = domains.reason(host, domain);
        Self {
            host: host.clone(),
            unicode,
            is_added: *is_added,
            is_of_file: false,
            state: state.as_str(),
            state_label,
            meaning,
            reason: ReasonWords::of(&reason, texts, member.area.language, &|at| moment(at).shown),
            since: domain.map(|domain| moment(domain.since)),
            expires: domain.and_then(|domain| domain.not_after).map(moment),
        }
    }
}

#[derive(Template)]
#[template(path = "domains.html", config = "src/administration/askama.toml")]
struct DomainsPage {
    frame: Frame,
    text: &'static DomainsTexts,
    can_change: bool,
    /// Whether certificates are obtained for domains.
    are_obtained: bool,
    typed: String,
    fault: Option<&'static str>,
    done: Option<&'static str>,
    rows: Vec<HostRow>,
    /// The last host of this page, if there are more.
    next: Option<String>,
}

/// The domains of the account; there is no such page if nothing is configured.
pub(super) fn domains_of<'v>(member: &'v Member<'_>) -> Result<AccountDomains<'v>, Refusal> {
    let domains = member.visit.domains.ok_or(Refusal::UnknownPath)?;
    Ok(domains.of_account(&member.visit.tenant.slug))
}

pub(super) async fn list(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    list_with(member, StatusCode::OK, "", None).await
}

async fn list_with(
    member: &Member<'_>,
    status: StatusCode,
    typed: &str,
    fault: Option<&'static str>,
) -> Result<Reply, Refusal> {
    let domains = domains_of(member)?;
    let query = member.visit.head.uri.query();
    let after = parameter(query, "after");
    let mut hosts = domains.list().await?;
    hosts.retain(|host| *host.host > *after);
    let next = (hosts.len() > PAGE).then(|| hosts[PAGE - 1].host.clone());
    hosts.truncate(PAGE);
    let text = &member.area.texts.domains;
    let domains_page = DomainsPage {
        frame: Frame::of(member, "domains"),
        text,
        can_change: domains.can_change(),
        are_obtained: domains.obtain_certificates(),
        typed: typed.to_owned(),
        fault,
        done: (parameter(query, "done") == "removed").then_some(&text.removed),
        rows: hosts.iter().map(|host| HostRow::of(host, &domains, member)).collect(),
        next,
    };
    Ok(page(status, &domains_page))
}

pub(super) async fn add(change: &Change<'_>, _: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let domains = domains_of(member)?;
    let text = &member.area.texts.domains;
    let typed = change.form.field("host");
    let host = match HostName::parse_added(typed.trim()) {
        Ok(host) => host,
        Err(fault) => {
            let fault = domain_faults::words_of(fault, &member.area.texts.domain_faults);
            return list_with(member, StatusCode::UNPROCESSABLE_ENTITY, typed, Some(fault)).await;
        }
    };
    let addition = domains.add(&host).await?;
    let (status, fault) = match addition {
        HostAddition::Added | HostAddition::Contested => {
            let entry = entry_of_added(&host, addition == HostAddition::Contested);
            member.store.audit(&change.actor, entry, member.now).await?;
            let tenant = &*member.visit.tenant.slug;
            tracing::info!(
                tenant,
                actor = change.actor.name,
                host = host.as_str(),
                ?addition,
                "an administrator added a domain"
            );
            // An account that asked too often still adds its domain, and sees the state before the check.
            domains.check(&host, CHECK_LIMIT).await?;
            return Ok(member.area.see_other(&format!("/domains/{host}?done=added")));
        }
        HostAddition::Same => return Ok(member.area.see_other(&format!("/domains/{host}?done=same"))),
        HostAddition::Taken => (StatusCode::CONFLICT, &text.taken),
        HostAddition::OfOperator => (StatusCode::CONFLICT, &text.of_operator),
        HostAddition::InFile => (StatusCode::CONFLICT, &text.in_file),
        HostAddition::TooMany => (StatusCode::CONFLICT, &text.too_many),
        HostAddition::TooManyUnproved => (StatusCode::UNPROCESSABLE_ENTITY, &text.too_many_unproved),
    };
    list_with(member, status, typed, Some(fault)).await
}
