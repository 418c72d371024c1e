//! Reads what the catalog of a database says of its schema.
//!
//! Definitions are read as the database prints them: `postgres.tsv` has those of a migrated Postgres database. What the
//! catalog says only of faults, such as a rule or a publication, is read too.

use super::objects::{ObjectKind, normalized};
use crate::store::engine::{DatabaseLocation, PooledConnection};
use crate::store::statement::{Dialect, Sql, sql};
use crate::store::{StoreError, TextList};

/// What the catalog of Postgres says of our tables and functions: kind, table, name, state. `is_ours` is a condition on the
/// name of a table. Definitions are printed as the session's search path allows, with names of our own schema only. Before
/// version 15, the functions have no line that flushes, so that line does not count. `postgres.tsv` has all of this.
///
/// `identities` has the columns by which logical replication knows the rows of our tables, if an index has these.
fn on_postgres(is_ours: Sql) -> Sql {
    sql!(
        "{pg: WITH ours AS MATERIALIZED (
           SELECT c.oid, c.relname::text AS relation, c.relreplident, c.relpersistence, n.oid AS namespace, n.nspname
           FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
           WHERE c.relkind IN ('r', 'p')
             AND n.oid = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('database_identity'))
             AND c.relname {+is_ours}),
         identities AS MATERIALIZED (
           SELECT ours.oid, ARRAY(SELECT unnest(indkey)) AS columns FROM ours JOIN pg_index ON indrelid = ours.oid
           WHERE indisvalid AND indisunique AND indimmediate AND indpred IS NULL
             AND (relreplident = 'd' AND indisprimary OR relreplident = 'i' AND indisreplident))
         SELECT 'table' AS kind, relation AS \"table\", relation AS name,
           CASE relpersistence WHEN 'p' THEN '' ELSE 'unlogged' END AS state FROM ours
         UNION ALL SELECT 'function', proname::text, proname::text, concat_ws(' ',
           '(' || pg_get_function_arguments(p.oid) || ')', pg_get_function_result(p.oid), lanname,
           CASE WHEN prosecdef THEN 'security definer' END, provolatile, proparallel,
           CASE WHEN proisstrict THEN 'strict' END, procost, replace(array_to_string(proconfig, ' '),
             'search_path=' || quote_ident(nspname) || ', pg_temp', 'search_path=ours'),
           encode(sha256(convert_to(
             replace(prosrc, '  PERFORM pg_stat_force_next_flush();' || chr(10), ''), 'UTF8')), 'hex'))
           FROM (SELECT DISTINCT namespace, nspname FROM ours) AS schema JOIN pg_proc p ON pronamespace = namespace
           JOIN pg_language l ON l.oid = prolang WHERE starts_with(proname, 'formgate_')
         UNION ALL SELECT 'column', relation, attname::text,
           format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' not null' ELSE '' END
             || CASE WHEN attgenerated <> ''
               THEN ' generated always as (' || pg_get_expr(adbin, adrelid, true) || ') stored' ELSE '' END
           FROM ours JOIN pg_attribute ON attrelid = ours.oid
           LEFT JOIN pg_attrdef ON adrelid = ours.oid AND adnum = attnum
           WHERE attnum > 0 AND NOT attisdropped
         UNION ALL SELECT 'default', relation, attname::text, pg_get_expr(adbin, adrelid, true)
           FROM ours JOIN pg_attribute ON attrelid = ours.oid JOIN pg_attrdef ON adrelid = ours.oid AND adnum = attnum
           WHERE attgenerated = ''
         UNION ALL SELECT 'identity', relation, attname::text,
           CASE attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END
           FROM ours JOIN pg_attribute ON attrelid = ours.oid WHERE attidentity <> ''
         UNION ALL SELECT CASE WHEN contype IN ('p', 'u') THEN 'key' ELSE 'constraint' END, relation, conname::text,
           pg_get_constraintdef(c.oid, true)
           FROM ours JOIN pg_constraint c ON conrelid = ours.oid WHERE contype IN ('p', 'u', 'c', 'f')
         UNION ALL SELECT 'index', relation, i.relname::text, CASE WHEN indisvalid THEN regexp_replace(
             replace(replace(pg_get_indexdef(i.oid, 0, true), ' ON ONLY ', ' ON '),
               'INDEX ' || quote_ident(i.relname) || ' ON ', 'INDEX ON '),
             ' WITH \\([^)]*\\)', '') ELSE 'invalid' END
           FROM ours JOIN pg_index ON indrelid = ours.oid JOIN pg_class i ON i.oid = indexrelid
           WHERE NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.oid AND contype IN ('p', 'u', 'x'))
         UNION ALL SELECT 'trigger', relation, tgname::text, tgenabled::text || ' ' || pg_get_triggerdef(t.oid, true)
           FROM ours JOIN pg_trigger t ON tgrelid = ours.oid WHERE NOT tgisinternal
         UNION ALL SELECT 'replica identity', relation, relation, CASE WHEN relreplident = 'f' THEN 'FULL'
           WHEN ours.oid NOT IN (SELECT oid FROM identities) THEN 'NOTHING' WHEN relreplident = 'd' THEN 'DEFAULT'
           ELSE 'USING INDEX' END FROM ours}",
        is_ours,
    )
}

