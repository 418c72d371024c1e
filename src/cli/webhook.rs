//! `formgate webhook`: shows and manages the subscriptions of a tenant, for when webhooks don't arrive.
//!
//! It reads and changes the tenant's database, where every node notices it. Ids are as in the API, or bare numbers.

mod output;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::output::{print, print_secret, print_stderr};
use super::{OfTenant, TenantChoice, actor};
use crate::api::{
    EnvelopeOrigin, Untested, new_secret, parse_replay_start, parse_submission_id, parse_subscription_id, send_test,
};
use crate::explain::guard_of;
use crate::outbound::{Client, TestRequests};
use crate::store::{AuditEntry, MAX_SUBSCRIPTIONS, PageRequest, Replay, Replayed, Resumed, Subscription, Unwritten};
use crate::tenant::reads::Reads;
use crate::tenant::written_behind::Due;

#[derive(Debug, Subcommand)]
pub(super) enum WebhookCommand {
    /// List the subscriptions: id, state, event, form, pending, last success, target.
    List(ListArgs),
    /// Show one subscription, with the reason of its state.
    Show(OneArgs),
    /// List the latest attempts to deliver, the newest first.
    Deliveries(DeliveriesArgs),
    /// Send events again.
    Replay(ReplayArgs),
    /// Send the newest submission to the receiver now, marked as a test, and show its response.
    Test(OneArgs),
    /// Stop the delivery until it is resumed.
    Pause(OneArgs),
    /// Go on with the delivery where it stopped, whatever the state is.
    Resume(OneArgs),
    /// Print a new secret, and nothing else; it can't be shown again.
    Rotate(RotateArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// Print JSON, as the API does.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct OneArgs {
    #[command(flatten)]
    list: ListArgs,
    /// The id shown by `webhook list`.
    #[arg(value_parser = subscription_id)]
    id: i64,
}

#[derive(Debug, Args)]
pub(super) struct DeliveriesArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Only attempts that failed.
    #[arg(long)]
    failed: bool,
    /// How many, 1 to 500.
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    limit: u32,
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    one: OneArgs,
    #[command(flatten)]
    wanted: WantedEvents,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct WantedEvents {
    /// An event, by its id in `webhook deliveries`.
    #[arg(long, value_name = "ID")]
    event: Option<String>,
    /// The newest event of each of these submissions, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = submission_id)]
    submissions: Option<Vec<i64>>,
    /// Every event since a day, an RFC 3339 date-time or a cursor; perhaps some before.
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Every event that failed, also those that are not tried any more.
    #[arg(long)]
    failed: bool,
}

#[derive(Debug, Args)]
pub(super) struct RotateArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// The id shown by `webhook list`.
    #[arg(value_parser = subscription_id)]
    id: i64,
    /// For how many seconds the previous secret signs too; 0 if it leaked.
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400, value_parser = clap::value_parser!(u64).range(..=2_592_000))]
    grace: u64,
}

fn subscription_id(text: &str) -> Result<i64, String> {
    parse_subscription_id(text).ok_or_else(|| "an id is hook_<number> or a number".to_owned())
}

pub(super) fn submission_id(text: &str) -> Result<i64, String> {
    parse_submission_id(text).ok_or_else(|| "an id is sub_<number> or a number".to_owned())
}

pub(super) async fn run(command: &WebhookCommand) -> Result<()> {
    match command {
        WebhookCommand::List(command) => {
            let (tenant, store) = command.tenant.open().await?;
            let mut subscriptions: Vec<Subscription> = Vec::new();
            loop {
                let number = subscriptions.len() as u64 / u64::from(MAX_SUBSCRIPTIONS) + 1;
                let page =
                    PageRequest { number: number.try_into().expect("it is at least 1"), size: MAX_SUBSCRIPTIONS };
                let page = store.list_subscriptions(page).await.of_tenant(&tenant)?;
                let is_last = page.items.len() < MAX_SUBSCRIPTIONS as usize;
                subscriptions.extend(page.items);
                if is_last {
                    break;
                }
            }
            store.close().await;
            print(&output::subscriptions(subscriptions, command.json))
        }
        WebhookCommand::Show(command) => {
            let (tenant, store) = command.list.tenant.open().await?;
            let found = store.find_subscription(command.id).await.of_tenant(&tenant)?;
            store.close().await;
            show(command, found)
        }
        WebhookCommand::Pause(command) => {
            let (tenant, store) = command.list.tenant.open().await?;
            let paused = store.pause_subscription(command.id, Some(&actor())).await.of_tenant(&tenant)?;
            store.close().await;
            show(command, paused)
        }
        WebhookCommand::Resume(command) => {
            let (tenant, store) = command.list.tenant.open().await?;
            let resumed = store.resume_subscription(command.id, Some(&actor())).await.of_tenant(&tenant)?;
            store.close().await;
            match resumed {
                Resumed::Active(resumed) => show(command, Some(*resumed)),
                Resumed::Unknown => show(command, None),
                Resumed::TokenEnded => bail!(
                    "hook_{} can't be resumed: the token to which it is bound was revoked, or has expired",
                    command.id
                ),
            }
        }
        WebhookCommand::Test(command) => test(command).await,
        WebhookCommand::Rotate(command) => rotate(command).await,
        WebhookCommand::Replay(command) => replay(command).await,
        WebhookCommand::Deliveries(command) => deliveries(command).await,
    }
}

