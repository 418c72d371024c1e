//! What all targets have in common: accounts with a token each, one certificate for all of them, a Redis, and a folder
//! for everything.
//!
//! Each account has a SQLite file of its own. One is made by `formgate migrate` and copied; then each gets its token.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use formgate::store::{DatabaseLocation, NewToken, Store};
use formgate::tenant::token::PresentedToken;
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::gateway::{self, Gateway, Tenant};
use crate::order::Request;
use crate::postgres::checked;
use crate::redis_server::Server;

/// The domain of all sign-in addresses.
const DOMAIN: &str = "example.test";

/// So many databases are given their token at once.
const AT_ONCE: usize = 8;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) slug: String,
    pub(crate) host: String,
    pub(crate) token: String,
}

impl Account {
    /// A request with its host and token.
    pub(crate) fn ask(&self, method: &str, path: &str) -> Request {
        Request::new(method, &self.host, &self.token, path)
    }
}

pub(crate) struct Site {
    pub(crate) accounts: Vec<Account>,
    pub(crate) redis: Server,
    folder: TempDir,
}

impl Site {
    pub(crate) fn make(accounts: usize) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("formgate-load-").tempdir()?;
        let issued = rcgen::generate_simple_self_signed([format!("*.{DOMAIN}")])?;
        fs::write(folder.path().join("certificate.pem"), issued.cert.pem())?;
        fs::write(folder.path().join("key.pem"), issued.signing_key.serialize_pem())?;
        let accounts = (0..accounts).map(|n| {
            let slug = format!("a{n:05}");
            Account { host: format!("{slug}.{DOMAIN}"), slug, token: String::new() }
        });
        let mut site = Self { accounts: accounts.collect(), redis: Server::start(&[])?, folder };
        site.make_databases()?;
        Ok(site)
    }

    fn make_databases(&mut self) -> anyhow::Result<()> {
        fs::create_dir(self.folder.path().join("data"))?;
        let template = self.database("template");
        let tenants = vec![Tenant { slug: "template".into(), database: template.clone(), requests: 60 }];
        let node = Gateway { name: "template", redis: None, window_seconds: 60, tenants };
        checked(&mut gateway::command(&node.write(self)?, &["migrate"]))?;
        let path = |database: &str| PathBuf::from(database.trim_start_matches("sqlite:"));
        let runtime = tokio::runtime::Runtime::new()?;
        let tokens = self.accounts.iter().map(async |account| {
            let database = self.database(&account.slug);
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

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// All accounts with the same limit a window.
    pub(crate) fn tenants(&self, requests: u32) -> Vec<Tenant> {
        let tenant = |one: &Account| Tenant { slug: one.slug.clone(), database: self.database(&one.slug), requests };
        self.accounts.iter().map(tenant).collect()
    }

    /// The URL of an account's database.
    fn database(&self, slug: &str) -> String {
        format!("sqlite:{}", self.folder.path().join(format!("data/{slug}.db")).display())
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }

    pub(crate) fn private_key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
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
    let token = PresentedToken::generate();
    let new = NewToken { name: "bench".into(), prefix: token.shown().into(), digest: *token.digest().as_bytes() };
    store.create_token(new, Timestamp::now()).await?;
    store.close().await;
    Ok(token.expose().to_owned())
}
