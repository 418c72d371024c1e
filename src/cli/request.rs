//! `formgate request`: lists the requests of a tenant that nodes have written to its database.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::output::{print, print_stderr, table};
use super::{OfTenant, TenantChoice};
use crate::api::{RequestJson, parse_range_start};
use crate::store::{LoggedRequest, RequestFilter};

/// How many rows are read at a time.
///
/// Larger: more memory. Smaller: more statements for a long log.
const ROWS_A_PAGE: u32 = 1000;

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
    let since = match &command.since {
        None => None,
        Some(text) => match parse_range_start(text, &tenant.timezone) {
            Some(instant) => Some(instant),
            None => bail!("`{text}` is neither a day such as 2026-05-01, nor an RFC 3339 date-time"),
        },
    };
    let filter = RequestFilter { token: command.token, statuses: command.status, since };
    let (tenant, store) = command.tenant.open().await?;
    let (mut rows, mut after, now) = (Vec::new(), None, Timestamp::now());
    loop {
        let page = store.list_requests(&filter, after, ROWS_A_PAGE, Vec::new(), now).await.of_tenant(&tenant)?;
        after = page.last().map(|request| request.key);
        let is_last = page.len() < ROWS_A_PAGE as usize;
        if command.json && !page.is_empty() {
            let line = |request| serde_json::to_string(&RequestJson::from(request)).expect("it has text keys");
            print(&page.iter().map(line).collect::<Vec<_>>().join("\n"))?;
        } else {
            rows.extend(page.into_iter().map(as_row));
        }
        if is_last {
            break;
        }
    }
    store.close().await;
    if command.json {
        return Ok(());
    }
    print_stderr("note: running nodes may have requests of the last seconds that are not in the database yet");
    let head = ["AT", "TOKEN", "METHOD", "ROUTE", "STATUS", "REASON", "COUNT", "MS", "ROWS", "NETWORK", "ID", "AGENT"];
    print(&table(&std::iter::once(head.map(str::to_owned)).chain(rows).collect::<Vec<_>>()))
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
