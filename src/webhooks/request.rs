//! One request of a sender, which waits for its permits.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use jiff::Timestamp;

use super::DeliveryContext;
use super::permits::Limits;
use crate::api::EnvelopeBody;
use crate::outbound::{Attempt, EventId, Message, OnceSent, SigningSecret, Target};
use crate::reply::ReadSubmission;
use crate::store::{DueEvent, Event};
use crate::tenant::Tenant;

/// An event with its body.
pub(super) struct Ready {
    pub(super) event: DueEvent,
    pub(super) body: EnvelopeBody,
}

/// The subscription that requests are for.
#[derive(Clone)]
pub(super) struct Recipient {
    pub(super) tenant: Arc<Tenant>,
    pub(super) event: Event,
    /// The token that made it, if that is known. What is sent counts as read by this token.
    pub(super) token: Option<i64>,
}

impl Recipient {
    /// Notes that the submission of an event was sent. A deletion shows none.
    fn note(&self, event: &DueEvent) {
        if let Some(token) = self.token.filter(|_| self.event != Event::SubmissionDeleted) {
            // After a TRUNCATE, an event that is sent again has no known form.
            let form = Some(event.form).filter(|form| *form > 0);
            self.tenant.note_reads(token, &[ReadSubmission { id: event.submission, form }]);
            self.tenant.write_behind_request();
        }
    }
}

/// The end of a request.
pub(super) struct Sent {
    pub(super) ready: Ready,
    pub(super) at: Timestamp,
    /// The outcome; `None` if the node is stopping.
    pub(super) attempt: Option<Attempt>,
}

/// Sends an event as soon as the limits allow.
pub(super) async fn send(
    context: &DeliveryContext,
    recipient: &Recipient,
    limits: &Limits,
    target: &Target,
    secrets: &[SigningSecret],
    ready: Ready,
) -> Sent {
    let not_sent = |ready| Sent { ready, at: Timestamp::now(), attempt: None };
    let permit = tokio::select! {
        permit = context.permits.acquire(limits, ready.body.json.len()) => permit,
        () = context.stopping.cancelled() => return not_sent(ready),
    };
    // Stored ids are always valid.
    let Ok(id) = EventId::parse(&ready.body.id) else { return not_sent(ready) };
    let (at, began) = (Timestamp::now(), Instant::now());
    let message = Message {
        target,
        id: &id,
        at,
        attempt: ready.event.attempts.saturating_add(1),
        body: Bytes::from(ready.body.json.clone()),
        secrets,
    };
    context.metrics.in_flight.inc();
    let noting = OnceSent::new(|| recipient.note(&ready.event));
    let attempt = context.client.send(&message).await;
    noting.end(&attempt);
    context.metrics.in_flight.dec();
    limits.note(began.elapsed());
    drop(permit);
    Sent { ready, at, attempt: Some(attempt) }
}
