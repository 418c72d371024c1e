//! Compares a database with the schema, and restores what differs.
//!
//! Programs around formgate change more than rows. `pg_restore --disable-triggers` and bulk loads leave triggers that no
//! longer fire for replicated rows, somebody drops an index before a load and forgets it, an advisor switches row level
//! security on. Nothing of that fails, so it has to be looked for. Whatever the schema does not know, such as a column or
//! an index of the operator, is left alone.

use std::collections::BTreeSet;
use std::fmt;

use sqlx::AssertSqlSafe;

use super::catalog::{self, CatalogObject};
use super::objects::{Object, ObjectKind, expected, is_plain};
use crate::metrics::DatabaseFailure;
use crate::store::derived::changes::NEW_EPOCH;
use crate::store::derived::{settle, totals};
use crate::store::engine::{Database, DatabaseLocation, PooledConnection};
use crate::store::statement::{Dialect, sql};
use crate::store::{StoreError, schema, users, with_causes};

/// How many differences a message names.
///
/// Larger: a message of a database whose triggers are all disabled fills the screen. Smaller: more commands to find what
/// is wrong.
const NAMED: usize = 3;

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

/// Creates the row of `change_state` with a new epoch, so that readers begin again, and the last number that anything has, up to
/// which events may have been sent.
const CREATE_STATE: [[&str; 3]; 2] = [
    [
        "SELECT set_config('formgate.numbers', 'on', true); INSERT INTO change_state (epoch, last_seq, released_seq) SELECT ",
        NEW_EPOCH[0],
        LAST_NUMBERS,
    ],
    ["INSERT INTO change_state (epoch, last_seq, released_seq) SELECT ", NEW_EPOCH[1], LAST_NUMBERS],
];
const LAST_NUMBERS: &str = ", last, last FROM (SELECT coalesce(max(seq), 0) AS last FROM ( \
        SELECT max(seq) AS seq FROM submission_changes UNION ALL SELECT max(seq) FROM submission_moves \
        UNION ALL SELECT max(seq) FROM change_stamps UNION ALL SELECT max(position) FROM subscriptions) AS numbers) AS numbers \
    WHERE NOT EXISTS (SELECT 1 FROM change_state)";

/// One way in which a database differs from the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct SchemaDifference {
    kind: ObjectKind,
    table: String,
    name: String,
    /// What the database has instead; None if it is missing.
    found: Option<String>,
    wanted: &'static str,
    /// The statements that restore it; None if none do.
    restoring: Option<String>,
}

impl SchemaDifference {
    /// A part that is wrong wherever it is. None if it is left alone.
    fn of_wrong(found: CatalogObject) -> Option<Self> {
        let CatalogObject { kind, table, name, state } = found;
        let restoring = match kind {
            ObjectKind::ForeignKey => Some(ENABLE_FOREIGN_KEYS.to_owned()),
            ObjectKind::Rule if is_plain(&table) && state != "instead" => return None,
            ObjectKind::Rule if !is_plain(&table) => Some(format!("DROP RULE {name} ON {table}")),
            _ => None,
        };
        Some(Self { kind, table, name, found: Some(state), wanted: "", restoring })
    }

    /// A part that is missing or another one.
    fn of(object: &'static Object, found: Option<String>, dialect: Dialect) -> Self {
        let restoring = object.restoring(found.as_deref(), dialect);
        let (table, name) = (object.table.to_owned(), object.name.to_owned());
        Self { kind: object.kind, table, name, found, wanted: &object.state, restoring }
    }

    fn of_lost_row(table: &str, dialect: Dialect) -> Self {
        let [postgres, sqlite] = CREATE_STATE;
        let restoring = if dialect == Dialect::Postgres { postgres } else { sqlite }.concat();
        let (table, name) = (table.to_owned(), table.to_owned());
        Self { kind: ObjectKind::Row, table, name, found: None, wanted: "", restoring: Some(restoring) }
    }

    /// Whether rows are hidden from the role that serves, so that its statements fail.
    pub(in crate::store) fn is_row_security(&self) -> bool {
        self.kind == ObjectKind::RowSecurity
    }

    /// Whether a publication makes statements fail.
    pub(in crate::store) fn is_publication(&self) -> bool {
        self.kind == ObjectKind::Publication
    }

