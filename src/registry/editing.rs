//! Checks a change of the registry before it is written: for the operator API and for commands alike.

use crate::config::{GatewayConfig, Problems, RegisteredTenant, RegistryConfig};
use crate::store::Registry;
use crate::store::registry::{Claims, RegistryChange, RegistryWrite, WriteRefused};

use super::claimed::{Conflict, FileTenants};

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
    /// It conflicts with a tenant of a file.
    #[error("{what} is that of the tenant `{slug}` of {place}")]
    OfFile {
        /// The key: `slug`, `address`, `domains` or `database`.
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
        let tenant = match RegisteredTenant::read(slug, &text, &self.config.folder, Some(self.gateway)) {
            Ok(tenant) => tenant,
            Err(problems) => return Err(EditRefused::Faults { problems, text }),
        };
        if let Some(Conflict { owner, key, what }) = self.files.conflict(&tenant) {
            let place = owner.origin.file_and_line();
            return Err(EditRefused::OfFile { key, what, slug: owner.slug.to_string(), place });
        }
        Ok(Checked { tenant, text })
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