/// What is wrong wherever the catalog of Postgres has it; follows [`on_postgres`]. A rule of a table that a forms product
/// writes may add something and leave the rest alone. Publications have lists of columns and filters since version 15.
fn wrong_on_postgres() -> Sql {
    sql!(
        "UNION SELECT 'foreign key', relation, conname::text, ''
           FROM ours JOIN pg_trigger t ON tgrelid = ours.oid JOIN pg_constraint c ON c.oid = t.tgconstraint
           WHERE tgisinternal AND tgenabled NOT IN ('O', 'A')
         UNION ALL SELECT 'rule', relation, quote_ident(rulename), CASE WHEN is_instead THEN 'instead' ELSE '' END
           FROM ours JOIN pg_rewrite ON ev_class = ours.oid WHERE ev_type <> '1'
         UNION ALL SELECT 'publication', relation, pubname::text, ''
           FROM ours JOIN pg_publication_rel r ON prrelid = ours.oid JOIN pg_publication p ON p.oid = prpubid
           LEFT JOIN identities ON identities.oid = ours.oid
           CROSS JOIN LATERAL (
             SELECT to_jsonb(r) ->> 'prattrs' AS listed, to_jsonb(r) ->> 'prqual' AS filter) AS published
           WHERE (pubupdate OR pubdelete) AND (
             listed IS NOT NULL AND (relreplident = 'f' OR EXISTS (
               SELECT FROM unnest(identities.columns) AS column_number
               WHERE NOT to_jsonb(r) -> 'prattrs' @> to_jsonb(column_number)))
             OR listed IS NULL AND filter IS NOT NULL AND relreplident <> 'f' AND EXISTS (SELECT FROM pg_depend
               WHERE classid = 'pg_publication_rel'::regclass AND objid = r.oid AND refobjsubid > 0
                 AND refobjsubid <> ALL (identities.columns)))
         UNION ALL SELECT 'row level security', relation, relation, '' FROM ours WHERE row_security_active(ours.oid)",
    )
}

/// The same of SQLite.
fn on_sqlite(tables: TextList) -> Sql {
    sql!(
        "{lite: WITH ours AS (SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE tbl_name {in tables})
         SELECT 'table', name, name, '' FROM ours WHERE type = 'table'
         UNION ALL SELECT 'column', ours.name, c.name, c.type
           FROM ours JOIN pragma_table_info(ours.name) AS c WHERE ours.type = 'table'
         UNION ALL SELECT type, tbl_name, name, sql FROM ours WHERE type <> 'table' AND sql IS NOT NULL}",
        tables,
    )
}

/// What a catalog says of a part.
pub(super) struct CatalogObject {
    pub(super) kind: ObjectKind,
    pub(super) table: String,
    pub(super) name: String,
    pub(super) state: String,
}

/// What the catalog says of tables and of our functions, and what is wrong with these tables.
pub(super) async fn read(
    reader: &mut PooledConnection,
    tables: impl Iterator<Item = &'static str>,
) -> Result<Vec<CatalogObject>, StoreError> {
    let tables: TextList = tables.collect();
    let sql = match reader.dialect() {
        Dialect::Postgres => {
            let known = on_postgres(sql!("{in tables}", tables));
            sql!("{+known} {+wrong}", known, wrong = wrong_on_postgres())
        }
        Dialect::Sqlite => on_sqlite(tables),
    };
    fetch(reader, sql).await
}

async fn fetch(reader: &mut PooledConnection, sql: Sql) -> Result<Vec<CatalogObject>, StoreError> {
    let mut found = Vec::new();
    for row in &reader.fetch_all(sql).await? {
        if let Some(kind) = ObjectKind::of_name(&row.get::<String>(0)?) {
            let state = normalized(&row.get::<String>(3)?);
            found.push(CatalogObject { kind, table: row.get(1)?, name: row.get(2)?, state });
        }
    }
    Ok(found)
}

/// What the catalog of a Postgres database says of the parts of the schema, as lines of `postgres.tsv`.
///
/// # Errors
/// [`StoreError::Unavailable`], [`StoreError::Statement`].
pub async fn read_catalog(location: &DatabaseLocation) -> Result<String, StoreError> {
    let database = location.connect_for_maintenance();
    let mut reader = database.reader().await?;
    let found = fetch(&mut reader, on_postgres(Sql::text("<> '_sqlx_migrations'"))).await;
    drop(reader);
    database.close().await;
    let mut found = found?;
    // formgate creates the keyword indexes when it fills the table: src/store/derived/settle/keyword_indexes.rs.
    found.retain(|found| {
        !(found.kind == ObjectKind::Index && found.table == "listed_documents" && found.state.contains(" gin "))
    });
    found.sort_by(|one, other| (one.kind, &one.table, &one.name).cmp(&(other.kind, &other.table, &other.name)));
    let line = |CatalogObject { kind, table, name, state }| format!("{}\t{table}\t{name}\t{state}\n", kind.name());
    Ok(found.into_iter().map(line).collect())
}
