//! Which forms a search by forms covers: the requested ones and their sub-forms, at any depth, as far as the caller reaches
//! them. Without requested forms, these are all that the caller reaches.
//!
//! There are two ways to find them: to descend from the requested forms to all their sub-forms, or to climb from all
//! forms that have listed submissions to their parents. A form can have a hundred thousand sub-forms and few
//! submissions; an account can have as many forms with submissions, and search one form without sub-forms. So both ways
//! are tried in turn, first a few steps and then more ([`STEPS`]), and a search costs a small multiple of the cheaper
//! way. Most forms have few sub-forms or none: their searches end with the first attempt, which is one short statement.
//!
//! Each attempt stops at a number of rows, whatever the tree looks like: deep, wide, or with a cycle of `parent_id`. If
//! no attempt ends, the statements of the search descend by themselves, which takes some 2 µs per sub-form. Then the
//! requested forms have many sub-forms, and the account has thousands of forms with submissions, or some with very many
//! ancestors or in a cycle. A search that finds thousands of forms with submissions adds up their counts, one index
//! entry each.
//!
//! Left out: counts and submissions by ancestor. They would be flat, but each submission would be written once for each
//! ancestor of its form, and moving a form would rewrite everything below it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;

use crate::store::derived::settle::is_settled;
use crate::store::engine::PooledConnection;
use crate::store::filter::SubmissionFilter;
use crate::store::statement::{Fields, ListRecord, MalformedRecord, Row, Sql, sql};
use crate::store::{FormReach, StoreError};

/// How many rows a way may read before the other one is tried.
///
/// Larger first number: searches of a form with many sub-forms and few submissions take longer. Smaller: more searches
/// take a second statement. Larger last number: searches for which neither way ends waste more, about 50 ms now. Smaller:
/// more searches descend to all sub-forms.
const STEPS: [u16; 3] = [250, 2_000, 16_000];

/// A filter, and the forms that it covers.
#[derive(Clone, Debug)]
pub(super) struct ResolvedFilter<'f> {
    pub(super) filter: &'f SubmissionFilter,
    pub(super) forms: CoveredForms,
    /// Whether `forms` has those of all submissions that were committed before.
    pub(super) is_settled: bool,
}

/// The forms that a search covers.
#[derive(Clone, Debug)]
pub(super) enum CoveredForms {
    /// All: the search names none, and the caller reaches all.
    All,
    /// Only these. Forms without listed submissions may be missing.
    Listed(Arc<[i64]>),
    /// These and their sub-forms, to which the statements of the search descend.
    WithSubForms(Arc<[i64]>),
}

impl<'f> ResolvedFilter<'f> {
    /// Finds the forms. `wanted` is the reach narrowed to the forms of the filter.
    pub(super) async fn resolve(
        reader: &mut PooledConnection,
        filter: &'f SubmissionFilter,
        wanted: FormReach,
    ) -> Result<Self, StoreError> {
        let unresolved = Self::unresolved(filter, wanted);
        if let CoveredForms::WithSubForms(wanted) = &unresolved.forms {
            for steps in STEPS {
                if let Some(forms) = descend(reader, wanted, steps).await? {
                    return Ok(Self { forms: CoveredForms::Listed(forms.into()), ..unresolved });
                }
                if let Some((forms, is_settled)) = climb(reader, &Start::Listed, wanted, steps).await? {
                    return Ok(Self { forms: CoveredForms::Listed(forms.into()), is_settled, ..unresolved });
                }
            }
        }
        Ok(unresolved)
    }

    /// Leaves finding the sub-forms to the statements of the search.
    pub(super) fn unresolved(filter: &'f SubmissionFilter, wanted: FormReach) -> Self {
        let forms = match wanted {
            FormReach::All => CoveredForms::All,
            FormReach::Forms(forms) => CoveredForms::WithSubForms(forms),
        };
        Self { filter, forms, is_settled: true }
    }
}

impl CoveredForms {
    /// Whether all forms are covered.
    pub(super) fn are_all(&self) -> bool {
        matches!(self, Self::All)
    }

    /// The forms as a table of one column `id`. None if all are covered.
    pub(super) fn table(&self) -> Option<Sql> {
        match self {
            Self::All => None,
            Self::Listed(forms) => Some(table_of(forms)),
            Self::WithSubForms(forms) => Some(with_sub_forms(forms)),
        }
    }

    /// Those of `forms` that are covered, unless it takes too long to find them.
    pub(super) async fn among(
        &self,
        reader: &mut PooledConnection,
        forms: BTreeSet<i64>,
    ) -> Result<Option<BTreeSet<i64>>, StoreError> {
        Ok(match self {
            Self::All => Some(forms),
            Self::Listed(covered) => Some(covered.iter().copied().filter(|form| forms.contains(form)).collect()),
            Self::WithSubForms(requested) => {
                let [.., steps] = STEPS;
                let start = Start::These(forms.into_iter().collect());
                let covered = climb(reader, &start, requested, steps).await?;
                covered.map(|(forms, _)| forms.into_iter().collect())
            }
        })
    }
}

/// Forms and their sub-forms as a table of one column `id`.
pub(in crate::store) fn with_sub_forms(forms: &[i64]) -> Sql {
    sql!(
        "(WITH RECURSIVE wanted (id) AS (
            SELECT id FROM forms WHERE id {in forms}
            UNION
            SELECT f.id FROM wanted CROSS JOIN {pg: {+children} AS f | lite: forms f ON f.parent_id = wanted.id})
          SELECT id FROM wanted)",
        forms,
        children = children_on_postgres("wanted.id", i64::MAX),
    )
}

