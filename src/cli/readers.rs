//! `formgate readers`: which tokens' responses contained a submission.

use anyhow::{Result, bail};
use clap::Args;

use super::output::{pretty, print, table};
use super::webhook::submission_id;
use super::{OfTenant, TenantChoice};
use crate::store::SubmissionReaders;

#[derive(Debug, Args)]
pub(super) struct ReadersArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// The submission, such as sub_1001; also one that was deleted.
    #[arg(long, value_name = "ID", value_parser = submission_id)]
    submission: i64,
    /// Print JSON, as the API does.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(command: &ReadersArgs) -> Result<()> {
    let (tenant, store) = command.tenant.open().await?;
    let readers = store.submission_readers(command.submission, Vec::new()).await.of_tenant(&tenant)?;
    store.close().await;
    let Some(readers) = readers else {
        bail!("tenant `{}` has no submission sub_{}, and nobody has read one", tenant.slug, command.submission)
    };
    print(&if command.json { pretty(&readers.to_json()) } else { shown(readers) })
}

/// A table of the readers, and a line for each gap.
fn shown(readers: SubmissionReaders) -> String {
    let head = ["TOKEN", "NAME", "FIRST", "LAST", "DAYS"].map(str::to_owned);
    let rows = readers.readers.into_iter().map(|of| {
        let name = of.name.unwrap_or_else(|| "-".to_owned());
        [of.token.to_string(), name, of.first.to_string(), of.last.to_string(), of.days.to_string()]
    });
    let mut text = table(&std::iter::once(head).chain(rows).collect::<Vec<_>>());
    for gap in readers.gaps {
        text += &format!("\nA node crashed: reads from {} to {} may be missing.", gap.from, gap.until);
    }
    text
}
