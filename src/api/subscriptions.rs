//! `GET /subscribe`, `POST /subscribe`, `GET /subscribe/{id}`, `DELETE /subscribe/{id}`, `POST /unsubscribe`: webhooks
//! for automation tools.
//!
//! A subscription's secret is returned once, in the response that creates or rotates it. What else can be done with a
//! subscription is in [`managing`], [`replay`] and [`deliveries`].

pub(super) mod deliveries;
pub(super) mod managing;
pub(super) mod replay;
pub(super) mod shown;
pub(super) mod test;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use jiff::Timestamp;
use rand::Rng;
use serde::Serialize;
use serde_json::json;
use url::{ParseError, Url};

use super::Call;
use super::body::{Body, BodyEntry};
use super::id::{Id, IdKind};
use super::page;
use super::reader::Scalar;
use super::values::{self, FieldPath};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::host::HostName;
use crate::instant::Rfc3339Micros;
use crate::outbound::{Guard, Target};
use crate::reply::Reply;
use crate::store::{Event, MAX_SUBSCRIPTIONS, Subscribed, Subscription, SubscriptionKey, Unsubscription};

/// The number of subscriptions on a page.
///
/// Larger: a response takes longer and more memory. Smaller: listing all subscriptions takes more requests of the
/// budget.
const PAGE_SIZE: u32 = 100;

/// The maximum length of a target URL.
///
/// Larger: it may not fit into an index entry. Smaller: URLs of some tools are
/// refused.
const MAX_URL_BYTES: usize = 2048;

/// The keys of the bodies. Only `POST /unsubscribe` takes the first, and only `POST /subscribe` the last; the four after the
/// first are aliases used by different tools.
const KEYS: [&str; 8] = ["id", "target_url", "hookUrl", "targetUrl", "url", "event", "form", "bound"];

/// The size of a secret in bytes: that of the HMAC-SHA256 it will sign with.
const SECRET_BYTES: usize = 32;

#[derive(Serialize)]
struct SubscriptionJson {
    id: Id,
    target_url: String,
    event: String,
    form: Option<Id>,
    created_at: Rfc3339Micros,
    state: String,
    reason: Option<String>,
    failing_since: Option<Rfc3339Micros>,
    next_attempt_at: Option<Rfc3339Micros>,
    pending: u64,
    last_success_at: Option<Rfc3339Micros>,
    lost_deletions: u64,
    lost_until: Option<Rfc3339Micros>,
    bound: bool,
    /// Those to which the token that made it is limited.
    forms: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

impl From<Subscription> for SubscriptionJson {
    fn from(subscription: Subscription) -> Self {
        Self {
            id: IdKind::Subscription.id(subscription.id),
            target_url: subscription.target_url,
            event: subscription.event,
            form: subscription.form.map(|form| IdKind::Form.id(form)),
            created_at: Rfc3339Micros(subscription.created_at),
            state: subscription.state,
            reason: subscription.reason.map(|reason| reason.to_string()),
            failing_since: subscription.failing_since.map(Rfc3339Micros),
            next_attempt_at: subscription.next_attempt_at.map(Rfc3339Micros),
            pending: subscription.pending,
            last_success_at: subscription.last_success_at.map(Rfc3339Micros),
            lost_deletions: subscription.lost_deletions,
            lost_until: subscription.lost_until.map(Rfc3339Micros),
            bound: subscription.bound,
            forms: subscription.reach.names(),
            secret: None,
        }
    }
}

pub(super) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let mut faults = Faults::default();
    let request = page::parse(call, PAGE_SIZE, &mut faults);
    let request = faults.into_result(request)?;
    let subscriptions = call.store(admitted).await?.list_subscriptions(request).await?;
    Ok(page::reply(call, "/api/v1/subscribe", request, subscriptions, |json, subscription| {
        json.value(&SubscriptionJson::from(subscription));
    }))
}

pub(super) async fn show(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = IdKind::Subscription.parse(call.id()).ok_or(Refusal::SubscriptionNotFound)?;
    let found = call.store(admitted).await?.find_subscription(id).await?.ok_or(Refusal::SubscriptionNotFound)?;
    Ok(Reply::json(StatusCode::OK, &json!({ "data": SubscriptionJson::from(found) })).with_rows(1))
}

