//! `formgate migrate`: migrates all tenants, including the registry's, or one.
//!
//! Each tenant is migrated on its own, several at once, so a failure leaves the others migrated. A tenant that needs nothing
//! costs one look, so the command goes on where it was stopped. What is printed is in the order of the tenants. The migrations
//! are the store's.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use futures_util::{StreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};

use super::output::{print, print_stderr};
use super::{ConfigFile, OfTenant, report};
use crate::config::TenantConfig;
use crate::store::{self, DatabaseConcern, Reach, Store};

/// How many parts of a schema that can't be restored are named; most have the same cause.
///
/// Larger: more lines of the same. Smaller: more repetitions of the command to see all causes.
const FAILURES: usize = 3;

/// The default and the largest number of tenants that are migrated at once.
///
/// Larger: a database server gets more connections and more work at once. Smaller: many tenants take longer.
const DEFAULT_JOBS: u16 = 8;
const MAX_JOBS: u16 = 256;

/// How often progress is reported where standard error is no terminal.
///
/// Larger: it is not seen whether the command hangs. Smaller: a log fills with it.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Migrate only this tenant; without it, all of them.
    #[arg(long, value_name = "SLUG")]
    tenant: Option<String>,
    /// Remove what only nodes of an older version need, which makes writes cheaper. Run it once no such node remains.
    #[arg(long)]
    finish: bool,
    /// How many tenants are migrated at once. Each takes up to two connections to its database.
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_JOBS,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_JOBS)))]
    jobs: u16,
}

pub(super) async fn run(command: &MigrateArgs) -> Result<()> {
    let tenants = match &command.tenant {
        Some(slug) => vec![command.file.find_tenant(slug).await?],
        None => command.file.load_all().await?.tenants,
    };
    let reach = if command.finish { Reach::Newest } else { Reach::Served };
    let mut progress = Progress::new(tenants.len());
    let (mut failed, mut printed) = (0, Ok(()));
    let migrations = stream::iter(tenants.iter().enumerate())
        .map(|(at, tenant)| async move { (at, migrate_tenant(tenant, reach).await) })
        .buffer_unordered(command.jobs.into());
    let mut migrations = std::pin::pin!(migrations);
    // Those that are done before one that precedes them.
    let mut done = BTreeMap::new();
    let mut next = 0;
    while let Some((at, migrated)) = migrations.next().await {
        failed += usize::from(migrated.is_failed);
        progress.note(failed);
        done.insert(at, migrated);
        while let Some(Migrated { line, messages, .. }) = done.remove(&next) {
            next += 1;
            progress.bar.suspend(|| {
                if let Some(line) = line {
                    printed = std::mem::replace(&mut printed, Ok(())).and_then(|()| print(&line));
                }
                messages.iter().for_each(|message| print_stderr(message));
            });
        }
    }
    progress.bar.finish_and_clear();
    if failed > 0 {
        bail!("{failed} of {} tenants could not be migrated", tenants.len());
    }
    printed.context("the tenants are migrated")
}

/// How many parts of a schema a command could not restore.
#[must_use]
pub(super) struct PartsLeft(usize);

impl PartsLeft {
    /// Fails if there are any.
    pub(super) fn require_none(&self, tenant: &TenantConfig) -> Result<()> {
        let slug = &tenant.slug;
        match self.0 {
            0 => Ok(()),
            1 => bail!("tenant `{slug}`: 1 part of the schema could not be restored"),
            left => bail!("tenant `{slug}`: {left} parts of the schema could not be restored"),
        }
    }
}

/// What became of a tenant.
struct Migrated {
    /// For standard output.
    line: Option<String>,
    /// For standard error.
    messages: Vec<String>,
    is_failed: bool,
}

