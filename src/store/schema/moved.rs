//! What a move of an account has to know of the schema: the tables with their columns and keys, and the statements that take
//! triggers and foreign keys away from a database that is being filled, and give them back.
//!
//! Postgres' catalog says it for both databases, which have the same tables and columns.

use super::objects::{Object, ObjectKind, expected};
use crate::store::statement::Dialect;

/// A table, as the catalog of Postgres has it.
#[derive(Debug)]
pub(in crate::store) struct TableShape {
    pub(in crate::store) name: &'static str,
    /// Names and Postgres types, with `not null` and what generates a column.
    pub(in crate::store) columns: Vec<(&'static str, &'static str)>,
    /// The columns of its primary key, if it has one.
    pub(in crate::store) key: Vec<&'static str>,
}

fn of_kind(dialect: Dialect, kind: ObjectKind) -> impl Iterator<Item = &'static Object> {
    expected(dialect).iter().filter(move |object| object.kind == kind)
}

/// Every table.
pub(in crate::store) fn shapes() -> Vec<TableShape> {
    let shape = |table: &'static Object| {
        let of_table = |object: &&Object| object.table == table.name;
        let columns = of_kind(Dialect::Postgres, ObjectKind::Column).filter(of_table);
        let mut keys = of_kind(Dialect::Postgres, ObjectKind::Key).filter(of_table);
        let key = keys.find_map(|key| key.state.strip_prefix("PRIMARY KEY (")?.strip_suffix(')'));
        TableShape {
            name: table.name,
            columns: columns.map(|column| (column.name, column.state.as_str())).collect(),
            key: key.map(|key| key.split(", ").collect()).unwrap_or_default(),
        }
    };
    of_kind(Dialect::Postgres, ObjectKind::Table).map(shape).collect()
}

/// The tables whose `id` Postgres numbers.
pub(in crate::store) fn numbered() -> impl Iterator<Item = &'static str> {
    of_kind(Dialect::Postgres, ObjectKind::Identity).map(|object| object.table)
}

fn foreign_keys() -> impl Iterator<Item = &'static Object> {
    of_kind(Dialect::Postgres, ObjectKind::Constraint).filter(|object| object.state.starts_with("FOREIGN KEY"))
}

/// Statements after which nothing happens when a row is written, and rows can be written in any order. On SQLite, the
/// connection has to ignore foreign keys.
pub(in crate::store) fn stripping(dialect: Dialect) -> String {
    let triggers = of_kind(dialect, ObjectKind::Trigger);
    match dialect {
        Dialect::Sqlite => triggers.map(|trigger| format!("DROP TRIGGER IF EXISTS {};\n", trigger.name)).collect(),
        Dialect::Postgres => {
            let disable =
                |trigger: &Object| format!("ALTER TABLE {} DISABLE TRIGGER {};\n", trigger.table, trigger.name);
            let drop = |key: &Object| format!("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {};\n", key.table, key.name);
            foreign_keys().map(drop).chain(triggers.map(disable)).collect()
        }
    }
}

/// Statements that give back what [`stripping`] took. Postgres checks new rows from then on, and those that are there in
/// [`validating`].
pub(in crate::store) fn dressing(dialect: Dialect) -> String {
    let triggers = of_kind(dialect, ObjectKind::Trigger);
    match dialect {
        Dialect::Sqlite => triggers.map(|trigger| format!("{};\n", trigger.statement)).collect(),
        Dialect::Postgres => {
            let enable = |trigger: &Object| {
                let mode = if trigger.state.starts_with("A ") { "ENABLE ALWAYS" } else { "ENABLE" };
                format!("ALTER TABLE {} {mode} TRIGGER {};\n", trigger.table, trigger.name)
            };
            let add = |key: &Object| {
                format!("ALTER TABLE {} ADD CONSTRAINT {} {} NOT VALID;\n", key.table, key.name, key.state)
            };
            foreign_keys().map(add).chain(triggers.map(enable)).collect()
        }
    }
}

/// Statements that check the foreign keys of rows that are there, on Postgres. They hold up neither readers nor writers.
pub(in crate::store) fn validating() -> impl Iterator<Item = String> {
    foreign_keys().map(|key| format!("ALTER TABLE {} VALIDATE CONSTRAINT {}", key.table, key.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_columns_and_all_but_a_few_a_key() {
        let shapes = shapes();
        assert!(shapes.len() > 40 && shapes.iter().all(|shape| !shape.columns.is_empty()));
        let without: Vec<_> = shapes.iter().filter(|shape| shape.key.is_empty()).map(|shape| shape.name).collect();
        assert_eq!(without, ["change_state", "form_notes", "intake", "listed_terms", "stale_counts"]);
        let answers = shapes.iter().find(|shape| shape.name == "answers").expect("a table");
        assert_eq!(answers.key, ["submission_id", "element_id"]);
    }

    #[test]
    fn what_is_taken_away_is_given_back() {
        for dialect in [Dialect::Postgres, Dialect::Sqlite] {
            let triggers = of_kind(dialect, ObjectKind::Trigger).count();
            let keys = if dialect == Dialect::Postgres { foreign_keys().count() } else { 0 };
            assert_eq!(stripping(dialect).matches("TRIGGER").count(), triggers);
            assert_eq!(stripping(dialect).matches("DROP CONSTRAINT").count(), keys);
            assert_eq!(dressing(dialect).matches(" NOT VALID;").count(), keys);
        }
        assert!(dressing(Dialect::Postgres).contains("ENABLE ALWAYS TRIGGER answers_written;"));
        assert!(dressing(Dialect::Sqlite).contains("CREATE TRIGGER answers_inserted"));
    }
}
