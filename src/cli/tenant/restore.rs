//! `formgate tenant restore`: a database of a tenant as it was at an instant, ready for the tenant to go back to it.
//!
//! A SQLite file is restored from its Litestream replica; into a database of Postgres, the operator has restored a backup.
//! `formgate tenant move` then switches to it, for a tenant of the registry.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;

use super::litestream::{self, Replica};
use crate::cli::output::print;
use crate::cli::{ConfigFile, OfTenant, actor};
use crate::config::registered::{with_database, without_password};
use crate::config::{self, RegisteredTenant, TenantConfig};
use crate::store::{CarriedOver, DatabaseLocation, Registry, Restoration, RestoreError, prepare_restored, remedy};

#[derive(Debug, Args)]
pub(in crate::cli) struct RestoreArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Its slug.
    slug: String,
    /// The instant to which it goes back, such as 2026-05-01T12:00:00Z; on Postgres, that of the backup.
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    at: Timestamp,
    /// For a tenant in a SQLite file: `sqlite:PATH` of a new file, which is restored from the Litestream replica. On Postgres: the
    /// database into which a backup of the tenant was restored.
    #[arg(long = "as", value_name = "DATABASE")]
    restored: String,
    /// The configuration of Litestream, which says where the replica is.
    #[arg(long, value_name = "FILE", default_value = "/etc/litestream.yml")]
    litestream_config: PathBuf,
}

fn instant(text: &str) -> Result<Timestamp, String> {
    let fault = |_| "an instant is an RFC 3339 date-time, such as 2026-05-01T12:00:00Z".to_owned();
    let at = text.parse::<Timestamp>().map_err(fault)?;
    if at > Timestamp::now() { Err("the instant is in the future".to_owned()) } else { Ok(at) }
}

pub(super) async fn run(command: &RestoreArgs) -> Result<()> {
    let RestoreArgs { slug, at, .. } = command;
    let (tenant, restored, is_registered) = command.databases().await?;
    let place = without_password(&command.restored);
    let last = match (tenant.database.file(), restored.file()) {
        (Some(file), Some(new)) => Some(restore_file(file, new, *at, &command.litestream_config)?),
        (None, None) => None,
        (Some(_), None) => bail!("the tenant `{slug}` is in a SQLite file: `--as` takes `sqlite:PATH`, of a new file"),
        (None, Some(_)) => bail!(
            "the tenant `{slug}` is on Postgres: restore a backup into a new database with pg_restore, and give that as `--as`"
        ),
    };
    let restoration = Restoration { slug, at: *at, place: &place };
    let prepared = prepare_restored(&tenant.database, &restored, &restoration, &actor()).await;
    let carried = match prepared {
        Ok(carried) => carried,
        Err(error) => {
            if let Some(new) = restored.file() {
                litestream::remove(new);
            }
            return Err(described(error, &tenant, &restored));
        }
    };
    let last = last.map(|last| format!("; its last write is of {last}")).unwrap_or_default();
    print(&format!("{slug}: {place} is ready, as it was at {at}{last}"))?;
    print(&summary(&carried))?;
    if is_registered {
        // As it was given, unless it has a password that is not a variable.
        let key = format!("database = {}", toml::Value::from(command.restored.as_str()));
        let to = if config::holds_password(&key) { &place } else { &command.restored };
        return print(&format!("next: formgate tenant move {slug} --to '{to}'"));
    }
    let origin = tenant.origin.file_and_line();
    print(&format!(
        "next: write `database = \"{place}\"` in {origin}; until then, repeat what is decided about tokens there"
    ))
}

impl RestoreArgs {
    /// The tenant, the restored database, and whether the registry has the tenant.
    async fn databases(&self) -> Result<(Arc<TenantConfig>, DatabaseLocation, bool)> {
        let (slug, config) = (&self.slug, self.file.load()?);
        let tenant = self.file.find_tenant(slug).await?;
        let Some(registry) = config.gateway.registry.as_ref().filter(|_| tenant.origin.is_registered()) else {
            let folder = tenant.origin.file().parent().map(Path::to_owned).unwrap_or_default();
            let restored = DatabaseLocation::parse(&self.restored, &folder).context("`--as` is no database")?;
            return Ok((tenant, restored, false));
        };
        // As the registry will have it: relative paths and variables are those of the nodes.
        let open = Registry::open_existing(&registry.database).await?.context("the registry is gone")?;
        let row = open.find(slug).await;
        open.close().await;
        let text = row?.and_then(|row| row.text).context("the tenant is gone")?;
        let text = with_database(&text, &self.restored).context("the row of the tenant can't be read")?;
        let restored = RegisteredTenant::read(slug, &text, registry, None)?;
        Ok((tenant, restored.config.database.clone(), true))
    }
}

fn restore_file(file: &Path, new: &Path, at: Timestamp, config: &Path) -> Result<Timestamp> {
    if new.exists() {
        bail!("{} exists already", new.display());
    }
    Replica::of(file, config)?.restore(at, new)
}

/// The error with its remedy.
fn described(error: RestoreError, tenant: &TenantConfig, restored: &DatabaseLocation) -> anyhow::Error {
    let slug = &tenant.slug;
    match error {
        RestoreError::Present(source) => {
            let failed: Result<()> = Err::<(), _>(source).of_tenant(tenant);
            failed.expect_err("it is one").context("the account's present database can't be read")
        }
        RestoreError::Restored(source) => {
            let help = remedy(&source, restored, slug);
            anyhow::Error::from(source).context(format!("the restored database can't be used ({help})"))
        }
        other => other.into(),
    }
}

fn summary(carried: &CarriedOver) -> String {
    let CarriedOver { tokens, subscriptions } = carried;
    format!(
        "tokens: {} as they are now, of which {} were created since, {} ended since, {} got other limits since\n\
         subscriptions: {} as they are now; {} were deleted since, {} are of forms that were created since, and are gone\n\
         followers of the change log begin again, nothing is sent again, and sign-ins ended",
        tokens.all,
        tokens.created,
        tokens.ended,
        tokens.limited,
        subscriptions.all,
        subscriptions.deleted,
        subscriptions.lost
    )
}
