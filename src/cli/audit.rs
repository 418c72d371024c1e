//! `formgate audit`: the log of what administrators and commands changed.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use super::listing::{Listing, ROWS_A_PAGE, bound};
use super::output::print;
use super::{OfTenant, TenantChoice};
use crate::api::{parse_range_end, parse_range_start};
use crate::store::{AuditFilter, AuditRecord, AuditVerdict};

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// List changes, the newest first: number, when, who, from where, what.
    List(ListArgs),
    /// Verify that no row, and no sealed day of the ledger of reads, was changed or removed; exit code 1 if one was.
    Verify(TenantChoice),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// Only changes by this administrator or system user.
    #[arg(long)]
    actor: Option<String>,
    /// Only changes of this kind, such as `token.create`.
    #[arg(long)]
    action: Option<String>,
    /// Only from this day of the tenant's time zone, or RFC 3339 date-time, on.
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Only until the end of this day, or this date-time.
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    /// Print NDJSON: one JSON object a line.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(command: &AuditCommand) -> Result<()> {
    match command {
        AuditCommand::List(command) => list(command).await,
        AuditCommand::Verify(command) => verify(command).await,
    }
}

async fn list(command: &ListArgs) -> Result<()> {
    let tenant = command.tenant.find().await?;
    let filter = AuditFilter {
        actor: command.actor.clone(),
        action: command.action.clone(),
        since: bound(command.since.as_deref(), &tenant.timezone, parse_range_start)?,
        until: bound(command.until.as_deref(), &tenant.timezone, parse_range_end)?,
    };
    let (tenant, store) = command.tenant.open().await?;
    let head = ["ID", "AT", "ACTOR", "SOURCE", "NETWORK", "ACTION", "SUBJECT", "DETAILS"];
    let (mut listing, mut before) = (Listing::new(command.json, head), None);
    loop {
        let page = store.list_audit(&filter, before, ROWS_A_PAGE).await.of_tenant(&tenant)?;
        before = page.last().map(|record| record.id);
        if !listing.take(page, |record| record.to_json().to_string(), as_row)? {
            break;
        }
    }
    store.close().await;
    listing.end()
}

async fn verify(command: &TenantChoice) -> Result<()> {
    let (tenant, store) = command.open().await?;
    let verdict = store.verify_audit().await.of_tenant(&tenant)?;
    store.close().await;
    let slug = &tenant.slug;
    match verdict {
        AuditVerdict::Intact { rows, days } => {
            let ledger =
                if days == 0 { String::new() } else { format!("; the ledger of reads is intact: {days} days") };
            print(&format!("{slug}: the audit log is intact: {rows} rows{ledger}"))
        }
        AuditVerdict::Changed { id } => bail!("{slug}: row {id} of the audit log was changed"),
        AuditVerdict::Missing { id } => bail!("{slug}: row {id} of the audit log is missing"),
        AuditVerdict::EndMissing => {
            bail!("{slug}: the end of the audit log is missing: the table audit_state is empty")
        }
        AuditVerdict::Added { id } => bail!("{slug}: row {id} of the audit log was not written by formgate"),
        AuditVerdict::ReadsChanged { day } => bail!("{slug}: the ledger of reads was changed for {day}"),
        AuditVerdict::ReadsMissing { day } => bail!("{slug}: the ledger of reads is missing for {day}"),
        AuditVerdict::ReadsAdded { day } => {
            bail!("{slug}: the ledger of reads has entries for {day} that were not written by formgate")
        }
    }
}

fn as_row(record: AuditRecord) -> [String; 8] {
    [
        record.id.to_string(),
        record.at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        record.actor,
        record.source,
        record.network.unwrap_or_else(|| "-".to_owned()),
        record.action,
        record.subject,
        record.details,
    ]
}
