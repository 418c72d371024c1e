//! Pages of searches by very many forms, from the submissions at one end of the order.
//!
//! A page over several forms takes as many rows from each form's index as it can need. With many forms, some hundred
//! submissions of the whole account are scanned first. If the page is among them, it costs the same however many forms
//! there are; if not, the scan adds a millisecond to a search that takes many.

use std::collections::BTreeSet;

use super::behind::rows_behind;
use super::conditions::all_of;
use super::covered_forms::{CoveredForms, ResolvedFilter};
use super::{column, order_by_position};
use crate::store::StoreError;
use crate::store::engine::PooledConnection;
use crate::store::statement::{PageScan, Position, sql};

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

/// A page, in its order, if all of it is among the submissions that are scanned. It has as many submissions as `scan` is
/// long, or ends where all submissions do.
pub(super) async fn find_page(
    reader: &mut PooledConnection,
    resolved: &ResolvedFilter<'_>,
    scan: &PageScan,
) -> Result<Option<Vec<Position>>, StoreError> {
    let ResolvedFilter { filter, forms, .. } = resolved;
    if scan.offset.saturating_add(scan.length) > SCANNED {
        return Ok(None);
    }
    let first = PageScan { offset: 0, length: SCANNED, ..*scan };
    let sql = rows_behind(filter.sort_by, &first, |is_behind, scan| {
        sql!(
            "SELECT s.id, s.{+column} AS at, s.form_id, s.status FROM listed_submissions s
             WHERE {+is_behind} {+order_of_page}{page scan}",
            column = column(filter.sort_by),
            is_behind = all_of(is_behind),
            order_of_page = order_by_position(scan.direction),
            scan,
        )
    });
    let rows = reader.fetch_all(sql).await?;
    let is_whole = rows.len() < usize::try_from(SCANNED).expect("not negative");
    let mut scanned: Vec<(Position, i64)> = Vec::with_capacity(rows.len());
    for row in &rows {
        let status = row.text(3)?;
        if filter.statuses.is_empty() || filter.statuses.iter().any(|wanted| wanted.as_str() == status) {
            scanned.push((Position { id: row.get(0)?, at: row.get(1)? }, row.get(2)?));
        }
    }
    let seen: BTreeSet<i64> = scanned.iter().map(|(_, form)| *form).collect();
    let Some(covered) = forms.among(reader, seen).await? else { return Ok(None) };
    let matches = scanned.into_iter().filter(|(_, form)| covered.contains(form)).map(|(position, _)| position);
    let [offset, length] = [scan.offset, scan.length].map(|rows| usize::try_from(rows).expect("not negative"));
    let mut page: Vec<Position> = matches.skip(offset).take(length).collect();
    if scan.direction != filter.sort_direction {
        page.reverse();
    }
    Ok((is_whole || page.len() == length).then_some(page))
}
