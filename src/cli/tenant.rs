//! `formgate tenant`: the tenants of the registry. Those of files are listed too, and can be adopted.
//!
//! A change is checked and written by the code of the operator API, and served by every node within a second.

mod files;
mod litestream;
mod moving;
mod restore;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use futures_util::FutureExt;
use serde_json::{Map, json};

use super::output::{pretty, print, print_stderr, shown, table};
use super::registry::{OpenRegistry, plain};
use super::{ConfigFile, ListArgs, OfTenant};
use crate::config::registered::{self, json};
use crate::registry::describe;
use crate::registry::editing::Checked;
use crate::registry::erasing::{DEFAULT_WAIT, EraseError, EraseOutcome, Eraser};
use crate::rights;
use crate::shared::RedisClient;
use crate::store::registry::{RegistryChange, RegistryWrite, RegistryWritten};
use crate::store::{self, NotErasable, Reach, Store};
use files::{AdoptArgs, ExportArgs};
use moving::MoveArgs;
use restore::RestoreArgs;

#[derive(Debug, Subcommand)]
pub(super) enum TenantCommand {
    /// Add a tenant to the registry, or change it.
    Add(AddArgs),
    /// Show a tenant: the text of its table in the registry, or its place in a file.
    Show(ShowArgs),
    /// List the tenants of the files and of the registry.
    List(ListArgs),
    /// Remove a tenant from the registry. Its database is kept, unless it is erased.
    Remove(RemoveArgs),
    /// Add the tenants of files to the registry: all of them, or none.
    Import(ImportArgs),
    /// Print the tenants of the registry as files have them.
    Export(ExportArgs),
    /// Move a tenant from its file to the registry.
    Adopt(AdoptArgs),
    /// Move a tenant of the registry to another database while it is called. A node with the operator API carries it out.
    Move(MoveArgs),
    /// Prepare a tenant's database as it was at an instant, from a backup: data goes back; tokens and subscriptions stay as they are.
    Restore(RestoreArgs),
    /// List the moves of tenants to other databases, the last one first.
    Moves(ListArgs),
}

