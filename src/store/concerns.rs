//! Problems of a database that is served nevertheless, for `formgate check`.

use super::engine::PG_TRGM;
use super::statement::Dialect;
use super::{Store, StoreError, schema};

/// Something that needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
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
}

impl DatabaseConcern {
    /// What fixes it.
    #[must_use]
    pub fn remedy(self, slug: &str) -> String {
        match self {
            Self::NewerSchema { .. } => {
                "run the version of formgate that migrated it, once every node is replaced".to_owned()
            }
            Self::NoTrigramIndex => format!("{PG_TRGM} `formgate migrate --tenant {slug}`"),
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
        Ok(concerns)
    }
}
