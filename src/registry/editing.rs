//! Checks a change of the registry before it is written: for the operator API and for commands alike.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::config::{GatewayConfig, Problems, RegisteredTenant, RegistryConfig, TenantConfig};
use crate::host::HostName;
use crate::regular_file;
use crate::store::registry::{Claims, RegistryChange, RegistryWrite, WriteRefused};
use crate::store::{self, FileId, NotThere, PhysicalId, Registry, Store};

use super::claimed::{Conflict, FileTenants};

/// The largest text of a tenant, in bytes.
///
/// Larger: a mistake of one call occupies the memory of every node. Smaller: a tenant with thousands of domains is refused.
const MAX_TEXT: usize = 1024 * 1024;

/// How long reading the identity of a database may take.
///
/// Larger: a call whose database hangs takes longer. Smaller: a tenant with a slow database loses its domains when it is
/// removed and added again.
const IDENTIFY_LIMIT: Duration = Duration::from_secs(5);

/// What a change is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Editor<'e> {
    /// The gateway's certificate may cover the hosts.
    pub gateway: &'e GatewayConfig,
    /// The registry's keys in the configuration.
    pub config: &'e RegistryConfig,
    /// What the tenants of the files have.
    pub files: &'e FileTenants,
}

/// A tenant that may be written.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The tenant.
    pub tenant: RegisteredTenant,
    /// Its text.
    pub text: String,
    /// The identity that is stored in its database, if it was read.
    identity: Option<String>,
    /// Which database it is, if it was opened.
    found: Option<PhysicalId>,
}

/// Why a change is refused.
#[derive(Debug, thiserror::Error)]
pub enum EditRefused {
    /// The text has faults.
    #[error("the tenant has faults: {}", problems.titles())]
    Faults {
        /// The faults.
        problems: Problems,
        /// The text that they are in.
        text: String,
    },
    /// It is too large, or wants what the gateway has.
    #[error("{message}")]
    Unfit {
        /// The faulty key; `None` for the whole change.
        key: &'static str,
        /// In a few words.
        message: String,
    },
    /// It conflicts with a tenant of a file.
    #[error("{what} is that of the tenant `{slug}` of {place}")]
    OfFile {
        /// The key: `slug`, `address`, `domains` or `database`; `host` of a domain that is to be added.
        key: &'static str,
        /// What both want.
        what: String,
        /// The tenant of the file.
        slug: String,
        /// The file and the line.
        place: String,
    },
    /// The registry refuses it.
    #[error(transparent)]
    Write(#[from] WriteRefused),
}

impl Editor<'_> {
    /// Checks the text of a tenant. Reads certificates, which blocks.
    ///
    /// # Errors
    /// [`EditRefused::Faults`], [`EditRefused::OfFile`].
    pub fn check(&self, slug: &str, text: String) -> Result<Checked, EditRefused> {
        self.check_owner(slug)?;
        if text.len() > MAX_TEXT {
            let message = format!("the tenant has {} bytes, and may have {MAX_TEXT}", text.len());
            return Err(EditRefused::Unfit { key: "", message });
        }
        let tenant = match RegisteredTenant::read(slug, &text, self.config, Some(self.gateway)) {
            Ok(tenant) => tenant,
            Err(problems) => return Err(EditRefused::Faults { problems, text }),
        };
        if let Some(Conflict { owner, key, what }) = self.files.conflict(&tenant) {
            let place = owner.origin.file_and_line();
            return Err(EditRefused::OfFile { key, what, slug: owner.slug.to_string(), place });
        }
        let file = tenant.config.database.file().and_then(|file| regular_file::metadata(file).ok());
        if file.is_some_and(|file| !file.is_file()) {
            let message = "the path of the database leads to something that is not a regular file".to_owned();
            return Err(EditRefused::Unfit { key: "database", message });
        }
        if let Some(what) = self.config.own(&tenant.config.database) {
            return Err(EditRefused::Unfit { key: "database", message: format!("the database is that of {what}") });
        }
        Ok(Checked { tenant, text, identity: None, found: None })
    }

    /// Checks a host that is to be added to a tenant.
    ///
    /// # Errors
    /// [`EditRefused::Unfit`], [`EditRefused::OfFile`].
    pub fn check_domain(&self, slug: &str, text: &str) -> Result<HostName, EditRefused> {
        self.check_owner(slug)?;
        let host = HostName::parse_added(text)
            .map_err(|fault| EditRefused::Unfit { key: "host", message: fault.in_full() })?;
        // Such a name needs no proof, and it is the label of another tenant.
        let domains = self.gateway.domains.as_ref().filter(|domains| domains.owns(&host));
        if let Some(domains) = domains
            && domains.label(slug).as_ref() != Some(&host)
        {
            let message =
                format!("`{host}` is a name of the gateway's own: of these, `{slug}` can only have its label");
            return Err(EditRefused::Unfit { key: "host", message });
        }
        let Some(owner) = self.files.at(&host) else { return Ok(host) };
        let place = owner.origin.file_and_line();
        Err(EditRefused::OfFile {
            key: "host",
            what: format!("the host `{host}`"),
            slug: owner.slug.to_string(),
            place,
        })
    }

    /// Refuses a tenant of a file, which can't be changed or removed here.
    ///
    /// # Errors
    /// [`EditRefused::OfFile`].
    pub fn check_owner(&self, slug: &str) -> Result<(), EditRefused> {
        let Some(owner) = self.files.tenant(slug) else { return Ok(()) };
        let place = owner.origin.file_and_line();
        Err(EditRefused::OfFile { key: "slug", what: format!("the slug `{slug}`"), slug: slug.to_owned(), place })
    }
}

