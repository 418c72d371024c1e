//! Problems of a database that is served nevertheless, for `formgate check` and the inspection.

use super::derived::settle::keyword_indexes;
use super::engine::{PG_TRGM, PUBLICATION, ROW_SECURITY};
use super::schema::{Migration, Progress, SchemaDifference, SchemaDifferences};
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
    /// Migrations that wait for `--finish` were not applied.
    #[error("the second step of a migration was not run yet: {steps}")]
    Unfinished {
        /// The names of the migrations.
        steps: String,
    },
    /// Postgres lacks the extension of keyword searches, or the index that needs it.
    #[error("the trigram index is missing, so every keyword search reads all documents")]
    NoTrigramIndex {
        /// Whether the extension can be used.
        has_extension: bool,
    },
    /// Postgres lacks the index of short keywords.
    #[error("the index `listed_documents_pairs` is missing, so every search for two characters reads all documents")]
    NoPairIndex,
    /// Triggers, indexes or constraints are not those of the schema.
    #[error("the schema was altered: {0}")]
    Altered(SchemaDifferences),
    /// Tables or columns are not those of the schema.
    #[error("the schema was damaged: {0}")]
    Damaged(SchemaDifferences),
    /// Publications keep rows from being updated and deleted.
    #[error("{0}, so Postgres refuses to update and to delete rows")]
    Publication(SchemaDifferences),
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
            Self::Unfinished { .. } => format!(
                "run `formgate migrate --finish --tenant {slug}` once no node of an older version remains: until then, the \
                 database keeps what only those need"
            ),
            Self::NoTrigramIndex { has_extension: false } => format!("{PG_TRGM} `formgate migrate --tenant {slug}`"),
            Self::NoTrigramIndex { has_extension: true } | Self::NoPairIndex => {
                format!("run `formgate reindex --tenant {slug}`, which creates it")
            }
            Self::Altered(_) => format!(
                "run `formgate reindex --tenant {slug}` with a role that owns the tables: it restores the schema, and \
                 derives again from what was written meanwhile"
            ),
            Self::Damaged(_) => "undo the change, or restore a backup".to_owned(),
            Self::Publication(_) => PUBLICATION.to_owned(),
            Self::RowSecurity(_) => ROW_SECURITY.to_owned(),
        }
    }

    /// Whether the database has another schema than this program created.
    #[must_use]
    pub fn is_altered(&self) -> bool {
        match self {
            Self::NewerSchema { .. } | Self::Unfinished { .. } | Self::NoTrigramIndex { .. } | Self::NoPairIndex => {
                false
            }
            Self::Altered(_) | Self::Damaged(_) | Self::Publication(_) | Self::RowSecurity(_) => true,
        }
    }
}

impl Store {
    /// Every concern about the database.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn concerns(&self) -> Result<Vec<DatabaseConcern>, StoreError> {
        self.concerns_by(&schema::MIGRATIONS).await
    }

    /// The same for other migrations than those of the program, which a test has made up.
    ///
    /// # Errors
    /// Those of [`Self::concerns`].
    pub async fn concerns_by(&self, migrations: &[Migration]) -> Result<Vec<DatabaseConcern>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut concerns = Vec::new();
        let Progress { found, unfinished } = schema::progress(&mut reader, migrations).await?;
        let known = schema::newest(migrations);
        if found > known {
            concerns.push(DatabaseConcern::NewerSchema { found, known });
        }
        if !unfinished.is_empty() {
            concerns.push(DatabaseConcern::Unfinished { steps: unfinished.join(", ") });
        }
        if self.database.dialect() == Dialect::Postgres {
            let found = keyword_indexes::find(&mut reader).await?;
            if !found.has_trigrams {
                concerns.push(DatabaseConcern::NoTrigramIndex { has_extension: found.has_extension });
            }
            if !found.has_pairs {
                concerns.push(DatabaseConcern::NoPairIndex);
            }
        }
        // The schema of a newer version is not known.
        let differences = if found > known { Vec::new() } else { schema::differences(&mut reader).await? };
        let (hidden, rest): (Vec<_>, Vec<_>) = differences.into_iter().partition(SchemaDifference::is_row_security);
        let (refusing, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(SchemaDifference::is_publication);
        let (altered, damaged): (Vec<_>, Vec<_>) = rest.into_iter().partition(SchemaDifference::is_repairable);
        if !hidden.is_empty() {
            concerns.push(DatabaseConcern::RowSecurity(SchemaDifferences(hidden)));
        }
        if !refusing.is_empty() {
            concerns.push(DatabaseConcern::Publication(SchemaDifferences(refusing)));
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
