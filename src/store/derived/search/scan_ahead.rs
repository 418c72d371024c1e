//! Pages of searches by very many forms, from the submissions at one end of the order.
//!
//! A page over several forms takes as many rows from each form's index as it can need. With many forms, some hundred
//! submissions of the whole account are scanned first. If the page is among them, it costs the same however many forms
//! there are; if not, the scan adds a millisecond to a search that takes many.

use std::collections::BTreeSet;

use super::conditions::{all_of, has_status};
use super::covered_forms::{CoveredForms, ResolvedFilter};
use super::{column, order_by_position};
use crate::store::StoreError;
use crate::store::engine::PooledConnection;
use crate::store::statement::{PageScan, Sql, sql};

/// How many forms are read from their own indexes without scanning first.
///
/// Larger: a page of that many forms takes longer. Smaller: more searches scan in vain.
const MAX_SEPARATE: usize = 200;

/// How many submissions are scanned.
///
/// Larger: searches of which the scan finds too few take longer. Smaller: more pages are read form by form.
const SCANNED: i64 = 500;

/// Whether a page of these forms is looked for by scanning.
pub(super) fn is_worthwhile(forms: &CoveredForms) -> bool {
    match forms {
        CoveredForms::All => false,
        CoveredForms::Listed(forms) => forms.len() > MAX_SEPARATE,
        CoveredForms::WithSubForms(_) => true,
    }
}

/// The ids of a page, in its order, if all of them are among the submissions that are scanned. The page has as many
/// submissions as `scan` is long.
pub(super) async fn find_page(
    reader: &mut PooledConnection,
    resolved: &ResolvedFilter<'_>,
    scan: &PageScan,
) -> Result<Option<Vec<i64>>, StoreError> {
    let ResolvedFilter { filter, forms, .. } = resolved;
    if scan.offset.saturating_add(scan.length) > SCANNED {
        return Ok(None);
    }
    let sql = sql!(
        "SELECT id, form_id
         FROM (SELECT s.id, s.form_id, s.status, s.{+column} AS at FROM listed_submissions s
               {+order_of_page}{page first}) AS s
         WHERE {+has_status}
         {+order_of_page}",
        column = column(filter.sort_by),
        order_of_page = order_by_position(scan.direction),
        first = PageScan { offset: 0, length: SCANNED, ..*scan },
        has_status = all_of(has_status(Sql::text("status"), &filter.statuses)),
    );
    let rows = reader.fetch_all(sql).await?;
    let scanned: Vec<(i64, i64)> =
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, sqlx::Error>>()?;
    let seen: BTreeSet<i64> = scanned.iter().map(|(_, form)| *form).collect();
    let Some(covered) = forms.among(reader, seen).await? else { return Ok(None) };
    let matches = scanned.into_iter().filter(|(_, form)| covered.contains(form)).map(|(id, _)| id);
    let [offset, length] = [scan.offset, scan.length].map(|rows| usize::try_from(rows).expect("not negative"));
    let mut page: Vec<i64> = matches.skip(offset).take(length).collect();
    if scan.direction != filter.sort_direction {
        page.reverse();
    }
    Ok((page.len() == length).then_some(page))
}
