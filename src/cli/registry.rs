//! Opens the registry for commands, and has `formgate operator-token` and `formgate nodes`.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::output::{pretty, print, print_secret, print_stderr, shown, table};
use super::when::{self, Expiry};
use super::{ConfigFile, ListArgs};
use crate::config::{Config, GatewayConfig, Problems, RegisteredTenant, RegistryConfig, TenantConfig};
use crate::host::HostName;
use crate::instant::Rfc3339Micros;
use crate::operator::TOKEN_PREFIX;
use crate::registry::FileTenants;
use crate::registry::editing::{self, Checked, EditRefused, Editor};
use crate::rights;
use crate::store::registry::{NewOperatorToken, RegistryRow, RegistryWrite, RegistryWritten};
use crate::store::{PhysicalId, Registry, Store, StoreError, with_causes};

/// How long opening the database of another tenant may take, of which it is asked whether it is the same one.
///
/// Larger: the command takes longer while servers are down. Smaller: a slow database is taken for another one.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// How many characters of a token are stored for recognizing it.
const SHOWN: usize = 8;

/// The registry of a configuration, and what its files have.
pub(super) struct OpenRegistry {
    pub(super) registry: Registry,
    loaded: Config,
    files: FileTenants,
}

impl OpenRegistry {
    /// For a command that adds something: creates a registry that is missing.
    pub(super) async fn open(file: &ConfigFile) -> Result<Self> {
        let loaded = file.load()?;
        let registry = Registry::open(&configured(&loaded)?.database).await.map_err(unavailable)?;
        Ok(Self::new(registry, loaded))
    }

    /// Opens a registry that exists, for a command that reads, or changes existing rows: a typo in its path must not create
    /// an empty registry.
    pub(super) async fn open_existing(file: &ConfigFile) -> Result<Self> {
        let loaded = file.load()?;
        let config = configured(&loaded)?;
        match Registry::open_existing(&config.database).await.map_err(unavailable)? {
            Some(registry) => Ok(Self::new(registry, loaded)),
            None => bail!("{}", config.missing()),
        }
    }

    fn new(registry: Registry, loaded: Config) -> Self {
        let files = FileTenants::of(&loaded.tenants);
        Self { registry, loaded, files }
    }

    pub(super) fn config(&self) -> &RegistryConfig {
        self.loaded.gateway.registry.as_ref().expect("it was opened")
    }

    /// The `[gateway]` table.
    pub(super) fn gateway(&self) -> &GatewayConfig {
        &self.loaded.gateway
    }

    /// Checks a host that is to be added to a tenant.
    pub(super) fn check_domain(&self, slug: &str, host: &str) -> Result<HostName> {
        self.editor().check_domain(slug, host).map_err(plain)
    }

    /// What changes are checked against.
    pub(super) fn editor(&self) -> Editor<'_> {
        Editor { gateway: &self.loaded.gateway, config: self.config(), files: &self.files }
    }

    /// Checks the text of a tenant.
    pub(super) fn check(&self, slug: &str, text: String) -> Result<Checked> {
        self.editor().check(slug, text).map_err(plain)
    }

    /// Refuses tenants that would share a SQLite file with another tenant, under whichever names.
    pub(super) async fn check_files(&self, tenants: &[Checked]) -> Result<()> {
        let wanted: Vec<_> = tenants.iter().map(|checked| &checked.tenant).collect();
        if !wanted.iter().any(|tenant| tenant.config.database.file().is_some_and(Path::exists)) {
            return Ok(());
        }
        let slugs: HashSet<&str> = wanted.iter().map(|tenant| &*tenant.config.slug).collect();
        let others = self.without(&slugs).await?;
        editing::check_files(&wanted, others.iter()).map_err(|(_, refused)| plain(refused))
    }

    /// The tenants of the files, and all others of the registry that can be read here.
    async fn without(&self, slugs: &HashSet<&str>) -> Result<Vec<Arc<TenantConfig>>> {
        let rows = self.rows().await?.into_iter().filter(|row| !slugs.contains(row.slug.as_str()));
        let read = |row: RegistryRow| RegisteredTenant::read(&row.slug, &row.text?, self.config(), None).ok();
        let rows = rows.filter_map(read).map(|tenant| tenant.config);
        Ok(self.loaded.tenants.iter().cloned().chain(rows).collect())
    }

    /// All tenants but one.
    pub(super) async fn others(&self, slug: &str) -> Result<Vec<Arc<TenantConfig>>> {
        self.without(&HashSet::from([slug])).await
    }

    /// The tenant of a file that has a database on Postgres, at whichever address.
    pub(super) async fn owner_in_file(&self, id: PhysicalId) -> Option<String> {
        for tenant in self.loaded.tenants.iter().filter(|tenant| tenant.database.is_postgres()) {
            if let Ok(store) = Store::open_within(&tenant.database, 1, OPEN_LIMIT).await {
                let found = store.physical_id();
                store.close().await;
                if found == Some(id) {
                    return Some(tenant.slug.to_string());
                }
            }
        }
        None
    }

    /// The tenants of the files.
    pub(super) fn of_files(&self) -> &[Arc<TenantConfig>] {
        &self.loaded.tenants
    }

    /// Whether a file has a tenant.
    pub(super) fn is_of_file(&self, slug: &str) -> bool {
        self.files.tenant(slug).is_some()
    }

    /// Refuses a tenant of a file.
    pub(super) fn check_owner(&self, slug: &str) -> Result<()> {
        self.editor().check_owner(slug).map_err(plain)
    }

    pub(super) async fn write(&self, writes: &[RegistryWrite]) -> Result<Vec<RegistryWritten>> {
        let written = self.registry.write(writes, Timestamp::now(), &rights::current_user()).await;
        written.map_err(|refused| plain(refused.into()))
    }

    /// Every tenant, in the order in which they were added.
    pub(super) async fn rows(&self) -> Result<Vec<RegistryRow>> {
        self.registry.list_all().await.map_err(unavailable)
    }

    /// A tenant of a file, which from now on counts as taken out of it.
    pub(super) fn take_from_files(&mut self, slug: &str) -> Option<Arc<TenantConfig>> {
        let at = self.loaded.tenants.iter().position(|tenant| *tenant.slug == *slug)?;
        let tenant = self.loaded.tenants.remove(at);
        self.files = FileTenants::of(&self.loaded.tenants);
        Some(tenant)
    }
}