/// At most `limit` sub-forms of a form. Postgres would read the whole table if it expects a form to have many, but not for a
/// part of a range in the order of the index, of which it expects few. The subquery hides the limit from the planner.
fn children_on_postgres(form: &'static str, limit: i64) -> Sql {
    sql!(
        "LATERAL (SELECT c.id FROM forms c WHERE c.parent_id BETWEEN {+form} AND {+form}
           ORDER BY c.parent_id LIMIT (SELECT {limit}::bigint))",
        form = Sql::text(form),
        limit,
    )
}

/// The forms and all their sub-forms, unless there are more than `steps`.
async fn descend(
    reader: &mut PooledConnection,
    forms: &Arc<[i64]>,
    steps: u16,
) -> Result<Option<Vec<i64>>, StoreError> {
    let limit = i64::from(steps) + 1;
    // Postgres reads rows only as far as the limit needs. SQLite reads all rows that a form adds before it counts them, so
    // each adds its first child and its next sibling.
    let sql = sql!(
        "WITH RECURSIVE below (id, parent_id) AS (
           SELECT id, CAST(NULL AS bigint) FROM forms WHERE id {in forms}
           UNION
           {pg: SELECT f.id, NULL FROM below CROSS JOIN {+children} AS f
           | lite: SELECT f.id, f.parent_id FROM below CROSS JOIN forms f WHERE f.id IN (
               (SELECT min(c.id) FROM forms c WHERE c.parent_id = below.id),
               (SELECT min(c.id) FROM forms c WHERE c.parent_id = below.parent_id AND c.id > below.id))})
         SELECT ({records: id} FROM (SELECT id FROM below LIMIT {limit}) AS found)",
        forms,
        children = children_on_postgres("below.id", limit),
        limit,
    );
    let mut found = ids(&reader.fetch_one(sql).await?, 0)?;
    if found.len() > usize::from(steps) {
        return Ok(None);
    }
    // One that is requested may be below another one.
    found.sort_unstable();
    found.dedup();
    Ok(Some(found))
}

/// Where climbing starts.
enum Start {
    /// At all forms that have listed submissions.
    Listed,
    /// At these.
    These(Arc<[i64]>),
}

/// Those of the forms of `start` that are one of `forms` or below it, and whether the counts are up to date that say
/// where to start. None if it takes more than `steps` to find them.
async fn climb(
    reader: &mut PooledConnection,
    start: &Start,
    forms: &Arc<[i64]>,
    steps: u16,
) -> Result<Option<(Vec<i64>, bool)>, StoreError> {
    let limit = i64::from(steps) + 1;
    let climbed_from = match start {
        Start::Listed => sql!(
            "(SELECT DISTINCT key AS id FROM listed_counts WHERE counted = 'form' AND listed > 0
              ORDER BY key LIMIT {limit})",
            limit,
        ),
        Start::These(forms) => table_of(forms),
    };
    // Not UNION: each form has one parent, so only a cycle brings a row twice. Postgres would spend more on the table in
    // which it looks for such rows. OFFSET 0 has it go row by row: it would read the whole table of forms if it expects to
    // climb from many. The limit within the recursion is for SQLite, which otherwise finishes it before a limit applies.
    let sql = sql!(
        "WITH RECURSIVE climbed (form, at) AS (
           SELECT id, id FROM {+climbed_from} AS start
           UNION ALL
           SELECT climbed.form, f.parent_id FROM climbed CROSS JOIN
             {pg: LATERAL (SELECT parent_id FROM forms WHERE id = climbed.at OFFSET 0) AS f
             | lite: forms f ON f.id = climbed.at}
           WHERE f.parent_id IS NOT NULL{lite:  LIMIT {limit}}),
         steps (form, at) AS (SELECT form, at FROM climbed LIMIT {limit})
         SELECT {+is_settled}, (SELECT count(*) FROM steps),
           ({records: form} FROM (SELECT DISTINCT form FROM steps WHERE at {in forms}) AS found)",
        climbed_from,
        limit,
        is_settled = is_settled(),
        forms,
    );
    let row = reader.fetch_one(sql).await?;
    let (is_settled, taken): (bool, i64) = (row.get(0)?, row.get(1)?);
    if taken > i64::from(steps) {
        return Ok(None);
    }
    Ok(Some((ids(&row, 2)?, is_settled)))
}

/// A list of forms as a table of one column `id`.
fn table_of(forms: &Arc<[i64]>) -> Sql {
    sql!("({pg: SELECT unnest({forms}::bigint[]) AS id | lite: SELECT value AS id FROM json_each({forms})})", forms)
}

/// An id in a list.
#[derive(Deserialize)]
struct IdRecord {
    id: i64,
}

impl ListRecord<'_> for IdRecord {
    fn take(fields: &mut Fields<'_>) -> Result<Self, MalformedRecord> {
        Ok(Self { id: fields.integer()? })
    }
}

/// The list of ids in a column.
fn ids(row: &Row, column: usize) -> Result<Vec<i64>, sqlx::Error> {
    Ok(row.records::<IdRecord>(column)?.into_iter().map(|record| record.id).collect())
}