async fn rotate(command: &RotateArgs) -> Result<()> {
    let (tenant, store) = command.tenant.open().await?;
    let Some(found) = store.find_subscription(command.id).await.of_tenant(&tenant)? else {
        return Err(unknown(&command.tenant, command.id));
    };
    let secret = new_secret();
    let sealed = command.tenant.file.load()?.gateway.webhooks.seals.seal(&secret, &found.target_url);
    let grace = Duration::from_secs(command.grace);
    store.rotate_secret(command.id, None, &sealed, grace, Some(&actor())).await.of_tenant(&tenant)?;
    store.close().await;
    print_secret(&secret).context("the secret was rotated and can't be shown: rotate it again")
}

async fn test(command: &OneArgs) -> Result<()> {
    let config = command.list.tenant.file.load()?;
    let (tenant, store) = command.list.tenant.open().await?;
    let webhooks = &config.gateway.webhooks;
    let client = Client::new(&webhooks.requests, Arc::new(guard_of(&config).await));
    let tests = TestRequests::new(Arc::new(client), webhooks.requests.timeout);
    let origin = EnvelopeOrigin { account: &tenant.slug, host: &tenant.address, zone: &tenant.timezone };
    let reads = Reads::default();
    let note_read = |token, read| reads.note(token, &[read], &tenant.timezone, Timestamp::now());
    let tested = send_test(&store, &tests, &webhooks.seals, origin, command.id, &note_read).await;
    let unwritten = Unwritten { reads: reads.take(Due::All, Timestamp::now()), ..Unwritten::default() };
    if !unwritten.is_empty() {
        store.write_behind(&unwritten, Timestamp::now()).await.of_tenant(&tenant)?;
    }
    if let Ok(attempt) = &tested {
        let details = json!({ "status": attempt.status, "error": attempt.error.map(|error| error.to_string()) });
        let entry = AuditEntry { action: "webhook.test", subject: format!("webhook hook_{}", command.id), details };
        store.audit(&actor(), entry, Timestamp::now()).await.of_tenant(&tenant)?;
    }
    store.close().await;
    match tested {
        Ok(attempt) => {
            let accepted = attempt.accepted;
            print(&output::attempts(&[attempt], command.list.json))?;
            if accepted { Ok(()) } else { bail!("the receiver did not accept the event") }
        }
        Err(Untested::UnknownSubscription) => Err(unknown(&command.list.tenant, command.id)),
        Err(untested) => Err(untested.into()),
    }
}

async fn replay(command: &ReplayArgs) -> Result<()> {
    let (one, wanted) = (&command.one, &command.wanted);
    let (tenant, store) = one.list.tenant.open().await?;
    let replay = match (&wanted.event, &wanted.submissions, &wanted.since) {
        (Some(event), ..) => Replay::Event(event.clone()),
        (_, Some(submissions), _) => Replay::Submissions(submissions.clone()),
        (.., Some(since)) => match parse_replay_start(since, &tenant.timezone) {
            Some(start) => start,
            None => bail!("`{since}` is neither a day, nor an RFC 3339 date-time, nor a cursor"),
        },
        _ => Replay::Failed,
    };
    let outcome = store.replay(one.id, &replay, Some(&actor())).await.of_tenant(&tenant)?;
    let found = store.find_subscription(one.id).await.of_tenant(&tenant)?;
    store.close().await;
    match outcome {
        Replayed::Due | Replayed::UnknownSubscription => {}
        Replayed::UnknownEvent => {
            bail!(
                "the event was not sent to this subscription, or can't be any more; see `formgate webhook deliveries`"
            )
        }
        Replayed::UnknownSubmissions(unknown) => {
            let unknown: Vec<String> = unknown.iter().map(|id| format!("sub_{id}")).collect();
            bail!("no event for this subscription of {}; nothing is sent again", unknown.join(", "))
        }
        Replayed::LostCursor => bail!("the cursor is of another log, or ahead of this one"),
    }
    if let Some(found) = &found
        && !matches!(found.state.as_str(), "active" | "failing")
    {
        print_stderr(&format!(
            "the subscription is {}: it is sent nothing before `formgate webhook resume`",
            found.state
        ));
    }
    show(one, found)
}

async fn deliveries(command: &DeliveriesArgs) -> Result<()> {
    let one = &command.one;
    let (tenant, store) = one.list.tenant.open().await?;
    let page = PageRequest { number: 1.try_into().expect("it is not 0"), size: command.limit };
    let attempts = store.list_attempts(one.id, command.failed.then_some(false), page).await.of_tenant(&tenant)?;
    store.close().await;
    match attempts {
        Some(attempts) => print(&output::attempts(&attempts.items, one.list.json)),
        None => Err(unknown(&one.list.tenant, one.id)),
    }
}

fn show(command: &OneArgs, found: Option<Subscription>) -> Result<()> {
    match found {
        Some(found) => print(&output::subscription(found, command.list.json)),
        None => Err(unknown(&command.list.tenant, command.id)),
    }
}

fn unknown(tenant: &TenantChoice, id: i64) -> anyhow::Error {
    anyhow::anyhow!("tenant `{}` has no subscription hook_{id}; see `formgate webhook list`", tenant.tenant)
}
