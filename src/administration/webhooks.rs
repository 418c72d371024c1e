//! Webhooks: every subscription with its state and backlog, one with its latest attempts, and what can be done about it.
//!
//! Subscriptions are created and deleted through the API, by the tools that receive. The secret of a rotation is in the
//! answer to the POST and nowhere else. A form carries which secret was current when its page was opened, so that
//! sending it again does not rotate twice, which would end the secret that receivers still have.

use std::time::Duration;

use askama::Template;
use http::StatusCode;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::forms::parameter;
use super::frame::{Frame, page};
use super::protection::hex;
use super::times::Moment;
use super::token::parse;
use super::visit::{Change, Member};
use crate::api::{EnvelopeOrigin, Untested, new_secret, send_test};
use crate::error::Refusal;
use crate::reply::Reply;
use crate::store::{
    AttemptRecord, AuditEntry, MAX_SUBSCRIPTIONS, PageRequest, Replay, Replayed, StoreError, Subscription,
};

/// How many attempts a page lists. Larger: a page takes longer. Smaller: an outage is not seen as a whole.
const ATTEMPTS: u32 = 50;

/// For how long the secret before a rotation signs too.
const GRACES: [(&str, &str, u64); 4] = [
    ("0", "Not at all: it leaked", 0),
    ("1h", "1 hour", 3_600),
    ("24h", "24 hours", 24 * 3_600),
    ("7d", "7 days", 7 * 24 * 3_600),
];

struct WebhookRow {
    id: i64,
    target: String,
    event: String,
    form: Option<i64>,
    state: String,
    reason: Option<String>,
    pending: u64,
    created: Moment,
    failing_since: Option<Moment>,
    next_attempt: Option<Moment>,
    last_success: Option<Moment>,
}

impl WebhookRow {
    fn of(subscription: Subscription, member: &Member<'_>) -> Self {
        let zone = &member.visit.tenant.timezone;
        Self {
            id: subscription.id,
            target: subscription.target_url,
            event: subscription.event,
            form: subscription.form,
            state: subscription.state,
            reason: subscription.reason,
            pending: subscription.pending,
            created: Moment::new(subscription.created_at, zone),
            failing_since: Moment::of(subscription.failing_since, zone),
            next_attempt: Moment::of(subscription.next_attempt_at, zone),
            last_success: Moment::of(subscription.last_success_at, zone),
        }
    }

    fn may_be_paused(&self) -> bool {
        matches!(self.state.as_str(), "active" | "failing")
    }
}

struct AttemptRow {
    event: String,
    submission: i64,
    number: u32,
    at: Moment,
    milliseconds: u128,
    accepted: bool,
    /// The status, or why there is none.
    outcome: String,
    response: Option<String>,
}

impl AttemptRow {
    fn of(attempt: AttemptRecord, member: &Member<'_>) -> Self {
        let status = attempt.status.map(|status| status.to_string());
        Self {
            event: attempt.event_id,
            submission: attempt.submission,
            number: attempt.attempt,
            at: Moment::new(attempt.at, &member.visit.tenant.timezone),
            milliseconds: attempt.took.as_millis(),
            accepted: attempt.accepted,
            outcome: status.or(attempt.error).unwrap_or_default(),
            response: attempt.response.filter(|text| !text.is_empty()),
        }
    }
}

#[derive(Template)]
#[template(path = "webhooks.html", config = "src/administration/askama.toml")]
struct WebhooksPage {
    frame: Frame,
    rows: Vec<WebhookRow>,
}