/// Waiting for the nodes.
#[derive(Debug, Args)]
struct WaitArgs {
    /// Wait until every running node serves the change, for at most this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=600))]
    wait: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct AddArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Its slug.
    slug: String,
    /// Its sign-in address.
    #[arg(long, value_name = "HOST")]
    address: String,
    /// Its database: `sqlite:PATH` or `postgres://USER:PASSWORD@HOST:PORT/DATABASE`. `${NAME}` takes a variable of the
    /// nodes, so that no process list shows a password: one that `tenant_variables` allows.
    #[arg(long, value_name = "URL")]
    database: String,
    /// The name that callers read; without it, the slug.
    #[arg(long)]
    name: Option<String>,
    /// A custom domain; may be given several times.
    #[arg(long = "domain", value_name = "HOST")]
    domains: Vec<String>,
    /// The time zone of plain dates, such as Europe/Berlin.
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// The budget that all its tokens share.
    #[arg(long, value_name = "NUMBER")]
    requests_per_minute: Option<u32>,
    /// Create the tables of its database first.
    #[arg(long)]
    migrate: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Its slug.
    slug: String,
    /// Print JSON, as the operator API does.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Its slug.
    slug: String,
    /// Erase the account for good, once no running node serves it: its tables or its file, certificates and all else that formgate
    /// has of it. Prints what was erased and what was not.
    #[arg(long)]
    erase: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Files of `[[tenant]]` tables.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Create the tables of their databases first.
    #[arg(long)]
    migrate: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

pub(super) async fn run(command: &TenantCommand) -> Result<()> {
    match command {
        TenantCommand::Add(command) => add(command).await,
        TenantCommand::Show(command) => show(command).await,
        TenantCommand::List(command) => list(command).await,
        TenantCommand::Remove(command) => remove(command).await,
        TenantCommand::Import(command) => import(command).await,
        TenantCommand::Export(command) => files::export(command).await,
        TenantCommand::Adopt(command) => files::adopt(command).await,
        TenantCommand::Move(command) => moving::begin(command).await,
        TenantCommand::Restore(command) => restore::run(command).await,
        TenantCommand::Moves(command) => moving::list(command).await,
    }
}

async fn add(command: &AddArgs) -> Result<()> {
    let mut object = Map::new();
    let name = command.name.as_ref().unwrap_or(&command.slug);
    object.insert("name".to_owned(), json!(name));
    object.insert("address".to_owned(), json!(command.address));
    object.insert("database".to_owned(), json!(command.database));
    if !command.domains.is_empty() {
        object.insert("domains".to_owned(), json!(command.domains));
    }
    if let Some(zone) = &command.timezone {
        object.insert("timezone".to_owned(), json!(zone));
    }
    if let Some(number) = command.requests_per_minute {
        object.insert("requests_per_minute".to_owned(), json!(number));
    }
    let Ok(text) = json::to_text(&command.slug, &object) else { bail!("the options can't be written as TOML") };
    let registry = OpenRegistry::open(&command.file).await?;
    let mut checked = [registry.check(&command.slug, text)?];
    put(&registry, &mut checked, command.migrate, &command.wait).await?;
    if command.wait.wait.is_some() {
        // An account whose database can't be opened is served by no node.
        let config = &checked[0].tenant.config;
        let opened = Store::open(&config.database, 1).await.of_tenant(config);
        opened.context("the change is written, and the tenant can't be served")?.close().await;
    }
    Ok(())
}

async fn import(command: &ImportArgs) -> Result<()> {
    let registry = OpenRegistry::open(&command.file).await?;
    let mut checked = Vec::new();
    for file in &command.files {
        // Named by whoever runs the command, so it may be a pipe.
        let text = std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
        for (slug, text) in registered::split(file, &text, registry.config())? {
            checked
                .push(registry.check(&slug, text).with_context(|| format!("tenant `{slug}` of {}", file.display()))?);
        }
    }
    put(&registry, &mut checked, command.migrate, &command.wait).await
}

/// Writes tenants, all or none, and says what became of each.
async fn put(registry: &OpenRegistry, tenants: &mut [Checked], migrate: bool, wait: &WaitArgs) -> Result<()> {
    registry.check_files(tenants).await?;
    if migrate {
        for checked in &*tenants {
            checked.check_free(&registry.registry).await?;
        }
        for checked in &*tenants {
            let config = &checked.tenant.config;
            store::migrate(&config.database, Reach::Served).await.of_tenant(config)?;
        }
    }
    for checked in &mut *tenants {
        checked.identify(&registry.registry, migrate || wait.wait.is_some()).await?;
    }
    let writes: Vec<_> = tenants.iter().map(|checked| checked.write(None)).collect();
    let written = registry.write(&writes).await?;
    for (checked, written) in tenants.iter().zip(&written) {
        let slug = &checked.tenant.config.slug;
        let (what, revision) = match written {
            RegistryWritten::Created(revision) => ("added", revision),
            RegistryWritten::Changed(revision) => ("changed", revision),
            RegistryWritten::Same(revision) => ("unchanged", revision),
            RegistryWritten::Removed(_) | RegistryWritten::Absent => continue,
        };
        print(&format!("{slug}: {what}, revision {revision}"))?;
    }
    let slugs: Vec<_> = tenants.iter().map(|checked| &*checked.tenant.config.slug).collect();
    finish(registry, &written, &slugs, wait).await
}

/// Waits for the nodes, if that is asked for.
async fn finish(registry: &OpenRegistry, written: &[RegistryWritten], slugs: &[&str], wait: &WaitArgs) -> Result<()> {
    let revisions = written.iter().filter_map(|written| match written {
        RegistryWritten::Created(revision) | RegistryWritten::Changed(revision) => Some(*revision),
        RegistryWritten::Same(revision) | RegistryWritten::Removed(revision) => Some(*revision),
        RegistryWritten::Absent => None,
    });
    let newest = revisions.max().unwrap_or(0);
    let behind = match wait.wait {
        Some(seconds) => {
            registry.registry.wait_for_nodes(newest, slugs, Duration::from_secs(seconds), |_| false).await?
        }
        None => Vec::new(),
    };
    registry.registry.close().await;
    if behind.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = behind.iter().map(|node| format!("{} ({})", node.name, node.reason)).collect();
    bail!("the change is written, and not yet served by: {}", names.join(", "))
}

async fn show(command: &ShowArgs) -> Result<()> {
    let config = command.file.load()?;
    let slug = &command.slug;
    if let Some(tenant) = config.tenants.iter().find(|tenant| *tenant.slug == **slug) {
        let place = tenant.origin.file_and_line();
        return if command.json {
            print(&pretty(&json!({ "slug": slug, "owner": "file", "place": place })))
        } else {
            print(&format!("the tenant `{slug}` is configured in {place}"))
        };
    }
    let registry = OpenRegistry::open_existing(&command.file).await?;
    let row = registry.registry.find(slug).await?;
    registry.registry.close().await;
    let Some(row) = row else { bail!("there is no tenant `{slug}` in the files or the registry") };
    if command.json {
        return print(&pretty(&describe(&row)));
    }
    print(row.text.as_deref().unwrap_or_default().trim_end())
}

async fn list(command: &ListArgs) -> Result<()> {
    let config = command.file.load()?;
    let rows = match &config.gateway.registry {
        Some(_) => OpenRegistry::open_existing(&command.file).await?.rows().await?,
        None => Vec::new(),
    };
    if command.json {
        let files = config
            .tenants
            .iter()
            .map(|tenant| json!({ "slug": &*tenant.slug, "owner": "file", "place": tenant.origin.file_and_line() }));
        return print(&pretty(&files.chain(rows.iter().map(describe)).collect()));
    }
    let head = ["SLUG", "OWNER", "REVISION", "CHANGED", "BY"].map(str::to_owned);
    let files = config.tenants.iter().map(|tenant| {
        [tenant.slug.to_string(), tenant.origin.file_and_line(), "-".to_owned(), "-".to_owned(), "-".to_owned()]
    });
    let rows = rows.into_iter().map(|row| {
        [row.slug, "registry".to_owned(), row.revision.to_string(), shown(Some(row.changed_at)), row.changed_by]
    });
    print(&table(&std::iter::once(head).chain(files).chain(rows).collect::<Vec<_>>()))
}

async fn remove(command: &RemoveArgs) -> Result<()> {
    let registry = OpenRegistry::open_existing(&command.file).await?;
    if command.erase {
        let outcome = erase(&registry, command).await;
        registry.registry.close().await;
        return outcome;
    }
    registry.check_owner(&command.slug)?;
    let write = RegistryWrite { slug: command.slug.clone(), change: RegistryChange::Remove, expected: None };
    let written = registry.write(&[write]).await?;
    if written == [RegistryWritten::Absent] {
        bail!("there is no tenant `{}` in the registry", command.slug);
    }
    print_stderr(&format!("the tenant `{}` is removed; its database is kept", command.slug));
    finish(&registry, &written, &[&command.slug], &command.wait).await
}

async fn erase(registry: &OpenRegistry, command: &RemoveArgs) -> Result<()> {
    let slug = &command.slug;
    let redis = registry.gateway().redis.as_ref().map(|redis| RedisClient::new(&redis.target)).transpose()?;
    let eraser = Eraser {
        registry: &registry.registry,
        editor: registry.editor(),
        redis: redis.as_ref(),
        slug,
        expected: None,
        by: &rights::current_user(),
        wait: command.wait.wait.map_or(DEFAULT_WAIT, Duration::from_secs),
    };
    let others = registry.others(slug).await?;
    let owner_in_file = |id| registry.owner_in_file(id).boxed();
    match eraser.run(&others, &owner_in_file, &|_| false).await {
        Ok(EraseOutcome::Erased(receipt)) => print(&pretty(&receipt.to_json())),
        Ok(EraseOutcome::Waiting { nodes, .. }) => {
            let names: Vec<_> = nodes.iter().map(|node| format!("{} ({})", node.name, node.reason)).collect();
            bail!(
                "the tenant `{slug}` is removed, and nothing else is erased yet, since it may still be served by: {}; repeat the \
                 command",
                names.join(", ")
            )
        }
        Err(EraseError::Edit(refused)) => Err(plain(refused)),
        Err(EraseError::Unreadable(problems)) => Err(problems.into()),
        Err(EraseError::Database { tenant, cause: NotErasable::Store(error) }) => Err(error).of_tenant(&tenant),
        Err(error) => Err(error.into()),
    }
}
