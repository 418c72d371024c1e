//! `formgate domain`: hosts that need a certificate: one state, one reason, one next step.
//!
//! A change is checked and written by the code of the operator API. The nodes look at domains; a command waits for them.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::Value;

use super::output::{pretty, print, print_stderr, shown, table};
use super::registry::OpenRegistry;
use super::{ConfigFile, ListArgs, OfTenant, actor};
use crate::config::DomainsConfig;
use crate::dns::{Action, Record};
use crate::domains::{
    Claimed, DomainClaim, Reason, await_check, chosen, claim, describe, describe_unwatched, entry_of_added,
    entry_of_removed, proof_of,
};
use crate::host::HostName;
use crate::rights;
use crate::store::registry::{DomainFilter, DomainRecord, DomainState, PAGE, Requester};
use crate::store::{AuditEntry, Registry, Store, with_causes};

#[derive(Debug, Subcommand)]
pub(super) enum DomainCommand {
    /// Add a domain to a tenant of the registry.
    Add(AddArgs),
    /// List the domains: hosts that no file gives a certificate.
    List(ListDomainsArgs),
    /// Show a domain: its state, what is wrong, and what to do.
    Show(DomainArgs),
    /// Check a domain now.
    Check(CheckArgs),
    /// Remove a domain from its tenant, proved or not.
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
pub(super) struct DomainArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The host.
    host: String,
    /// The tenant; without it, the one that has the host.
    #[arg(long, value_name = "SLUG")]
    tenant: Option<String>,
    /// Print JSON, as the operator API does.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct AddArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The host.
    host: String,
    /// The tenant.
    #[arg(long, value_name = "SLUG")]
    tenant: String,
    /// How long to wait until a running node has checked it.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=600))]
    wait: u64,
    /// Print JSON, as the operator API does.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    domain: DomainArgs,
    /// How long to wait until a node has checked it.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=600))]
    wait: u64,
}

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The host.
    host: String,
    /// The tenant; without it, the one that has the host.
    #[arg(long, value_name = "SLUG")]
    tenant: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ListDomainsArgs {
    #[command(flatten)]
    list: ListArgs,
    /// Only those of this tenant.
    #[arg(long, value_name = "SLUG")]
    tenant: Option<String>,
    /// Only those in this state; without it, all but removed ones.
    #[arg(long, value_parser = read_state)]
    state: Option<DomainState>,
}

fn read_state(text: &str) -> Result<DomainState, String> {
    let all: Vec<_> = DomainState::ALL.iter().map(|state| state.as_str()).collect();
    DomainState::parse(text).ok_or_else(|| format!("expected one of {}", all.join(", ")))
}

pub(super) async fn run(command: &DomainCommand) -> Result<()> {
    match command {
        DomainCommand::Add(command) => add(command).await,
        DomainCommand::List(command) => list(command).await,
        DomainCommand::Show(command) => show(command).await,
        DomainCommand::Check(command) => check(command).await,
        DomainCommand::Remove(command) => remove(command).await,
    }
}

/// The registry of a configuration that has domains.
async fn open(file: &ConfigFile) -> Result<OpenRegistry> {
    let open = OpenRegistry::open_existing(file).await?;
    if open.gateway().domains.is_none() {
        bail!("domains are not configured: say in `[gateway.domains]` where they have to point");
    }
    Ok(open)
}

/// Where hosts have to point.
fn config_of(open: &OpenRegistry) -> &DomainsConfig {
    open.gateway().domains.as_ref().expect("it is configured, or it was not opened")
}

fn parse(text: &str) -> Result<HostName> {
    HostName::parse_domain(text).map_err(|fault| anyhow!("{}", fault.in_full()))
}

async fn add(command: &AddArgs) -> Result<()> {
    let AddArgs { tenant: slug, .. } = command;
    let open = open(&command.file).await?;
    let host = open.check_domain(slug, &command.host)?;
    let registry = &open.registry;
    let Claimed { claim, domain, is_new, first_look } = claim(registry, slug, &host).await?;
    match &claim {
        DomainClaim::Added(_) | DomainClaim::Contested | DomainClaim::Same(_) => {}
        DomainClaim::Taken { owner } => bail!("the host `{host}` is in the table of the tenant `{owner}`"),
        DomainClaim::UnknownTenant => bail!("there is no tenant `{slug}` in the registry"),
    }
    if is_new {
        record(&command.file, slug, entry_of_added(&host, claim == DomainClaim::Contested)).await;
    }
    let is_claimed = matches!(claim, DomainClaim::Added(_) | DomainClaim::Contested);
    let wait = if is_claimed && registry.nodes().await?.iter().any(|node| node.is_live) { command.wait } else { 0 };
    let (found, _) = await_check(registry, &host, slug, first_look, Duration::from_secs(wait)).await?;
    registry.close().await;
    match found.or(domain) {
        Some(domain) => print_domain(&domain, config_of(&open), command.json)?,
        None => print_unwatched(&host, slug, command.json)?,
    }
    if claim == DomainClaim::Contested {
        bail!("another tenant has proved the host `{host}`");
    }
    Ok(())
}

