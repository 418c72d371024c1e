//! The text of the statements, for both databases and for one row or many.
//!
//! In a statement, `{i}` is the number of a row, `{now}` an instant, and `{second}` an interval.

use std::ops::Range;

use crate::database::Engine;

pub(crate) const INSERT_SUBMISSION: &str = "INSERT INTO submissions (id, form_id, status, created_at, updated_at) \
    SELECT {i}, 1, 'pending', {now}, {now}";
pub(crate) const INSERT_ANSWER: &str = "INSERT INTO answers (submission_id, element_id, value, updated_at) \
    SELECT {i}, 1, 'Please book the second week of July for the team of ' || ({i} * 7919 % 10007), {now}";
pub(crate) const INSERT_LABEL: &str = "INSERT INTO submission_labels (submission_id, label_id) SELECT {i}, 1";
pub(crate) const INSERT_SECOND_LABEL: &str = "INSERT INTO submission_labels (submission_id, label_id) SELECT {i}, 2";
pub(crate) const INSERT_ANSWER_OF_PARENT: &str = "INSERT INTO answers (submission_id, element_id, value, updated_at) \
    SELECT 1, {i}, 'The second week of July', {now}";
pub(crate) const UPDATE_SUBMISSION: &str =
    "UPDATE submissions SET status = 'approved', updated_at = updated_at + {second} WHERE id = {i}";
pub(crate) const UPDATE_ANSWER: &str = "UPDATE answers SET value = value || ', or the third', \
    updated_at = updated_at + {second} WHERE submission_id = {i} AND element_id = 1";

/// How many fields form 1 has.
///
/// Larger: the bench takes longer. Smaller: a cost that grows with the square shows less.
pub(crate) const ELEMENTS: i64 = 2_000;

/// The numbers of the submissions that every database has from the start.
///
/// Larger: the bench takes longer to begin. Smaller: indexes are smaller than those of a database in use.
pub(crate) const SEEDED: Range<i64> = 1_000..6_000;

/// Form 1 has the submissions, and form 2 submission 1, which is the parent of some of them.
pub(crate) const FORMS: &str = "INSERT INTO forms (id, name) VALUES (1, 'Holidays'), (2, 'Teams'); \
    INSERT INTO labels (id, name) VALUES (1, 'Urgent'), (2, 'Checked')";
pub(crate) const ELEMENT: &str = "INSERT INTO elements (id, form_id, position, gid, name, type) SELECT {i}, 1, {i}, 'gid ' || {i}, 'Which week?', 'text'";
pub(crate) const PARENT: &str = "INSERT INTO submissions (id, form_id, status, created_at, updated_at) \
    SELECT 1, 2, 'pending', {now}, {now}";

fn with(engine: Engine, statement: &str, row: &str) -> String {
    let (now, second) = match engine {
        Engine::Postgres => ("timestamptz '2026-01-01 00:00:00Z'", "interval '1 second'"),
        Engine::Sqlite => ("1767225600000000", "1000000"),
    };
    statement.replace("{i}", row).replace("{now}", now).replace("{second}", second)
}

/// A statement for the row whose number is its parameter.
pub(crate) fn prepared(engine: Engine, statement: &str) -> String {
    with(engine, statement, "$1")
}

/// One statement for all rows.
pub(crate) fn for_all(engine: Engine, statement: &str, rows: &Range<i64>) -> String {
    let (insert, first, end) = (with(engine, statement, "i"), rows.start, rows.end);
    format!(
        "WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {end}) {insert} FROM n;"
    )
}

/// A statement for each row. On SQLite, where every trigger fires for each row, it is one for all.
pub(crate) fn for_each(engine: Engine, statements: &[&str], rows: &Range<i64>) -> String {
    if engine == Engine::Sqlite {
        return statements.iter().map(|statement| for_all(engine, statement, rows)).collect();
    }
    let body: String = statements.iter().map(|statement| with(engine, statement, "i") + ";").collect();
    format!("DO $$ BEGIN FOR i IN {}..{} LOOP {body} END LOOP; END $$", rows.start, rows.end - 1)
}