    /// Whether [`repair_schema`] can restore it.
    pub(in crate::store) fn is_repairable(&self) -> bool {
        self.restoring.is_some()
    }

    /// Whether writes may not have been noted meanwhile, or notes were lost.
    fn may_have_missed_writes(&self) -> bool {
        match self.kind {
            ObjectKind::Trigger | ObjectKind::Function | ObjectKind::Rule => true,
            ObjectKind::Table => self.found.is_some(),
            _ => false,
        }
    }
}

impl fmt::Display for SchemaDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, table, name, found, wanted, .. } = self;
        let what = match kind {
            ObjectKind::Table => format!("the table `{table}`"),
            ObjectKind::Function => format!("the function `{name}`"),
            ObjectKind::Column => format!("the column `{table}.{name}`"),
            ObjectKind::Default | ObjectKind::Identity => format!("the {} of `{table}.{name}`", kind.name()),
            ObjectKind::Key | ObjectKind::Constraint => format!("the constraint `{name}` of `{table}`"),
            _ => format!("the {} `{name}` of `{table}`", kind.name()),
        };
        match (kind, found.as_deref()) {
            (ObjectKind::ForeignKey, _) => {
                write!(f, "the foreign key `{name}` is not checked: triggers of `{table}` are disabled")
            }
            (ObjectKind::ReplicaIdentity, _) => write!(f, "the table `{table}` has no replica identity"),
            (ObjectKind::Rule, _) => write!(f, "the rule {name} rewrites what is written to `{table}`"),
            (ObjectKind::Row, _) => write!(f, "the table `{table}` has lost its row"),
            (ObjectKind::Publication, _) => write!(
                f,
                "the publication `{name}` has a list of columns or a filter that does not suit the replica identity of `{table}`"
            ),
            (ObjectKind::RowSecurity, _) => write!(f, "row level security applies to the table `{table}`"),
            (_, None) => write!(f, "{what} is missing"),
            (ObjectKind::Table, Some(_)) => write!(f, "{what} is unlogged: a crash empties it"),
            (ObjectKind::Column, Some(found)) => write!(f, "{what} is `{found}`, not `{wanted}`"),
            (ObjectKind::Function, Some(found)) => match other_schema(found).filter(|_| wanted.contains("=ours")) {
                Some(schema) => write!(f, "{what} reads and writes the tables of another schema, `{schema}`"),
                None => write!(f, "{what} was altered"),
            },
            (ObjectKind::Trigger, Some(found)) if found.get(2..) == wanted.get(2..) && found.starts_with("D ") => {
                write!(f, "{what} is disabled")
            }
            (ObjectKind::Trigger, Some(found)) if found.get(2..) == wanted.get(2..) && found.starts_with("O ") => {
                write!(f, "{what} does not fire for replicated rows")
            }
            (ObjectKind::Trigger, Some(found)) if found.get(2..) == wanted.get(2..) && found.starts_with("R ") => {
                write!(f, "{what} fires for replicated rows only")
            }
            (_, Some(found)) if found.strip_suffix(" NOT VALID") == Some(wanted) => {
                write!(f, "{what} is not validated")
            }
            (_, Some("invalid")) => write!(f, "{what} is invalid"),
            (_, Some(_)) => write!(f, "{what} was altered"),
        }
    }
}

/// The schema that a function sets, if it is not that of the tables.
fn other_schema(function: &str) -> Option<&str> {
    let (schema, _) = function.split_once("search_path=")?.1.split_once(", pg_temp")?;
    Some(schema)
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
    let tables = expected.iter().filter(|object| object.kind == ObjectKind::Table).map(|object| object.table);
    let found = catalog::read(reader, tables).await?;
    let (wrong, found): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.kind >= ObjectKind::ForeignKey);
    let mut differences: Vec<_> = wrong.into_iter().filter_map(SchemaDifference::of_wrong).collect();
    let has_table = |table: &str| found.iter().any(|found| found.kind == ObjectKind::Table && found.table == table);
    for object in expected {
        // One message for each missing table is enough.
        if !matches!(object.kind, ObjectKind::Table | ObjectKind::Function) && !has_table(object.table) {
            continue;
        }
        let of_its_kind = || found.iter().filter(|found| found.kind == object.kind && found.table == object.table);
        let of_its_name = || of_its_kind().filter(|found| found.name == object.name);
        let is_as_expected = if object.kind.is_known_by_its_state() {
            of_its_kind().any(|found| object.allows(&found.state))
        } else {
            of_its_name().any(|found| object.allows(&found.state))
        };
        if !is_as_expected {
            let state = of_its_name().next().map(|found| found.state.clone());
            differences.push(SchemaDifference::of(object, state, dialect));
        }
    }
    if has_table(CHANGE_STATE) && is_empty_state(reader).await? {
        differences.push(SchemaDifference::of_lost_row(CHANGE_STATE, dialect));
    }
    // In the order of the expected parts within each kind.
    differences.sort_by_key(|difference| difference.kind);
    Ok(differences)
}

