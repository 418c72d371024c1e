//! `formgate token create | rotate | change | list | revoke`.
//!
//! A token is printed once, and only its digest is stored. Changes are announced through Redis if one is configured,
//! so that running nodes notice at once.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::output::{pretty, print, print_secret, print_stderr, shown, table};
use super::when::{self, Expiry};
use super::{OfTenant, TenantChoice, actor};
use crate::instant::Rfc3339Micros;
use crate::shared::{RedisClient, announce};
use crate::store::{
    ChangedToken, FormReach, LimitFault, ListFault, Networks, Scopes, Store, TokenLimits, TokenRecord, with_causes,
};
use crate::tenant::token::{
    self, CreateTokenError, Created, NewTokenRequest, PresentedToken, Rotated, RotationRequest,
};

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Create a token and print it, and nothing else; it can't be shown again.
    Create(CreateArgs),
    /// Create a token that replaces another one, and print it, and nothing else; it can't be shown again.
    Rotate(RotateArgs),
    /// Narrow or widen what a token may do, from where, and how often. It takes effect within 5 seconds; with Redis, within 1 second.
    Change(ChangeArgs),
    /// List tokens: id, name, prefix, created, last used, revoked, expires, created by, replaces, last route, network,
    /// scopes, forms, networks, requests per minute.
    List(ListArgs),
    /// Revoke a token. Its requests are refused within 5 seconds; with Redis, within 1 second.
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// What the token is for, 1 to 255 characters; with one token per integration, each can be revoked on its own.
    #[arg(long)]
    name: String,
    /// When it expires: a while from now, such as 90d or 12h, or an RFC 3339 date-time; `never` is the default.
    #[arg(long, value_name = "WHEN", default_value = "never", hide_default_value = true, value_parser = when::expiry)]
    expires: Expiry,
    #[command(flatten)]
    limits: LimitArgs,
}

/// What a token is limited to. What is not given stays as it is; for a new token, it is not limited.
#[derive(Debug, Args)]
struct LimitArgs {
    /// What it may do, separated by commas: forms:read, submissions:read, groups:read, groups:write, webhooks:manage,
    /// scim; or `*` for all, in quotes.
    #[arg(long, value_name = "SCOPES", value_parser = scopes)]
    scopes: Option<Scopes>,
    /// What it reaches, separated by commas: ids of forms such as for_1, which include their sub-forms; or `*` for all.
    #[arg(long, value_name = "FORMS", value_parser = forms)]
    forms: Option<FormReach>,
    /// From where it is accepted, separated by commas: networks such as 203.0.113.0/24 or 2001:db8::/32; or `*` for all.
    #[arg(long, value_name = "NETWORKS", value_parser = networks)]
    networks: Option<Networks>,
    /// A budget of its own, within that of the account; or none.
    #[arg(long, value_name = "NUMBER", value_parser = own_budget)]
    requests_per_minute: Option<OwnBudget>,
}

/// The requests per minute of a token; `None` for the account's alone.
type OwnBudget = Option<u64>;

impl LimitArgs {
    /// A budget that the account can have.
    fn budget(&self, of_account: u32) -> Result<Option<Option<u32>>, LimitFault> {
        let parse = |own: OwnBudget| own.map(|own| TokenLimits::parse_budget(own, of_account)).transpose();
        self.requests_per_minute.map(parse).transpose()
    }

    /// Limits with what is given.
    fn change(&self, budget: Option<Option<u32>>, limits: TokenLimits) -> TokenLimits {
        TokenLimits {
            scopes: self.scopes.unwrap_or(limits.scopes),
            forms: self.forms.clone().unwrap_or(limits.forms),
            networks: self.networks.clone().unwrap_or(limits.networks),
            requests_per_minute: budget.unwrap_or(limits.requests_per_minute),
        }
    }
}

/// The words for no limit. The second one is that of earlier versions.
const ALL: [&str; 2] = ["*", "all"];

fn scopes(text: &str) -> Result<Scopes, String> {
    if ALL.contains(&text) {
        return Ok(Scopes::ALL);
    }
    Scopes::parse(entries(text)).map_err(|ListFault { fault, .. }| fault.to_string())
}

