//! Compares a database with the schema, and restores what differs.
//!
//! Programs around formgate change more than rows. `pg_restore --disable-triggers` and bulk loads leave triggers that no
//! longer fire for replicated rows, somebody drops an index before a load and forgets it, an advisor switches row level
//! security on. Nothing of that fails, so it has to be looked for. Whatever the schema does not know, such as a column or
//! an index of the operator, is left alone.

use std::collections::BTreeMap;
use std::fmt;

use super::objects::{Object, ObjectKind, expected, normalized};
use crate::store::engine::{Database, DatabaseLocation, PooledConnection};
use crate::store::statement::{Dialect, Sql};
use crate::store::{StoreError, schema, settle, totals, with_causes};

/// How many differences a message names.
///
/// Larger: a message of a database whose triggers are all disabled fills the screen. Smaller: more commands to find what
/// is wrong.
const NAMED: usize = 3;

/// What the catalog of Postgres says of our tables: kind, table, name, state. Of the last three kinds it has only rows of
/// what is wrong.
const FROM_POSTGRES: &str = "SELECT 'table', relation, relation, '' FROM ours \
    UNION ALL SELECT 'column', relation, attname::text, \
        format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' not null' ELSE '' END \
        FROM ours JOIN pg_attribute ON attrelid = ours.oid WHERE attnum > 0 AND NOT attisdropped \
    UNION ALL SELECT 'constraint', relation, conname::text, CASE WHEN convalidated THEN 'valid' ELSE 'not validated' END \
        FROM ours JOIN pg_constraint ON conrelid = ours.oid \
    UNION ALL SELECT 'index', relation, i.relname::text, \
        CASE WHEN NOT indisvalid THEN 'invalid' WHEN indisunique THEN 'unique' ELSE 'valid' END \
        FROM ours JOIN pg_index ON indrelid = ours.oid JOIN pg_class i ON i.oid = indexrelid \
    UNION ALL SELECT 'trigger', relation, tgname::text, tgenabled::text \
        FROM ours JOIN pg_trigger ON tgrelid = ours.oid WHERE NOT tgisinternal \
    UNION SELECT 'foreign key', relation, conname::text, '' FROM ours JOIN pg_trigger t ON tgrelid = ours.oid \
        JOIN pg_constraint c ON c.oid = t.tgconstraint WHERE tgisinternal AND tgenabled NOT IN ('O', 'A') \
    UNION ALL SELECT 'replica identity', relation, relation, '' FROM ours WHERE relreplident = 'n' \
        OR relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = ours.oid AND indisprimary) \
    UNION ALL SELECT 'row level security', relation, relation, '' FROM ours WHERE row_security_active(ours.oid)";

/// The same of SQLite.
const FROM_SQLITE: &str = "SELECT 'table', name, name, '' FROM ours WHERE type = 'table' \
    UNION ALL SELECT 'column', ours.name, c.name, c.type FROM ours JOIN pragma_table_info(ours.name) AS c WHERE ours.type = 'table' \
    UNION ALL SELECT type, tbl_name, name, sql FROM ours WHERE type <> 'table' AND sql IS NOT NULL";

/// Lets the foreign keys of the table in the setting `formgate.table` check again, which only a superuser may.
const ENABLE_FOREIGN_KEYS: &str = "DO $$
DECLARE
  disabled record;
BEGIN
  FOR disabled IN
    SELECT tgrelid::regclass AS relation, tgname FROM pg_trigger
    WHERE tgrelid = to_regclass(current_setting('formgate.table')) AND tgisinternal AND tgenabled NOT IN ('O', 'A')
  LOOP
    EXECUTE format('ALTER TABLE %s ENABLE TRIGGER %I', disabled.relation, disabled.tgname);
  END LOOP;
END
$$";

/// How long a statement of a repair waits for other programs, which wait behind it.
///
/// Larger: writers wait for longer while another transaction is long. Smaller: the command has to be repeated.
const LOCK_WAIT: &str = "10s";

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DifferenceKind {
    Object(ObjectKind),
    ForeignKey,
    ReplicaIdentity,
    RowSecurity,
}

/// One way in which a database differs from the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct SchemaDifference {
    kind: DifferenceKind,
    table: String,
    name: String,
    /// What the database has instead; None if it is missing.
    found: Option<String>,
    wanted: &'static str,
}

impl SchemaDifference {
    /// Whether rows are hidden from the role that serves, so that its statements fail.
    pub(in crate::store) fn is_row_security(&self) -> bool {
        self.kind == DifferenceKind::RowSecurity
    }

    /// Whether [`repair_schema`] can restore it.
    pub(in crate::store) fn is_repairable(&self) -> bool {
        match self.kind {
            DifferenceKind::Object(ObjectKind::Table) => false,
            DifferenceKind::Object(ObjectKind::Column) => {
                let kind = |state: &str| state.trim_end_matches(" not null").to_owned();
                self.found.as_deref().is_some_and(|found| found != self.wanted && kind(found) == kind(self.wanted))
            }
            DifferenceKind::Object(_) | DifferenceKind::ForeignKey | DifferenceKind::ReplicaIdentity => true,
            DifferenceKind::RowSecurity => false,
        }
    }

