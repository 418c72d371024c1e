//! What the command line shares with the routes of subscriptions: how ids and instants are read, and what is shown.

use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::SubscriptionJson;
use super::deliveries::DeliveryJson;
use crate::api::changes::read_cursor;
use crate::api::id::IdKind;
use crate::api::time::{Bound, parse_bound};
use crate::store::{AttemptRecord, Replay, Subscription};

/// A subscription's id, with its prefix or without.
#[must_use]
pub fn parse_subscription_id(text: &str) -> Option<i64> {
    IdKind::Subscription.parse(text)
}

/// A form's id, with its prefix or without.
#[must_use]
pub fn parse_form_id(text: &str) -> Option<i64> {
    IdKind::Form.parse(text)
}

/// A submission's id, with its prefix or without.
#[must_use]
pub fn parse_submission_id(text: &str) -> Option<i64> {
    IdKind::Submission.parse(text)
}

/// Since when events are sent again: a day of a time zone, an RFC 3339 date-time, or a cursor.
#[must_use]
pub fn parse_replay_start(text: &str, zone: &TimeZone) -> Option<Replay> {
    let instant = parse_bound(text, Bound::Start, zone).map(Replay::Since);
    instant.or_else(|| read_cursor(text).map(|(cursor, _)| Replay::After(cursor)))
}

/// A subscription as the API shows it.
#[must_use]
pub fn subscription_json(subscription: Subscription) -> Value {
    json!(SubscriptionJson::from(subscription))
}

/// An attempt to deliver as the API shows it.
#[must_use]
pub fn delivery_json(attempt: &AttemptRecord) -> Value {
    json!(DeliveryJson::from(attempt))
}
