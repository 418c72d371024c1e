//! What all targets share: accounts with a token each, a Redis, and a folder with one certificate for all of them.
//!
//! Each account has a SQLite file of its own. One is made by `formgate migrate` and copied; then each gets its token.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use formgate::store::{Actor, DatabaseLocation, Store, TokenLimits};
use formgate::tenant::token::{self, Created, NewTokenRequest};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::account::Account;
use crate::folder::SiteFolder;
use crate::gateway::{self, Gateway, Tenant};
use crate::order::Request;
use crate::process::checked;
use crate::redis_server::Server;

/// The domain of all sign-in addresses.
const DOMAIN: &str = "example.test";

/// So many databases are given their token at once.
const AT_ONCE: usize = 8;

pub(crate) struct Site {
    pub(crate) accounts: Vec<Account>,
    pub(crate) redis: Server,
    pub(crate) folder: SiteFolder,
}

impl Site {
    pub(crate) fn make(accounts: usize) -> anyhow::Result<Self> {
        let folder = SiteFolder::make(&format!("*.{DOMAIN}"))?;
        let accounts = (0..accounts).map(|n| {
            let slug = format!("a{n:05}");
            Account { host: format!("{slug}.{DOMAIN}"), slug, token: String::new() }
        });
        let mut site = Self { accounts: accounts.collect(), redis: Server::start(&[])?, folder };
        site.make_databases()?;
        Ok(site)
    }

    fn make_databases(&mut self) -> anyhow::Result<()> {
        let template = self.folder.database("template");
        let tenants = vec![Tenant { slug: "template".into(), database: template.clone(), requests: 60 }];
        let node = Gateway { name: "template", redis: None, window_seconds: 60, tenants };
        checked(&mut gateway::command(&node.write(&self.folder)?, &["migrate"]))?;
        let path = |database: &str| PathBuf::from(database.trim_start_matches("sqlite:"));
        let runtime = tokio::runtime::Runtime::new()?;
        let tokens = self.accounts.iter().map(async |account| {
            let database = self.folder.database(&account.slug);
            fs::copy(path(&template), path(&database))?;
            make_token(&DatabaseLocation::parse(&database, self.folder.path())?).await
        });
        let tokens: Vec<String> = runtime.block_on(stream::iter(tokens).buffered(AT_ONCE).try_collect())?;
        for (account, token) in self.accounts.iter_mut().zip(tokens) {
            account.token = token;
        }
        Ok(())
    }

    /// Adds an account whose database is there, with a new token.
    pub(crate) fn add(&mut self, slug: &str, database: &str) -> anyhow::Result<Account> {
        let location = DatabaseLocation::parse(database, self.folder.path())?;
        let token = tokio::runtime::Runtime::new()?.block_on(make_token(&location))?;
        let account = Account { slug: slug.to_owned(), host: format!("{slug}.{DOMAIN}"), token };
        self.accounts.push(account.clone());
        Ok(account)
    }

    /// All accounts with the same limit a window.
    pub(crate) fn tenants(&self, requests: u32) -> Vec<Tenant> {
        let tenant =
            |one: &Account| Tenant { slug: one.slug.clone(), database: self.folder.database(&one.slug), requests };
        self.accounts.iter().map(tenant).collect()
    }

    pub(crate) fn redis_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.redis.port())
    }

    /// `GET /me` of each account in turn.
    pub(crate) fn me(&self) -> Vec<Request> {
        self.accounts.iter().map(|account| account.ask("GET", "/me")).collect()
    }
}

/// Makes a token in a database that was migrated.
async fn make_token(location: &DatabaseLocation) -> anyhow::Result<String> {
    let store = Store::open(location, 1).await.context("a migrated database")?;
    let request =
        NewTokenRequest { name: "bench".into(), expires_at: None, limits: TokenLimits::default(), form_key: None };
    let created = token::create(&store, request, &Actor::command("bench")).await?;
    store.close().await;
    match created {
        Created::New { token, .. } => Ok(token.expose().to_owned()),
        Created::Existing { .. } => anyhow::bail!("no form was sent"),
    }
}
