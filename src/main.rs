//! The program: reads the arguments and runs one command.

use std::process::ExitCode;

use clap::Parser;
use formgate::cli::{self, Arguments};
use mimalloc::MiMalloc;

/// Requests move between threads, and with them what they allocated: the C library's allocator pays for that with locks.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Redis asks rustls for the process's provider; everything else is given it.
    rustls::crypto::aws_lc_rs::default_provider().install_default().expect("nothing was installed before");
    cli::run(arguments)
}
