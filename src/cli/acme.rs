//! `formgate acme`: what the certificate authorities still allow, and what many certificates ask of them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::output::{pretty, print, print_stderr, shown, table};
use super::registry::OpenRegistry;
use super::seal::require_first_key;
use super::{ConfigFile, ListArgs};
use crate::config::{AcmeConfig, GatewayConfig};
use crate::domains::{CA_ACCOUNT, MissingKey, NewAccount, Plan, missing_keys, replace_account, status, unready_nodes};
use crate::instant::Rfc3339Micros;
use crate::store::registry::DomainState;

const DAY: Duration = Duration::from_hours(24);

#[derive(Debug, Subcommand)]
pub(super) enum AcmeCommand {
    /// Show what each CA still allows, the domains by state, and the renewals to come.
    Status(ListArgs),
    /// Show how many renewals a day a number of hosts needs, and how long their first certificates take.
    Plan(PlanArgs),
    /// The account at the CAs.
    #[command(subcommand)]
    Account(AccountCommand),
}

#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Create another account at every CA, in place of one that a CA has deactivated. Orders under way begin again.
    New(ConfigFile),
}

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// How many hosts; without it, those that have a row now.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    hosts: Option<u64>,
    /// For how many days a certificate is valid.
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=3650))]
    days: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(command: &AcmeCommand) -> Result<()> {
    match command {
        AcmeCommand::Status(command) => show_status(command).await,
        AcmeCommand::Plan(command) => plan(command).await,
        AcmeCommand::Account(AccountCommand::New(file)) => new_account(file).await,
    }
}

fn acme(gateway: &GatewayConfig) -> Result<&AcmeConfig> {
    match &gateway.acme {
        Some(acme) => Ok(acme),
        None => bail!("no certificates are obtained: there is no `[gateway.acme]`"),
    }
}

async fn show_status(command: &ListArgs) -> Result<()> {
    let loaded = command.file.load()?;
    let acme = acme(&loaded.gateway)?;
    let open = OpenRegistry::open_existing(&command.file).await?;
    let registry = &open.registry;
    let authorities = status(registry, acme).await?;
    let missing_keys = missing_keys(registry, &acme.seals).await?;
    let states = domains_by_state(&open).await?;
    let without_account = registry.count_domains().await?.into_iter().filter(|count| count.reason == CA_ACCOUNT);
    let without_account: i64 = without_account.map(|count| count.count).sum();
    let within_a_day = registry.count_renewals(DAY).await?;
    let within_a_week = registry.count_renewals(DAY * 7).await?;
    let late = registry.count_late_domains().await?;
    registry.close().await;
    if command.json {
        let authorities = authorities.iter().map(|authority| {
            json!({
                "name": authority.name,
                "directory": authority.directory,
                "orders_per_3_hours": authority.orders,
                "orders_left": authority.left,
                "next_order_at": authority.free_at.map(Rfc3339Micros),
            })
        });
        let states: serde_json::Map<_, _> =
            states.iter().map(|(state, count)| (state.as_str().to_owned(), json!(count))).collect();
        let renewals = json!({ "within_a_day": within_a_day, "within_a_week": within_a_week, "late": late });
        return print(&pretty(&json!({
            "authorities": authorities.collect::<Vec<_>>(),
            "domains": states,
            "renewals": renewals,
            "without_account": without_account,
            "missing_seal_keys": missing_keys.iter().map(|key| &key.id).collect::<Vec<_>>(),
        })));
    }
    let head = ["AUTHORITY", "ORDERS LEFT", "OF", "NEXT FOR NEW DOMAINS", "DIRECTORY"].map(str::to_owned);
    let rows = authorities.into_iter().map(|authority| {
        let next = authority.free_at.map_or_else(|| "now".to_owned(), |at: Timestamp| shown(Some(at)));
        [authority.name, authority.left.to_string(), format!("{} in 3 h", authority.orders), next, authority.directory]
    });
    let states: Vec<_> = states.iter().map(|(state, count)| format!("{count} {}", state.as_str())).collect();
    let states = if states.is_empty() { "none".to_owned() } else { states.join(", ") };
    print(&format!(
        "{}\n\ndomains: {states}\nrenewals: {within_a_day} within a day, {within_a_week} within a week, {late} late",
        table(&std::iter::once(head).chain(rows).collect::<Vec<_>>()),
    ))?;
    if without_account > 0 {
        print_stderr(&format!(
            "warning: a CA has deactivated the account, and domains wait for another one ({without_account}): run `formgate acme \
             account new`"
        ));
    }
    for key in missing_keys {
        print_stderr(&format!("warning: {key}: {}", MissingKey::NEXT_STEP));
    }
    Ok(())
}