pub(super) async fn subscribe(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let body = Body::of(call, &KEYS[1..])?;
    let mut faults = Faults::default();
    let params = SubscriptionParams::read(&body, &mut faults)?;
    let bound = body.entries().find(|entry| entry.name == "bound");
    let bound = bound.map(|entry| bound_of(entry, &mut faults)).unwrap_or_default();
    let named = params.url_key.unwrap_or("target_url");
    match &params.target_url {
        Some(url) => {
            if let Some(fault) = target_fault(url, call.targets) {
                faults.add(named, format_args!("The {named} {fault}."));
            }
        }
        None if params.url_key.is_none() => faults.add(named, "The target_url is required."),
        None => {}
    }
    let params = faults.into_result(params)?;
    let key = SubscriptionKey {
        target_url: params.target_url.unwrap_or_default(),
        event: params.event.unwrap_or_default(),
        form: params.form.flatten(),
    };
    let secret = new_secret();
    let sealed = call.seals.seal(&secret, &key.target_url);
    let store = call.store(admitted).await?;
    // Before it is there: a node that dies in between has told the others too much, and not too little.
    call.subscription_changes.will_subscribe(&admitted.tenant().slug).await;
    let (status, subscription) = match store.subscribe(&key, bound, &sealed, Timestamp::now()).await? {
        Subscribed::Created(made) => {
            call.subscription_changes.announce(&admitted.tenant().slug);
            (StatusCode::CREATED, SubscriptionJson { secret: Some(secret), ..SubscriptionJson::from(made) })
        }
        Subscribed::Existing(known) => (StatusCode::OK, known.into()),
        Subscribed::UnknownForm => return Err(Faults::single("form", "The form does not exist.")),
        Subscribed::TooMany => {
            let fault = format_args!("The account has {MAX_SUBSCRIPTIONS} subscriptions already: delete one first.");
            return Err(Faults::single(named, fault));
        }
    };
    Ok(Reply::json(status, &json!({ "data": subscription })).with_rows(1))
}

/// Deletes a subscription by the id that `POST /subscribe` returned. Deleting it again succeeds, as in
/// [`unsubscribe`]: tools retry, and take an error to mean that the subscription still exists.
pub(super) async fn delete(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = IdKind::Subscription.parse(call.id()).ok_or(Refusal::SubscriptionNotFound)?;
    let deleted = call.store(admitted).await?.unsubscribe(&Unsubscription::Id(id)).await?;
    Ok(Reply::json(StatusCode::OK, &json!({ "deleted": deleted })))
}

pub(super) async fn unsubscribe(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let body = Body::of(call, &KEYS[..7])?;
    let mut faults = Faults::default();
    let params = SubscriptionParams::read(&body, &mut faults)?;
    let id = body.entries().find(|entry| entry.name == "id");
    let id = id.map(|entry| values::scalar(entry, &mut faults, subscription_id)).transpose()?;
    if id.is_none() && params.url_key.is_none() {
        faults.add("id", "The id or the target_url is required.");
    }
    let params = faults.into_result(params)?;
    let which = match (id.flatten(), params.target_url) {
        (Some(id), _) => Unsubscription::Id(id),
        (None, target_url) => Unsubscription::Target {
            target_url: target_url.unwrap_or_default(),
            event: params.event,
            form: params.form,
        },
    };
    let deleted = call.store(admitted).await?.unsubscribe(&which).await?;
    Ok(Reply::json(StatusCode::OK, &json!({ "deleted": deleted })))
}

/// The parameters in a body.
#[derive(Default)]
struct SubscriptionParams {
    target_url: Option<String>,
    /// The key under which the URL was sent.
    url_key: Option<&'static str>,
    event: Option<Event>,
    /// The outer `None` is a missing key, the inner one `null`, which means every form.
    form: Option<Option<i64>>,
}

impl SubscriptionParams {
    fn read(body: &Body<'_>, faults: &mut Faults) -> Result<Self, Refusal> {
        let mut params = Self::default();
        if body.has_key("form") {
            params.form = Some(None);
        }
        let mut first_url: Option<&BodyEntry<'_>> = None;
        for entry in body.entries() {
            let name = entry.name;
            match name {
                "target_url" | "hookUrl" | "targetUrl" | "url" => match first_url {
                    None => {
                        first_url = Some(entry);
                        params.url_key = Some(name);
                        params.target_url = values::scalar(entry, faults, target_url)?;
                    }
                    Some(first) if first.json.get() != entry.json.get() => faults.add(
                        name,
                        format_args!(
                            "The {name} and the {} are names of one value, and differ: send only one.",
                            first.name
                        ),
                    ),
                    Some(_) => {}
                },
                "event" => params.event = values::scalar(entry, faults, event)?,
                "form" => params.form = Some(values::scalar(entry, faults, form)?),
                _ => {}
            }
        }
        Ok(params)
    }
}

