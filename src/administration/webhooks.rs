//! Webhooks: every subscription with its state and backlog, one with its latest attempts, and what can be done about it.
//!
//! Subscriptions are created and deleted through the API, by the tools that receive. The secret of a rotation is in the
//! answer to the POST and nowhere else. A form carries which secret was current when its page was opened, so that
//! sending it again does not rotate twice, which would end the secret that receivers still have.

use std::collections::HashMap;
use std::time::Duration;

use askama::Template;
use http::StatusCode;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::forms::{parameter, parse_id};
use super::frame::{Frame, page};
use super::named_forms::{FormNames, NamedForm, in_short};
use super::protection::hex;
use super::texts::{Texts, WebhookTexts, WebhooksTexts};
use super::times::Moment;
use super::token_forms::Choice;
use super::visit::{Change, Member};
use crate::api::{EnvelopeOrigin, Untested, new_secret, send_test};
use crate::error::Refusal;
use crate::outbound::DeliveryReason;
use crate::reply::Reply;
use crate::shown_text::shown_name;
use crate::store::{
    AttemptRecord, AuditEntry, MAX_SUBSCRIPTIONS, MakingToken, PageRequest, Replay, Replayed, Resumed, StoreError,
    Subscription,
};

/// How many attempts a page lists. Larger: a page takes longer. Smaller: an outage is not seen as a whole.
const ATTEMPTS: u32 = 50;

/// For how long the secret before a rotation signs too.
const GRACES: [(&str, Duration); 4] = [
    ("0", Duration::ZERO),
    ("1h", Duration::from_hours(1)),
    ("24h", Duration::from_hours(24)),
    ("7d", Duration::from_hours(7 * 24)),
];

struct WebhookRow {
    id: i64,
    target: String,
    event: String,
    /// The name of the form.
    form: Option<String>,
    /// Whether it is sent only what its token reaches, and the forms of that.
    is_limited: bool,
    reach: Vec<NamedForm>,
    state: String,
    reason: Option<String>,
    pending: u64,
    created: Moment,
    failing_since: Option<Moment>,
    next_attempt: Option<Moment>,
    last_success: Option<Moment>,
    /// How many deletions it was not sent while they were kept, and when the newest happened.
    lost: u64,
    lost_until: Option<Moment>,
    made_by: Option<MakingToken>,
    /// Whether it ends with that token.
    bound: bool,
    /// Whether it can't be resumed, because that token has ended.
    has_ended: bool,
}

impl WebhookRow {
    /// The rows of subscriptions, in their order.
    async fn of(subscriptions: Vec<Subscription>, member: &Member<'_>) -> Result<Vec<Self>, StoreError> {
        let reach = |of: &Subscription| of.reach.forms().unwrap_or_default().iter().copied().chain(of.form).collect();
        let names = FormNames::of(subscriptions.iter().flat_map::<Vec<i64>, _>(reach), member).await?;
        Ok(subscriptions.into_iter().map(|subscription| Self::with(subscription, &names, member)).collect())
    }

    fn with(subscription: Subscription, names: &FormNames, member: &Member<'_>) -> Self {
        let moment = |at| member.moment(at);
        Self {
            id: subscription.id,
            target: subscription.target_url,
            event: subscription.event,
            form: subscription.form.map(|form| names.label(form)),
            is_limited: !subscription.reach.is_all(),
            reach: names.named(&subscription.reach),
            state: subscription.state,
            has_ended: subscription.reason == Some(DeliveryReason::TokenEnded),
            reason: subscription.reason.map(|reason| member.area.texts.reasons.show(reason)),
            pending: subscription.pending,
            created: moment(subscription.created_at),
            failing_since: subscription.failing_since.map(moment),
            next_attempt: subscription.next_attempt_at.map(moment),
            last_success: subscription.last_success_at.map(moment),
            lost: subscription.lost_deletions,
            lost_until: subscription.lost_until.map(moment),
            made_by: subscription.made_by,
            bound: subscription.bound,
        }
    }

    /// The forms that its token reaches.
    fn reached(&self) -> String {
        self.reach.iter().map(NamedForm::label).collect::<Vec<_>>().join(", ")
    }

    /// The same in a list.
    fn reached_in_short(&self) -> String {
        in_short(self.reach.iter().map(NamedForm::label))
    }

    fn may_be_paused(&self) -> bool {
        matches!(self.state.as_str(), "active" | "failing")
    }
}

struct AttemptRow {
    event: String,
    submission: i64,
    /// The name of the submission's form; `None` if the submission is deleted.
    form: Option<String>,
    number: u32,
    at: Moment,
    milliseconds: u128,
    accepted: bool,
    /// The status, or why there is none.
    outcome: String,
    response: Option<String>,
}