async fn new_account(file: &ConfigFile) -> Result<()> {
    let loaded = file.load()?;
    let acme = acme(&loaded.gateway)?;
    let open = OpenRegistry::open_existing(file).await?;
    require_first_key(&unready_nodes(&open.registry, &acme.seals).await?.lacking, "nothing was changed")?;
    let (accounts, is_stored) = replace_account(&open.registry, acme).await?;
    open.registry.close().await;
    for NewAccount { authority, registered } in accounts.iter().filter(|account| !account.is_refused()) {
        match registered {
            Ok(url) if is_stored => print(&format!("{authority}: {url}"))?,
            Ok(_) => {}
            Err(error) => print_stderr(&format!(
                "warning: {authority}: no usable response ({error}); the account is registered with the next order"
            )),
        }
    }
    let refused = accounts.iter().filter(|account| account.is_refused());
    let refused = refused.filter_map(|account| Some((&account.authority, account.registered.as_ref().err()?)));
    let refused: Vec<_> = refused.map(|(authority, error)| format!("{authority}: {error}")).collect();
    if !is_stored {
        bail!(
            "nothing was changed, since a CA refuses another account: {}; a CA with `eab` may want another key for it, which \
             its portal has",
            refused.join("; ")
        );
    }
    Ok(())
}

async fn domains_by_state(open: &OpenRegistry) -> Result<BTreeMap<DomainState, i64>> {
    let mut states = BTreeMap::new();
    for count in open.registry.count_domains().await? {
        *states.entry(count.state).or_insert(0) += count.count;
    }
    Ok(states)
}

async fn plan(command: &PlanArgs) -> Result<()> {
    let loaded = command.file.load()?;
    let acme = acme(&loaded.gateway)?;
    let hosts = match command.hosts {
        Some(hosts) => hosts,
        None => {
            let open = OpenRegistry::open_existing(&command.file).await?;
            let states = domains_by_state(&open).await?;
            open.registry.close().await;
            let is_there = |state: DomainState| !matches!(state, DomainState::Gone | DomainState::Removed);
            let there: i64 = states.iter().filter(|(state, _)| is_there(**state)).map(|(_, count)| count).sum();
            u64::try_from(there).unwrap_or(0)
        }
    };
    let plans = acme.requests.authorities.iter().zip(&acme.limits);
    let plans: Vec<_> =
        plans.map(|(authority, limits)| (&authority.name, Plan::new(hosts, command.days, *limits))).collect();
    if command.json {
        let plans = plans.iter().map(|(name, plan)| {
            json!({
                "authority": name,
                "hosts": plan.hosts,
                "days": command.days,
                "renewals_a_day": plan.renewals_a_day,
                "orders_a_day": plan.orders_a_day,
                "exempts_renewals": plan.exempts_renewals,
                "first_issue_seconds": plan.first_issue.as_secs(),
                "possible": plan.is_possible(),
            })
        });
        return print(&pretty(&plans.collect()));
    }
    let lines = plans.iter().map(|(name, plan)| in_words(name, plan, command.days));
    print(&lines.collect::<Vec<_>>().join("\n"))
}

fn in_words(authority: &str, plan: &Plan, days: u64) -> String {
    let Plan { hosts, renewals_a_day, orders_a_day, exempts_renewals, first_issue } = plan;
    let first = first_issue.as_secs().div_ceil(3600);
    let verdict = match (exempts_renewals, plan.is_possible()) {
        (true, _) => "enough: renewals that name the certificate which they replace count against none of them",
        (false, true) => "enough",
        (false, false) => "not enough: ask the authority for more, or choose certificates that are valid for longer",
    };
    format!(
        "{authority}: {hosts} certificates of {days} days are {renewals_a_day} renewals a day. The authority allows \
         {orders_a_day} orders a day, {verdict}. If all hosts are added at once, the last one has its certificate after \
         {first} h."
    )
}
