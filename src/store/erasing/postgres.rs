//! On Postgres: what of others needs our tables, and dropping them in one transaction.

use sqlx::AssertSqlSafe;

use super::{ErasedDatabase, NotErasable};
use crate::store::engine::{Database, PooledConnection};
use crate::store::identity::DatabaseIdentity;
use crate::store::schema;
use crate::store::statement::{Dialect, Sql, TextList, sql};

/// How long dropping tables waits for programs that read or write them.
///
/// Larger: readers that come meanwhile wait behind it for longer. Smaller: the call has to be repeated while a program has a long
/// transaction.
const LOCK_WAIT: &str = "10s";

/// The tables of the schema that has ours.
const OURS: &str = "(SELECT relnamespace FROM pg_class WHERE oid = to_regclass('database_identity'))";

pub(super) async fn refuse_not_owned(reader: &mut PooledConnection) -> Result<(), NotErasable> {
    let tables: TextList = schema::tables(Dialect::Postgres).collect();
    let sql = sql!(
        "{pg: SELECT relname::text FROM pg_class
         WHERE relnamespace = {+ours} AND relkind IN ('r', 'p') AND relname {in tables} AND NOT pg_has_role(relowner, 'USAGE')
         ORDER BY relname}",
        ours = Sql::text(OURS),
        tables,
    );
    let rows = reader.fetch_all(sql).await?;
    let not_owned: Vec<String> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    if not_owned.is_empty() { Ok(()) } else { Err(NotErasable::NotOwned(not_owned)) }
}

/// Views, foreign keys and tables of others that need our tables, and triggers of others that call our functions.
pub(super) async fn needed(reader: &mut PooledConnection) -> Result<Vec<String>, NotErasable> {
    let tables: TextList = schema::tables(Dialect::Postgres).collect();
    let sql = sql!(
        "{pg: WITH ours AS MATERIALIZED (
           SELECT oid FROM pg_class
           WHERE relnamespace = {+ours} AND relkind IN ('r', 'p') AND relname {in tables}),
         functions AS MATERIALIZED (
           SELECT oid FROM pg_proc WHERE pronamespace = {+ours} AND starts_with(proname, 'formgate_'))
         SELECT pg_describe_object('pg_class'::regclass, ev_class, 0) AS needed
           FROM pg_depend JOIN pg_rewrite r ON classid = 'pg_rewrite'::regclass AND objid = r.oid
           WHERE (refclassid = 'pg_class'::regclass AND refobjid IN (SELECT oid FROM ours)
               OR refclassid = 'pg_proc'::regclass AND refobjid IN (SELECT oid FROM functions))
             AND ev_class NOT IN (SELECT oid FROM ours)
         UNION SELECT pg_describe_object('pg_constraint'::regclass, oid, 0) FROM pg_constraint
           WHERE contype = 'f' AND confrelid IN (SELECT oid FROM ours) AND conrelid NOT IN (SELECT oid FROM ours)
         UNION SELECT pg_describe_object('pg_class'::regclass, inhrelid, 0) FROM pg_inherits
           WHERE inhparent IN (SELECT oid FROM ours) AND inhrelid NOT IN (SELECT oid FROM ours)
         UNION SELECT pg_describe_object('pg_trigger'::regclass, oid, 0) FROM pg_trigger
           WHERE tgfoid IN (SELECT oid FROM functions) AND tgrelid NOT IN (SELECT oid FROM ours)
         ORDER BY needed}",
        ours = Sql::text(OURS),
        tables,
    );
    let rows = reader.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
}

/// Drops our functions, and then the schema in the setting `formgate.schema` if formgate created it and nothing is left in it.
const DROP_REST: &str = "DO $$
DECLARE
  function regprocedure;
  namespace oid := current_setting('formgate.namespace')::oid;
