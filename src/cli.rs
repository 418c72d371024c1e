//! The command line: one file per command.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 success, 1 failure, 2 wrong usage.
//! Scripts depend on commands, options and output, so they change only deliberately.

mod acme;
mod admin;
mod audit;
mod changes;
mod check;
mod config;
mod demo;
#[cfg(test)]
mod documented;
mod domain;
mod erase;
mod explain;
mod export;
mod import;
mod listing;
mod manual;
mod migrate;
mod output;
mod readers;
mod registry;
mod request;
mod seal;
mod serve;
mod tenant;
mod token;
mod webhook;
mod when;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use rustix::process::Signal;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use self::output::print_stderr;
use crate::config::{Config, Problems, TenantConfig};
use crate::gateway::StartError;
use crate::rights;
use crate::store::registry::registry_remedy;
use crate::store::{self, Actor, Store, StoreError, with_causes};
use crate::telemetry::{self, DefaultLog, Telemetry};

/// A multi-tenant gateway that serves each account's forms and submissions from its own database.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway until SIGTERM or Ctrl-C, then finish what is in flight.
    Serve(serve::ServeArgs),
    /// Check the configuration, the certificates and every tenant's database; list every fault.
    Check(check::CheckArgs),
    /// Describe the configuration, for editors.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Trace one request, or the webhooks of a subscription: report at which step it would stop, and how to fix it.
    Explain(explain::ExplainArgs),
    /// Migrate the tenants' databases to the newest schema.
    Migrate(migrate::MigrateArgs),
    /// Load NDJSON into a tenant's database: all of the file, or nothing.
    Import(import::ImportArgs),
    /// Write a tenant's submissions as NDJSON, CSV or Parquet; they spend nothing of the API's budget.
    Export(export::ExportArgs),
    /// Rebuild out-of-date search tables of a tenant, after text was written by SQL.
    Reindex(import::ReindexArgs),
    /// Create, rotate, list and revoke API tokens.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Add, change, list and remove tenants of the registry.
    #[command(subcommand)]
    Tenant(tenant::TenantCommand),
    /// Add, show, check and remove domains of tenants.
    #[command(subcommand)]
    Domain(domain::DomainCommand),
    /// Show what the CAs allow, and what many certificates need.
    #[command(subcommand)]
    Acme(acme::AcmeCommand),
    /// Change the key that seals the keys of certificates.
    #[command(subcommand)]
    Seal(seal::SealCommand),
    /// Create, list and revoke tokens of the operator API.
    #[command(subcommand)]
    OperatorToken(registry::OperatorTokenCommand),
    /// List the nodes that follow the registry, and how far each has got.
    Nodes(registry::NodesArgs),
    /// List the last requests of a tenant, and why they were refused.
    #[command(subcommand)]
    Request(request::RequestCommand),
    /// Print a link into the administration area of a tenant.
    #[command(subcommand)]
    Admin(admin::AdminCommand),
    /// List what administrators and commands changed, and verify that nothing of it was removed.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// List the tokens whose responses contained a submission, with the first and the last day.
    Readers(readers::ReadersArgs),
    /// Erase what formgate itself holds about a person.
    Erase(erase::EraseArgs),
    /// Show subscriptions and their deliveries, send events again, pause, resume, rotate secrets.
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// Begin the change log of a tenant again.
    #[command(subcommand)]
    Changes(changes::ChangesCommand),
    /// Serve two tenants with sample data on this machine, and print calls to try.
    Demo(demo::DemoArgs),
    /// Print the completions of a shell.
    Completions(manual::CompletionsArgs),
    /// Write the manual pages.
    Man(manual::ManArgs),
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration file.
    #[arg(long, value_name = "FILE", env = "FORMGATE_CONFIG", default_value = "tenants.toml")]
    config: PathBuf,
}

impl ConfigFile {
    fn load(&self) -> Result<Config> {
        Ok(Config::load(&self.config)?)
    }
}

/// A list.
#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A tenant of the configuration.
#[derive(Debug, Args)]
struct TenantChoice {
    #[command(flatten)]
    file: ConfigFile,
    /// The tenant's slug.
    #[arg(long, value_name = "SLUG")]
    tenant: String,
}

impl TenantChoice {
    async fn find(&self) -> Result<Arc<TenantConfig>> {
        self.file.find_tenant(&self.tenant).await
    }

    async fn open(&self) -> Result<(Arc<TenantConfig>, Store)> {
        let tenant = self.find().await?;
        let store = Store::open(&tenant.database, 1).await.of_tenant(&tenant)?;
        Ok((tenant, store))
    }
}

/// Who runs this command, for the audit log.
fn actor() -> Actor {
    Actor::command(rights::current_user())
}

/// An error of a tenant's database, with its remedy.
#[derive(Debug, thiserror::Error)]
#[error("tenant `{slug}`")]
struct DatabaseFailed {
    slug: Arc<str>,
    remedy: String,
    source: StoreError,
}

/// Adds the tenant and the remedy to an error of its database.
trait OfTenant<T> {
    fn of_tenant(self, tenant: &TenantConfig) -> Result<T>;
}