fn target_url(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<String> {
    let text = values::text(value, path, faults)?;
    if let Some(fault) = url_fault(text) {
        faults.add(path, format_args!("The {path} {fault}."));
        return None;
    }
    Some(text.to_owned())
}

fn url_fault(text: &str) -> Option<&'static str> {
    // Check before parsing, which copies the URL.
    if text.len() > MAX_URL_BYTES {
        return Some("must have at most 2048 characters");
    }
    // The parser accepts surrounding whitespace and characters that should be percent-encoded. Here they are refused,
    // since subscriptions are compared by the text of the path and the query.
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some("must be ASCII: an international host in its xn-- form, the rest percent-encoded");
    }
    match Url::parse(text) {
        Ok(url) if url.scheme() != "https" || !url.has_host() => Some("must be an https URL"),
        Ok(url) if !url.username().is_empty() || url.password().is_some() => Some("must not contain credentials"),
        Ok(url) if url.port() == Some(0) => Some("must have a port from 1 to 65535, or none"),
        Ok(_) if !has_valid_host(text) => Some("must have a host that can be looked up"),
        Ok(_) => None,
        Err(ParseError::InvalidPort) => Some("must have a port from 1 to 65535, or none"),
        Err(ParseError::InvalidIpv4Address | ParseError::InvalidIpv6Address) => {
            Some("must have a host that is a name or a valid IP address")
        }
        Err(_) => Some("must be an https URL"),
    }
}

/// Why webhooks are never sent to a URL. Only subscribing checks it: a subscription from before `allow_targets` changed
/// can still be deleted by its URL.
fn target_fault(url: &str, targets: &Guard) -> Option<&'static str> {
    match Target::parse(url) {
        Ok(target) => targets.check_literal(&target).is_err().then_some("is a blocked address: it must be public"),
        Err(_) => Some("must be an https URL"),
    }
}

/// Whether a URL has two slashes followed by a host that can be resolved or certified. The parser accepts more: `*`,
/// percent-encoded letters, backslashes, no slashes at all.
fn has_valid_host(url: &str) -> bool {
    let rest = url.split_once("://").map(|(_, rest)| rest);
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
    authority.is_some_and(|authority| HostName::parse_authority(authority).is_ok())
}

/// Whether a subscription ends with its token.
fn bound_of(entry: &BodyEntry<'_>, faults: &mut Faults) -> bool {
    let sent = entry.json.get();
    if !matches!(sent, "true" | "false") {
        faults.add("bound", "The bound must be true or false.");
    }
    sent == "true"
}

fn event(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<Event> {
    let event = if let Scalar::String(text) = value { Event::parse(text) } else { None };
    if event.is_none() {
        faults.add(path, format_args!("The {path} must be one of {}.", Event::ALL.map(Event::as_str).join(", ")));
    }
    event
}

fn form(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<i64> {
    values::id(value, path, IdKind::Form, faults)
}

fn subscription_id(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<i64> {
    values::id(value, path, IdKind::Subscription, faults)
}

/// A new secret in the format of the Standard Webhooks specification.
#[must_use]
pub fn new_secret() -> String {
    let mut secret = [0; SECRET_BYTES];
    rand::rng().fill_bytes(&mut secret);
    format!("whsec_{}", STANDARD.encode(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_with_an_address_that_is_not_public_is_refused() {
        let guard = Guard::default();
        for url in
            ["https://10.0.0.1:8443", "https://0x7f.1/", "https://[::ffff:127.0.0.1]/", "https://169.254.169.254/"]
        {
            assert_eq!(target_fault(url, &guard), Some("is a blocked address: it must be public"), "{url}");
        }
        for url in ["https://1.1.1.1", "https://hooks.test", "https://localhost:8443", "https://-a_b.c-.:80?x={\\}"] {
            assert_eq!(target_fault(url, &guard), None, "{url}");
        }
    }

    #[test]
    fn a_target_is_an_https_url_without_credentials() {
        let long = format!("https://hooks.test/{}", "x".repeat(2048));
        for (text, sound) in [
            ("https://hooks.test/catch/1?a=b", true),
            ("HTTPS://hooks.test", true),
            ("https://10.0.0.1:8443", true),
            ("https://[2001:db8::1]:8443/x", true),
            ("https://-a_b.c-.:80?x={\\}", true),
            ("https:hooks.test", false),
            ("https:\\\\hooks.test", false),
            ("https://hooks.test\\x", false),
            ("https://*.hooks.test", false),
            ("https://h%6foks.test", false),
            ("https://hooks..test", false),
            ("https://hooks.test:65536", false),
            ("https://10.0.0.256", false),
            ("http://hooks.test", false),
            ("https://", false),
            ("https://user@hooks.test", false),
            ("https://:pw@hooks.test", false),
            ("ftp://hooks.test", false),
            ("//hooks.test", false),
            ("https://hooks.test/ä", false),
            (" https://hooks.test", false),
            ("", false),
            (long.as_str(), false),
        ] {
            let mut faults = Faults::default();
            assert_eq!(
                target_url(&Scalar::String(text), FieldPath::Top("target_url"), &mut faults).is_some(),
                sound,
                "{text}"
            );
            assert_eq!(faults.into_result(()).is_ok(), sound, "{text}");
        }
    }
}