    /// Whether writes may not have been noted meanwhile.
    fn may_have_missed_writes(&self) -> bool {
        self.kind == DifferenceKind::Object(ObjectKind::Trigger)
    }
}

impl fmt::Display for SchemaDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, table, name, found, wanted } = self;
        match (kind, found.as_deref()) {
            (DifferenceKind::Object(ObjectKind::Table), _) => write!(f, "the table `{table}` is missing"),
            (DifferenceKind::Object(ObjectKind::Column), None) => write!(f, "the column `{table}.{name}` is missing"),
            (DifferenceKind::Object(ObjectKind::Column), Some(found)) => {
                write!(f, "the column `{table}.{name}` is `{found}`, not `{wanted}`")
            }
            (DifferenceKind::Object(kind), None) => write!(f, "the {} `{name}` of `{table}` is missing", kind.name()),
            (DifferenceKind::Object(ObjectKind::Trigger), Some("D")) => {
                write!(f, "the trigger `{name}` of `{table}` is disabled")
            }
            (DifferenceKind::Object(ObjectKind::Trigger), Some("O")) => {
                write!(f, "the trigger `{name}` of `{table}` does not fire for replicated rows")
            }
            (DifferenceKind::Object(ObjectKind::Trigger), Some("R")) => {
                write!(f, "the trigger `{name}` of `{table}` fires for replicated rows only")
            }
            (DifferenceKind::Object(ObjectKind::Constraint), Some(_)) => {
                write!(f, "the constraint `{name}` of `{table}` is not validated")
            }
            (DifferenceKind::Object(kind), Some("invalid")) => {
                write!(f, "the {} `{name}` of `{table}` is invalid", kind.name())
            }
            (DifferenceKind::Object(kind), Some(_)) => {
                write!(f, "the {} `{name}` of `{table}` was altered", kind.name())
            }
            (DifferenceKind::ForeignKey, _) => {
                write!(f, "the foreign key `{name}` is not checked: triggers of `{table}` are disabled")
            }
            (DifferenceKind::ReplicaIdentity, _) => write!(f, "the table `{table}` has no replica identity"),
            (DifferenceKind::RowSecurity, _) => write!(f, "row level security applies to the table `{table}`"),
        }
    }
}

/// Differences, the first of which are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaDifferences(pub(in crate::store) Vec<SchemaDifference>);

impl fmt::Display for SchemaDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, difference) in self.0.iter().take(NAMED).enumerate() {
            write!(f, "{}{difference}", if at == 0 { "" } else { "; " })?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            1 => write!(f, "; and 1 more"),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// How a database at the newest version that this program knows differs from its schema.
pub(in crate::store) async fn differences(reader: &mut PooledConnection) -> Result<Vec<SchemaDifference>, StoreError> {
    let dialect = reader.dialect();
    let expected = expected(dialect);
    let rows = reader.fetch_all(select(reader.sql(), expected)).await?;
    let (mut found, mut differences) = (BTreeMap::new(), Vec::new());
    for row in &rows {
        let [kind, table, name, state] = [row.get::<String>(0)?, row.get(1)?, row.get(2)?, row.get(3)?];
        let kind = match kind.as_str() {
            "foreign key" => DifferenceKind::ForeignKey,
            "replica identity" => DifferenceKind::ReplicaIdentity,
            "row level security" => DifferenceKind::RowSecurity,
            kind => match ObjectKind::of_name(kind) {
                Some(kind) => {
                    let state = if dialect == Dialect::Sqlite { normalized(&state) } else { state };
                    found.insert((kind, table, name), state);
                    continue;
                }
                None => continue,
            },
        };
        differences.push(SchemaDifference { kind, table, name, found: Some(state), wanted: "" });
    }
    let has_table = |table: &str| found.contains_key(&(ObjectKind::Table, table.to_owned(), table.to_owned()));
    let missing_tables: Vec<_> = expected.iter().map(|object| object.table).filter(|table| !has_table(table)).collect();
    for object in expected {
        // One message for each missing table is enough.
        if object.kind != ObjectKind::Table && missing_tables.contains(&object.table) {
            continue;
        }
        let state = found.get(&(object.kind, object.table.to_owned(), object.name.clone()));
        // A trigger that fires always does not fire less.
        let is_as_expected = state.is_some_and(|state| *state == object.state || state == "A" && object.state == "O");
        if !is_as_expected {
            differences.push(SchemaDifference {
                kind: DifferenceKind::Object(object.kind),
                table: object.table.to_owned(),
                name: object.name.clone(),
                found: state.cloned(),
                wanted: &object.state,
            });
        }
    }
    differences.sort_by_key(|difference| difference.kind);
    Ok(differences)
}

fn select(mut sql: Sql, expected: &[Object]) -> Sql {
    let tables = expected.iter().filter(|object| object.kind == ObjectKind::Table).map(|object| object.table);
    sql.push_either(
        "WITH ours AS MATERIALIZED (SELECT c.oid, c.relname::text AS relation, c.relreplident FROM pg_class c \
            WHERE c.relkind IN ('r', 'p') AND c.relnamespace = \
            (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('database_identity')) AND c.relname",
        "WITH ours AS (SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE tbl_name",
    );
    sql.in_texts(tables).push(") ").push_either(FROM_POSTGRES, FROM_SQLITE);
    sql
}

/// The result of [`repair_schema`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchemaRepair {
    /// How many differences there were and are no longer.
    pub restored: usize,
    /// What could not be restored, and why.
    pub failed: Vec<String>,
}

