//! `formgate explain`: reports at which step a request, or the webhooks of a subscription, would stop, and how to fix it.

use std::io::Read;
use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::ConfigFile;
use super::output::print;
use crate::explain::{Tracer, trace_webhook};

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The host that clients use, or a whole URL.
    host: String,
    /// A token to check too; `-` reads it from standard input, so that process lists do not show it.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// The address of the caller, if the token is limited to networks.
    #[arg(long, value_name = "ADDRESS", requires = "token")]
    from: Option<IpAddr>,
    /// A subscription, such as `hook_7`: report why its webhooks do not arrive, and send its receiver a test.
    #[arg(long, value_name = "ID", conflicts_with = "token")]
    webhook: Option<String>,
}

pub(super) async fn run(command: &ExplainArgs) -> Result<()> {
    if let Some(subscription) = &command.webhook {
        return explain_webhook(command, subscription).await;
    }
    let token = match command.token.as_deref() {
        Some("-") => Some(read_token()?),
        token => token.map(str::to_owned),
    };
    let config = command.file.load_all().await?;
    let trace = Tracer::new(&config).await.trace(&command.host, token.as_deref(), command.from).await;
    print(&trace.to_string())?;
    match trace.stop() {
        None if token.is_some() => print("\nA request with this token would be served."),
        None => print("\nA request with a good token would be served."),
        Some(stop) => bail!("a request would stop at the step `{}`", stop.name),
    }
}

async fn explain_webhook(command: &ExplainArgs, subscription: &str) -> Result<()> {
    let config = command.file.load_all().await?;
    let trace = trace_webhook(&config, &command.host, subscription).await;
    print(&trace.to_string())?;
    match trace.stop() {
        None => print("\nWebhooks of this subscription arrive."),
        Some(stop) => bail!("webhooks stop at the step `{}`", stop.name),
    }
}

fn read_token() -> Result<String> {
    let mut text = String::new();
    // Tokens are short: do not read longer input to its end.
    std::io::stdin().lock().take(4096).read_to_string(&mut text).context("can't read a token from standard input")?;
    Ok(text.trim().to_owned())
}
