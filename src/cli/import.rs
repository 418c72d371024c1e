//! `formgate import` and `formgate reindex`: load a tenant's data, and repair its search tables.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::json;

use super::migrate::{repair_schema, warn};
use super::output::{print, print_stderr};
use super::{OfTenant, TenantChoice, actor};
use crate::config::TenantConfig;
use crate::import::{self, ImportError, Imported, OnFault, Stage};
use crate::store::{self, AuditEntry, DatabaseConcern, Events, Store};

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// The NDJSON file; `-` reads standard input.
    file: PathBuf,
    /// Skip faulty lines and load the rest; without it, a faulty line rejects the whole file.
    #[arg(long)]
    keep_going: bool,
    /// Send no webhooks for what is loaded; `GET /submission/changes` has it all the same.
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct ReindexArgs {
    #[command(flatten)]
    tenant: TenantChoice,
}

/// The size of the read buffer in bytes.
///
/// Larger: more memory. Smaller: more system calls.
const BUFFER: usize = 1024 * 1024;

pub(super) async fn run(command: &ImportArgs) -> Result<()> {
    let tenant = command.tenant.find().await?;
    let (input, size) = open(&command.file)?;
    let on_fault = if command.keep_going { OnFault::KeepGoing } else { OnFault::Stop };
    let events = if command.quiet { Events::Quiet } else { Events::Sent };
    let template = if size.is_some() {
        "{bar:40} {percent:>3}%  {bytes} of {total_bytes}  {eta} left"
    } else {
        "{spinner} {bytes}  {elapsed}"
    };
    let bar = progress_bar(size, template);
    let audited = |imported: &Imported| Some((actor(), entry_of(imported, &command.file)));
    let loading = import::run(&tenant.database, input, on_fault, events, audited, |stage| match stage {
        Stage::Loading(progress) => bar.set_position(progress.bytes),
        Stage::Finishing => bar.set_style(style("{spinner} building indexes  {elapsed}")),
    });
    // Dropping the load rolls it back, so Ctrl-C leaves the database as it was.
    let loaded = tokio::select! {
        loaded = loading => loaded,
        _ = tokio::signal::ctrl_c() => bail!("interrupted; nothing of the file is kept"),
    };
    bar.finish_and_clear();
    let imported = match loaded {
        Ok(imported) => imported,
        Err(ImportError::Faulty(fault)) => bail!("{}: {fault}; nothing of the file is kept", name(&command.file)),
        Err(ImportError::Store(error)) => return Err(error).of_tenant(&tenant),
        Err(error @ ImportError::Unreadable { .. }) => return Err(error).context(name(&command.file)),
    };
    let printed = print(&summary(&imported)).with_context(|| format!("{}: loaded", name(&command.file)));
    if imported.faulty == 0 {
        return printed;
    }
    for fault in &imported.faults {
        print_stderr(&format!("{}: {fault}", name(&command.file)));
    }
    bail!("{} of {} lines were left out", imported.faulty, imported.lines)
}

fn entry_of(imported: &Imported, file: &Path) -> AuditEntry {
    let details = json!({ "loaded": summary(imported), "lines": imported.lines, "left_out": imported.faulty });
    let subject = file.file_name().map_or_else(|| name(file), |file| file.display().to_string());
    AuditEntry { action: "import", subject, details }
}

/// Writes a row of the audit log, for work in several transactions.
async fn record(tenant: &TenantConfig, entry: AuditEntry) -> Result<()> {
    let recording = async {
        let store = Store::open(&tenant.database, 1).await?;
        let recorded = store.audit(&actor(), entry, Timestamp::now()).await;
        store.close().await;
        recorded
    };
    recording.await.of_tenant(tenant)
}

fn open(path: &Path) -> Result<(Box<dyn BufRead + Send>, Option<u64>)> {
    if path == Path::new("-") {
        return Ok((Box::new(BufReader::with_capacity(BUFFER, std::io::stdin())), None));
    }
    let file = File::open(path).with_context(|| format!("can't read `{}`", path.display()))?;
    let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|data| data.len());
    Ok((Box::new(BufReader::with_capacity(BUFFER, file)), size))
}

fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// A progress bar, or a counter if the size is not known; hidden if standard error is not a terminal.
pub(super) fn progress_bar(size: Option<u64>, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = size.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    bar.set_style(style(template));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are sound")
}

fn summary(imported: &Imported) -> String {
    let counts = [
        (imported.users, "users"),
        (imported.labels, "labels"),
        (imported.forms, "forms"),
        (imported.groups, "groups"),
        (imported.flow_steps, "flow steps"),
        (imported.submissions, "submissions"),
    ];
    counts.map(|(count, what)| format!("{count} {what}")).join(", ")
}

pub(super) async fn reindex(command: &ReindexArgs) -> Result<()> {
    let tenant = command.tenant.find().await?;
    let left = repair_schema(&tenant).await?;
    warn(&tenant, DatabaseConcern::is_altered).await;
    let reindexed = store::reindex(&tenant.database).await.of_tenant(&tenant)?;
    let entry = AuditEntry {
        action: "reindex",
        subject: "search tables".to_owned(),
        details: json!({ "outcome": reindexed.to_string() }),
    };
    record(&tenant, entry).await.context("the search tables are rebuilt")?;
    print(&reindexed.to_string()).context("the search tables are rebuilt")?;
    left.require_none(&tenant)
}
