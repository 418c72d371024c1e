//! The statements that select the rows of submissions, and the columns of these rows.

use super::ShownElements;
use crate::store::FormReach;
use crate::store::reach::Caller;
use crate::store::statement::{Sql, sql};

/// [`MAX_BYTES`] as text of a statement: the most bytes of the answers in one row.
const MAX_ROW_BYTES: &str = "1048576";

/// The longest value on SQLite that is read with others, in bytes: it builds the whole list before it can measure it.
///
/// Larger: the list takes more memory before it is left out. Smaller: more lists with one long value are read again.
const MAX_TEXT: &str = "262144";

/// [`COLUMNS`] columns of a submission `m` for a caller that reads no answers. NULL would say that they are too long.
const WITHOUT_ANSWERS: &str =
    "m.id, m.child_of, m.form_id, m.status, m.created_at, m.updated_at, NULL AS fields, '' AS answers";

/// The columns of a row, as [`select_rows`] selects them.
pub(super) const ID: usize = 0;
pub(super) const PARENT: usize = 1;
pub(super) const FORM: usize = 2;
pub(super) const STATUS: usize = 3;
pub(super) const CREATED_AT: usize = 4;
pub(super) const UPDATED_AT: usize = 5;
pub(super) const FIELDS: usize = 6;
pub(super) const ANSWERS: usize = 7;
/// The number of columns.
pub(in crate::store) const COLUMNS: usize = 8;

/// Which rows have the fields of their form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum FormFields {
    /// The first row of each form.
    OncePerForm,
    /// All rows. For one submission, which has few children, this costs less than finding the first row of each form.
    EveryRow,
    /// None.
    Unread,
}

/// The rows of [`Submissions`], with [`COLUMNS`] columns. `among` is the condition on the ids.
pub(in crate::store) fn select_rows(fields: FormFields, caller: &Caller, among: impl Fn() -> Sql) -> Sql {
    let Caller { reach, elements, .. } = caller;
    let children = || {
        sql!(
            " UNION ALL
              SELECT m.id, m.parent_id AS child_of, m.form_id, m.status, {instant m.created_at} AS created_at,
                {instant m.updated_at} AS updated_at
              FROM submissions p JOIN forms f ON f.id = p.form_id CROSS JOIN submissions m
              WHERE f.graduated AND m.parent_id = p.id AND NOT m.draft AND p.id {+among}{+in_reach}",
            among = among(),
            in_reach = reach.of_row("p.form_id"),
        )
    };
    sql!(
        "SELECT {+columns} FROM ({+shown}{+children}) AS m",
        columns = columns(fields, elements, MAX_ROW_BYTES),
        shown = shown(among(), reach),
        // They only add answers.
        children = if elements.are_none() { Sql::default() } else { children() },
    )
}

/// [`COLUMNS`] columns of a submission `m`. The answers are NULL if they have more than `max_bytes` bytes.
pub(super) fn columns(fields: FormFields, elements: &ShownElements, max_bytes: &'static str) -> Sql {
    if elements.are_none() {
        return Sql::text(WITHOUT_ANSWERS);
    }
    sql!(
        "m.id, m.child_of, m.form_id, m.status, m.created_at, m.updated_at, {+fields} AS fields,
         (SELECT CASE
            WHEN coalesce(sum(octet_length(a.value)), 0) + coalesce(sum(octet_length(a.files)), 0) <= {+max_bytes} THEN
              {pg: ROW (array_agg(a.element_id), array_agg(a.value), array_agg(a.files), array_agg(a.updated_at))
              | lite: json_group_array(json_array(a.element_id,
                  CASE WHEN octet_length(a.value) <= {+max_text} THEN a.value END, a.files, a.updated_at))} END
          FROM (SELECT element_id, value, CAST(files AS text) AS files, {instant updated_at} AS updated_at
                FROM answers WHERE submission_id = m.id{+in_elements}) AS a) AS answers",
        fields = fields.of_form(elements),
        in_elements = elements.of_row("element_id"),
        max_bytes = Sql::text(max_bytes),
        max_text = Sql::text(MAX_TEXT),
    )
}

impl FormFields {
    /// The list of the fields of the form of a submission `m`.
    fn of_form(self, elements: &ShownElements) -> Sql {
        let fields = sql!(
            "({records: id, gid, name, type}
              FROM (SELECT e.id, e.gid, e.name, e.type FROM elements e WHERE e.form_id = m.form_id{+in_elements}
                    ORDER BY e.position, e.id) AS fields)",
            in_elements = elements.of_row("e.id"),
        );
        match self {
            Self::OncePerForm => {
                sql!("CASE WHEN row_number() OVER (PARTITION BY m.form_id) = 1 THEN {+fields} END", fields)
            }
            Self::EveryRow => fields,
            Self::Unread => Sql::text("NULL"),
        }
    }
}

/// Submissions that are returned by themselves, and in reach. `among` is the condition on the ids.
pub(in crate::store) fn shown(among: Sql, reach: &FormReach) -> Sql {
    // A scalar subquery is not evaluated if there is no parent, and Postgres does not turn it into a join.
    sql!(
        "SELECT m.id, CAST(NULL AS bigint) AS child_of, m.form_id, m.status, {instant m.created_at} AS created_at,
           {instant m.updated_at} AS updated_at
         FROM submissions m
         WHERE NOT m.draft AND NOT coalesce((SELECT f.graduated FROM submissions p JOIN forms f ON f.id = p.form_id
             WHERE p.id = m.parent_id), false)
           AND m.id {+among}{+in_reach}",
        among,
        in_reach = reach.of_row("m.form_id"),
    )
}
