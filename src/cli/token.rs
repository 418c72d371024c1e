//! `formgate token create | list | revoke`.
//!
//! A token is printed once, and only its digest is stored. Changes are announced through Redis if one is configured,
//! so that running nodes notice at once.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::output::{print, print_secret, print_stderr};
use super::{OfTenant, TenantChoice, actor};
use crate::shared::{RedisClient, announce};
use crate::store::{Store, TokenRecord, with_causes};
use crate::tenant::token::{self, CreateTokenError, Created, NewTokenRequest, PresentedToken};

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Create a token and print it, and nothing else; it can't be shown again.
    Create(CreateArgs),
    /// List tokens: id, name, prefix, created, last used, revoked.
    List(ListArgs),
    /// Revoke a token. Its requests are refused within a few seconds.
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// What the token is for, 1 to 255 characters; with one token per integration, each can be revoked on its own.
    #[arg(long)]
    name: String,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct RevokeArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// The number shown by `token list`.
    id: i64,
}

pub(super) async fn run(command: &TokenCommand) -> Result<()> {
    match command {
        TokenCommand::Create(command) => {
            let (tenant, store) = command.tenant.open().await?;
            let token = create(&store, &command.name).await.of_tenant(&tenant)?;
            let shown = show(&store, &token).await;
            store.close().await;
            shown?;
            announce(&command.tenant).await;
        }
        TokenCommand::List(command) => {
            let (tenant, store) = command.tenant.open().await?;
            let tokens = store.list_tokens().await.of_tenant(&tenant)?;
            store.close().await;
            print(&if command.json { as_json(&tokens) } else { as_table(&tokens) })?;
        }
        TokenCommand::Revoke(command) => {
            let (tenant, store) = command.tenant.open().await?;
            let known = store.revoke_token(command.id, Timestamp::now(), &actor()).await.of_tenant(&tenant)?;
            store.close().await;
            if !known {
                bail!("tenant `{}` has no token {}", command.tenant.tenant, command.id);
            }
            announce(&command.tenant).await;
            print_stderr(&format!("token {} is revoked", command.id));
        }
    }
    Ok(())
}

/// Prints a new token. If that fails, revokes it, since it can't be shown again.
async fn show(store: &Store, token: &PresentedToken) -> Result<()> {
    let Err(unseen) = print_secret(token.expose()) else { return Ok(()) };
    let revoking = async {
        let created = store.find_token(token.digest().as_bytes(), Timestamp::now()).await?;
        if let Some(created) = created {
            store.revoke_token(created.id, Timestamp::now(), &actor()).await?;
        }
        anyhow::Ok(())
    };
    match revoking.await {
        Ok(()) => bail!("{unseen:#}; the token is revoked again"),
        Err(failure) => {
            let failure = with_causes(failure.as_ref());
            bail!("{unseen:#}; and the token {}… can't be revoked: {failure}", token.shown())
        }
    }
}

/// Notifies the running nodes. If that fails, they notice a little later; the change itself is done.
async fn announce(tenant: &TenantChoice) {
    let announcing = async {
        let Some(redis) = tenant.file.load()?.gateway.redis else { return Ok(()) };
        let client = RedisClient::new(&redis.target)?;
        announce::announce(&client, &tenant.tenant).await.map_err(anyhow::Error::msg)
    };
    if let Err(failure) = announcing.await {
        print_stderr(&format!(
            "warning: can't announce the change through Redis ({failure}); running nodes notice within a minute"
        ));
    }
}

/// Creates a token and stores its digest.
pub(super) async fn create(store: &Store, name: &str) -> Result<PresentedToken> {
    let request = NewTokenRequest { name: name.to_owned(), expires_at: None, form_key: None };
    match token::create(store, request, &actor()).await {
        Ok(Created::New { token, .. }) => Ok(token),
        Ok(Created::Existing(_)) => bail!("a command sends no form"),
        Err(CreateTokenError::Store(error)) => Err(error.into()),
        Err(error) => Err(error.into()),
    }
}

fn as_json(tokens: &[TokenRecord]) -> String {
    let tokens: Vec<_> = tokens
        .iter()
        .map(|token| {
            json!({
                "id": token.id,
                "name": token.name,
                "prefix": token.prefix,
                "created_at": token.created_at.to_string(),
                "last_used_at": token.last_used_at.map(|at| at.to_string()),
                "revoked_at": token.revoked_at.map(|at| at.to_string()),
            })
        })
        .collect();
    serde_json::to_string_pretty(&tokens).expect("texts and numbers are JSON")
}

fn as_table(tokens: &[TokenRecord]) -> String {
    let head = ["ID", "NAME", "PREFIX", "CREATED", "LAST USED", "REVOKED"].map(str::to_owned);
    let shown =
        |at: Option<Timestamp>| at.map_or_else(|| "-".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M").to_string());
    let rows = tokens.iter().map(|token| {
        [
            token.id.to_string(),
            token.name.clone(),
            token.prefix.clone(),
            shown(Some(token.created_at)),
            shown(token.last_used_at),
            shown(token.revoked_at),
        ]
    });
    let rows: Vec<[String; 6]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let line = |row: &[String; 6]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