async fn list(command: &ListDomainsArgs) -> Result<()> {
    let open = open(&command.list.file).await?;
    let mut rows: Vec<DomainRecord> = Vec::new();
    loop {
        let after = rows.last().map_or(("", ""), |row| (row.host.as_str(), row.slug.as_str()));
        let filter = DomainFilter { slug: command.tenant.as_deref(), state: command.state, after };
        let page = open.registry.list_domains(&filter, PAGE).await?;
        let is_last = page.len() < PAGE as usize;
        rows.extend(page);
        if is_last {
            break;
        }
    }
    if let Some(slug) = &command.tenant
        && rows.is_empty()
    {
        known(&open, slug).await?;
    }
    open.registry.close().await;
    let config = config_of(&open);
    if command.list.json {
        return print(&pretty(&rows.iter().map(|row| describe(row, config)).collect()));
    }
    let head = ["HOST", "TENANT", "STATE", "REASON", "SINCE", "CERTIFICATE UNTIL"].map(str::to_owned);
    let rows = rows.into_iter().map(|row| {
        let (reason, since, until) =
            (name_of(&Reason::of(&row, Some(config))), shown(Some(row.since)), shown(row.not_after));
        [row.host, row.slug, row.state.as_str().to_owned(), reason, since, until]
    });
    print(&table(&std::iter::once(head).chain(rows).collect::<Vec<_>>()))
}

fn name_of(reason: &Reason) -> String {
    if reason.is_empty() { "-".to_owned() } else { reason.name().to_owned() }
}

async fn show(command: &DomainArgs) -> Result<()> {
    let open = open(&command.file).await?;
    let host = parse(&command.host)?;
    let found = find(&open, &host, command.tenant.as_deref()).await?;
    open.registry.close().await;
    match found {
        Some(domain) => print_domain(&domain, config_of(&open), command.json),
        None => bail!("{}", not_there(&host)),
    }
}

/// The row of a host, or of a host of one tenant. Fails if there is no such tenant.
async fn find(open: &OpenRegistry, host: &HostName, tenant: Option<&str>) -> Result<Option<DomainRecord>> {
    let found = chosen(&open.registry, host, tenant).await?;
    if let Some(slug) = tenant.filter(|_| found.is_none()) {
        known(open, slug).await?;
    }
    Ok(found)
}

/// Fails if there is no such tenant, in the registry or in the files.
async fn known(open: &OpenRegistry, slug: &str) -> Result<()> {
    if !open.is_of_file(slug) && open.registry.find(slug).await?.is_none() {
        bail!("there is no tenant `{slug}` in the files or the registry: `formgate tenant list` lists all");
    }
    Ok(())
}

fn not_there(host: &HostName) -> String {
    format!(
        "there is no domain `{host}`: a tenant that has it in its table, with a certificate of a file, needs none; \
         `formgate domain list` lists all"
    )
}

async fn check(command: &CheckArgs) -> Result<()> {
    let CheckArgs { domain: DomainArgs { file, host, tenant, json }, wait } = command;
    let open = open(file).await?;
    let (host, registry) = (parse(host)?, &open.registry);
    let Some(before) = find(&open, &host, tenant.as_deref()).await? else { bail!("{}", not_there(&host)) };
    if before.state == DomainState::Gone {
        return print_domain(&before, config_of(&open), *json);
    }
    if !registry.nodes().await?.iter().any(|node| node.is_live) {
        bail!("no node is running, and only nodes look at domains");
    }
    let wait = Duration::from_secs(*wait);
    let (found, is_looked_at) = match registry.ask_for_check(host.as_str(), &before.slug, Requester::Operator).await? {
        Some(asked) => await_check(registry, &host, &before.slug, asked, wait).await?,
        None => (None, false),
    };
    registry.close().await;
    let Some(domain) = found else { bail!("the domain `{host}` was removed meanwhile") };
    print_domain(&domain, config_of(&open), *json)?;
    if !is_looked_at {
        bail!("no node has looked at it within {} seconds", wait.as_secs());
    }
    Ok(())
}