/// The table whose only row has the last number of the log.
const CHANGE_STATE: &str = "change_state";

async fn is_empty_state(reader: &mut PooledConnection) -> Result<bool, StoreError> {
    Ok(reader.fetch_one(sql!("SELECT NOT EXISTS (SELECT 1 FROM change_state)")).await?.get(0)?)
}

/// The result of [`repair_schema`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchemaRepair {
    /// How many differences there were and are no longer.
    pub restored: usize,
    /// What still differs, with the cause if it is known.
    pub left: Vec<String>,
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
    let (mut attempts, mut after) = (Attempts::default(), before.clone());
    // What is restored may take other parts with it, or let others be restored.
    while attempts.restore(database, &after).await {
        after = differences(&mut database.reader().await?).await?;
    }
    // What is written from now on is noted. A trigger that is still wrong would have this repeated each time.
    let is_missed = |differences: &[SchemaDifference]| {
        differences.iter().filter(|difference| difference.may_have_missed_writes()).count()
    };
    if is_missed(&after) < is_missed(&before) {
        users::repair(database).await?;
        note_everything(database).await?;
        settle::settle_all(database).await?;
        settle::create_indexes(database).await?;
    }
    let left = after.iter().map(|difference| attempts.explain(difference)).collect();
    Ok(SchemaRepair { restored: before.len().saturating_sub(after.len()), left })
}

/// What a repair has tried.
#[derive(Debug, Default)]
struct Attempts {
    /// Statements that succeeded, and their tables.
    done: BTreeSet<(String, String)>,
    failed: Vec<(SchemaDifference, String)>,
    /// Tables that another transaction holds for longer than a repair waits.
    locked: BTreeSet<String>,
}

impl Attempts {
    /// Restores what was not restored before. Returns whether anything was.
    async fn restore(&mut self, database: &Database, differences: &[SchemaDifference]) -> bool {
        let done_before = self.done.len();
        self.failed.retain(|(failed, _)| self.locked.contains(&failed.table));
        for difference in differences {
            let Some(statement) = &difference.restoring else { continue };
            let attempt = (statement.clone(), difference.table.clone());
            if self.locked.contains(&difference.table) || self.done.contains(&attempt) {
                continue;
            }
            match run(database, statement, &difference.table).await {
                Ok(()) => _ = self.done.insert(attempt),
                Err(error) => {
                    if is_locked(&error) {
                        self.locked.insert(difference.table.clone());
                    }
                    self.failed.push((difference.clone(), with_causes(&error)));
                }
            }
        }
        self.done.len() > done_before
    }

    fn explain(&self, difference: &SchemaDifference) -> String {
        match self.failed.iter().find(|(failed, _)| failed == difference) {
            Some((_, cause)) => format!("{difference}: {cause}"),
            None if self.locked.contains(&difference.table) => {
                format!("{difference}: another transaction holds the table")
            }
            None => difference.to_string(),
        }
    }
}

fn is_locked(error: &StoreError) -> bool {
    matches!(error, StoreError::Locked { .. })
        || matches!(error, StoreError::Unavailable(error) if DatabaseFailure::of(error) == Some(DatabaseFailure::Locked))
}

async fn run(database: &Database, statement: &str, table: &str) -> Result<(), StoreError> {
    let mut transaction = database.begin().await?;
    if transaction.dialect() == Dialect::Postgres {
        let sql = sql!(
            "{pg: SELECT set_config('lock_timeout', {wait}, true), set_config('formgate.table', {table}, true)}",
            wait = LOCK_WAIT,
            table,
        );
        transaction.fetch_all(sql).await?;
    }
    transaction.command(AssertSqlSafe(statement.to_owned())).await?;
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
