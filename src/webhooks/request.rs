//! One request of a sender, which waits for its permits.

use std::time::Instant;

use bytes::Bytes;
use jiff::Timestamp;

use super::DeliveryContext;
use super::permits::Limits;
use crate::api::EnvelopeBody;
use crate::outbound::{Attempt, EventId, Message, SigningSecret, Target};
use crate::store::DueEvent;

/// An event with its body.
pub(super) struct Ready {
    pub(super) event: DueEvent,
    pub(super) body: EnvelopeBody,
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
    let attempt = context.client.send(&message).await;
    context.metrics.in_flight.dec();
    limits.note(began.elapsed());
    drop(permit);
    Sent { ready, at, attempt: Some(attempt) }
}