async fn remove(command: &RemoveArgs) -> Result<()> {
    let open = open(&command.file).await?;
    let (host, registry) = (parse(&command.host)?, &open.registry);
    let owner = registry.owner_of(host.as_str()).await?.map(|owner| owner.slug);
    let slug = match command.tenant.clone().or_else(|| owner.clone()) {
        Some(slug) => slug,
        None => only_claimant(registry, &host).await?,
    };
    open.check_owner(&slug)?;
    let by = rights::current_user();
    let removed = registry.remove_domain(&slug, host.as_str(), Timestamp::now(), &by).await?;
    match removed {
        Some(_) => {
            print_stderr(&format!("the domain `{host}` is removed from the tenant `{slug}`"));
            record(&command.file, &slug, entry_of_removed(&host)).await;
        }
        None if owner.is_some_and(|owner| owner == slug) => {
            bail!("the host `{host}` is in the table of the tenant `{slug}`: change the tenant instead")
        }
        None => {
            known(&open, &slug).await?;
            bail!("the tenant `{slug}` has no domain `{host}`")
        }
    }
    open.registry.close().await;
    Ok(())
}

/// Writes a change into the audit log of the tenant. The change is in the registry, so it is there also if the database of the
/// tenant is not.
async fn record(file: &ConfigFile, slug: &str, entry: AuditEntry) {
    let recording = async {
        let tenant = file.find_tenant(slug).await?;
        let store = Store::open(&tenant.database, 1).await.of_tenant(&tenant)?;
        let recorded = store.audit(&actor(), entry, Timestamp::now()).await;
        store.close().await;
        recorded.of_tenant(&tenant)
    };
    if let Err(failure) = recording.await {
        let cause = with_causes(failure.as_ref());
        print_stderr(&format!("warning: the change is not in the audit log of the tenant `{slug}`: {cause}"));
    }
}

/// The tenant that claims a host that nobody has proved.
async fn only_claimant(registry: &Registry, host: &HostName) -> Result<String> {
    let mut rows = registry.find_domains(host.as_str()).await?;
    rows.retain(|row| row.state != DomainState::Removed);
    match &rows[..] {
        [] => bail!("{}", not_there(host)),
        [row] => Ok(row.slug.clone()),
        rows => {
            let slugs: Vec<_> = rows.iter().map(|row| format!("`{}`", row.slug)).collect();
            bail!("several tenants claim the host `{host}`: name one of {} with `--tenant`", slugs.join(", "))
        }
    }
}

fn print_unwatched(host: &HostName, slug: &str, json: bool) -> Result<()> {
    if json {
        return print(&pretty(&describe_unwatched(host.as_str(), slug)));
    }
    print(&format!("the host `{host}` is in the table of the tenant `{slug}`"))
}

fn print_domain(domain: &DomainRecord, config: &DomainsConfig, json: bool) -> Result<()> {
    if json {
        let described: Value = describe(domain, config);
        return print(&pretty(&described));
    }
    let reason = Reason::of(domain, Some(config));
    let next_step = if reason.is_empty() { "-".to_owned() } else { reason.next_step() };
    let lines = [
        ["host", &domain.host],
        ["tenant", &domain.slug],
        ["state", domain.state.as_str()],
        ["reason", &name_of(&reason)],
        ["next step", &next_step],
        ["since", &shown(Some(domain.since))],
        ["checked", &shown(domain.checked_at)],
        ["certificate until", &shown(domain.not_after)],
    ];
    let mut text = table(&lines.map(|line| line.map(str::to_owned)));
    let proof = proof_of(domain, config);
    let mut records: Vec<_> = reason.records().iter().map(|record| (action_of(record), record)).collect();
    // A way to prove the domain, whatever is wrong.
    if let Some(proof) = proof.as_ref().filter(|proof| records.iter().all(|(_, record)| record.value != proof.value)) {
        records.push((if proof.action == Action::Keep { "keep" } else { "proof" }, proof));
    }
    if !records.is_empty() {
        let head = ["RECORD", "TYPE", "NAME", "VALUE"].map(str::to_owned);
        let rows = records.into_iter().map(|(action, Record { kind, name, value, .. })| {
            [action.to_owned(), kind.as_str().to_owned(), name.clone(), value.clone()]
        });
        text.push_str("\n\n");
        text.push_str(&table(&std::iter::once(head).chain(rows).collect::<Vec<_>>()));
    }
    print(&text)
}

fn action_of(record: &Record) -> &'static str {
    match record.action {
        Action::Add => "add",
        Action::Remove => "remove",
        Action::Keep => "keep",
    }
}