impl<T, E: Into<anyhow::Error>> OfTenant<T> for Result<T, E> {
    fn of_tenant(self, tenant: &TenantConfig) -> Result<T> {
        self.map_err(|error| match error.into().downcast::<StoreError>() {
            Ok(source) => {
                let (slug, remedy) = (Arc::clone(&tenant.slug), store::remedy(&source, &tenant.database, &tenant.slug));
                DatabaseFailed { slug, remedy, source }.into()
            }
            Err(other) => other,
        })
    }
}

/// Formats an error for standard error, with its remedy if there is one.
fn report(error: &anyhow::Error) -> String {
    if let Some(problems) = error.downcast_ref::<Problems>() {
        // Each report already begins with `error:`.
        return problems.to_string();
    }
    let text = format!("error: {}", with_causes(error.as_ref()));
    let database = error.chain().find_map(|cause| cause.downcast_ref()).map(|failed: &DatabaseFailed| &failed.remedy);
    let certificate = match error.downcast_ref() {
        Some(StartError::Certificate(error)) => Some(error.remedy()),
        _ => None,
    };
    // An error of a tenant's database has its remedy already.
    let registry = || error.chain().find_map(|cause| cause.downcast_ref()).map(registry_remedy);
    match database.or(certificate.as_ref()).map(String::as_str).or_else(registry) {
        Some(remedy) => format!("{text}\nhelp: {remedy}"),
        None => text,
    }
}

/// Runs a command and returns its exit code. Wrong usage never gets here: clap exits with 2.
#[must_use]
pub fn run(arguments: Arguments) -> ExitCode {
    let serves = matches!(arguments.command, Command::Serve(_) | Command::Demo(_));
    let outcome = match arguments.command {
        Command::Serve(command) => serve::run(&command),
        Command::Demo(command) => on_runtime(None, DefaultLog::Serving, demo::run(&command)),
        Command::Completions(command) => manual::print_completions(&command),
        Command::Man(command) => manual::write_pages(&command),
        Command::Check(command) => on_runtime(None, DefaultLog::Command, check::run(&command)),
        Command::Config(command) => config::run(&command),
        Command::Explain(command) => on_runtime(None, DefaultLog::Command, explain::run(&command)),
        Command::Migrate(command) => on_runtime(None, DefaultLog::Command, migrate::run(&command)),
        Command::Import(command) => on_runtime(None, DefaultLog::Command, import::run(&command)),
        Command::Export(command) => on_runtime(None, DefaultLog::Command, export::run(&command)),
        Command::Reindex(command) => on_runtime(None, DefaultLog::Command, import::reindex(&command)),
        Command::Changes(command) => on_runtime(None, DefaultLog::Command, changes::run(&command)),
        Command::Webhook(command) => on_runtime(None, DefaultLog::Command, webhook::run(&command)),
        Command::Admin(command) => on_runtime(None, DefaultLog::Command, admin::run(&command)),
        Command::Audit(command) => on_runtime(None, DefaultLog::Command, audit::run(&command)),
        Command::Request(command) => on_runtime(None, DefaultLog::Command, request::run(&command)),
        Command::Readers(command) => on_runtime(None, DefaultLog::Command, readers::run(&command)),
        Command::Erase(command) => on_runtime(None, DefaultLog::Command, erase::run(&command)),
        Command::Tenant(command) => on_runtime(None, DefaultLog::Command, tenant::run(&command)),
        Command::Domain(command) => on_runtime(None, DefaultLog::Command, domain::run(&command)),
        Command::Acme(command) => on_runtime(None, DefaultLog::Command, acme::run(&command)),
        Command::Seal(command) => on_runtime(None, DefaultLog::Command, seal::run(&command)),
        Command::OperatorToken(command) => on_runtime(None, DefaultLog::Command, registry::run_tokens(&command)),
        Command::Nodes(command) => on_runtime(None, DefaultLog::Command, registry::run_nodes(&command)),
        Command::Token(command) => on_runtime(None, DefaultLog::Command, token::run(&command)),
    };
    match &outcome {
        // A supervisor that does not read must still see the end of the process.
        Ok(()) if serves => telemetry::flush(),
        Err(error) if serves => telemetry::write_last(&report(error)),
        Ok(()) => {}
        Err(error) => print_stderr(&report(error)),
    }
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a command with log and traces set up, on a runtime with this many worker threads, or one for each processor.
fn on_runtime(threads: Option<usize>, log: DefaultLog, command: impl Future<Output = Result<()>>) -> Result<()> {
    let mut runtime = Builder::new_multi_thread();
    if let Some(threads) = threads {
        runtime.worker_threads(threads);
    }
    let runtime = runtime.enable_all().build().context("can't start the worker threads")?;
    let outcome = runtime.block_on(async {
        // From now on a limit of file size fails the write (EFBIG), and does not end the process.
        let _handled = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).context("can't handle SIGXFSZ")?;
        let telemetry = Telemetry::set_up(log);
        let outcome = command.await;
        telemetry.end().await;
        outcome
    });
    // Dropping it would wait for every blocking call: for one on a file system that does not answer, without end.
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    outcome
}

/// How long blocking calls may go on when the command is done. What matters was waited for.
///
/// Larger: a file system that does not answer delays the end of the process. Smaller: a slow one fills the log with faults.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);
