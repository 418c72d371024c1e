//! `POST /subscribe/{id}/test` sends an envelope now, `GET /subscribe/sample` shows some.
//!
//! Both are made of the newest submissions that the event can be about, as a receiver will see them.

use std::time::Instant;

use http::StatusCode;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;

use super::deliveries::DeliveryJson;
use super::managing::subscription_id;
use crate::api::id::IdKind;
use crate::api::submissions::{Envelope, EnvelopeBody};
use crate::api::{Call, query};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::host::HostName;
use crate::outbound::{
    Attempt, DeliveryReason, EventId, Message, NotSent, OnceSent, Target, TestRequests, signing_secrets,
};
use crate::reply::{ReadSubmission, Reply};
use crate::seal::Seals;
use crate::store::{AttemptRecord, Event, FormReach, InspectedSubscription, SampleSubmission, Store, StoreError};

/// How many envelopes a sample has.
///
/// Larger: an answer takes longer. Smaller: tools see less of how events differ.
const SAMPLES: u32 = 3;

/// The account of an envelope.
#[derive(Clone, Copy, Debug)]
pub struct EnvelopeOrigin<'o> {
    /// The account's id.
    pub account: &'o str,
    /// A host of the account.
    pub host: &'o HostName,
    /// Its time zone.
    pub zone: &'o TimeZone,
}

/// Notes that a submission was sent to the receiver of a token's subscription.
pub type NoteRead<'n> = &'n (dyn Fn(i64, ReadSubmission) + Send + Sync);

/// Why a receiver was not tested.
#[derive(Debug, thiserror::Error)]
pub enum Untested {
    /// There is no such subscription.
    #[error("there is no such subscription")]
    UnknownSubscription,
    /// There is no submission that it is about.
    #[error("there is no submission to send yet")]
    NoSubmission,
    /// The subscription can't be used.
    #[error("{0}")]
    Unusable(DeliveryReason),
    /// Too many tests run.
    #[error("too many tests are running")]
    Busy,
    /// This node sends none.
    #[error("this node is a drill, which sends nothing")]
    Drill,
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Sends the newest submission of a subscription to its receiver, marked as a test, whatever the state of the
/// subscription. That counts as read by the token that subscribed, which `note_read` takes.
///
/// # Errors
/// [`Untested`]; a receiver that fails is no error.
pub async fn send_test(
    store: &Store,
    tests: &TestRequests,
    seals: &Seals,
    origin: EnvelopeOrigin<'_>,
    id: i64,
    note_read: NoteRead<'_>,
) -> Result<AttemptRecord, Untested> {
    let began = Instant::now();
    let found = store.inspect_subscription(id).await?.ok_or(Untested::UnknownSubscription)?;
    let event = found.event.ok_or_else(|| Untested::Unusable(DeliveryReason::NewerEvent))?;
    let secrets = signing_secrets(seals, &found.secrets, &found.target_url);
    let secrets = secrets.map_err(|error| Untested::Unusable(error.into()))?;
    let target = Target::parse(&found.target_url);
    let target = target.map_err(|_| Untested::Unusable(DeliveryReason::UnusableUrl))?;
    let store = &store.within(&found.reach);
    let sample = store.sample_submissions(event, found.form, 1).await?.pop().ok_or(Untested::NoSubmission)?;
    let envelope = envelope(origin, event, Some(&found), &found.reach, &sample);
    let body = envelope.body(store, &sample.submissions, origin.zone).await?;
    let EnvelopeBody { id, json } = body.ok_or(Untested::NoSubmission)?;
    let event_id = EventId::parse(&id).expect("an envelope has a valid id");
    let at = Timestamp::now();
    let message = Message { target: &target, id: &event_id, at, attempt: 1, body: json.into(), secrets: &secrets };
    let read = ReadSubmission { id: sample.id, form: Some(sample.form) };
    let mut noting = OnceSent::new(|| {
        if let Some(token) = found.token.filter(|_| event != Event::SubmissionDeleted) {
            note_read(token, read);
        }
    });
    let attempt = match tests.send(origin.account, &message, began).await {
        Ok(attempt) => attempt,
        Err(not_sent) => {
            noting.cancel();
            return Err(match not_sent {
                NotSent::Busy => Untested::Busy,
                NotSent::Off => Untested::Drill,
            });
        }
    };
    noting.end(&attempt);
    Ok(attempt_record(id, event, sample.id, 1, at, &attempt))
}

/// The entry of an attempt in the delivery log. `number` is that of the attempt, from 1.
#[must_use]
pub fn attempt_record(
    event_id: String,
    event: Event,
    submission: i64,
    number: u32,
    at: Timestamp,
    attempt: &Attempt,
) -> AttemptRecord {
    let answer = attempt.outcome.as_ref();
    AttemptRecord {
        event_id,
        event,
        submission,
        attempt: number,
        at,
        took: attempt.took,
        accepted: attempt.is_accepted(),
        status: answer.ok().map(|answer| answer.status.as_u16()),
        error: answer.err().map(|error| (*error).into()),
        response: answer.ok().map(|answer| answer.excerpt.clone()),
    }
}

/// An envelope of a subscription, or one that no subscription gets.
fn envelope<'e>(
    origin: EnvelopeOrigin<'e>,
    event: Event,
    subscription: Option<&InspectedSubscription>,
    reach: &'e FormReach,
    sample: &'e SampleSubmission,
) -> Envelope<'e> {
    Envelope {
        event,
        changed_at: sample.changed_at,
        account: origin.account,
        host: origin.host,
        subscription: subscription.map_or(0, |found| found.id),
        of_form: subscription.and_then(|found| found.form),
        reach,
        form: sample.form,
        submission: sample.id,
        cursor: &sample.cursor,
        is_test: subscription.is_some(),
    }
}

