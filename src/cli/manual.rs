//! `formgate completions` and `formgate man`: shell completions and manual pages, generated from the definitions of the commands.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use super::Arguments;
use super::output::print;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell that completes.
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The folder to write them to, which is created if it is missing.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Prints the completions of a shell.
pub(super) fn print_completions(arguments: &CompletionsArgs) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut command(), NAME, &mut text);
    print(String::from_utf8(text).context("completions are UTF-8")?.trim_end())
}

/// Writes a manual page for the program and for each of its commands.
pub(super) fn write_pages(arguments: &ManArgs) -> Result<()> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder).with_context(|| format!("can't make the folder {}", folder.display()))?;
    clap_mangen::generate_to(command(), folder).with_context(|| format!("can't write pages to {}", folder.display()))
}

const NAME: &str = "formgate";

fn command() -> Command {
    Arguments::command().name(NAME)
}