/// Restores the schema where it was altered. If triggers did not fire as they should, notes that anything may have been
/// written meanwhile, and derives from everything again.
///
/// # Errors
/// [`StoreError::SchemaOlder`] before a migration; otherwise the database failed. What was restored until then is
/// committed.
pub async fn repair_schema(location: &DatabaseLocation) -> Result<SchemaRepair, StoreError> {
    let database = location.connect_for_maintenance();
    let repaired = try_to_repair(&database).await;
    database.close().await;
    repaired
}

async fn try_to_repair(database: &Database) -> Result<SchemaRepair, StoreError> {
    let before = {
        let mut reader = database.reader().await?;
        schema::require_served(&mut reader).await?;
        if schema::version(&mut reader).await? > schema::newest(&schema::MIGRATIONS) {
            return Ok(SchemaRepair::default());
        }
        differences(&mut reader).await?
    };
    let mut repair = SchemaRepair::default();
    let mut done = Vec::new();
    for difference in before.iter().filter(|difference| difference.is_repairable()) {
        let (statement, table) = (restoring(database.dialect(), difference), difference.table.as_str());
        if done.contains(&(statement, table)) {
            continue;
        }
        done.push((statement, table));
        if let Err(error) = run(database, statement, table).await {
            repair.failed.push(format!("{difference}: {}", with_causes(&error)));
        }
    }
    let after = differences(&mut database.reader().await?).await?;
    repair.restored = before.len().saturating_sub(after.len());
    // What is written from now on is noted. A trigger that is still wrong would have this repeated each time.
    let is_missed = |differences: &[SchemaDifference]| {
        differences.iter().filter(|difference| difference.may_have_missed_writes()).count()
    };
    if is_missed(&after) < is_missed(&before) {
        note_everything(database).await?;
        settle::settle_all(database).await?;
    }
    Ok(repair)
}

/// The statements that restore what differs.
fn restoring(dialect: Dialect, difference: &SchemaDifference) -> &'static str {
    let kind = match difference.kind {
        DifferenceKind::ForeignKey => return ENABLE_FOREIGN_KEYS,
        DifferenceKind::Object(kind) => kind,
        DifferenceKind::ReplicaIdentity | DifferenceKind::RowSecurity => ObjectKind::Table,
    };
    let is_it = |object: &&Object| {
        (object.kind, object.table, object.name.as_str()) == (kind, difference.table.as_str(), difference.name.as_str())
    };
    let object = expected(dialect).iter().find(is_it).expect("differences are those of expected objects");
    if difference.found.is_none() { &object.create } else { &object.alter }
}

async fn run(database: &Database, statement: &'static str, table: &str) -> Result<(), StoreError> {
    let mut transaction = database.begin().await?;
    if transaction.dialect() == Dialect::Postgres {
        let mut sql = transaction.sql();
        sql.push("SELECT set_config('lock_timeout', ").bind(LOCK_WAIT).push(", true), set_config('formgate.table', ");
        sql.bind(table).push(", true)");
        transaction.fetch_all(sql).await?;
    }
    transaction.command(statement).await?;
    Ok(transaction.commit().await?)
}

/// Notes that anything may have been written, and that every count may be wrong. The log of changes may have been restored
/// without its last number.
async fn note_everything(database: &Database) -> Result<(), StoreError> {
    let mut transaction = settle::Settler::begin_for_a_command(database).await?;
    totals::note_all(&mut transaction).await?;
    for statement in [
        "INSERT INTO intake DEFAULT VALUES",
        "UPDATE change_state SET last_seq = (SELECT max(seq) FROM (SELECT last_seq AS seq FROM change_state \
            UNION ALL SELECT max(seq) FROM submission_changes UNION ALL SELECT max(seq) FROM submission_moves \
            UNION ALL SELECT max(seq) FROM form_placements UNION ALL SELECT max(seq) FROM change_stamps \
            UNION ALL SELECT max(position) FROM subscriptions) AS numbers)",
    ] {
        transaction.command(statement).await?;
    }
    Ok(transaction.commit().await?)
}