impl AttemptRow {
    /// The rows of attempts, in their order.
    async fn of(attempts: Vec<AttemptRecord>, member: &Member<'_>) -> Result<Vec<Self>, StoreError> {
        let submissions: Vec<i64> = attempts.iter().map(|attempt| attempt.submission).collect();
        let forms = member.store.list_form_names_of(&submissions).await?;
        Ok(attempts.into_iter().map(|attempt| Self::with(attempt, &forms, member)).collect())
    }

    fn with(attempt: AttemptRecord, forms: &HashMap<i64, String>, member: &Member<'_>) -> Self {
        let outcome = match attempt.status {
            Some(status) => status.to_string(),
            None => member.area.texts.reasons.show(attempt.error.unwrap_or(DeliveryReason::Newer)),
        };
        Self {
            event: attempt.event_id,
            submission: attempt.submission,
            form: forms.get(&attempt.submission).map(|name| shown_name(name)),
            number: attempt.attempt,
            at: member.moment(attempt.at),
            milliseconds: attempt.took.as_millis(),
            accepted: attempt.accepted,
            outcome,
            response: attempt.response.filter(|text| !text.is_empty()),
        }
    }
}

#[derive(Template)]
#[template(path = "webhooks.html", config = "src/administration/askama.toml")]
struct WebhooksPage {
    frame: Frame,
    text: &'static WebhooksTexts,
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
    text: &'static WebhookTexts,
    webhook: WebhookRow,
    notice: Notice,
    attempts: Vec<AttemptRow>,
    only_failed: bool,
    /// Identifies the current secret.
    secret_key: String,
    graces: [Choice; 4],
}

impl WebhookPage {
    fn heading(&self) -> String {
        self.text.heading.with("webhook", format_args!("hook_{}", self.webhook.id))
    }

    fn test_outcome(&self, attempt: &AttemptRow) -> String {
        let text = if attempt.accepted { &self.text.test_accepted } else { &self.text.test_failed };
        text.fill(&[("outcome", &attempt.outcome), ("milliseconds", &self.frame.number(attempt.milliseconds))])
    }
}

/// What the choices of the grace say.
fn graces(texts: &'static Texts) -> [Choice; 4] {
    let durations = &texts.token_forms;
    let labels = [&texts.webhook.leaked, &durations.one_hour, &durations.one_day, &durations.one_week];
    std::array::from_fn(|at| (GRACES[at].0, &**labels[at]))
}

pub(super) async fn list(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    let first = PageRequest { number: 1.try_into().expect("it is not 0"), size: MAX_SUBSCRIPTIONS };
    let subscriptions = member.store.list_subscriptions(first).await?;
    let rows = WebhookRow::of(subscriptions.items, member).await?;
    Ok(page(
        StatusCode::OK,
        &WebhooksPage { frame: Frame::of(member, "webhooks"), text: &member.area.texts.webhooks, rows },
    ))
}

pub(super) async fn show(member: &Member<'_>, id: &str) -> Result<Reply, Refusal> {
    let text = &member.area.texts.webhook;
    let notice = match &*parameter(member.visit.head.uri.query(), "done") {
        "paused" => Notice::Said(&text.paused),
        "resumed" => Notice::Said(&text.resumed),
        "replayed" => Notice::Said(&text.replayed),
        _ => Notice::Nothing,
    };
    show_with(member, id, StatusCode::OK, notice).await
}

async fn show_with(member: &Member<'_>, id: &str, status: StatusCode, notice: Notice) -> Result<Reply, Refusal> {
    let Some(id) = parse_id(id) else { return Ok(unknown(member)) };
    let Some(webhook) = member.store.find_subscription(id).await? else { return Ok(unknown(member)) };
    let only_failed = parameter(member.visit.head.uri.query(), "show") == "failed";
    let latest = PageRequest { number: 1.try_into().expect("it is not 0"), size: ATTEMPTS };
    let attempts = member.store.list_attempts(id, only_failed.then_some(false), latest).await?;
    let attempts = attempts.map(|attempts| attempts.items).unwrap_or_default();
    let Some(webhook) = WebhookRow::of(vec![webhook], member).await?.pop() else { return Ok(unknown(member)) };
    let webhook_page = WebhookPage {
        frame: Frame::of(member, "webhooks"),
        text: &member.area.texts.webhook,
        webhook,
        notice,
        attempts: AttemptRow::of(attempts, member).await?,
        only_failed,
        secret_key: member.store.current_secret(id).await?.map(|secret| key_of(&secret)).unwrap_or_default(),
        graces: graces(member.area.texts),
    };
    Ok(page(status, &webhook_page))
}

/// Identifies a secret, without revealing it.
fn key_of(secret: &str) -> String {
    hex(&Sha256::digest(secret)[..8])
}

