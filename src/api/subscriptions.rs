//! `GET /subscribe`, `POST /subscribe`, `GET /subscribe/{id}`, `DELETE /subscribe/{id}`, `POST /unsubscribe`: for automation
//! tools.
//!
//! Nothing is delivered yet; a subscription holds what delivery will need. Its secret is shown once, in the answer that
//! makes it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use jiff::Timestamp;
use rand::Rng;
use serde::Serialize;
use serde_json::json;
use url::Url;

use super::ask::{self, Path};
use super::body::{Body, Sent};
use super::id::{Id, Kind};
use super::page;
use super::shape::Scalar;
use super::time::Instant;
use super::{Call, store};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::host::HostName;
use crate::reply::Reply;
use crate::store::{Event, Subscribed, Subscription, SubscriptionKey, Unsubscription};

/// Subscriptions on a page.
const PAGE_SIZE: u32 = 100;

/// The most characters of a target URL. More than any tool uses, and little enough for an index entry.
const LONGEST_URL: usize = 2048;

/// The keys that bodies may have. Only `POST /unsubscribe` knows the first; the four after it are names of one value, which
/// automation tools call differently.
const KNOWN: [&str; 7] = ["id", "target_url", "hookUrl", "targetUrl", "url", "event", "form"];

/// Bytes of a secret: as many as the HMAC-SHA256 that it will sign with has.
const SECRET: usize = 32;

#[derive(Serialize)]
struct SubscriptionJson {
    id: Id,
    target_url: String,
    event: String,
    form: Option<Id>,
    created_at: Instant,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

impl From<Subscription> for SubscriptionJson {
    fn from(subscription: Subscription) -> Self {
        Self {
            id: Kind::Subscription.show(subscription.id),
            target_url: subscription.target_url,
            event: subscription.event,
            form: subscription.form.map(|form| Kind::Form.show(form)),
            created_at: Instant(subscription.created_at),
            secret: None,
        }
    }
}

pub(super) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let mut faults = Faults::default();
    let request = page::requested(call, PAGE_SIZE, &mut faults);
    let request = faults.or_else(request)?;
    let subscriptions = store(admitted).await?.list_subscriptions(request).await?;
    Ok(page::reply(call, "/api/v1/subscribe", request, subscriptions, |json, subscription| {
        json.value(&SubscriptionJson::from(subscription));
    }))
}

pub(super) async fn show(admitted: &Admitted, id: &str) -> Result<Reply, Refusal> {
    let id = Kind::Subscription.parse(id).ok_or(Refusal::SubscriptionNotFound)?;
    let found = store(admitted).await?.find_subscription(id).await?.ok_or(Refusal::SubscriptionNotFound)?;
    Ok(Reply::json(StatusCode::OK, &json!({ "data": SubscriptionJson::from(found) })))
}

pub(super) async fn subscribe(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let body = Body::of(call, &KNOWN[1..])?;
    let mut faults = Faults::default();
    let asked = Asked::read(&body, &mut faults)?;
    if asked.target_url.is_none() && !asked.url_was_sent {
        faults.add("target_url", "The target_url is required.");
    }
    let asked = faults.or_else(asked)?;
    let triple = SubscriptionKey {
        target_url: asked.target_url.unwrap_or_default(),
        event: asked.event.unwrap_or_default(),
        form: asked.form.flatten(),
    };
    let secret = new_secret();
    let (status, subscription) = match store(admitted).await?.subscribe(&triple, &secret, Timestamp::now()).await? {
        Subscribed::Created(made) => {
            (StatusCode::CREATED, SubscriptionJson { secret: Some(secret), ..SubscriptionJson::from(made) })
        }
        Subscribed::Existing(known) => (StatusCode::OK, known.into()),
        Subscribed::UnknownForm => return Err(Faults::only("form", "The form does not exist.")),
    };
    Ok(Reply::json(status, &json!({ "data": subscription })))
}

/// Deletes one by its id, as tools do that keep the id which `POST /subscribe` answered. Deleting it again is a success, as it
/// is for [`unsubscribe`]: tools repeat the call, and take an error for a subscription that is still there.
pub(super) async fn delete(admitted: &Admitted, id: &str) -> Result<Reply, Refusal> {
    let id = Kind::Subscription.parse(id).ok_or(Refusal::SubscriptionNotFound)?;
    let deleted = store(admitted).await?.unsubscribe(&Unsubscription::Id(id)).await?;
    Ok(Reply::json(StatusCode::OK, &json!({ "deleted": deleted })))
}

