//! `formgate demo`: serves two tenants with sample data on this machine, prints commands to try, and the webhooks that
//! they cause.
//!
//! Owns only the order of the steps: loading the configuration, importing data, creating tokens and starting the
//! gateway use the same code as elsewhere. The two NDJSON files also serve as examples of the import format.

mod calls;
mod folder;
mod receiver;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use jiff::Timestamp;

use self::calls::DemoAccount;
use self::folder::DemoFolder;
use self::receiver::DemoReceiver;
use super::output::print;
use super::serve::StopSignals;
use super::{OfTenant, actor, serve, token};
use crate::config::{Config, GatewayConfig, TenantConfig};
use crate::gateway::{self, Running, StartError};
use crate::import::{self, OnFault};
use crate::store::{self, AdminLink, AdminRole, Events, PageRequest, Reach, Store, TokenLimits};
use crate::systemd::InheritedSockets;
use crate::tenant::sign_in_link;
use crate::tenant::token::PresentedToken;

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Keep everything in this folder, and continue with the files of an earlier demo. Without it, a temporary folder
    /// is used and removed at the end.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Address to serve on. With port 0, the system chooses a free port.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8443")]
    listen: SocketAddr,
}

/// The tenants with sample data, and their import files.
const SAMPLES: [(&str, &str); 2] =
    [("acme", include_str!("demo/acme.ndjson")), ("globex", include_str!("demo/globex.ndjson"))];

/// How long the link into the administration area is valid.
///
/// Larger: a link in an old terminal still signs in. Smaller: it expires while the calls are tried.
const LINK_VALID: Duration = Duration::from_hours(12);

pub(super) async fn run(command: &DemoArgs) -> Result<()> {
    let folder = DemoFolder::prepare(command.dir.as_deref())?;
    // As the file says, to compare with what it says later.
    let of_file = folder.load_config()?;
    let mut config = of_file.clone();
    config.gateway.listen = vec![command.listen.into()];
    let [acme, globex] = SAMPLES;
    let (acme, globex) = (load(&config, acme).await?, load(&config, globex).await?);
    let receiver = DemoReceiver::start(&folder.certificate(), &folder.private_key()).await?;

    gateway::raise_limit();
    // Create tokens last: a failed start leaves none behind.
    let stop = StopSignals::of_terminal()?;
    let running = start(&config).await?;
    on_store(acme, async |store| Ok(receiver.subscribe(store, &config.gateway.webhooks.seals).await?)).await?;
    let acme = DemoAccount { tenant: acme, token: token_of(&folder, acme).await? };
    let globex = DemoAccount { tenant: globex, token: token_of(&folder, globex).await? };
    let address = *running.addresses().first().expect("a gateway listens somewhere");
    let gateway = GatewayConfig { public_port: Some(address.port()), ..config.gateway.clone() };
    let link = match gateway.administration_url(&acme.tenant.address) {
        Some(area) => Some(make_link(acme.tenant, &area).await?),
        // A folder of an earlier version.
        None => None,
    };
    let operator = config.gateway.operator.is_some().then(|| folder.operator_socket());
    let places = calls::Places { address, metrics: running.admin_address(), receiver: receiver.url(), link, operator };
    let _watching = gateway::watch(&folder.config(), of_file, running.reloader(), None);
    print(&calls::show(&folder, &places, &acme, &globex)?)?;
    serve::serve_until_stopped(running, stop).await?;
    // Whoever serves the folder next has no receiver at this port.
    on_store(acme.tenant, async |store| Ok(receiver::unsubscribe(store).await?)).await
}

/// Migrates a tenant's database, and imports the sample data if it is empty.
async fn load<'c>(config: &'c Config, (slug, sample): (&str, &'static str)) -> Result<&'c TenantConfig> {
    let tenant = config.tenants.iter().find(|tenant| *tenant.slug == *slug);
    let tenant = tenant.with_context(|| format!("the demo's tenants.toml has no tenant `{slug}` any more"))?;
    let loading = async {
        store::migrate(&tenant.database, Reach::Served).await?;
        let store = Store::open(&tenant.database, 1).await?;
        let forms = store.list_forms(PageRequest { number: NonZeroU64::MIN, size: 1 }).await?;
        store.close().await;
        if forms.total == 0 {
            // Samples are no news: the first webhook is about the first change.
            import::run(&tenant.database, sample.as_bytes(), OnFault::Stop, Events::Quiet, |_| None, |_| {}).await?;
        }
        anyhow::Ok(())
    };
    loading.await.of_tenant(tenant)?;
    Ok(tenant)
}

async fn start(config: &Config) -> Result<Running> {
    gateway::start(config, InheritedSockets::default()).await.map_err(|error| match error {
        StartError::Bind(error) if config.gateway.listen.iter().any(|entry| entry.address == error.address) => {
            anyhow!("{error}: {}; choose another address with --listen, such as 127.0.0.1:0", error.source)
        }
        other => other.into(),
    })
}

/// The token of an earlier demo in this folder if it is accepted still, otherwise a new one.
async fn token_of(folder: &DemoFolder, tenant: &TenantConfig) -> Result<String> {
    let kept = folder.read_token(&tenant.slug).and_then(|text| PresentedToken::parse(&text));
    on_store(tenant, async |store| {
        if let Some(kept) = kept
            && store.find_token(kept.digest().as_bytes(), Timestamp::now()).await?.is_some()
        {
            return Ok(kept.expose().to_owned());
        }
        let token = token::create(store, "Demo", None, TokenLimits::default()).await?.expose().to_owned();
        folder.write_token(&tenant.slug, &token)?;
        Ok(token)
    })
    .await
}

/// A link into the administration area that signs in one of the sample users.
async fn make_link(tenant: &TenantConfig, area: &str) -> Result<String> {
    let now = Timestamp::now();
    let link = AdminLink {
        email: "ana.souza@acme.example".to_owned(),
        name: Some("Ana Souza".to_owned()),
        role: AdminRole::Admin,
        identity: None,
        expires_at: now + LINK_VALID,
    };
    on_store(tenant, async |store| Ok(sign_in_link::create(store, area, &link, now, &actor()).await?)).await
}

/// Does something with a tenant's database.
async fn on_store<T>(tenant: &TenantConfig, doing: impl AsyncFnOnce(&Store) -> Result<T>) -> Result<T> {
    let store = Store::open(&tenant.database, 1).await?;
    let done = doing(&store).await;
    store.close().await;
    done
}