pub(in crate::api) async fn test(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = subscription_id(call.id())?;
    let (store, tenant) = (call.store(admitted).await?, admitted.tenant());
    let origin = EnvelopeOrigin { account: &tenant.slug, host: &tenant.address, zone: &tenant.timezone };
    let note_read = |token, read| tenant.note_reads(token, &[read]);
    match send_test(&store, call.tests, call.seals, origin, id, &note_read).await {
        Ok(attempt) => Ok(Reply::json(StatusCode::OK, &json!({ "data": DeliveryJson::from(&attempt) })).with_rows(1)),
        Err(Untested::UnknownSubscription) => Err(Refusal::SubscriptionNotFound),
        Err(Untested::Busy) => Err(StoreError::Busy.into()),
        Err(Untested::Store(error)) => Err(error.into()),
        Err(untested @ (Untested::NoSubmission | Untested::Unusable(_) | Untested::Drill)) => {
            Err(Faults::single("subscription", format_args!("The subscription can't be tested: {untested}.")))
        }
    }
}

pub(in crate::api) async fn sample(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let mut faults = Faults::default();
    let event = query::value(call, "event", &mut faults).map_or(Some(Event::default()), |text| Event::parse(&text));
    if event.is_none() {
        faults.add("event", format_args!("The event must be one of {}.", Event::ALL.map(Event::as_str).join(", ")));
    }
    let form = query::value(call, "form", &mut faults).map(|text| IdKind::Form.parse(&text));
    if form == Some(None) {
        faults.add("form", "The form must be the id of a form.");
    }
    let (event, form) = faults.into_result((event.unwrap_or_default(), form.flatten()))?;
    let (store, tenant) = (call.store(admitted).await?, admitted.tenant());
    let origin = EnvelopeOrigin { account: &tenant.slug, host: &tenant.address, zone: &tenant.timezone };
    let (mut array, mut count, mut read) = (String::from("["), 0, Vec::new());
    for sample in store.sample_submissions(event, form, SAMPLES).await? {
        let envelope = envelope(origin, event, None, admitted.token().reach(), &sample);
        if let Some(body) = envelope.body(&store, &sample.submissions, origin.zone).await? {
            array += if count > 0 { "," } else { "" };
            array += &body.json;
            count += 1;
            if event != Event::SubmissionDeleted {
                read.push(ReadSubmission { id: sample.id, form: Some(sample.form) });
            }
        }
    }
    array += "]";
    Ok(Reply::of_json(StatusCode::OK, array.into_bytes()).with_rows(count).with_read(read))
}
