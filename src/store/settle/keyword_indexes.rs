//! The GIN indexes of Postgres for the keyword search, which the program creates and not the schema.
//!
//! Building a GIN index from all documents takes half the time of inserting them one by one, and half the space. So
//! code that fills an empty table drops the indexes first and creates them afterwards. The trigram index needs the
//! extension `pg_trgm`. Without it, keyword searches read every document and find the same.

use crate::store::StoreError;
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::statement::{Dialect, Sql, length_is};

/// The indexes stay if there are documents, or if the table is locked or owned by another role.
const DROP_IF_EMPTY: &str = "DO $$
DECLARE
  previous_timeout text := current_setting('lock_timeout');
BEGIN
  IF EXISTS (SELECT FROM listed_documents) THEN
    RETURN;
  END IF;
  BEGIN
    PERFORM set_config('lock_timeout', '2s', true);
    DROP INDEX IF EXISTS listed_documents_trigrams, listed_documents_pairs;
  EXCEPTION WHEN lock_not_available OR deadlock_detected OR insufficient_privilege THEN
    NULL;
  END;
  PERFORM set_config('lock_timeout', previous_timeout, true);
END
$$";

/// Whether there are indexes that serve the searches, whatever their names: `has_pairs` and `has_trigrams`. The trigram
/// index leaves out long documents; one that was created before it did has them too, and serves the same searches.
macro_rules! found {
    () => {
        "SELECT coalesce(bool_or(definition LIKE '% USING gin (%formgate_pairs(document))%'), false) AS has_pairs, \
            coalesce(bool_or(definition LIKE '% USING gin (document %gin_trgm_ops)%'), false) AS has_trigrams \
        FROM (SELECT pg_get_indexdef(indexrelid) AS definition FROM pg_index \
            WHERE indrelid = to_regclass('listed_documents') AND indisvalid) AS indexes"
    };
}

/// The operator class is named with the schema of the extension, which need not be on the search path.
const CREATE_MISSING: &str = concat!(
    "DO $$
DECLARE
  extension_schema text;
  found record;
BEGIN
  ",
    found!(),
    " INTO found;
  IF NOT found.has_pairs THEN
    DROP INDEX IF EXISTS listed_documents_pairs;
    CREATE INDEX listed_documents_pairs ON listed_documents USING gin (formgate_pairs(document));
  END IF;
  IF NOT found.has_trigrams THEN
    DROP INDEX IF EXISTS listed_documents_trigrams;
    BEGIN
      CREATE EXTENSION IF NOT EXISTS pg_trgm;
    EXCEPTION WHEN insufficient_privilege OR undefined_file OR feature_not_supported THEN
      RAISE WARNING 'pg_trgm cannot be created here: keyword searches read every document';
    END;
    SELECT nspname INTO extension_schema
      FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'pg_trgm';
    IF extension_schema IS NULL THEN
      RETURN;
    END IF;
    IF NOT has_schema_privilege(extension_schema, 'USAGE') THEN
      RAISE WARNING 'pg_trgm is in a schema that this role may not use: keyword searches read every document';
    ELSE
      EXECUTE format(
        'CREATE INDEX listed_documents_trigrams ON listed_documents USING gin (document %I.gin_trgm_ops) WHERE ",
    length_is!("<>"),
    "', extension_schema);
    END IF;
  END IF;
END
$$"
);

/// Drops the indexes if there are no documents yet.
pub(in crate::store) async fn drop_if_empty(transaction: &mut Transaction) -> Result<(), StoreError> {
    run(transaction, DROP_IF_EMPTY).await
}

/// Creates the indexes that are missing.
pub(in crate::store) async fn create_missing(transaction: &mut Transaction) -> Result<(), StoreError> {
    run(transaction, CREATE_MISSING).await
}

/// The keyword indexes of Postgres.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct KeywordIndexes {
    pub(in crate::store) has_pairs: bool,
    pub(in crate::store) has_trigrams: bool,
    /// Whether the trigram index can be created: the database has the extension, and the role may use its schema.
    pub(in crate::store) has_extension: bool,
}

/// Which indexes a database on Postgres has.
pub(in crate::store) async fn find(reader: &mut PooledConnection) -> Result<KeywordIndexes, StoreError> {
    let sql = Sql::text(concat!(
        "SELECT has_pairs, has_trigrams, EXISTS (SELECT FROM pg_extension \
            WHERE extname = 'pg_trgm' AND has_schema_privilege(extnamespace, 'USAGE')) FROM (",
        found!(),
        ") AS found"
    ));
    let row = reader.fetch_one(sql).await?;
    Ok(KeywordIndexes { has_pairs: row.get(0)?, has_trigrams: row.get(1)?, has_extension: row.get(2)? })
}

async fn run(transaction: &mut Transaction, statement: &'static str) -> Result<(), StoreError> {
    if transaction.dialect() == Dialect::Postgres {
        transaction.execute(Sql::text(statement)).await?;
    }
    Ok(())
}
