//! Checks a change of the registry before it is written: for the operator API and for commands alike.

use std::path::Path;

use crate::config::{GatewayConfig, Problems, RegisteredTenant, RegistryConfig};
use crate::host::HostName;
use crate::store::registry::{Claims, RegistryChange, RegistryWrite, WriteRefused};
use crate::store::{DatabaseLocation, Registry};

use super::claimed::{Conflict, FileTenants};

/// The largest text of a tenant, in bytes.
///
/// Larger: a mistake of one call occupies the memory of every node. Smaller: a tenant with thousands of domains is refused.
const MAX_TEXT: usize = 1024 * 1024;

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
}

/// Why a change can't be made.
#[derive(Debug, thiserror::Error)]
pub enum EditRefused {
    /// The text has faults.
    #[error("the tenant has faults")]
    Faults {
        /// The faults.
        problems: Problems,
        /// The text that they are in.
        text: String,
    },
    /// It is too large, or wants what the gateway has.
    #[error("{message}")]
    Unfit {
        /// The key that is at fault; none for all of it.
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
        let own = [(&self.config.database, "the registry"), (&self.config.snapshot, "the snapshot of the registry")];
        if let Some((_, what)) = own.into_iter().find(|(own, _)| is_same(own, &tenant.config.database)) {
            return Err(EditRefused::Unfit { key: "database", message: format!("the database is that of {what}") });
        }
        Ok(Checked { tenant, text })
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

/// Whether two addresses are those of one database. Looks at the file system.
fn is_same(one: &DatabaseLocation, other: &DatabaseLocation) -> bool {
    match (one.file(), other.file()) {
        (Some(one), Some(other)) => {
            let found = |file: &Path| file.canonicalize().ok();
            one == other || found(one).is_some_and(|one| found(other).is_some_and(|other| one == other))
        }
        (None, None) => one.identity() == other.identity(),
        _ => false,
    }
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
        let change = RegistryChange::Put { text: self.text.clone(), claims: self.claims() };
        RegistryWrite { slug: self.tenant.config.slug.to_string(), change, expected }
    }

    /// Fails if another tenant of the registry has something of it: before tables are made for it.
    ///
    /// # Errors
    /// [`WriteRefused::Taken`], [`WriteRefused::Store`].
    pub async fn check_free(&self, registry: &Registry) -> Result<(), WriteRefused> {
        registry.check_free(&self.tenant.config.slug, &self.claims()).await
    }
}
