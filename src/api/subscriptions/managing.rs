//! `POST /subscribe/{id}/pause`, `/resume` and `/rotate`: each answers the subscription as it is then.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;

use super::{SubscriptionJson, new_secret};
use crate::api::Call;
use crate::api::body::Body;
use crate::api::id::IdKind;
use crate::api::reader::Scalar;
use crate::api::values::{self, FieldPath};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::Reply;
use crate::store::{Resumed, Subscription};

/// For how long a rotated secret signs together with the new one, unless the request says otherwise.
///
/// Larger: a secret that leaked is valid for longer. Smaller: receivers have less time to learn the new one.
const DEFAULT_GRACE_SECONDS: u32 = 24 * 60 * 60;

/// The longest that a request may say: 30 days.
///
/// Larger: rotating a secret that leaked changes nothing in effect. Smaller: receivers that are deployed once a month
/// miss events.
const MAX_GRACE_SECONDS: u32 = 30 * 24 * 60 * 60;

pub(in crate::api) async fn pause(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = subscription_id(call.id())?;
    reply(call.store(admitted).await?.pause_subscription(id, None).await?, None)
}

pub(in crate::api) async fn resume(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = subscription_id(call.id())?;
    let resumed = match call.store(admitted).await?.resume_subscription(id, None).await? {
        Resumed::Active(resumed) => Some(*resumed),
        Resumed::Unknown => None,
        Resumed::TokenEnded => {
            let fault =
                "The subscription can't be resumed: the token to which it is bound was revoked, or has expired.";
            return Err(Faults::single("subscription", fault));
        }
    };
    call.subscription_changes.announce(&admitted.tenant().slug);
    reply(resumed, None)
}

pub(in crate::api) async fn rotate(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = subscription_id(call.id())?;
    let body = Body::of(call, &["grace_seconds"])?;
    let mut faults = Faults::default();
    let sent = body.entries().next().map(|entry| values::scalar(entry, &mut faults, grace_seconds)).transpose()?;
    let grace = faults.into_result(sent.flatten())?.unwrap_or(DEFAULT_GRACE_SECONDS);
    let store = call.store(admitted).await?;
    let target_url = store.find_subscription(id).await?.ok_or(Refusal::SubscriptionNotFound)?.target_url;
    let secret = new_secret();
    let sealed = call.seals.seal(&secret, &target_url);
    let rotated = store.rotate_secret(id, None, &sealed, Duration::from_secs(grace.into()), None).await?;
    call.subscription_changes.announce(&admitted.tenant().slug);
    reply(rotated, Some(secret))
}

pub(super) fn subscription_id(id: &str) -> Result<i64, Refusal> {
    IdKind::Subscription.parse(id).ok_or(Refusal::SubscriptionNotFound)
}

pub(super) fn reply(subscription: Option<Subscription>, secret: Option<String>) -> Result<Reply, Refusal> {
    let subscription = subscription.ok_or(Refusal::SubscriptionNotFound)?;
    let data = SubscriptionJson { secret, ..SubscriptionJson::from(subscription) };
    Ok(Reply::json(StatusCode::OK, &json!({ "data": data })).with_rows(1))
}

fn grace_seconds(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<u32> {
    let seconds = match *value {
        Scalar::Integer(number) => u32::try_from(number).ok(),
        _ => None,
    };
    let seconds = seconds.filter(|seconds| *seconds <= MAX_GRACE_SECONDS);
    if seconds.is_none() {
        faults.add(path, format_args!("The {path} must be an integer from 0 to {MAX_GRACE_SECONDS}."));
    }
    seconds
}