fn configured(loaded: &Config) -> Result<&RegistryConfig> {
    match &loaded.gateway.registry {
        Some(config) => Ok(config),
        None => bail!("there is no registry: set `registry` in `[gateway]`, such as \"sqlite:registry.db\""),
    }
}

/// Faults as their own reports.
pub(super) fn plain(refused: EditRefused) -> anyhow::Error {
    match refused {
        EditRefused::Faults { problems, .. } => problems.into(),
        other => other.into(),
    }
}

fn unavailable(error: StoreError) -> anyhow::Error {
    anyhow::Error::from(error).context("the registry can't be used")
}

impl ConfigFile {
    /// The configuration with the tenants of the registry too. Those that can't be read are reported, and left out.
    pub(super) async fn load_all(&self) -> Result<Config> {
        let mut config = self.load()?;
        for (_, read) in self.read_registry(&config).await? {
            match read {
                Ok(tenant) => config.tenants.push(tenant),
                Err(problems) => print_stderr(&problems.to_string()),
            }
        }
        Ok(config)
    }

    /// A tenant of the files, or of the registry.
    pub(super) async fn find_tenant(&self, slug: &str) -> Result<Arc<TenantConfig>> {
        let config = self.load()?;
        if let Some(tenant) = config.tenants.iter().find(|tenant| *tenant.slug == *slug) {
            return Ok(Arc::clone(tenant));
        }
        if let Some(registry) = &config.gateway.registry {
            let Some(open) = Registry::open_existing(&registry.database).await.map_err(unavailable)? else {
                bail!("there is no tenant `{slug}` in the files, and {}", registry.missing());
            };
            let row = open.find(slug).await.map_err(unavailable)?;
            open.close().await;
            if let Some(text) = row.and_then(|row| row.text) {
                return Ok(RegisteredTenant::read(slug, &text, registry, None)?.config);
            }
            bail!("there is no tenant `{slug}` in the files or the registry: `formgate tenant list` lists all");
        }
        let known: Vec<_> = config.tenants.iter().map(|tenant| &*tenant.slug).collect();
        if known.len() <= 20 {
            bail!("there is no tenant `{slug}`; there are: {}", known.join(", "));
        }
        bail!("there is no tenant `{slug}` among the {} tenants", known.len())
    }

