//! One request of a sender, once it has its permits.

use std::time::Instant;

use bytes::Bytes;
use jiff::Timestamp;

use super::Hub;
use super::permits::Lane;
use crate::api::EnvelopeBody;
use crate::outbound::{Attempt, EventId, Message, SigningSecret, Target};
use crate::store::DueEvent;

/// An event with its body.
pub(super) struct Ready {
    pub(super) event: DueEvent,
    pub(super) body: EnvelopeBody,
}

/// What came of a request. None: it was not made, because the node stops.
pub(super) struct Sent {
    pub(super) ready: Ready,
    pub(super) at: Timestamp,
    pub(super) attempt: Option<Attempt>,
}

/// Sends an event as soon as the limits allow.
pub(super) async fn send(hub: &Hub, lane: &Lane, target: &Target, secrets: &[SigningSecret], ready: Ready) -> Sent {
    let not_sent = |ready| Sent { ready, at: Timestamp::now(), attempt: None };
    let permit = tokio::select! {
        permit = hub.permits.acquire(lane, ready.body.json.len()) => permit,
        () = hub.stopping.cancelled() => return not_sent(ready),
    };
    // A stored id is one that was written here.
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
    hub.metrics.in_flight.inc();
    let attempt = hub.client.send(&message).await;
    hub.metrics.in_flight.dec();
    lane.note(began.elapsed());
    drop(permit);
    Sent { ready, at, attempt: Some(attempt) }
}
