//! The program: reads the arguments, sets up the log, runs one command.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use formgate::cli::{self, Arguments};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    set_up_log();
    // Redis asks rustls for the process's provider; everything else is given it.
    rustls::crypto::aws_lc_rs::default_provider().install_default().expect("nothing was installed before");
    cli::run(arguments).await
}

/// Logs to standard error: text on a terminal, else one JSON object a line. `FORMGATE_LOG` filters as `RUST_LOG` does
/// elsewhere.
fn set_up_log() {
    let filter =
        EnvFilter::try_from_env("FORMGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn,rustls=error"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        log.with_target(false).init();
    } else {
        log.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    }
}
