//! `formgate admin link`: a one-time link into the administration area of a tenant.
//!
//! The link is printed once, and only the digest of its secret is stored. It signs in whoever opens it first, so it is
//! valid only for a while.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::output::print_secret;
use super::{OfTenant, TenantChoice, actor, when};
use crate::store::{AdminLink, AdminRole, Store, StoreError};

/// The longest time that a link is valid: a week.
///
/// Larger: a link in an old message still signs in. Smaller: an invitation before a weekend expires
/// unread.
const MAX_VALID: Duration = Duration::from_hours(7 * 24);

/// The longest name, in characters, and the longest e-mail address.
///
/// Larger: pages that show it are wider. Smaller: long names have to be shortened.
const MAX_NAME: usize = 255;

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
    #[arg(long, value_parser = email)]
    email: String,
    /// The administrator's name.
    #[arg(long, value_parser = name)]
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

fn email(text: &str) -> Result<String, String> {
    let is_plain = text.chars().all(|char| !char.is_control() && !char.is_whitespace());
    let has_parts = text.rsplit_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
    let is_email = is_plain && has_parts && text.chars().count() <= MAX_NAME;
    if is_email { Ok(text.to_owned()) } else { Err("it is not an e-mail address".to_owned()) }
}

fn name(text: &str) -> Result<String, String> {
    let is_name = (1..=MAX_NAME).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    if is_name { Ok(text.to_owned()) } else { Err("a name has 1 to 255 characters, no control characters".to_owned()) }
}

fn valid(text: &str) -> Result<Duration, String> {
    let valid = when::duration(text)?;
    let is_in_range = !valid.is_zero() && valid <= MAX_VALID;
    if is_in_range { Ok(valid) } else { Err("a link is valid for at least 1s and at most 7d".to_owned()) }
}

pub(super) async fn run(command: &AdminCommand) -> Result<()> {
    let AdminCommand::Link(command) = command;
    let config = command.tenant.file.load()?;
    let tenant = command.tenant.find()?;
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
    let stored = create_link(&store, &area, &link, now).await.of_tenant(&tenant);
    store.close().await;
    print_secret(&stored?).context("the link can't be shown: ask for another one")
}

/// Stores a link into the area at a URL, and returns its own URL.
pub(super) async fn create_link(
    store: &Store,
    area: &str,
    link: &AdminLink,
    now: Timestamp,
) -> Result<String, StoreError> {
    let secret = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let digest = Sha256::digest(secret.as_bytes()).into();
    store.create_admin_link(&digest, link, now, &actor()).await?;
    Ok(format!("{area}/enter/{secret}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_email_address_has_two_parts_and_no_blanks() {
        for (text, is_email) in [
            ("ana@acme.example", true),
            ("ana@", false),
            ("@acme.example", false),
            ("ana", false),
            ("ana @acme.example", false),
            ("ana@acme.example\n", false),
            (&format!("{}@a.example", "x".repeat(250)), false),
        ] {
            assert_eq!(email(text).is_ok(), is_email, "{text}");
        }
    }

    #[test]
    fn a_link_is_valid_for_at_most_a_week() {
        for (text, is_valid) in [("1h", true), ("7d", true), ("0s", false), ("8d", false), ("169h", false)] {
            assert_eq!(valid(text).is_ok(), is_valid, "{text}");
        }
    }
}
