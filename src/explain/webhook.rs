//! Walks the way of a webhook: the subscription, its pending events, and a request to its receiver step by step.
//!
//! The request is the one that a node would send, with the newest submission that the subscription is about, signed, and
//! marked `"test": true`. Shows addresses and URLs, but no secret and nothing of a submission.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::database::fault;
use super::{Finding, Trace, find};
use crate::api::{Envelope, EnvelopeBody};
use crate::config::{Config, OperatorAddress, TenantConfig, WebhookConfig};
use crate::host::HostName;
use crate::instant::Rfc3339Micros;
use crate::outbound::{Client, DeliveryReason, EventId, Guard, Message, Probed, Target, signing_secrets};
use crate::store::{Event, InspectedSubscription, PageRequest, PendingEvents, SampleSubmission, Store, StoreError};

/// How many ids of other subscriptions are listed.
///
/// Larger: the line is too long to read. Smaller: the right one may not be among them.
const MAX_LISTED: u32 = 20;

/// How long an event may wait before that needs an explanation, in addition to `sweep_seconds`.
///
/// Larger: it is not noticed that no node delivers. Smaller: a busy receiver is reported.
const PENDING: Duration = Duration::from_secs(60);

/// Traces the webhooks of a subscription of the tenant at a host, which may be given as a URL. Sends its receiver a test.
pub async fn trace_webhook(config: &Config, host: &str, subscription: &str) -> Trace {
    let mut trace = Trace::default();
    let (host, tenant) = match find(config, host) {
        Ok(found) => found,
        Err(finding) => {
            trace.step("name", finding);
            return trace;
        }
    };
    trace.step("name", Finding::passes(format!("`{host}` is a host of the tenant `{}`", tenant.slug)));
    let store = match Store::open(&tenant.database, 1).await {
        Ok(store) => store,
        Err(error) => {
            trace.step("database", fault(&error, tenant));
            return trace;
        }
    };
    let traced = trace_subscription(config, &mut trace, tenant, host, &store, subscription).await;
    store.close().await;
    if let Err(error) = traced {
        trace.step("database", fault(&error, tenant));
    }
    trace
}

async fn trace_subscription(
    config: &Config,
    trace: &mut Trace,
    tenant: &TenantConfig,
    host: &HostName,
    store: &Store,
    subscription: &str,
) -> Result<(), StoreError> {
    let id = subscription.strip_prefix("hook_").unwrap_or(subscription).parse().ok();
    let found = match id {
        Some(id) => store.inspect_subscription(id).await?,
        None => None,
    };
    let Some(found) = found else {
        trace.step("subscription", not_found(store, tenant, subscription).await?);
        return Ok(());
    };
    trace.step("subscription", state(&found, tenant));
    trace.step("pending", find_pending(&config.gateway.webhooks, &found));

    let secrets = signing_secrets(&config.gateway.webhooks.seals, &found.secrets, &found.target_url);
    let secrets = match secrets {
        Ok(secrets) => secrets,
        Err(error) if error.is_of_this_node() => {
            let remedy = "set the key as `secret_key` or `previous_secret_key` in `[gateway.webhooks]` of every node";
            trace.step("secret", Finding::stops(error.to_string(), remedy));
            return Ok(());
        }
        Err(error) => {
            trace.step("secret", Finding::stops(error.to_string(), "delete the subscription, and subscribe again"));
            return Ok(());
        }
    };
    let Ok(target) = Target::parse(&found.target_url) else {
        let what = "the URL can't be used: the subscription is disabled at its next event";
        trace.step("url", Finding::stops(what, "delete the subscription, and subscribe again"));
        return Ok(());
    };
    let sample = match found.event {
        Some(event) => {
            let samples = store.within(&found.reach).sample_submissions(event, found.form, 1).await?;
            samples.into_iter().next().map(|sample| (event, sample))
        }
        None => None,
    };
    let body = match &sample {
        Some((event, sample)) => test_body(store, tenant, host, &found, *event, sample).await?,
        None => None,
    };
    let settings = &config.gateway.webhooks.requests;
    let client = Client::new(settings, Arc::new(guard_of(config).await));
    let sent = body.and_then(|body| Some((EventId::parse(&body.id).ok()?, Bytes::from(body.json))));
    let message = sent.as_ref().map(|(id, body)| Message {
        target: &target,
        id,
        at: Timestamp::now(),
        attempt: 1,
        body: body.clone(),
        secrets: &secrets,
    });
    let probed = client.probe(&target, message.as_ref()).await;
    let passed = probed.iter().all(|probed| probed.finding.is_ok());
    for Probed { step, finding } in probed {
        let finding = match finding {
            Ok(found) => Finding::passes(found),
            Err(fault) => Finding::stops(fault.what, fault.remedy),
        };
        trace.step(step.name(), finding);
    }
    if passed && message.is_none() {
        let what = "not tried: there is no submission to send";
        trace.step("answer", Finding::warns(what, "try again once there is a submission of this form"));
    }
    Ok(())
}