BEGIN
  FOR function IN SELECT oid FROM pg_proc WHERE pronamespace = namespace AND starts_with(proname, 'formgate_') LOOP
    EXECUTE format('DROP ROUTINE %s', function);
  END LOOP;
  IF obj_description(namespace, 'pg_namespace') = 'Created by formgate'
    AND pg_has_role((SELECT nspowner FROM pg_namespace WHERE oid = namespace), 'USAGE')
    AND NOT EXISTS (SELECT FROM pg_depend
      WHERE refclassid = 'pg_namespace'::regclass AND refobjid = namespace AND deptype IN ('n', 'a')) THEN
    EXECUTE format('DROP SCHEMA %s', namespace::regnamespace);
    PERFORM set_config('formgate.namespace', '', true);
  END IF;
END
$$";

pub(super) async fn erase(database: &Database, looked_at: Option<&str>) -> Result<ErasedDatabase, NotErasable> {
    let mut kept = vec![
        "the Postgres database itself and its role, which formgate did not create".to_owned(),
        "dead rows, the write-ahead log, replicas and backups of the Postgres server, until it removes them".to_owned(),
    ];
    let mut reader = database.reader().await?;
    let is_there = match looked_at {
        Some(looked_at) if schema::is_of_tenant(&mut reader).await? => {
            let (_, found) = DatabaseIdentity::read(&mut reader).await?;
            found.is_some_and(|found| found.to_string() == looked_at)
        }
        _ => false,
    };
    if !is_there {
        return Ok(ErasedDatabase { erased: Vec::new(), kept });
    }
    let sql = sql!(
        "{pg: SELECT oid::bigint, quote_ident(nspname) FROM pg_namespace WHERE oid = {+ours}}",
        ours = Sql::text(OURS),
    );
    let row = reader.fetch_one(sql).await?;
    let (oid, namespace): (i64, String) = (row.get(0)?, row.get(1)?);
    let wanted: TextList = schema::tables(Dialect::Postgres).collect();
    let sql = sql!(
        "{pg: SELECT relname::text FROM pg_class
         WHERE relnamespace = {+ours} AND relkind IN ('r', 'p') AND relname {in wanted} ORDER BY relname}",
        ours = Sql::text(OURS),
        wanted,
    );
    let rows = reader.fetch_all(sql).await?;
    let tables: Vec<String> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    drop(reader);
    let mut transaction = database.begin().await?;
    let sql = sql!(
        "{pg: SELECT set_config('lock_timeout', {wait}, true), set_config('formgate.namespace', {oid}, true)}",
        wait = LOCK_WAIT,
        oid = oid.to_string(),
    );
    transaction.fetch_all(sql).await?;
    // Names of our own, which need no quotes, but for the schema.
    let names: Vec<_> = tables.iter().map(|table| format!("{namespace}.{table}")).collect();
    let dropped = transaction.command(AssertSqlSafe(format!("DROP TABLE {}", names.join(", ")))).await;
    dropped.map_err(needed_or_other)?;
    transaction.command(DROP_REST).await.map_err(needed_or_other)?;
    let sql = sql!("{pg: SELECT current_setting('formgate.namespace') = ''}");
    let is_schema_dropped: bool = transaction.connection().fetch_one(sql).await?.get(0)?;
    transaction.commit().await?;
    let mut erased: Vec<_> = tables.into_iter().map(|table| format!("the table {table}")).collect();
    erased.push("the functions and triggers of formgate".to_owned());
    match is_schema_dropped {
        true => erased.push(format!("the schema {namespace}")),
        false => kept.push(format!("the schema {namespace}, and what is not formgate's in it")),
    }
    Ok(ErasedDatabase { erased, kept })
}

/// Something that depends on a table was created since the database was looked at.
fn needed_or_other(error: sqlx::Error) -> NotErasable {
    match error.as_database_error() {
        Some(cause) if cause.code().as_deref() == Some("2BP01") => {
            NotErasable::Needed(vec![cause.message().to_owned()])
        }
        _ => error.into(),
    }
}
