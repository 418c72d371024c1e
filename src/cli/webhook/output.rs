//! What `formgate webhook` prints: tables for people, and JSON as the API has it.

use crate::api::{delivery_json, subscription_json};
use crate::cli::output::{pretty, shown, table};
use crate::store::{AttemptRecord, Subscription};

/// The form of a subscription to every form.
const EVERY_FORM: &str = "every";

/// The form of a subscription to every form that its token reaches.
const IN_REACH: &str = "in reach";

/// Every subscription.
pub(super) fn subscriptions(subscriptions: Vec<Subscription>, json: bool) -> String {
    if json {
        return pretty(&subscriptions.into_iter().map(subscription_json).collect());
    }
    let head = ["ID", "STATE", "EVENT", "FORM", "PENDING", "LAST SUCCESS", "TARGET"].map(str::to_owned);
    let rows = subscriptions.into_iter().map(|of| {
        let every = if of.reach.is_all() { EVERY_FORM } else { IN_REACH };
        let form = of.form.map_or_else(|| every.to_owned(), |form| format!("for_{form}"));
        let success = shown(of.last_success_at);
        [format!("hook_{}", of.id), of.state, of.event, form, of.pending.to_string(), success, of.target_url]
    });
    table(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

/// One, a line for each field.
pub(super) fn subscription(subscription: Subscription, json: bool) -> String {
    let reach = subscription.reach.clone();
    let value = subscription_json(subscription);
    if json {
        return pretty(&value);
    }
    let fields = value.as_object().into_iter().flatten().map(|(name, value)| {
        let text = match value.as_str() {
            Some(text) => text.to_owned(),
            None if name == "forms" && !reach.is_all() => format!("{reach} (those of its token, with sub-forms)"),
            None if !value.is_null() => value.to_string(),
            None if name == "form" && !reach.is_all() => IN_REACH.to_owned(),
            None if name == "form" => EVERY_FORM.to_owned(),
            None => "-".to_owned(),
        };
        [name.replace('_', " "), text]
    });
    table(&fields.collect::<Vec<_>>())
}

/// Attempts to deliver.
pub(super) fn attempts(attempts: &[AttemptRecord], json: bool) -> String {
    if json {
        return pretty(&attempts.iter().map(delivery_json).collect());
    }
    let head = ["AT", "SUBMISSION", "ATTEMPT", "STATUS", "MS", "EVENT", "ERROR"].map(str::to_owned);
    let rows = attempts.iter().map(|of| {
        [
            of.at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            format!("sub_{}", of.submission),
            of.attempt.to_string(),
            of.status.map_or_else(|| "-".to_owned(), |status| status.to_string()),
            of.took.as_millis().to_string(),
            of.event_id.clone(),
            of.error.map_or_else(|| "-".to_owned(), |error| error.to_string()),
        ]
    });
    table(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}