    /// The tenants of the registry: the slug of each, and the tenant or its faults. A registry that is missing has none,
    /// which is reported.
    pub(super) async fn read_registry(
        &self,
        config: &Config,
    ) -> Result<Vec<(String, Result<Arc<TenantConfig>, Problems>)>> {
        let Some(registry) = &config.gateway.registry else { return Ok(Vec::new()) };
        let Some(loaded) = crate::registry::load_existing(registry, &config.gateway.webhooks.seals).await? else {
            print_stderr(&format!("warning: {}", registry.missing()));
            return Ok(Vec::new());
        };
        let rows = loaded.rows.into_iter().map(|(row, read)| (row.slug, read.map(|tenant| tenant.config)));
        Ok(rows.collect())
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum OperatorTokenCommand {
    /// Print a new token for the operator API, once, and nothing else.
    Create(CreateArgs),
    /// List the tokens.
    List(ListArgs),
    /// Revoke a token; it is refused from the next call on.
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// What it is for.
    #[arg(long, value_parser = crate::tenant::sign_in_link::name)]
    name: String,
    /// When it expires: a duration such as 90d, an instant, or never.
    #[arg(long, value_name = "WHEN", default_value = "never", value_parser = when::expiry)]
    expires: Expiry,
}

#[derive(Debug, Args)]
pub(super) struct RevokeArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The id shown by `operator-token list`.
    id: i64,
}

pub(super) async fn run_tokens(command: &OperatorTokenCommand) -> Result<()> {
    match command {
        OperatorTokenCommand::Create(command) => create(command).await,
        OperatorTokenCommand::List(command) => {
            let open = OpenRegistry::open_existing(&command.file).await?;
            let tokens = open.registry.list_operator_tokens().await.map_err(unavailable)?;
            open.registry.close().await;
            if command.json {
                let tokens = tokens.iter().map(|token| {
                    json!({
                        "id": token.id,
                        "name": token.name,
                        "prefix": token.prefix,
                        "created_at": Rfc3339Micros(token.created_at),
                        "created_by": token.created_by,
                        "expires_at": token.expires_at.map(Rfc3339Micros),
                        "last_used_at": token.last_used_at.map(Rfc3339Micros),
                        "revoked_at": token.revoked_at.map(Rfc3339Micros),
                    })
                });
                return print(&pretty(&tokens.collect()));
            }
            let head = ["ID", "NAME", "PREFIX", "CREATED", "CREATED BY", "LAST USED", "EXPIRES", "REVOKED"];
            let rows = tokens.into_iter().map(|token| {
                let (id, created, used) =
                    (token.id.to_string(), shown(Some(token.created_at)), shown(token.last_used_at));
                let (expires, revoked) = (shown(token.expires_at), shown(token.revoked_at));
                [id, token.name, token.prefix, created, token.created_by, used, expires, revoked]
            });
            print(&table(&std::iter::once(head.map(str::to_owned)).chain(rows).collect::<Vec<_>>()))
        }
        OperatorTokenCommand::Revoke(command) => {
            let open = OpenRegistry::open_existing(&command.file).await?;
            let known = open.registry.revoke_operator_token(command.id, Timestamp::now()).await.map_err(unavailable)?;
            open.registry.close().await;
            if !known {
                bail!("there is no operator token {} that is not revoked", command.id);
            }
            print_stderr(&format!("operator token {} is revoked", command.id));
            Ok(())
        }
    }
}

async fn create(command: &CreateArgs) -> Result<()> {
    let now = Timestamp::now();
    let expires_at = command.expires.instant(now);
    if expires_at.is_some_and(|at| at <= now) {
        bail!("the token would have expired already");
    }
    let open = OpenRegistry::open(&command.file).await?;
    let token = format!("{TOKEN_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()));
    let new = NewOperatorToken {
        name: command.name.clone(),
        prefix: token[..SHOWN].to_owned(),
        digest: Sha256::digest(token.as_bytes()).into(),
        expires_at,
    };
    let id = open.registry.create_operator_token(&new, now, &rights::current_user()).await.map_err(unavailable)?;
    if let Err(unseen) = print_secret(&token) {
        // It can't be shown again.
        let revoked = open.registry.revoke_operator_token(id, Timestamp::now()).await;
        return Err(unseen).with_context(|| match revoked {
            Ok(_) => "the token is revoked again".to_owned(),
            Err(error) => format!("and the operator token {id} can't be revoked: {}", with_causes(&error)),
        });
    }
    open.registry.close().await;
    Ok(())
}

#[derive(Debug, Args)]
pub(super) struct NodesArgs {
    #[command(flatten)]
    list: ListArgs,
}

/// `formgate nodes`.
pub(super) async fn run_nodes(command: &NodesArgs) -> Result<()> {
    let open = OpenRegistry::open_existing(&command.list.file).await?;
    let nodes = open.registry.nodes().await.map_err(unavailable)?;
    let head = open.registry.head().await.map_err(unavailable)?;
    open.registry.close().await;
    if command.list.json {
        let nodes = nodes.iter().map(|node| {
            json!({
                "id": node.id,
                "name": node.name,
                "version": node.version,
                "revision": node.revision,
                "behind": head.revision - node.revision,
                "live": node.is_live,
                "refused": node.refused,
                "refused_count": node.refused_count,
                "started_at": Rfc3339Micros(node.started_at),
                "seen_at": Rfc3339Micros(node.seen_at),
            })
        });
        return print(&pretty(&nodes.collect()));
    }
    let columns = ["NAME", "VERSION", "STATE", "REVISION", "REFUSED", "STARTED", "SEEN"].map(str::to_owned);
    let rows = nodes.into_iter().map(|node| {
        let state = match (node.is_live, head.revision - node.revision) {
            (false, _) => "gone".to_owned(),
            (true, behind) if behind > 0 => format!("{behind} behind"),
            (true, _) => "current".to_owned(),
        };
        let named = node.refused.join(", ");
        let refused = match usize::try_from(node.refused_count).unwrap_or(0).saturating_sub(node.refused.len()) {
            0 if node.refused.is_empty() => "-".to_owned(),
            0 => named,
            more => format!("{named} and {more} more"),
        };
        let (started, seen) = (shown(Some(node.started_at)), shown(Some(node.seen_at)));
        [node.name, node.version, state, node.revision.to_string(), refused, started, seen]
    });
    print(&table(&std::iter::once(columns).chain(rows).collect::<Vec<_>>()))
}