/// What a page says about the form that led to it.
enum Notice {
    Nothing,
    Said(&'static str),
    Warned(String),
    /// How the receiver answered a test.
    Tested(AttemptRow),
    /// The new secret.
    Rotated(String),
}

#[derive(Template)]
#[template(path = "webhook.html", config = "src/administration/askama.toml")]
struct WebhookPage {
    frame: Frame,
    webhook: WebhookRow,
    notice: Notice,
    attempts: Vec<AttemptRow>,
    only_failed: bool,
    /// Identifies the current secret.
    secret_key: String,
    graces: &'static [(&'static str, &'static str, u64)],
}

pub(super) async fn list(member: &Member<'_>) -> Result<Reply, Refusal> {
    let first = PageRequest { number: 1.try_into().expect("it is not 0"), size: MAX_SUBSCRIPTIONS };
    let subscriptions = member.store.list_subscriptions(first).await?;
    let rows = subscriptions.items.into_iter().map(|subscription| WebhookRow::of(subscription, member)).collect();
    Ok(page(StatusCode::OK, &WebhooksPage { frame: Frame::of(member, "webhooks"), rows }))
}

pub(super) async fn show(member: &Member<'_>, id: &str) -> Result<Reply, Refusal> {
    let notice = match &*parameter(member.visit.head.uri.query(), "done") {
        "paused" => Notice::Said("It is paused: nothing is sent until it is resumed. Nothing is lost."),
        "resumed" => Notice::Said("It is resumed, and goes on where it stopped."),
        "replayed" => Notice::Said("The events that failed are sent again."),
        _ => Notice::Nothing,
    };
    show_with(member, id, StatusCode::OK, notice).await
}

async fn show_with(member: &Member<'_>, id: &str, status: StatusCode, notice: Notice) -> Result<Reply, Refusal> {
    let Some(id) = parse(id) else { return Ok(unknown(member)) };
    let Some(webhook) = member.store.find_subscription(id).await? else { return Ok(unknown(member)) };
    let only_failed = parameter(member.visit.head.uri.query(), "show") == "failed";
    let latest = PageRequest { number: 1.try_into().expect("it is not 0"), size: ATTEMPTS };
    let attempts = member.store.list_attempts(id, only_failed.then_some(false), latest).await?;
    let webhook_page = WebhookPage {
        frame: Frame::of(member, "webhooks"),
        webhook: WebhookRow::of(webhook, member),
        notice,
        attempts: attempts
            .into_iter()
            .flat_map(|attempts| attempts.items)
            .map(|attempt| AttemptRow::of(attempt, member))
            .collect(),
        only_failed,
        secret_key: secret_key(member, id).await?.unwrap_or_default(),
        graces: &GRACES,
    };
    Ok(page(status, &webhook_page))
}

/// Identifies the current secret of a subscription, without revealing it.
async fn secret_key(member: &Member<'_>, id: i64) -> Result<Option<String>, Refusal> {
    let secrets = member.store.inspect_subscription(id).await?.map(|found| found.secrets);
    let current = secrets.and_then(|secrets| secrets.into_iter().next());
    Ok(current.map(|secret| hex(&Sha256::digest(secret)[..8])))
}

/// What the field `action` asks for.
pub(super) async fn change(change: &Change<'_>, segment: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let Some(id) = parse(segment) else { return Ok(unknown(member)) };
    let by = Some(&change.actor);
    let done = match change.form.field("action") {
        "pause" => member.store.pause_subscription(id, by).await?.map(|_| "paused"),
        "resume" => member.store.resume_subscription(id, by).await?.map(|_| "resumed"),
        "replay" => match member.store.replay(id, &Replay::Failed, by).await? {
            Replayed::Due => Some("replayed"),
            Replayed::UnknownSubscription
            | Replayed::UnknownEvent
            | Replayed::UnknownSubmissions(_)
            | Replayed::LostCursor => None,
        },
        "test" => return test(change, id, segment).await,
        "rotate" => return rotate(change, id, segment).await,
        _ => return Ok(member.area.unknown("The form names no action.")),
    };
    let Some(done) = done else { return Ok(unknown(member)) };
    member.visit.webhooks.changes.announce(&member.visit.tenant.slug);
    let tenant = &*member.visit.tenant.slug;
    tracing::info!(tenant, actor = change.actor.name, webhook = id, done, "an administrator changed a webhook");
    Ok(member.area.see_other(&format!("/webhooks/{id}?done={done}")))
}

async fn test(change: &Change<'_>, id: i64, segment: &str) -> Result<Reply, Refusal> {
    let (member, tenant) = (&change.member, change.member.visit.tenant);
    let (store, tools) = (&member.store, member.visit.webhooks);
    let origin = EnvelopeOrigin { account: &tenant.slug, host: &tenant.address, zone: &tenant.timezone };
    let attempt = match send_test(store, tools.tests, tools.seals, origin, id).await {
        Ok(attempt) => attempt,
        Err(Untested::UnknownSubscription) => return Ok(unknown(member)),
        Err(Untested::Busy) => return Err(StoreError::Busy.into()),
        Err(Untested::Store(error)) => return Err(error.into()),
        Err(untested @ (Untested::NoSubmission | Untested::Unusable(_))) => {
            let warning = Notice::Warned(format!("The receiver was not tested: {untested}."));
            return show_with(member, segment, StatusCode::UNPROCESSABLE_ENTITY, warning).await;
        }
    };
    let details = json!({ "status": attempt.status, "error": attempt.error });
    let entry = AuditEntry { action: "webhook.test", subject: format!("webhook hook_{id}"), details };
    store.audit(&change.actor, entry, member.now).await?;
    let notice = Notice::Tested(AttemptRow::of(attempt, member));
    show_with(member, segment, StatusCode::OK, notice).await
}

async fn rotate(change: &Change<'_>, id: i64, segment: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let grace = GRACES.iter().find(|(value, _, _)| *value == change.form.field("grace"));
    let Some((_, _, seconds)) = grace else {
        return Ok(member.area.unknown("The form says not for how long the secret before signs too."));
    };
    let Some(found) = member.store.find_subscription(id).await? else { return Ok(unknown(member)) };
    if secret_key(member, id).await?.as_deref() != Some(change.form.field("secret_key")) {
        let warning = "Nothing was changed: the secret was rotated since this form was opened. A secret is shown once.";
        return show_with(member, segment, StatusCode::CONFLICT, Notice::Warned(warning.to_owned())).await;
    }
    let secret = new_secret();
    let sealed = member.visit.webhooks.seals.seal(&secret, &found.target_url);
    let grace = Duration::from_secs(*seconds);
    if member.store.rotate_secret(id, &sealed, grace, Some(&change.actor)).await?.is_none() {
        return Ok(unknown(member));
    }
    member.visit.webhooks.changes.announce(&member.visit.tenant.slug);
    let tenant = &*member.visit.tenant.slug;
    tracing::info!(tenant, actor = change.actor.name, webhook = id, "an administrator rotated the secret of a webhook");
    show_with(member, segment, StatusCode::OK, Notice::Rotated(secret)).await
}

fn unknown(member: &Member<'_>) -> Reply {
    member.area.unknown("This account has no webhook with this number.")
}
