//! `formgate erase`: what formgate itself holds about a person. What forms products wrote is theirs to erase.

use anyhow::{Context, Result};
use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::output::{pretty, print, print_stderr, table};
use super::{OfTenant, TenantChoice, actor};
use crate::store;

#[derive(Debug, Args)]
pub(super) struct EraseArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// The e-mail address of the person.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    email: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn address(text: &str) -> Result<String, String> {
    match store::mailbox::Address::parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(fault) => Err(format!("expected an e-mail address: {fault}")),
    }
}

pub(super) async fn run(command: &EraseArgs) -> Result<()> {
    let tenant = command.tenant.find().await?;
    let erased = store::erase_person(&tenant.database, &command.email, &actor(), Timestamp::now()).await;
    let erased = erased.of_tenant(&tenant)?;
    let kept: Vec<_> = erased.subscriptions.iter().map(|id| format!("hook_{id}")).collect();
    if !kept.is_empty() {
        print_stderr(&format!(
            "these subscriptions have the address in their target_url, and stay: {}",
            kept.join(", ")
        ));
    }
    if erased.is_in_log {
        print_stderr(
            "a program reads the file all the time, so its write-ahead log still has what was erased: repeat the command when it is done",
        );
    }
    let text = if command.json {
        pretty(&json!({ "erased": erased.erased, "subscriptions": kept }))
    } else if erased.erased.is_empty() {
        format!("{}: formgate holds nothing about this address", tenant.slug)
    } else {
        let head = ["TABLE", "ROWS"].map(str::to_owned);
        let rows = erased.erased.iter().map(|(table, rows)| [(*table).to_owned(), rows.to_string()]);
        table(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
    };
    print(&text).context("it is erased")
}