/// Refuses a tenant whose SQLite database is a file that another tenant uses under another name, such as a hard link. Equal
/// paths are compared when the tenants are written. `others` are all other tenants of this node that stay. Looks at the files
/// of all of them, which blocks, unless no database of `wanted` exists yet.
///
/// # Errors
/// The position in `wanted`, and why it is refused.
pub fn check_files<'t>(
    wanted: &[&RegisteredTenant],
    others: impl Iterator<Item = &'t Arc<TenantConfig>>,
) -> Result<(), (usize, EditRefused)> {
    let mut files = HashMap::new();
    let mut have_links = false;
    for (at, tenant) in wanted.iter().enumerate() {
        let Some((file, has_links)) = tenant.config.database.file().and_then(FileId::at) else { continue };
        have_links |= has_links;
        if let Some(first) = files.insert(file, at).filter(|first: &usize| wanted[*first].database != tenant.database) {
            return Err((at, taken(tenant, &wanted[first].config)));
        }
    }
    if files.is_empty() {
        return Ok(());
    }
    for other in others {
        let Some(path) = other.database.file() else { continue };
        let beside = have_links.then(|| FileId::beside(path)).into_iter().flatten();
        for at in FileId::at(path).map(|(file, _)| file).into_iter().chain(beside).filter_map(|file| files.get(&file)) {
            if wanted[*at].database != other.database_identity() {
                return Err((*at, taken(wanted[*at], other)));
            }
        }
    }
    Ok(())
}

fn taken(wanted: &RegisteredTenant, owner: &TenantConfig) -> EditRefused {
    let slug = owner.slug.to_string();
    if owner.origin.is_registered() {
        let (kind, value) = ("database", wanted.database.clone());
        return EditRefused::Write(WriteRefused::Taken {
            slug: wanted.config.slug.to_string(),
            kind,
            value,
            owner: slug,
        });
    }
    let (what, place) = ("the database".to_owned(), owner.origin.file_and_line());
    EditRefused::OfFile { key: "database", what, slug, place }
}

impl Checked {
    /// What only this tenant may have.
    #[must_use]
    pub fn claims(&self) -> Claims {
        let hosts = self.tenant.config.hosts().map(|host| host.as_str().to_owned()).collect();
        Claims { hosts, database: self.tenant.database.clone() }
    }

    /// The change that adds it, or replaces the row that it has.
    #[must_use]
    pub fn write(&self, expected: Option<Option<i64>>) -> RegistryWrite {
        let (text, claims, identity) = (self.text.clone(), self.claims(), self.identity.clone());
        let change =
            RegistryChange::Put { text, claims, identity, found: self.found.as_ref().map(ToString::to_string) };
        RegistryWrite { slug: self.tenant.config.slug.to_string(), change, expected }
    }

    /// Reads the identity of the database, if it matters or with `opens`: the tenant that comes back, or moves, keeps its
    /// domains only with the same database. What can't be read counts as another one.
    ///
    /// # Errors
    /// Those of [`Self::require_there`].
    pub async fn identify(&mut self, registry: &Registry, opens: bool) -> Result<(), EditRefused> {
        let RegisteredTenant { config, database } = &self.tenant;
        let is_there = registry.is_at(&config.slug, database).await.map_err(WriteRefused::Store)?;
        if !opens && is_there != Some(false) {
            return Ok(());
        }
        self.require_there(registry).await?;
        let config = Arc::clone(&self.tenant.config);
        if let Ok(store) = Store::open_within(&config.database, 1, IDENTIFY_LIMIT).await {
            self.identify_by(&store);
            store.close().await;
        }
        Ok(())
    }

    /// Fails if an account has left the database by a move, or has not arrived there yet. What can't be read may be there later.
    ///
    /// # Errors
    /// [`EditRefused::Unfit`]; [`WriteRefused::Store`] of the registry.
    pub async fn require_there(&self, registry: &Registry) -> Result<(), EditRefused> {
        let RegisteredTenant { config, database } = &self.tenant;
        let found = timeout(IDENTIFY_LIMIT, store::find_not_there(&config.database)).await;
        let message = match found.ok().and_then(Result::ok).flatten() {
            None => None,
            Some(NotThere::Left(place)) => {
                let back = format!("`formgate tenant move {}` brings it back", config.slug);
                Some(format!("an account has left this database for {place}, and it can only be read: {back}"))
            }
            // Once the account has arrived there, the mark stays for a while.
            Some(NotThere::Unfinished) => {
                let is_there = registry.is_at(&config.slug, database).await.map_err(WriteRefused::Store)?;
                (is_there != Some(true)).then(|| "the database is the unfinished copy of a move".to_owned())
            }
        };
        message.map_or(Ok(()), |message| Err(EditRefused::Unfit { key: "database", message }))
    }

    /// Takes the identity of the database from whoever has it open.
    pub fn identify_by(&mut self, open: &Store) {
        self.identity = Some(open.identity().as_str().to_owned());
        self.found = open.physical_id();
    }

    /// Which database it is, if it was opened.
    #[must_use]
    pub fn found(&self) -> Option<PhysicalId> {
        self.found
    }

    /// Fails if it conflicts with another tenant of the registry: before tables are created for it.
    ///
    /// # Errors
    /// [`WriteRefused::Taken`], [`WriteRefused::Store`].
    pub async fn check_free(&self, registry: &Registry) -> Result<(), WriteRefused> {
        registry.check_free(&self.tenant.config.slug, &self.claims()).await
    }
}
