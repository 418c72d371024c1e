//! The columns of a table, and their names.
//!
//! Names are the same in both formats. No two are alike, not even in another case, since DuckDB, BigQuery and most
//! databases ignore case: a name that clashes with another gets the id of its field, `Name (101)`. `deleted` counts too, whether
//! or not this table has it, so a column is called the same in a whole export and in one of changes. `Name_value`, which only
//! Parquet has, gives way to a field of that name.

use std::collections::{HashMap, HashSet};

use crate::api::submissions::Selection;
use crate::store::ExportColumn;

/// The properties of a submission that are not answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// `sub_1`.
    Id,
    /// Its status.
    Status,
    /// When it was created.
    CreatedAt,
    /// When it last changed.
    UpdatedAt,
}

impl Fact {
    /// All of them, in the order of a table.
    pub(super) const ALL: [Self; 4] = [Self::Id, Self::Status, Self::CreatedAt, Self::UpdatedAt];

    /// The name of its column, which is its key in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Status => "status",
            Self::CreatedAt => "created_at",
            Self::UpdatedAt => "updated_at",
        }
    }
}

/// The column that says whether a submission was deleted.
pub(super) const DELETED: &str = "deleted";

/// What the name of a typed column ends with.
const TYPED: &str = "_value";

/// What the text of an answer stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Text,
    Number,
    Date,
    Time,
    /// One choice a line.
    Choices,
    Files,
}

impl ValueKind {
    fn of(kind: &str) -> Self {
        match kind {
            "number" => Self::Number,
            "date" => Self::Date,
            "time" => Self::Time,
            "select" | "radio" | "checkbox" => Self::Choices,
            "file" => Self::Files,
            _ => Self::Text,
        }
    }
}

/// The columns of a field.
#[derive(Clone, Debug)]
pub(super) struct FieldColumn {
    /// The name of the one with the text of answers. Unlike all others.
    pub(super) name: String,
    /// The name of the one with what the text stands for, in Parquet. Unlike all others.
    pub(super) typed_name: String,
    pub(super) kind: ValueKind,
}

/// The columns of a table: facts, then fields, then whether the submission was deleted.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    pub(super) facts: Vec<Fact>,
    pub(super) fields: Vec<FieldColumn>,
    pub(super) has_deleted: bool,
    /// Where each field is in `fields`.
    positions: HashMap<i64, usize>,
}

impl Columns {
    /// The columns of facts, and of fields in their order, that a selection shows. A column has the name that it has among all.
    pub(super) fn new(selection: &Selection, fields: &[ExportColumn], has_deleted: bool) -> Self {
        let names = distinct_names(fields);
        let taken: HashSet<String> = names.iter().map(|name| name.to_lowercase()).collect();
        let shown = fields.iter().zip(names).filter(|(field, _)| selection.shows_element(field.element));
        let (mut positions, mut columns) = (HashMap::new(), Vec::new());
        for (field, name) in shown {
            let mut typed_name = format!("{name}{TYPED}");
            while taken.contains(&typed_name.to_lowercase()) {
                typed_name += &format!(" ({})", field.element);
            }
            positions.insert(field.element, columns.len());
            columns.push(FieldColumn { name, typed_name, kind: ValueKind::of(&field.kind) });
        }
        let facts = Fact::ALL.into_iter().filter(|fact| selection.shows(fact.name())).collect();
        Self { facts, fields: columns, has_deleted, positions }
    }

    /// Whether there are none.
    pub(super) fn are_none(&self) -> bool {
        self.facts.is_empty() && self.fields.is_empty()
    }

    /// The position of a field among the fields; `None` if the table does not have it.
    pub(super) fn position(&self, field: i64) -> Option<usize> {
        self.positions.get(&field).copied()
    }
}

/// A name for each field. Names that clash get the id of their field until none do: with their ids, all names end
/// differently, so each field gets its id at most once.
fn distinct_names(fields: &[ExportColumn]) -> Vec<String> {
    let mut has_id: Vec<bool> = fields.iter().map(|field| field.name.trim().is_empty()).collect();
    loop {
        let names: Vec<String> = fields.iter().zip(&has_id).map(|(field, has_id)| named(field, *has_id)).collect();
        let mut uses: HashMap<String, u32> = HashMap::new();
        let reserved = Fact::ALL.map(Fact::name);
        for name in reserved.into_iter().chain([DELETED]) {
            uses.insert(name.to_owned(), 1);
        }
        for name in &names {
            *uses.entry(name.to_lowercase()).or_default() += 1;
        }
        let mut are_distinct = true;
        for (name, has_id) in names.iter().zip(&mut has_id) {
            if !*has_id && uses[&name.to_lowercase()] > 1 {
                (*has_id, are_distinct) = (true, false);
            }
        }
        if are_distinct {
            return names;
        }
    }
}

fn named(field: &ExportColumn, has_id: bool) -> String {
    match (has_id, field.name.trim().is_empty()) {
        (false, _) => field.name.clone(),
        (true, true) => format!("({})", field.element),
        (true, false) => format!("{} ({})", field.name, field.element),
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::column;
    use super::*;

    fn names(fields: &[(i64, &str, &str)]) -> Vec<String> {
        let fields: Vec<ExportColumn> = fields.iter().map(|(id, name, kind)| column(*id, name, kind)).collect();
        Columns::new(&Selection::ALL, &fields, false).fields.into_iter().map(|column| column.name).collect()
    }

    #[test]
    fn names_that_clash_get_the_id_of_their_field() {
        let text = |id, name| (id, name, "text");
        assert_eq!(names(&[text(1, "A"), text(2, "B")]), ["A", "B"]);
        assert_eq!(names(&[text(1, "A"), text(2, "B"), text(3, "A")]), ["A (1)", "B", "A (3)"]);
        assert_eq!(names(&[text(1, "ÄRGER"), text(2, "ärger")]), ["ÄRGER (1)", "ärger (2)"]);
        assert_eq!(
            names(&[text(1, "id"), text(2, "Deleted"), text(3, "created_at")]),
            ["id (1)", "Deleted (2)", "created_at (3)"]
        );
        assert_eq!(names(&[text(1, ""), text(2, " "), text(3, "")]), ["(1)", "(2)", "(3)"]);
    }

    #[test]
    fn a_name_that_looks_like_a_name_with_an_id_stays_unlike_all_others() {
        let text = |id, name| (id, name, "text");
        assert_eq!(
            names(&[text(1, "A"), text(2, "A"), text(3, "A (1)"), text(4, "A (1) (3)")]),
            ["A (1)", "A (2)", "A (1) (3)", "A (1) (3) (4)"]
        );
    }

    #[test]
    fn a_typed_column_gives_way_to_a_field_of_its_name() {
        let fields =
            [column(1, "Days", "number"), column(2, "days_VALUE", "text"), column(3, "Days_value (1)", "text")];
        let columns = Columns::new(&Selection::ALL, &fields, false).fields;
        let names: Vec<_> = columns.iter().map(|column| (&*column.name, &*column.typed_name)).collect();
        assert_eq!(names[0], ("Days", "Days_value (1) (1)"));
        assert_eq!((names[1].0, names[2].0), ("days_VALUE", "Days_value (1)"));
    }
}