fn forms(text: &str) -> Result<FormReach, String> {
    if ALL.contains(&text) {
        return Ok(FormReach::All);
    }
    FormReach::parse(entries(text)).map_err(|ListFault { fault, .. }| fault.to_string())
}

fn networks(text: &str) -> Result<Networks, String> {
    if ALL.contains(&text) {
        return Ok(Networks::default());
    }
    Networks::parse(entries(text)).map_err(|ListFault { fault, .. }| fault.to_string())
}

/// The entries of a list.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|_| !text.trim().is_empty())
}

fn own_budget(text: &str) -> Result<OwnBudget, String> {
    if text == "none" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| "a number of requests, or none".to_owned())
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("given").args(["scopes", "forms", "networks", "requests_per_minute"]).required(true).multiple(true)))]
pub(super) struct ChangeArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// The number shown by `token list`.
    id: i64,
    #[command(flatten)]
    limits: LimitArgs,
}

#[derive(Debug, Args)]
pub(super) struct RotateArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// The number shown by `token list`.
    id: i64,
    /// How long the old token is still accepted, such as 24h; at most 90d. 0s if it leaked.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = overlap)]
    overlap: Duration,
    /// When the new token expires, as for `token create`. Required if the old one expires.
    #[arg(long, value_name = "WHEN", value_parser = when::expiry)]
    expires: Option<Expiry>,
}

/// The longest overlap.
///
/// Larger: a token that was replaced is forgotten and stays valid. Smaller: integrations that are deployed once a
/// quarter can't be rotated without a gap.
const MAX_OVERLAP: Duration = Duration::from_hours(90 * 24);

fn overlap(text: &str) -> Result<Duration, String> {
    let overlap = when::duration(text)?;
    if overlap <= MAX_OVERLAP { Ok(overlap) } else { Err("an overlap is at most 90d".to_owned()) }
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
            let expires_at = command.expires.instant(Timestamp::now());
            let budget = command.limits.budget(tenant.requests_per_minute)?;
            let limits = command.limits.change(budget, TokenLimits::default());
            let token = create(&store, &command.name, expires_at, limits).await.of_tenant(&tenant)?;
            let shown = show(&store, &token).await;
            store.close().await;
            shown?;
            announce(&command.tenant).await;
        }
        TokenCommand::Rotate(command) => rotate(command).await?,
        TokenCommand::Change(command) => change(command).await?,
        TokenCommand::List(command) => {
            let (tenant, store) = command.tenant.open().await?;
            let tokens = store.list_tokens().await.of_tenant(&tenant)?;
            store.close().await;
            print(&if command.json { as_json(&tokens) } else { as_table(tokens) })?;
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
        announce::announce(&client, &tenant.tenant).await.map_err(anyhow::Error::from)
    };
    if let Err(failure) = announcing.await {
        print_stderr(&format!(
            "warning: can't announce the change through Redis ({failure}); running nodes notice within a minute"
        ));
    }
}

/// Creates a token and stores its digest.
pub(super) async fn create(
    store: &Store,
    name: &str,
    expires_at: Option<Timestamp>,
    limits: TokenLimits,
) -> Result<PresentedToken> {
    let request = NewTokenRequest { name: name.to_owned(), expires_at, limits, form_key: None };
    match token::create(store, request, &actor()).await.map_err(plain)? {
        Created::New { token, .. } => Ok(token),
        Created::Existing { .. } => bail!("a command sends no form"),
    }
}

async fn change(ChangeArgs { tenant: choice, id, limits }: &ChangeArgs) -> Result<()> {
    let (tenant, store) = choice.open().await?;
    let budget = limits.budget(tenant.requests_per_minute)?;
    let changed = store.change_token_limits(*id, |old| limits.change(budget, old), Timestamp::now(), &actor()).await;
    let changed = changed.of_tenant(&tenant)?;
    store.close().await;
    match changed {
        ChangedToken::Changed => {
            announce(choice).await;
            print_stderr(&format!("token {id} is changed"));
        }
        ChangedToken::Same => print_stderr(&format!("token {id} has these limits already")),
        ChangedToken::Unknown => bail!("tenant `{}` has no token {id}", tenant.slug),
        ChangedToken::Revoked => bail!("token {id} is revoked: its limits can't be changed"),
        ChangedToken::Expired => bail!("token {id} has expired: its limits can't be changed"),
    }
    Ok(())
}

