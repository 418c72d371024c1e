//! The rights that a node's role needs in a registry on Postgres, by what the node does.
//!
//! `Rights of a node` in deploy/registry.md has the same as `GRANT` statements. A file of SQLite has no such rights.

use super::Registry;
use crate::store::StoreError;
use crate::store::statement::{Dialect, sql};

/// What a node does with the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryUse {
    /// Follows it, and writes how far it has got and what it found.
    Follow,
    /// Serves the operator API.
    Operate,
    /// Looks after domains, and obtains certificates.
    WorkOnDomains,
}

impl RegistryUse {
    /// Each table with the rights that the role needs.
    fn rights(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Follow => &[
                ("registry_head", &["SELECT"]),
                ("registry_stamps", &["SELECT", "DELETE"]),
                ("registry_tenants", &["SELECT"]),
                ("registry_claims", &["SELECT"]),
                ("registry_databases", &["SELECT", "INSERT", "UPDATE"]),
                ("registry_nodes", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
                ("registry_subscribed", &["SELECT", "INSERT", "UPDATE"]),
                ("registry_moves", &["SELECT"]),
                ("registry_holds", &["SELECT", "INSERT", "UPDATE"]),
                ("registry_certificates", &["SELECT"]),
                ("registry_events", &["SELECT", "DELETE"]),
            ],
            Self::Operate => &[
                ("registry_head", &["SELECT", "UPDATE"]),
                ("registry_tenants", &["SELECT", "INSERT", "UPDATE"]),
                ("registry_claims", &["SELECT", "INSERT", "DELETE"]),
                ("registry_databases", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
                ("registry_domains", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
                ("registry_certificates", &["SELECT", "UPDATE", "DELETE"]),
                ("registry_subscribed", &["SELECT", "UPDATE", "DELETE"]),
                ("registry_events", &["SELECT", "DELETE"]),
                ("registry_budgets", &["SELECT", "DELETE"]),
                ("registry_nodes", &["SELECT", "UPDATE"]),
                ("registry_moves", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
                ("registry_holds", &["SELECT", "DELETE"]),
                ("operator_tokens", &["SELECT", "UPDATE"]),
            ],
            Self::WorkOnDomains => &[
                ("registry_head", &["SELECT", "UPDATE"]),
                ("registry_tenants", &["SELECT", "UPDATE"]),
                ("registry_claims", &["SELECT", "INSERT", "DELETE"]),
                ("registry_domains", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
                ("registry_certificates", &["SELECT", "INSERT", "UPDATE"]),
                ("registry_events", &["SELECT", "INSERT"]),
                ("registry_budgets", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
                ("registry_acme_account", &["SELECT", "INSERT", "UPDATE"]),
                ("registry_counts", &["SELECT", "UPDATE"]),
            ],
        }
    }
}

impl Registry {
    /// How often a statement was denied since the registry was opened.
    #[must_use]
    pub fn denials(&self) -> u64 {
        self.database.denials()
    }

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
