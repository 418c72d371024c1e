//! The rights that a node's role needs in a registry on Postgres, by what the node does.
//!
//! `Rights of a node` in deploy/registry.md has the same as `GRANT` statements. A file of SQLite has no such rights.

use super::Registry;
use crate::store::StoreError;
use crate::store::statement::{Dialect, sql};

/// What a node does with the registry, beyond reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryUse {
    /// Writes how far it has got.
    Follow,
    /// Serves the operator API.
    Operate,
    /// Looks after domains, and obtains certificates.
    WorkOnDomains,
}

impl RegistryUse {
    /// Each table with a right.
    fn rights(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Follow => &[
                ("registry_nodes", &["INSERT", "UPDATE", "DELETE"]),
                ("registry_subscribed", &["INSERT", "UPDATE"]),
                ("registry_counts", &["UPDATE"]),
                ("registry_stamps", &["DELETE"]),
                ("registry_events", &["DELETE"]),
            ],
            Self::Operate => &[
                ("registry_head", &["UPDATE"]),
                ("registry_stamps", &["INSERT"]),
                ("registry_tenants", &["INSERT", "UPDATE"]),
                ("registry_claims", &["INSERT", "DELETE"]),
                ("registry_domains", &["INSERT", "UPDATE", "DELETE"]),
                ("registry_certificates", &["UPDATE"]),
                ("operator_tokens", &["UPDATE"]),
            ],
            Self::WorkOnDomains => &[
                ("registry_head", &["UPDATE"]),
                ("registry_stamps", &["INSERT"]),
                ("registry_tenants", &["UPDATE"]),
                ("registry_claims", &["INSERT", "DELETE"]),
                ("registry_domains", &["INSERT", "UPDATE", "DELETE"]),
                ("registry_certificates", &["INSERT", "UPDATE"]),
                ("registry_events", &["INSERT"]),
                ("registry_budgets", &["INSERT", "UPDATE", "DELETE"]),
                ("registry_acme_account", &["INSERT", "UPDATE"]),
            ],
        }
    }
}

impl Registry {
    /// The rights that the role lacks, each as `INSERT on registry_events`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn missing_rights(&self, uses: &[RegistryUse]) -> Result<Vec<String>, StoreError> {
        if self.database.dialect() != Dialect::Postgres {
            return Ok(Vec::new());
        }
        let mut wanted = Vec::new();
        for (table, rights) in uses.iter().flat_map(|it| it.rights()) {
            wanted.extend(rights.iter().map(|right| format!("{right} on {table}")));
        }
        wanted.sort_unstable();
        wanted.dedup();
        let sql = sql!(
            "{pg: SELECT wanted FROM unnest(string_to_array({wanted}, ',')) wanted
             WHERE NOT has_table_privilege(split_part(wanted, ' on ', 2), split_part(wanted, ' on ', 1))}",
            wanted = wanted.join(","),
        );
        let rows = self.database.reader().await?.fetch_all(sql).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
    }
}
