//! Problems of a database that is served nevertheless, for `formgate check` and the inspection.

use super::engine::{PG_TRGM, ROW_SECURITY};
use super::schema::{SchemaDifference, SchemaDifferences};
use super::statement::Dialect;
use super::{Store, StoreError, schema};

/// Something that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseConcern {
    /// A newer version of this program migrated the database.
    #[error("the database is at schema version {found}, and this program knows versions up to {known}")]
    NewerSchema {
        /// The version that the database is at.
        found: i64,
        /// The newest that this program knows.
        known: i64,
    },
    /// Postgres lacks the extension of keyword searches, or the index that needs it.
    #[error("the trigram index is missing, so every keyword search reads all documents")]
    NoTrigramIndex,
    /// Triggers, indexes or constraints are not those of the schema.
    #[error("the schema was altered: {0}")]
    Altered(SchemaDifferences),
    /// Tables or columns are not those of the schema.
    #[error("the schema was damaged: {0}")]
    Damaged(SchemaDifferences),
    /// Policies could hide rows from the role that serves. Its statements fail instead.
    #[error("{0}, so statements of this role fail")]
    RowSecurity(SchemaDifferences),
}

impl DatabaseConcern {
    /// What fixes it.
    #[must_use]
    pub fn remedy(&self, slug: &str) -> String {
        match self {
            Self::NewerSchema { .. } => {
                "run the version of formgate that migrated it, once every node is replaced".to_owned()
            }
            Self::NoTrigramIndex => format!("{PG_TRGM} `formgate migrate --tenant {slug}`"),
            Self::Altered(_) => format!(
                "run `formgate reindex --tenant {slug}` with a role that owns the tables: it restores the schema, and \
                 derives again from what was written meanwhile"
            ),
            Self::Damaged(_) => "undo the change, or restore a backup".to_owned(),
            Self::RowSecurity(_) => ROW_SECURITY.to_owned(),
        }
    }

    /// Whether the database has another schema than this program created.
    #[must_use]
    pub fn is_altered(&self) -> bool {
        match self {
            Self::NewerSchema { .. } | Self::NoTrigramIndex => false,
            Self::Altered(_) | Self::Damaged(_) | Self::RowSecurity(_) => true,
        }
    }
}

impl Store {
    /// Every concern about the database.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn concerns(&self) -> Result<Vec<DatabaseConcern>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut concerns = Vec::new();
        let found = schema::version(&mut reader).await?;
        let known = schema::newest(&schema::MIGRATIONS);
        if found > known {
            concerns.push(DatabaseConcern::NewerSchema { found, known });
        }
        if self.database.dialect() == Dialect::Postgres {
            let mut sql = reader.sql();
            sql.push("SELECT to_regclass('listed_documents_trigrams') IS NULL");
            if reader.fetch_one(sql).await?.get::<bool>(0)? {
                concerns.push(DatabaseConcern::NoTrigramIndex);
            }
        }
        // The schema of a newer version is not known.
        let differences = if found > known { Vec::new() } else { schema::differences(&mut reader).await? };
        let (hidden, rest): (Vec<_>, Vec<_>) = differences.into_iter().partition(SchemaDifference::is_row_security);
        let (altered, damaged): (Vec<_>, Vec<_>) = rest.into_iter().partition(SchemaDifference::is_repairable);
        if !hidden.is_empty() {
            concerns.push(DatabaseConcern::RowSecurity(SchemaDifferences(hidden)));
        }
        if !damaged.is_empty() {
            concerns.push(DatabaseConcern::Damaged(SchemaDifferences(damaged)));
        }
        if !altered.is_empty() {
            concerns.push(DatabaseConcern::Altered(SchemaDifferences(altered)));
        }
        Ok(concerns)
    }
}
