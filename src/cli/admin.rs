//! `formgate admin link`: a one-time link into the administration area of a tenant.
//!
//! The link is printed once, and only the digest of its secret is stored. It signs in whoever opens it first, so it is
//! valid only for a while.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;

use super::output::print_secret;
use super::{OfTenant, TenantChoice, actor, when};
use crate::store::{AdminLink, AdminRole};
use crate::tenant::sign_in_link;

#[derive(Debug, Subcommand)]
pub(super) enum AdminCommand {
    /// Print a link that signs in to the administration area, once, and nothing else.
    Link(LinkArgs),
}

#[derive(Debug, Args)]
pub(super) struct LinkArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// The e-mail address of the administrator, by which the audit log names them.
    #[arg(long, value_parser = sign_in_link::email)]
    email: String,
    /// The administrator's name.
    #[arg(long, value_parser = sign_in_link::name)]
    name: Option<String>,
    /// What they may do: `admin` sees and changes everything, `viewer` only sees.
    #[arg(long, value_enum, default_value_t = Role::Admin)]
    role: Role,
    /// How long the link can be used, such as `30m` or `2h`; at most 7d.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = valid)]
    valid: Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    Admin,
    Viewer,
}

fn valid(text: &str) -> Result<Duration, String> {
    let valid = when::duration(text)?;
    let is_in_range = !valid.is_zero() && valid <= sign_in_link::MAX_VALID;
    if is_in_range { Ok(valid) } else { Err("a link is valid for at least 1s and at most 7d".to_owned()) }
}

pub(super) async fn run(command: &AdminCommand) -> Result<()> {
    let AdminCommand::Link(command) = command;
    let config = command.tenant.file.load()?;
    let tenant = command.tenant.find().await?;
    let Some(area) = config.gateway.administration_url(&tenant.address) else {
        bail!("the administration area is not switched on: add `[gateway.administration]` to the configuration");
    };
    let (_, store) = command.tenant.open().await?;
    let now = Timestamp::now();
    let link = AdminLink {
        email: command.email.clone(),
        name: command.name.clone(),
        role: match command.role {
            Role::Admin => AdminRole::Admin,
            Role::Viewer => AdminRole::Viewer,
        },
        identity: None,
        expires_at: now + command.valid,
    };
    let stored = sign_in_link::create(&store, &area, &link, now, &actor()).await.of_tenant(&tenant);
    store.close().await;
    print_secret(&stored?).context("the link can't be shown: ask for another one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_valid_for_at_most_a_week() {
        for (text, is_valid) in [("1h", true), ("7d", true), ("0s", false), ("8d", false), ("169h", false)] {
            assert_eq!(valid(text).is_ok(), is_valid, "{text}");
        }
    }
}
