//! One token: what is known about it, rotating it, and revoking it.

use std::time::Duration;

use askama::Template;
use http::StatusCode;
use jiff::Timestamp;

use super::forms::{parameter, parse_id};
use super::frame::{Frame, page};
use super::texts::{RevokeTexts, TokenTexts};
use super::token_forms::{Choice, TypedToken, expiries, overlaps};
use super::token_limits::TypedLimits;
use super::tokens::{TokenRow, ValuePage, faulty, sent_before, zone_of};
use super::visit::{Change, Member};
use crate::error::Refusal;
use crate::reply::Reply;
use crate::store::TokenReads;
use crate::tenant::token::{self, Rotated, RotationRequest};

/// The parameter of the page after a change that Redis did not take.
const LATE: &str = "late";

#[derive(Template)]
#[template(path = "token.html", config = "src/administration/askama.toml")]
struct TokenPage {
    frame: Frame,
    text: &'static TokenTexts,
    token: TokenRow,
    reads: TokenReads,
    /// The token that it replaces.
    old: Option<TokenRow>,
    /// The token that replaces it.
    new: Option<TokenRow>,
    done: Option<&'static str>,
    warning: Option<&'static str>,
    typed: TypedToken,
    expiries: [Choice; 5],
    overlaps: [Choice; 4],
    zone: String,
    limits: TypedLimits,
    /// Whether it is limited to some scopes.
    is_limited: bool,
    /// The requests per minute of the account.
    of_account: u32,
}

impl TokenPage {
    /// Whether it can be rotated here: not if there is a newer one that can.
    fn may_be_rotated(&self) -> bool {
        !self.new.as_ref().is_some_and(TokenRow::is_active)
    }

    /// Whether the old value was used after this one was created. Uses are known to the minute, and one in the minute of
    /// the rotation may have been before it.
    fn is_old_in_use(&self, old: &TokenRow) -> bool {
        old.last_used.as_ref().is_some_and(|used| used.at >= self.token.created.at)
    }

    /// How much the token has read.
    fn read_line(&self) -> String {
        let TokenReads { submissions, forms } = self.reads;
        if submissions == 0 {
            return self.text.read_nothing.to_string();
        }
        let submissions = self.text.read_submissions.of(submissions).with("number", self.frame.number(submissions));
        let forms = self.text.read_forms.of(forms).with("number", self.frame.number(forms));
        self.text.read.fill(&[("submissions", &submissions), ("forms", &forms)])
    }
}

#[derive(Template)]
#[template(path = "revoke.html", config = "src/administration/askama.toml")]
struct RevokePage {
    frame: Frame,
    text: &'static RevokeTexts,
    token: TokenRow,
    /// How soon every node refuses the token.
    felt: &'static str,
}

pub(super) async fn show(member: &Member<'_>, id: &str) -> Result<Reply, Refusal> {
    let text = &member.area.texts.token;
    let query = member.visit.head.uri.query();
    let warning = (parameter(query, LATE) == "1").then_some(&*text.late);
    let done = match &*parameter(query, "done") {
        "changed" => Some(&*text.was_changed),
        "same" => Some(&*text.was_same),
        "revoked" => Some(&*text.was_revoked),
        _ => None,
    };
    show_with(member, id, TypedToken::empty(), None, StatusCode::OK, (done, warning)).await
}

/// Where a page is shown after a change that this node applied.
pub(super) async fn after_change(member: &Member<'_>, id: i64, done: &str) -> Reply {
    let late = if member.announce_tokens().await { String::new() } else { format!("&{LATE}=1") };
    member.area.see_other(&format!("/tokens/{id}?done={done}{late}"))
}

/// The page with fields as they were typed; `limits` are those of the token if they were not.
pub(super) async fn show_with(
    member: &Member<'_>,
    id: &str,
    typed: TypedToken,
    limits: Option<TypedLimits>,
    status: StatusCode,
    (done, warning): (Option<&'static str>, Option<&'static str>),
) -> Result<Reply, Refusal> {
    let Some(token) = find(member, id).await? else { return Ok(unknown(member)) };
    let old = match token.replaces {
        Some(old) => find(member, &old.to_string()).await?,
        None => None,
    };
    // Before the ledger is read: what is written meanwhile is in both.
    let held = member.visit.tenant.tokens.reads.of_token(token.id);
    let reads = member.store.count_token_reads(token.id, held).await?;
    let new = member.store.find_successor(token.id).await?;
    let new = TokenRow::of(new.into_iter().collect(), member).await?.pop();
    let typed = TypedToken { kept: token.expires.clone(), ..typed };
    let token_page = TokenPage {
        frame: Frame::of(member, "tokens"),
        text: &member.area.texts.token,
        limits: limits.unwrap_or_else(|| TypedLimits::of_token(&token.limits)),
        is_limited: !token.limits.scopes.is_all(),
        of_account: member.visit.tenant.requests_per_minute,
        token,
        reads,
        old,
        new,
        done,
        warning,
        typed,
        expiries: expiries(&member.area.texts.token_forms),
        overlaps: overlaps(&member.area.texts.token_forms),
        zone: zone_of(member),
    };
    Ok(page(status, &token_page))
}

