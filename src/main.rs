//! The program: reads the arguments, sets up log and traces, runs one command.

use std::process::ExitCode;

use clap::Parser;
use formgate::cli::{self, Arguments};
use formgate::telemetry::{Log, Telemetry};
use formgate::workers;
use mimalloc::MiMalloc;

/// Requests move between threads, and with them what they allocated: the C library's allocator pays for that with locks.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    workers::runtime().expect("a runtime can be built").block_on(run())
}

async fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let telemetry = Telemetry::set_up(if arguments.serves() { Log::OfService } else { Log::OfCommand });
    // Redis asks rustls for the process's provider; everything else is given it.
    rustls::crypto::aws_lc_rs::default_provider().install_default().expect("nothing was installed before");
    let code = cli::run(arguments).await;
    telemetry.end().await;
    code
}
