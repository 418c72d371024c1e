//! The columns of a table, and their names.
//!
//! Names are the same in both formats. No two are alike, not even in another case, since DuckDB, BigQuery and most
//! databases ignore case: a name that clashes with another gets the id of its field, `Name (101)`. Names of columns that a
//! format adds (`deleted`, `Name_value`) count too, whether or not this table has them, so a column is called the same in a
//! whole export and in one of changes, in CSV and in Parquet.

use std::collections::HashMap;

use crate::store::ExportColumn;

/// What a submission has besides answers.
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

/// A column with the text of answers.
#[derive(Clone, Debug)]
pub(super) struct FieldColumn {
    /// Unlike all others.
    pub(super) name: String,
    pub(super) kind: ValueKind,
}

impl FieldColumn {
    /// The name of the column with the parsed answers.
    pub(super) fn typed_name(&self) -> String {
        format!("{}{TYPED}", self.name)
    }
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
    /// The columns of `facts`, in their order, and of fields, in theirs.
    pub(super) fn new(facts: &[Fact], fields: &[ExportColumn], has_deleted: bool) -> Self {
        let positions = fields.iter().map(|field| field.element).zip(0..).collect();
        let columns = fields.iter().zip(distinct_names(fields));
        let columns = columns.map(|(field, name)| FieldColumn { name, kind: ValueKind::of(&field.kind) });
        Self { facts: facts.to_vec(), fields: columns.collect(), has_deleted, positions }
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
        let spellings = |field: &ExportColumn, name: &str| {
            let typed =
                (ValueKind::of(&field.kind) != ValueKind::Text).then(|| format!("{name}{TYPED}").to_lowercase());
            [Some(name.to_lowercase()), typed].into_iter().flatten()
        };
        for (field, name) in fields.iter().zip(&names) {
            for spelling in spellings(field, name) {
                *uses.entry(spelling).or_default() += 1;
            }
        }
        let mut are_distinct = true;
        for ((field, name), has_id) in fields.iter().zip(&names).zip(&mut has_id) {
            if !*has_id && spellings(field, name).any(|spelling| uses[&spelling] > 1) {
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
        Columns::new(&[], &fields, false).fields.into_iter().map(|column| column.name).collect()
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
    fn a_name_does_not_clash_with_a_typed_column() {
        assert_eq!(names(&[(1, "Days", "number"), (2, "days_VALUE", "text")]), ["Days (1)", "days_VALUE (2)"]);
        assert_eq!(names(&[(1, "Days", "text"), (2, "Days_value", "text")]), ["Days", "Days_value"]);
    }
}
