//! `formgate tenant export` and `formgate tenant adopt`: tenants of the registry as files, and one of a file as a row.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::cli::ConfigFile;
use crate::cli::output::{print_stderr, print_verbatim};
use crate::cli::registry::OpenRegistry;
use crate::config::registered;
use crate::owner_only;
use crate::regular_file::{self, MAX_TENANTS};

#[derive(Debug, Args)]
pub(in crate::cli) struct ExportArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Only these tenants.
    #[arg(value_name = "SLUG")]
    slugs: Vec<String>,
    /// Write a file for each tenant into this folder, SLUG.toml, instead of printing all of them.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct AdoptArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Its slug.
    slug: String,
}

pub(super) async fn export(command: &ExportArgs) -> Result<()> {
    let registry = OpenRegistry::open_existing(&command.file).await?;
    let mut rows = registry.rows().await?;
    if let Some(missing) = command.slugs.iter().find(|slug| rows.iter().all(|row| row.slug != **slug)) {
        bail!("there is no tenant `{missing}` in the registry");
    }
    rows.retain(|row| command.slugs.is_empty() || command.slugs.contains(&row.slug));
    let Some(dir) = &command.dir else {
        let mut text = String::new();
        for part in rows.iter().filter_map(|row| row.text.as_deref()) {
            // The file of the tenant before may have ended without one.
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(part);
        }
        return print_verbatim(&text);
    };
    owner_only::create_folder(dir).with_context(|| format!("can't make the folder {}", dir.display()))?;
    for row in &rows {
        let file = dir.join(format!("{}.toml", row.slug));
        let text = row.text.as_deref().unwrap_or_default();
        // It may hold the password of a database.
        owner_only::write_file(&file, text.as_bytes()).with_context(|| format!("can't write {}", file.display()))?;
    }
    let are = if rows.len() == 1 { "1 tenant is" } else { &format!("{} tenants are", rows.len()) };
    print_stderr(&format!("{are} in {}", dir.display()));
    Ok(())
}

/// Writes the tenant to the registry first: running nodes refuse it while their file has it, and take it over when the
/// file is changed, in one step.
pub(super) async fn adopt(command: &AdoptArgs) -> Result<()> {
    let slug = &command.slug;
    let mut registry = OpenRegistry::open(&command.file).await?;
    let Some(tenant) = registry.take_from_files(slug) else {
        bail!("there is no tenant `{slug}` in the files");
    };
    let file = tenant.origin.file();
    let text = regular_file::read(&file, MAX_TENANTS).with_context(|| format!("can't read {}", file.display()))?;
    let text = String::from_utf8(text).with_context(|| format!("{} is not UTF-8", file.display()))?;
    let Some((section, rest)) = registered::cut(&text, slug) else {
        bail!("`{slug}` is not a `[[tenant]]` table of its own in {}, or its slug has a variable", file.display());
    };
    let mut checked = registry.check(slug, section)?;
    if !checked.tenant.config.is_same(&tenant) {
        bail!(
            "in the registry, relative paths of `{slug}` would start at {}, only `database` and \
             `oidc.client_secret` take variables, and a URL takes nothing from PG* variables and password files: \
             write absolute paths, the values of other variables, and the whole URL first",
            registry.config().folder.display()
        );
    }
    registry.check_files(std::slice::from_ref(&checked)).await?;
    checked.identify(&registry.registry, false).await?;
    registry.write(&[checked.write(None)]).await?;
    registry.registry.close().await;
    replace(&file, &rest).with_context(|| {
        format!(
            "the tenant is in the registry; take it out of {} by hand, since the file can't be written",
            file.display()
        )
    })?;
    print_stderr(&format!("the tenant `{slug}` is in the registry, and no longer in {}", file.display()));
    Ok(())
}

/// Replaces a file in one step, with its mode and owner.
fn replace(file: &Path, text: &str) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut new, text.as_bytes())?;
    let before = std::fs::metadata(file)?;
    std::fs::set_permissions(new.path(), before.permissions())?;
    let (uid, gid) = (std::os::unix::fs::MetadataExt::uid(&before), std::os::unix::fs::MetadataExt::gid(&before));
    // Only root may give a file away; for others it is theirs already.
    let _ = std::os::unix::fs::chown(new.path(), Some(uid), Some(gid));
    new.as_file().sync_all()?;
    new.persist(file)?;
    Ok(())
}
