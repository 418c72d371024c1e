//! `formgate demo`: two tenants with sample data, served from this machine, and calls to try.
//!
//! Owns the order in which a demo comes about, and nothing of how: the configuration is read from its file, the data is
//! imported, tokens are made and the gateway is started by the same code as anywhere else. The two NDJSON files are
//! examples of the import format as well.

mod calls;
mod folder;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::Args;

use self::calls::DemoAccount;
use self::folder::DemoFolder;
use super::output::print;
use super::serve::StopSignals;
use super::{OfTenant, serve, token};
use crate::config::{Config, TenantConfig};
use crate::gateway::{self, Running, StartError};
use crate::import::{self, OnFault};
use crate::store::{self, PageRequest, Reach, Store};
use crate::supervisor::Inherited;

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Keep everything in this folder, and go on with what an earlier demo left there. Left out, a temporary folder is
    /// used and removed at the end.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Where to serve. Port 0 is a free port of the system's choice.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8443")]
    listen: SocketAddr,
}

/// The tenants that have sample data, and what `formgate import` would be given.
const SAMPLES: [(&str, &str); 2] =
    [("acme", include_str!("demo/acme.ndjson")), ("globex", include_str!("demo/globex.ndjson"))];

pub(super) async fn run(command: &DemoArgs) -> Result<()> {
    let folder = DemoFolder::prepare(command.dir.as_deref())?;
    let mut config = folder.load_config()?;
    config.gateway.listen = vec![command.listen.into()];
    let [acme, globex] = SAMPLES;
    let (acme, globex) = (load(&config, acme).await?, load(&config, globex).await?);

    gateway::raise_limit();
    // Tokens come last: a start that fails leaves none behind.
    let stop = StopSignals::new()?;
    let running = start(&config).await?;
    let acme = DemoAccount { tenant: acme, token: make_token(acme).await? };
    let globex = DemoAccount { tenant: globex, token: make_token(globex).await? };
    let address = *running.addresses().first().expect("a gateway listens somewhere");
    print(&calls::show(&folder, address, running.admin_address(), &acme, &globex)?)?;
    serve::serve_until_stopped(running, stop).await
}

/// Brings a tenant's database to the newest schema, and its sample data into an empty one.
async fn load<'c>(config: &'c Config, (slug, sample): (&str, &'static str)) -> Result<&'c TenantConfig> {
    let tenant = config.tenants.iter().find(|tenant| *tenant.slug == *slug);
    let tenant = tenant.with_context(|| format!("the demo's tenants.toml has no tenant `{slug}` any more"))?;
    let loading = async {
        store::migrate(&tenant.database, Reach::Served).await?;
        let store = Store::open(&tenant.database, 1).await?;
        let forms = store.list_forms(PageRequest { number: NonZeroU64::MIN, size: 1 }).await?;
        store.close().await;
        if forms.total == 0 {
            import::run(&tenant.database, sample.as_bytes(), OnFault::Stop, |_| {}).await?;
        }
        anyhow::Ok(())
    };
    loading.await.of_tenant(tenant)?;
    Ok(tenant)
}

async fn start(config: &Config) -> Result<Running> {
    gateway::start(config, Inherited::default()).await.map_err(|error| match error {
        StartError::Bind(error) if config.gateway.listen.iter().any(|entry| entry.address == error.address) => {
            anyhow!("{error}: {}; choose another address with --listen, such as 127.0.0.1:0", error.source)
        }
        other => other.into(),
    })
}

async fn make_token(tenant: &TenantConfig) -> Result<String> {
    let store = Store::open(&tenant.database, 1).await?;
    let token = token::create(&store, "Demo").await?;
    store.close().await;
    Ok(token.expose().to_owned())
}