/// Allows the targets that nodes with this configuration allow.
pub async fn guard_of(config: &Config) -> Guard {
    let guard = Guard::new(config.gateway.webhooks.requests.allowed.clone());
    let databases = config.tenants.iter().filter_map(|tenant| tenant.database.host());
    let services: BTreeSet<_> = config.gateway.shared_services().into_iter().chain(databases).collect();
    let operator = config.gateway.operator.iter().flat_map(|operator| &operator.listen);
    let operator = operator.filter_map(|address| match address {
        OperatorAddress::Tcp(address) => Some(*address),
        OperatorAddress::Unix(_) => None,
    });
    guard.refuse_services(services, operator.chain(config.gateway.admin_listen)).await;
    guard
}

/// What waits to be sent, and whether a node sends it.
fn find_pending(config: &WebhookConfig, found: &InspectedSubscription) -> Finding {
    let last = found.last_success_at.map_or("nothing was accepted so far".to_owned(), |at| {
        format!("the last event was accepted on {}", Rfc3339Micros(at))
    });
    let PendingEvents { count, is_more, since } = found.pending;
    let more = if is_more { "more than " } else { "" };
    let mut what = match (count, since) {
        (0, _) | (_, None) => "no event waits".to_owned(),
        (1, Some(at)) => format!("1 event waits, since {}", Rfc3339Micros(at)),
        (_, Some(at)) => format!("{more}{count} events wait, the first since {}", Rfc3339Micros(at)),
    };
    if found.set_aside > 0 {
        what += &format!("; {} that the receiver refused are sent again", found.set_aside);
    }
    what = format!("{what}; {last}");
    if !config.enabled {
        let remedy = "set `enabled = true` in `[gateway.webhooks]`, unless other nodes deliver";
        return Finding::warns(format!("{what}; nodes with this configuration deliver nothing"), remedy);
    }
    if found.is_leased {
        return Finding::passes(format!("{what}; a node sends them now"));
    }
    let is_late = since.is_some_and(|at| at + config.sweep + PENDING < Timestamp::now());
    if found.state == "active" && is_late {
        let remedy = "check that a node runs that serves this tenant with `enabled = true`, and the end of its log";
        return Finding::warns(format!("{what}; no node sends them"), remedy);
    }
    Finding::passes(what)
}

async fn not_found(store: &Store, tenant: &TenantConfig, subscription: &str) -> Result<Finding, StoreError> {
    let page = PageRequest { number: NonZeroU64::MIN, size: MAX_LISTED };
    let known = store.list_subscriptions(page).await?;
    let remedy = match known.items.len() {
        0 => "it has none: one is created by POST /subscribe".to_owned(),
        _ => {
            let ids: Vec<String> = known.items.iter().map(|known| format!("hook_{}", known.id)).collect();
            let more = if known.total > u64::from(MAX_LISTED) { ", …" } else { "" };
            format!("it has {}{more}", ids.join(", "))
        }
    };
    Ok(Finding::stops(format!("the tenant `{}` has no subscription `{subscription}`", tenant.slug), remedy))
}

/// The subscription, and whether its state lets events be sent.
fn state(found: &InspectedSubscription, tenant: &TenantConfig) -> Finding {
    let Some(event) = found.event else {
        return Finding::stops("its event is that of a newer version", "upgrade this node");
    };
    let form = found.form.map_or("every form".to_owned(), |form| format!("for_{form}"));
    let what = format!("hook_{}: {} of {form} to {}; {}", found.id, event.as_str(), found.target_url, found.state);
    let reason = found.reason.map_or_else(|| "without a reason".to_owned(), |reason| reason.to_string());
    let resume = format!("run `formgate webhook resume --tenant {} {}`", tenant.slug, found.id);
    match found.state.as_str() {
        "active" => Finding::passes(what),
        "failing" => {
            let since = found.failing_since.map_or(String::new(), |at| format!(" since {}", Rfc3339Micros(at)));
            let next =
                found.next_attempt_at.map_or(String::new(), |at| format!("; tried again on {}", Rfc3339Micros(at)));
            Finding::warns(
                format!("{what}{since}: {reason}{next}"),
                "the steps below show whether it would succeed now; nothing is lost meanwhile",
            )
        }
        "paused" if found.reason == Some(DeliveryReason::TokenEnded) => Finding::stops(
            format!("{what}: the token to which it is bound was revoked, or has expired"),
            "subscribe again with another token",
        ),
        "paused" => Finding::stops(format!("{what} by its owner: nothing is sent"), resume),
        "disabled" => Finding::stops(
            format!("{what}: {reason}"),
            format!("fix what the steps below find, then {resume}; nothing is lost"),
        ),
        _ => Finding::stops(
            format!("{what}: {reason}"),
            format!("find out why the receiver answered 410, then {resume}"),
        ),
    }
}

/// The body of a test; `None` if the submission was deleted.
async fn test_body(
    store: &Store,
    tenant: &TenantConfig,
    host: &HostName,
    found: &InspectedSubscription,
    event: Event,
    sample: &SampleSubmission,
) -> Result<Option<EnvelopeBody>, StoreError> {
    let envelope = Envelope {
        event,
        changed_at: sample.changed_at,
        account: &tenant.slug,
        host,
        subscription: found.id,
        of_form: found.form,
        reach: &found.reach,
        form: sample.form,
        submission: sample.id,
        cursor: &sample.cursor,
        is_test: true,
    };
    envelope.body(store, &sample.submissions, &tenant.timezone).await
}
