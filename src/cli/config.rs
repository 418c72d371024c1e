//! `formgate config`: describes the configuration. Reads no file.

use anyhow::Result;
use clap::Subcommand;

use super::output::print;
use crate::config;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print the JSON schema of the configuration, with which editors complete and check it.
    ///
    /// Save it beside the configuration, and name it in the first line of that: `#:schema ./tenants.schema.json`.
    Schema,
}

pub(super) fn run(command: &ConfigCommand) -> Result<()> {
    match command {
        ConfigCommand::Schema => print(config::schema().trim_end()),
    }
}