pub(super) async fn ask_revoke(member: &Member<'_>, id: &str) -> Result<Reply, Refusal> {
    let Some(token) = find(member, id).await? else { return Ok(unknown(member)) };
    let text = &member.area.texts.revoke;
    let felt = match &member.area.shared.announcer {
        Some(_) => &text.soon_by_redis,
        None => &text.soon,
    };
    Ok(page(StatusCode::OK, &RevokePage { frame: Frame::of(member, "tokens"), text, token, felt }))
}

pub(super) async fn revoke(change: &Change<'_>, id: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let Some(id) = parse_id(id) else { return Ok(unknown(member)) };
    if !member.store.revoke_token(id, Timestamp::now(), &change.actor).await? {
        return Ok(unknown(member));
    }
    let tenant = &*member.visit.tenant.slug;
    tracing::info!(tenant, actor = change.actor.name, token = id, "an administrator revoked a token");
    Ok(after_change(member, id, "revoked").await)
}

pub(super) async fn rotate(change: &Change<'_>, id: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let Some(old) = parse_id(id) else { return Ok(unknown(member)) };
    let mut typed = TypedToken::of(&change.form);
    let text = &member.area.texts.token_forms;
    let form_key = Some(typed.check_key(text));
    let expiry_of_old = member.store.find_token_by_id(old).await?.and_then(|token| token.expires_at);
    let expires_at = typed.check_next_expiry(expiry_of_old, member.now, &member.visit.tenant.timezone, text);
    let overlap = typed.check_overlap(text);
    if typed.faults.any() {
        return show_with(member, id, typed, None, StatusCode::UNPROCESSABLE_ENTITY, (None, None)).await;
    }
    let request = RotationRequest { expires_at, overlap, form_key };
    let rotated = match token::rotate(&member.store, old, request, &change.actor).await {
        Ok(rotated) => rotated,
        Err(error) => {
            let typed = faulty(error, typed, text)?;
            return show_with(member, id, typed, None, StatusCode::UNPROCESSABLE_ENTITY, (None, None)).await;
        }
    };
    match rotated {
        Rotated::New { id: new, token, old_until } => {
            let tenant = &*member.visit.tenant.slug;
            tracing::info!(tenant, actor = change.actor.name, token = old, new, "an administrator rotated a token");
            let warning = (!member.announce_tokens().await).then_some(&*member.area.texts.token.late);
            let name = member.store.find_token_by_id(new).await?.map(|token| token.name).unwrap_or_default();
            let until = (overlap > Duration::ZERO).then(|| member.moment(old_until));
            let value = ValuePage {
                frame: Frame::of(member, "tokens"),
                text: &member.area.texts.token_value,
                name,
                id: new,
                value: token.expose().to_owned(),
                address: member.api_address(),
                replaced: Some((old, until)),
                warning,
            };
            Ok(page(StatusCode::CREATED, &value))
        }
        Rotated::Existing(id) => Ok(sent_before(member, id)),
        Rotated::Unknown => Ok(unknown(member)),
        // Another administrator was faster: the page shows what the token is now.
        Rotated::Revoked | Rotated::Expired => {
            let warning = Some(&*member.area.texts.token.not_rotated);
            show_with(member, id, typed, None, StatusCode::CONFLICT, (None, warning)).await
        }
    }
}

pub(super) async fn find(member: &Member<'_>, id: &str) -> Result<Option<TokenRow>, Refusal> {
    let Some(id) = parse_id(id) else { return Ok(None) };
    let found = member.store.find_token_by_id(id).await?;
    Ok(TokenRow::of(found.into_iter().collect(), member).await?.pop())
}

pub(super) fn unknown(member: &Member<'_>) -> Reply {
    member.area.unknown(&member.area.texts.token.unknown)
}
