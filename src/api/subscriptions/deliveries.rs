//! `GET /subscribe/{id}/deliveries`: the attempts to deliver the events of a subscription.

use serde::Serialize;

use super::managing::subscription_id;
use crate::api::id::{Id, IdKind};
use crate::api::{Call, page, query};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::instant::Rfc3339Micros;
use crate::reply::Reply;
use crate::store::AttemptRecord;

/// The number of attempts on a page.
///
/// Larger: a response takes longer and more memory: each attempt may have the beginning of an answer. Smaller: reading
/// all takes more requests of the budget.
const PAGE_SIZE: u32 = 50;

/// An attempt as callers see it.
#[derive(Serialize)]
pub(super) struct DeliveryJson<'d> {
    event: &'d str,
    r#type: &'static str,
    submission: Id,
    attempt: u32,
    at: Rfc3339Micros,
    duration_ms: u64,
    status: Option<u16>,
    error: Option<String>,
    response: Option<&'d str>,
}

impl<'d> From<&'d AttemptRecord> for DeliveryJson<'d> {
    fn from(attempt: &'d AttemptRecord) -> Self {
        Self {
            event: &attempt.event_id,
            r#type: attempt.event.as_str(),
            submission: IdKind::Submission.id(attempt.submission),
            attempt: attempt.attempt,
            at: Rfc3339Micros(attempt.at),
            duration_ms: u64::try_from(attempt.took.as_millis()).unwrap_or(u64::MAX),
            status: attempt.status,
            error: attempt.error.map(|error| error.to_string()),
            response: attempt.response.as_deref(),
        }
    }
}

pub(in crate::api) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = subscription_id(call.id())?;
    let mut faults = Faults::default();
    let request = page::parse(call, PAGE_SIZE, &mut faults);
    let accepted = match query::value(call, "status", &mut faults).as_deref() {
        None => None,
        Some("succeeded") => Some(true),
        Some("failed") => Some(false),
        Some(_) => {
            faults.add("status", "The status must be failed or succeeded.");
            None
        }
    };
    let request = faults.into_result(request)?;
    let attempts = call.store(admitted).await?.list_attempts(id, accepted, request).await?;
    let attempts = attempts.ok_or(Refusal::SubscriptionNotFound)?;
    let path = format!("/api/v1/subscribe/{}/deliveries", IdKind::Subscription.id(id));
    Ok(page::reply(call, &path, request, attempts, |json, attempt| {
        json.value(&DeliveryJson::from(&attempt));
    }))
}