async fn rotate(command: &RotateArgs) -> Result<()> {
    let (tenant, store) = command.tenant.open().await?;
    let (id, slug) = (command.id, &tenant.slug);
    let expires_at = match command.expires {
        Some(expires) => expires.instant(Timestamp::now()),
        // Neither a token that never expires nor one that expires soon may come from saying nothing.
        None => match store.find_token_by_id(id).await.of_tenant(&tenant)?.and_then(|old| old.expires_at) {
            None => None,
            Some(at) => bail!(
                "token {id} expires at {}: pass --expires for the new one, such as 90d or never",
                Rfc3339Micros(at)
            ),
        },
    };
    let request = RotationRequest { expires_at, overlap: command.overlap, form_key: None };
    let (new, token, old_until) =
        match token::rotate(&store, id, request, &actor()).await.map_err(plain).of_tenant(&tenant)? {
            Rotated::New { id, token, old_until } => (id, token, old_until),
            Rotated::Unknown => bail!("tenant `{slug}` has no token {id}"),
            Rotated::Revoked => bail!("token {id} is revoked: create one with `formgate token create`"),
            Rotated::Expired => bail!("token {id} has expired: create one with `formgate token create`"),
            Rotated::Existing(_) => bail!("a command sends no form"),
        };
    announce(&command.tenant).await;
    let until = if command.overlap.is_zero() {
        "is revoked".to_owned()
    } else {
        format!("expires at {}", Rfc3339Micros(old_until))
    };
    let shown = show(&store, &token).await.with_context(|| format!("token {id} {until}"));
    store.close().await;
    shown?;
    print_stderr(&format!("token {new} replaces token {id}, which {until}"));
    Ok(())
}

/// An error of the database as itself, so that its remedy is found.
fn plain(error: CreateTokenError) -> anyhow::Error {
    match error {
        CreateTokenError::Store(error) => error.into(),
        error @ (CreateTokenError::InvalidName | CreateTokenError::AlreadyExpired) => error.into(),
    }
}

/// The columns of the table. Scripts cut them by position, so new ones are added at the end.
const HEAD: [&str; 15] = [
    "ID",
    "NAME",
    "PREFIX",
    "CREATED",
    "LAST USED",
    "REVOKED",
    "EXPIRES",
    "CREATED BY",
    "REPLACES",
    "LAST ROUTE",
    "LAST NETWORK",
    "SCOPES",
    "FORMS",
    "NETWORKS",
    "PER MINUTE",
];

fn as_json(tokens: &[TokenRecord]) -> String {
    let tokens = tokens.iter().map(|token| {
        let mut json = json!({
            "id": token.id,
            "name": token.name,
            "prefix": token.prefix,
            "created_at": Rfc3339Micros(token.created_at),
            "last_used_at": token.last_used_at.map(Rfc3339Micros),
            "revoked_at": token.revoked_at.map(Rfc3339Micros),
            "expires_at": token.expires_at.map(Rfc3339Micros),
            "created_by": token.created_by,
            "replaces": token.replaces,
            "last_used_route": token.last_used_route,
            "last_used_network": token.last_used_network,
        });
        json.as_object_mut().expect("it is one").extend(token.limits.to_json());
        json
    });
    pretty(&tokens.collect())
}

fn as_table(tokens: Vec<TokenRecord>) -> String {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = tokens.into_iter().map(|token| {
        [
            token.id.to_string(),
            token.name,
            token.prefix,
            shown(Some(token.created_at)),
            shown(token.last_used_at),
            shown(token.revoked_at),
            shown(token.expires_at),
            or_none(token.created_by),
            or_none(token.replaces.map(|id| id.to_string())),
            or_none(token.last_used_route),
            or_none(token.last_used_network),
            token.limits.scopes.to_string(),
            or_none(token.limits.forms.names().map(|names| names.join(" "))),
            or_none(Some(token.limits.networks.to_string()).filter(|networks| !networks.is_empty())),
            or_none(token.limits.requests_per_minute.map(|own| own.to_string())),
        ]
    });
    table(&std::iter::once(HEAD.map(str::to_owned)).chain(rows).collect::<Vec<_>>())
}