/// What the field `action` asks for.
pub(super) async fn change(change: &Change<'_>, segment: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let Some(id) = parse_id(segment) else { return Ok(unknown(member)) };
    let by = Some(&change.actor);
    let done = match change.form.field("action") {
        "pause" => member.store.pause_subscription(id, by).await?.map(|_| "paused"),
        "resume" => match member.store.resume_subscription(id, by).await? {
            Resumed::Active(_) => Some("resumed"),
            Resumed::Unknown => None,
            Resumed::TokenEnded => {
                let warning = Notice::Warned(member.area.texts.webhook.token_ended.to_string());
                return show_with(member, segment, StatusCode::CONFLICT, warning).await;
            }
        },
        "replay" => match member.store.replay(id, &Replay::Failed, by).await? {
            Replayed::Due => Some("replayed"),
            Replayed::UnknownSubscription
            | Replayed::UnknownEvent
            | Replayed::UnknownSubmissions(_)
            | Replayed::LostCursor => None,
        },
        "test" => return test(change, id, segment).await,
        "rotate" => return rotate(change, id, segment).await,
        _ => return Ok(member.area.unknown(&member.area.texts.webhook.no_action)),
    };
    let Some(done) = done else { return Ok(unknown(member)) };
    member.visit.webhooks.changes.announce(&member.visit.tenant.slug);
    let tenant = &*member.visit.tenant.slug;
    tracing::info!(tenant, actor = change.actor.name, webhook = id, done, "an administrator changed a webhook");
    Ok(member.area.see_other(&format!("/webhooks/{id}?done={done}")))
}

async fn test(change: &Change<'_>, id: i64, segment: &str) -> Result<Reply, Refusal> {
    let (member, tenant) = (&change.member, change.member.visit.tenant);
    let (store, tools, text) = (&member.store, member.visit.webhooks, &member.area.texts.webhook);
    let origin = EnvelopeOrigin { account: &tenant.slug, host: &tenant.address, zone: &tenant.timezone };
    let note_read = |token, read| tenant.note_reads(token, &[read]);
    let attempt = match send_test(store, tools.tests, tools.seals, origin, id, &note_read).await {
        Ok(attempt) => attempt,
        Err(Untested::UnknownSubscription) => return Ok(unknown(member)),
        Err(Untested::Busy) => return Err(StoreError::Busy.into()),
        Err(Untested::Store(error)) => return Err(error.into()),
        Err(Untested::NoSubmission) => {
            let warning = Notice::Warned(text.no_submission.to_string());
            return show_with(member, segment, StatusCode::UNPROCESSABLE_ENTITY, warning).await;
        }
        Err(Untested::Drill) => {
            let warning = Notice::Warned(text.drill.to_string());
            return show_with(member, segment, StatusCode::UNPROCESSABLE_ENTITY, warning).await;
        }
        Err(Untested::Unusable(reason)) => {
            let warning = Notice::Warned(text.unusable.with("reason", member.area.texts.reasons.show(reason)));
            return show_with(member, segment, StatusCode::UNPROCESSABLE_ENTITY, warning).await;
        }
    };
    let details = json!({ "status": attempt.status, "error": attempt.error.map(|error| error.to_string()) });
    let entry = AuditEntry { action: "webhook.test", subject: format!("webhook hook_{id}"), details };
    store.audit(&change.actor, entry, member.now).await?;
    let notice = Notice::Tested(AttemptRow::with(attempt, &HashMap::new(), member));
    show_with(member, segment, StatusCode::OK, notice).await
}

async fn rotate(change: &Change<'_>, id: i64, segment: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let text = &member.area.texts.webhook;
    let grace = GRACES.into_iter().find(|(value, _)| *value == change.form.field("grace"));
    let Some((_, grace)) = grace else { return Ok(member.area.unknown(&text.no_grace)) };
    let Some(found) = member.store.find_subscription(id).await? else { return Ok(unknown(member)) };
    let Some(current) = member.store.current_secret(id).await? else { return Ok(unknown(member)) };
    let secret = new_secret();
    let sealed = member.visit.webhooks.seals.seal(&secret, &found.target_url);
    let is_rotated = key_of(&current) == change.form.field("secret_key")
        && member.store.rotate_secret(id, Some(&current), &sealed, grace, Some(&change.actor)).await?.is_some();
    if !is_rotated {
        let warning = Notice::Warned(text.already_rotated.to_string());
        return show_with(member, segment, StatusCode::CONFLICT, warning).await;
    }
    member.visit.webhooks.changes.announce(&member.visit.tenant.slug);
    let tenant = &*member.visit.tenant.slug;
    tracing::info!(tenant, actor = change.actor.name, webhook = id, "an administrator rotated the secret of a webhook");
    show_with(member, segment, StatusCode::OK, Notice::Rotated(secret)).await
}

fn unknown(member: &Member<'_>) -> Reply {
    member.area.unknown(&member.area.texts.webhook.unknown)
}