pub(super) async fn unsubscribe(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let body = Body::of(call, &KNOWN)?;
    let mut faults = Faults::default();
    let asked = Asked::read(&body, &mut faults)?;
    let id = body.sent().find(|sent| sent.name == "id");
    let id = id.map(|sent| ask::one(sent, &mut faults, subscription_id)).transpose()?;
    if id.is_none() && !asked.url_was_sent {
        faults.add("id", "The id or the target_url is required.");
    }
    let asked = faults.or_else(asked)?;
    let which = match (id.flatten(), asked.target_url) {
        (Some(id), _) => Unsubscription::Id(id),
        (None, target_url) => {
            Unsubscription::Target { target_url: target_url.unwrap_or_default(), event: asked.event, form: asked.form }
        }
    };
    let deleted = store(admitted).await?.unsubscribe(&which).await?;
    Ok(Reply::json(StatusCode::OK, &json!({ "deleted": deleted })))
}

/// What a body asks for, as far as it was sent.
#[derive(Default)]
struct Asked {
    target_url: Option<String>,
    url_was_sent: bool,
    event: Option<Event>,
    /// The outer none is a form that was not sent, the inner one `null`: every form.
    form: Option<Option<i64>>,
}

impl Asked {
    fn read(body: &Body<'_>, faults: &mut Faults) -> Result<Self, Refusal> {
        let mut asked = Self::default();
        if body.names("form") {
            asked.form = Some(None);
        }
        let mut first_url: Option<&Sent<'_>> = None;
        for sent in body.sent() {
            let name = sent.name;
            match name {
                "target_url" | "hookUrl" | "targetUrl" | "url" => match first_url {
                    None => {
                        first_url = Some(sent);
                        asked.url_was_sent = true;
                        asked.target_url = ask::one(sent, faults, target_url)?;
                    }
                    Some(first) if first.text.get() != sent.text.get() => faults.add(
                        name,
                        format_args!(
                            "The {name} and the {} are names of one value, and differ: send only one.",
                            first.name
                        ),
                    ),
                    Some(_) => {}
                },
                "event" => asked.event = ask::one(sent, faults, event)?,
                "form" => asked.form = Some(ask::one(sent, faults, form)?),
                _ => {}
            }
        }
        Ok(asked)
    }
}

fn target_url(value: &Scalar<'_>, path: Path<'_>, faults: &mut Faults) -> Option<String> {
    let text = ask::text(value, path, faults)?;
    if let Some(fault) = fault_of_url(text) {
        faults.add(path, format_args!("The {path} {fault}."));
        return None;
    }
    Some(text.to_owned())
}

fn fault_of_url(text: &str) -> Option<&'static str> {
    // Before it is parsed, which copies it.
    if text.len() > LONGEST_URL {
        return Some("must have at most 2048 characters");
    }
    // The parser forgives blanks around it and characters that should be percent-encoded; a URL that is to be found again by
    // its text is not forgiven.
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some("must be ASCII, the rest percent-encoded");
    }
    match Url::parse(text) {
        Ok(url) if url.scheme() != "https" || !url.has_host() => Some("must be an https URL"),
        Ok(url) if !url.username().is_empty() || url.password().is_some() => Some("must not contain credentials"),
        Ok(_) if !names_a_host(text) => Some("must have a host that can be looked up"),
        Ok(_) => None,
        Err(_) => Some("must be an https URL"),
    }
}

/// Whether a URL has two slashes and then a host that a resolver or a certificate can name. The parser takes more: `*`,
/// percent-encoded letters, backslashes, no slashes at all.
fn names_a_host(url: &str) -> bool {
    let rest = url.split_once("://").map(|(_, rest)| rest);
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
    authority.is_some_and(|authority| HostName::parse_authority(authority).is_ok())
}

fn event(value: &Scalar<'_>, path: Path<'_>, faults: &mut Faults) -> Option<Event> {
    let event = if let Scalar::Text(text) = value { Event::parse(text) } else { None };
    if event.is_none() {
        faults.add(path, format_args!("The {path} must be one of {}.", Event::ALL.map(Event::as_str).join(", ")));
    }
    event
}

fn form(value: &Scalar<'_>, path: Path<'_>, faults: &mut Faults) -> Option<i64> {
    ask::id(value, path, Kind::Form, faults)
}

fn subscription_id(value: &Scalar<'_>, path: Path<'_>, faults: &mut Faults) -> Option<i64> {
    ask::id(value, path, Kind::Subscription, faults)
}

/// A secret in the form of the Standard Webhooks specification.
fn new_secret() -> String {
    let mut secret = [0; SECRET];
    rand::rng().fill_bytes(&mut secret);
    format!("whsec_{}", STANDARD.encode(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

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
                target_url(&Scalar::Text(text), Path::Top("target_url"), &mut faults).is_some(),
                sound,
                "{text}"
            );
            assert_eq!(faults.or_else(()).is_ok(), sound, "{text}");
        }
    }
}
