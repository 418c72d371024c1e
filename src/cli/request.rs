//! `formgate request`: lists the requests of a tenant that nodes have written to its database.

use anyhow::Result;
use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::listing::{Listing, ROWS_A_PAGE, bound};
use super::output::print_stderr;
use super::{OfTenant, TenantChoice};
use crate::api::{RequestJson, parse_range_start};
use crate::store::{LoggedRequest, RequestFilter};

#[derive(Debug, Subcommand)]
pub(super) enum RequestCommand {
    /// List requests, the newest first: when, token, method, route, status, reason, count, milliseconds, rows, network, id,
    /// agent. Nodes write requests within 10 seconds, those of a closed SQLite file within a minute.
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// Only requests with this token: the number shown by `token list`.
    #[arg(long, value_name = "ID")]
    token: Option<i64>,
    /// Only requests with this status, such as 429, or this class, such as 4xx.
    #[arg(long, value_name = "STATUS", value_parser = statuses)]
    status: Option<(u16, u16)>,
    /// Only from this day of the tenant's time zone, or RFC 3339 date-time, on.
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Print NDJSON: one JSON object a line, as `GET /request` has it.
    #[arg(long)]
    json: bool,
}

fn statuses(text: &str) -> Result<(u16, u16), String> {
    RequestFilter::parse_statuses(text).ok_or_else(|| "a status such as 429, or a class such as 4xx".to_owned())
}

pub(super) async fn run(command: &RequestCommand) -> Result<()> {
    let RequestCommand::List(command) = command;
    let tenant = command.tenant.find().await?;
    let since = bound(command.since.as_deref(), &tenant.timezone, parse_range_start)?;
    let filter = RequestFilter { token: command.token, statuses: command.status, since };
    let (tenant, store) = command.tenant.open().await?;
    let head = ["AT", "TOKEN", "METHOD", "ROUTE", "STATUS", "REASON", "COUNT", "MS", "ROWS", "NETWORK", "ID", "AGENT"];
    let (mut listing, mut after, now) = (Listing::new(command.json, head), None, Timestamp::now());
    let as_json = |request: &_| serde_json::to_string(&RequestJson::from(request)).expect("it has text keys");
    loop {
        let page = store.list_requests(&filter, after, ROWS_A_PAGE, Vec::new(), now).await.of_tenant(&tenant)?;
        after = page.last().map(|request| request.key);
        if !listing.take(page, as_json, as_row)? {
            break;
        }
    }
    store.close().await;
    if !command.json {
        print_stderr("note: running nodes may have requests of the last seconds that are not in the database yet");
    }
    listing.end()
}

fn as_row(request: LoggedRequest) -> [String; 12] {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let sent = request.prefix.map(|prefix| format!("{prefix}…"));
    [
        request.key.instant().strftime("%Y-%m-%d %H:%M:%S").to_string(),
        or_none(request.token.map(|id| id.to_string()).or(sent)),
        request.method,
        or_none(request.route),
        request.status.to_string(),
        or_none(request.reason),
        request.counted.unwrap_or(1).to_string(),
        request.duration_ms.to_string(),
        or_none(request.rows.map(|rows| rows.to_string())),
        or_none(request.network),
        request.id,
        or_none(request.agent),
    ]
}