/// Migrates a tenant. A failure does not keep the other tenants from being migrated.
async fn migrate_tenant(tenant: &TenantConfig, reach: Reach) -> Migrated {
    // What can't be looked at may be there once it is migrated.
    if let Ok(Some(version)) = store::up_to_date(&tenant.database).await {
        return Migrated { line: Some(line_of(tenant, version, version)), messages: Vec::new(), is_failed: false };
    }
    // A migration settles too, and a part that is missing may refuse that. Before the first migration, this fails.
    let before_it = repairs(tenant).await.ok();
    let (before, after) = match store::migrate(&tenant.database, reach).await.of_tenant(tenant) {
        Ok(versions) => versions,
        Err(error) => return Migrated { line: None, messages: vec![report(&error)], is_failed: true },
    };
    let repairs = match before_it {
        Some(repairs) if before == after => Ok(repairs),
        _ => repairs(tenant).await,
    };
    let (mut messages, left) =
        repairs.map_or_else(|error| (Vec::new(), Err(error)), |(messages, left)| (messages, Ok(left)));
    messages.extend(warnings(tenant, |_| true).await);
    let failure = left.and_then(|left| left.require_none(tenant)).err();
    messages.extend(failure.iter().map(report));
    Migrated { line: Some(line_of(tenant, before, after)), messages, is_failed: failure.is_some() }
}

fn line_of(tenant: &TenantConfig, before: i64, after: i64) -> String {
    match before == after {
        true => format!("{}: at version {after}", tenant.slug),
        false => format!("{}: from version {before} to {after}", tenant.slug),
    }
}

/// How far the command is, on standard error: a bar on a terminal, else a line now and then.
struct Progress {
    bar: ProgressBar,
    began: Instant,
    reported_at: Instant,
}

impl Progress {
    fn new(tenants: usize) -> Self {
        let bar = if tenants > 1 && std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{bar:40} {pos} of {len}  {per_sec}  {eta} left  {msg}");
            ProgressBar::new(tenants as u64).with_style(style.expect("the template is sound"))
        } else {
            ProgressBar::hidden()
        };
        bar.set_length(tenants as u64);
        Self { bar, began: Instant::now(), reported_at: Instant::now() }
    }

    /// Notes that one more is done.
    fn note(&mut self, failed: usize) {
        self.bar.inc(1);
        if failed > 0 {
            self.bar.set_message(format!("{failed} failed"));
        }
        if self.bar.is_hidden() && self.reported_at.elapsed() >= REPORT_INTERVAL {
            self.reported_at = Instant::now();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or_default());
            print_stderr(&shown(done, all, failed, self.began.elapsed()));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "it is for people")]
fn shown(done: u64, all: u64, failed: usize, took: Duration) -> String {
    let rate = done as f64 / took.as_secs_f64().max(0.001);
    format!("{done} of {all} tenants done, {failed} of them failed, {rate:.1} a second")
}

/// Restores the schema of a tenant's database where it was altered, and prints on standard error what was done, and what is
/// left.
pub(super) async fn repair_schema(tenant: &TenantConfig) -> Result<PartsLeft> {
    let (messages, left) = repairs(tenant).await?;
    messages.iter().for_each(|message| print_stderr(message));
    Ok(left)
}

/// Restores the schema of a tenant's database where it was altered. Returns what was done, and what is left.
async fn repairs(tenant: &TenantConfig) -> Result<(Vec<String>, PartsLeft)> {
    let slug = &tenant.slug;
    let repair = store::repair_schema(&tenant.database).await.of_tenant(tenant)?;
    let restored = (repair.restored > 0)
        .then(|| format!("warning: tenant `{slug}`: restored {} altered parts of the schema", repair.restored));
    let left = repair.left.iter().take(FAILURES);
    let left_out = left.map(|left| format!("warning: tenant `{slug}`: can't restore the schema: {left}"));
    Ok((restored.into_iter().chain(left_out).collect(), PartsLeft(repair.left.len())))
}

/// Prints some of the warnings about a tenant.
pub(super) async fn warn(tenant: &TenantConfig, is_printed: fn(&DatabaseConcern) -> bool) {
    warnings(tenant, is_printed).await.iter().for_each(|warning| print_stderr(warning));
}

async fn warnings(tenant: &TenantConfig, is_printed: fn(&DatabaseConcern) -> bool) -> Vec<String> {
    let Ok(store) = Store::open(&tenant.database, 1).await else { return Vec::new() };
    let concerns = store.concerns().await.unwrap_or_default();
    store.close().await;
    let slug = &tenant.slug;
    let shown = concerns.iter().filter(|concern| is_printed(concern));
    shown.map(|concern| format!("warning: tenant `{slug}`: {concern}: {}", concern.remedy(slug))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_a_rate() {
        let shown = shown(300, 1000, 2, Duration::from_secs(4));
        assert_eq!(shown, "300 of 1000 tenants done, 2 of them failed, 75.0 a second");
    }
}
