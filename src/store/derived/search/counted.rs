//! Searches whose total comes from `listed_counts` and whose pages come from an index in their order.
//!
//! The counts are exact: the transaction that changes a list also changes its counts.

use jiff::Timestamp;

use super::behind::{is_behind, is_row_behind, rows_behind};
use super::conditions::{all_of, has_status, texts, was_created_in};
use super::covered_forms::{CoveredForms, ResolvedFilter};
use super::{column, order_by_position, scan_ahead};
use crate::store::derived::settle::is_settled;
use crate::store::filter::{SortBy, Status, SubmissionFilter};
use crate::store::statement::{Dialect, PageScan, SortDirection, Sql, sql};

/// The filter of such a search.
#[derive(Clone, Debug)]
pub(super) enum CountedSearch<'f> {
    /// No filter.
    Everything,
    /// By forms, by statuses, or by both; ordered by the last change.
    Groups { forms: &'f CoveredForms, statuses: Vec<Status> },
    /// By the time of creation.
    Created { start: Option<Timestamp>, end: Option<Timestamp> },
    /// By one label; ordered by the last change.
    Label { id: i64, shared: bool },
}

/// How many entries of an index are skipped one by one, before whole days are skipped by their counts.
///
/// Larger: pages far inside take longer. Smaller: adding up the days takes longer than skipping would.
const MAX_SKIPPED: i64 = 2000;

/// How many submissions, from the requested end of the order by last change, are scanned for a page of those that were
/// created in a span.
///
/// Larger: searches for which the scan finds too few take longer. Smaller: fewer recent spans are found by the scan.
const SCAN_AHEAD: i64 = 500;

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

impl<'f> CountedSearch<'f> {
    /// The counted search for a filter, if there is one.
    pub(super) fn of(resolved: &'f ResolvedFilter<'f>) -> Option<Self> {
        let ResolvedFilter { filter, forms, .. } = resolved;
        let SubmissionFilter { statuses, start, end, labels, shared_labels, sort_by, .. } = *filter;
        let others = filter.search.is_some()
            || !filter.terms.is_empty()
            || [&filter.submitters, &filter.pending, &filter.participants, &filter.flows]
                .iter()
                .any(|ids| !ids.is_empty());
        let grouped = !forms.are_all() || !statuses.is_empty();
        let spanned = start.is_some() || end.is_some();
        match (others, grouped, spanned, labels.as_slice(), shared_labels.as_slice(), sort_by) {
            (false, false, false, [], [], _) => Some(Self::Everything),
            (false, true, false, [], [], SortBy::UpdatedAt) => {
                let mut statuses = statuses.clone();
                statuses.sort_unstable();
                statuses.dedup();
                Some(Self::Groups { forms, statuses })
            }
            (false, false, true, [], [], _) => Some(Self::Created { start: *start, end: *end }),
            (false, false, false, &[id], [], SortBy::UpdatedAt) => Some(Self::Label { id, shared: false }),
            (false, false, false, [], &[id], SortBy::UpdatedAt) => Some(Self::Label { id, shared: true }),
            _ => None,
        }
    }

    /// Whether one statement reads the first page faster than two: on Postgres, if the statement can use a generic
    /// plan, because planning it takes longer than running it. On SQLite two statements are faster than one that
    /// materializes the page.
    pub(super) fn reads_in_one_statement(&self, dialect: Dialect) -> bool {
        dialect == Dialect::Postgres && matches!(self, Self::Everything | Self::Label { .. })
    }

    /// Whether the page is read after the total, because of the number of forms, and from all submissions if possible.
    pub(super) fn is_of_many_forms(&self) -> bool {
        matches!(self, Self::Groups { forms, .. } if scan_ahead::is_worthwhile(forms))
    }

    /// The total, and whether the intake is empty.
    pub(super) fn total(&self) -> Sql {
        sql!("SELECT ({+count}) AS total, {+is_settled} AS is_settled", count = self.count(), is_settled = is_settled())
    }

    fn count(&self) -> Sql {
        match self {
            Self::Everything => sum_of_counts([Sql::text("counted = 'form'")]),
            Self::Groups { forms, statuses } => {
                let mut conditions = vec![Sql::text("counted = 'form'")];
                // As an array, which Postgres sorts and looks up in the order of the index.
                let of_forms = |forms: Sql| sql!("key {pg: = ANY (ARRAY {+forms}) | lite: IN {+forms}}", forms);
                conditions.extend(forms.table().map(of_forms));
                conditions.extend(has_status(Sql::text("status"), statuses));
                sum_of_counts(conditions).with_custom_plan()
            }
            Self::Created { start, end } => total_of_span(*start, *end),
            Self::Label { id, shared } => {
                let counted = if *shared { "counted = 'shared label'" } else { "counted = 'label'" };
                sum_of_counts([Sql::text(counted), sql!("key = {id}", id = *id)])
            }
        }
    }

    /// The ids and timestamps of a page, unordered.
    pub(super) fn page(&self, by: SortBy, scan: &PageScan) -> Sql {
        match self {
            Self::Everything => page_in_order(by, &[], scan),
            Self::Groups { forms, statuses } => page_of_groups(forms, statuses, scan),
            Self::Created { start, end } => page_of_span(*start, *end, by, scan),
            Self::Label { id, shared } => page_of_label(*id, *shared, scan),
        }
    }

    /// The whole days before a page that is far inside: how many submissions they have, and the last of them. None if the
    /// page is near the end, or if there are no counts by day.
    pub(super) fn days_before(&self, by: SortBy, scan: &PageScan) -> Option<Sql> {
        if !matches!(self, Self::Everything) || scan.offset < MAX_SKIPPED {
            return None;
        }
        let [last, order] = match scan.direction {
            SortDirection::Ascending => ["max(key)", "key"],
            SortDirection::Descending => ["min(key)", "key DESC"],
        };
        let counted = match by {
            SortBy::CreatedAt => "'created'",
            SortBy::UpdatedAt => "'updated'",
        };
        let sql = sql!(
            "SELECT CAST(coalesce(max(through), 0) AS bigint), {+last}
             FROM (SELECT key, sum(listed) OVER (ORDER BY {+order_of_days}) AS through
                   FROM listed_counts WHERE counted = {+counted}) AS days
             WHERE through <= {offset}",
            last = Sql::text(last),
            order_of_days = Sql::text(order),
            counted = Sql::text(counted),
            offset = scan.offset,
        );
        Some(sql.with_custom_plan())
    }
}

/// The sum of the stored counts under some conditions.
fn sum_of_counts(conditions: impl IntoIterator<Item = Sql>) -> Sql {
    sql!(
        "SELECT CAST(coalesce(sum(listed), 0) AS bigint) FROM listed_counts WHERE {+of_counts}",
        of_counts = all_of(conditions),
    )
}

/// A page of the submissions under some conditions, in the order of an index.
fn page_in_order(by: SortBy, conditions: &[Sql], scan: &PageScan) -> Sql {
    rows_behind(by, scan, |is_behind, scan| {
        let conditions = conditions.iter().cloned().chain(is_behind);
        page_of_listed(by, conditions, in_order(by, scan.direction), scan)
    })
}

/// A page of the submissions under some conditions.
fn page_of_listed(by: SortBy, conditions: impl IntoIterator<Item = Sql>, order_of_page: Sql, scan: &PageScan) -> Sql {
    sql!(
        "SELECT s.id, s.{+column} AS at FROM listed_submissions s WHERE {+conditions} {+order_of_page}{page scan}",
        column = column(by),
        conditions = all_of(conditions),
        order_of_page,
        scan,
    )
}

/// The order of an index of submissions.
fn in_order(by: SortBy, direction: SortDirection) -> Sql {
    Sql::text(match (by, direction) {
        (SortBy::UpdatedAt, SortDirection::Descending) => "ORDER BY s.updated_at DESC, s.id DESC",
        (SortBy::UpdatedAt, SortDirection::Ascending) => "ORDER BY s.updated_at, s.id",
        (SortBy::CreatedAt, SortDirection::Descending) => "ORDER BY s.created_at DESC, s.id DESC",
        (SortBy::CreatedAt, SortDirection::Ascending) => "ORDER BY s.created_at, s.id",
    })
}

/// A page over several groups: from each group's index as many rows as the page can need, then the page out of these.
fn page_of_groups(forms: &CoveredForms, statuses: &[Status], scan: &PageScan) -> Sql {
    let (mut groups, mut conditions) = (Vec::new(), Vec::new());
    if let Some(forms) = forms.table() {
        // Forms without submissions have no page to read: most sub-forms, in an account that creates them ahead.
        groups.push(sql!(
            "(SELECT id AS form FROM {+forms} AS forms
              WHERE id IN (SELECT key FROM listed_counts WHERE counted = 'form' AND listed > 0)) AS f",
            forms,
        ));
        conditions.push(Sql::text("s.form_id = f.form"));
    }
    if !statuses.is_empty() {
        groups.push(sql!(
            "{pg: unnest({statuses}) AS g (status) | lite: (SELECT value AS status FROM json_each({statuses})) AS g}",
            statuses = texts(statuses),
        ));
        conditions.push(Sql::text("s.status = g.status"));
    }
    let sql = sql!(
        "SELECT s.id, {pg: s.at | lite: s.updated_at AS at}
         FROM {+groups} CROSS JOIN
           {pg: LATERAL ({+of_group}) AS s
           | lite: listed_submissions s WHERE s.id IN (SELECT id FROM ({+of_group}))}
         {+order_of_page}{page scan}",
        groups = Sql::joined(groups, " CROSS JOIN "),
        of_group = page_in_order(SortBy::UpdatedAt, &conditions, &scan.with_skipped()),
        order_of_page = order_by_position(scan.direction),
        scan,
    );
    sql.with_custom_plan()
}

/// The total of a span: whole days from their counts, the partial first and last day from the index.
fn total_of_span(start: Option<Timestamp>, end: Option<Timestamp>) -> Sql {
    // The first whole day, and the first day after it that is not whole.
    let first = start
        .map(|start| start.as_microsecond().div_euclid(DAY) + i64::from(start.as_microsecond().rem_euclid(DAY) > 0));
    let after = end.map(|end| (end.as_microsecond() + 1).div_euclid(DAY));
    let instant = |day: i64| Timestamp::from_microsecond(day.saturating_mul(DAY)).ok();
    let count = |conditions: Vec<Sql>| {
        sql!("(SELECT count(*) FROM listed_submissions s WHERE {+conditions})", conditions = all_of(conditions))
    };
    let counts = match (first, after) {
        (Some(first), Some(after)) if first >= after => vec![count(was_created_in(start, end).collect())],
        _ => {
            let mut days = vec![Sql::text("counted = 'created'")];
            days.extend(first.map(|first| sql!("key >= {first}", first)));
            days.extend(after.map(|after| sql!("key < {after}", after)));
            let mut counts = vec![sql!("({+days})", days = sum_of_counts(days))];
            counts.extend(first.map(|first| {
                let before = instant(first).map(|before| sql!("s.created_at < {before}", before));
                count(was_created_in(start, None).chain(before).collect())
            }));
            counts.extend(after.map(|after| count(was_created_in(instant(after), end).collect())));
            counts
        }
    };
    sql!("SELECT {+counts}", counts = Sql::joined(counts, " + ")).with_custom_plan()
}

/// A page of a span. No index covers both the span of creation and the order by last change. Either a scan from the requested
/// end finds enough submissions, or the whole span is read and sorted.
fn page_of_span(start: Option<Timestamp>, end: Option<Timestamp>, by: SortBy, scan: &PageScan) -> Sql {
    let span = || was_created_in(start, end);
    let needed = scan.offset.saturating_add(scan.length);
    if by == SortBy::CreatedAt {
        return page_in_order(by, &span().collect::<Vec<_>>(), scan).with_custom_plan();
    }
    if needed > SCAN_AHEAD {
        return page_of_listed(by, span(), order_by_position(scan.direction), scan).with_custom_plan();
    }
    let first = PageScan { offset: 0, length: SCAN_AHEAD, ..*scan };
    let scanned = rows_behind(by, &first, |is_behind, scan| {
        sql!(
            "SELECT s.id, s.updated_at AS at, s.created_at FROM listed_submissions s
             WHERE {+is_behind} {+order_of_index}{page scan}",
            is_behind = all_of(is_behind),
            order_of_index = in_order(by, scan.direction),
            scan,
        )
    });
    // They are also enough if there are no more. The condition has to be evaluated before the table is read. Each database
    // needs its own form for that.
    let sql = sql!(
        "WITH scanned (id, at, created_at) AS MATERIALIZED ({+scanned}),
         near (id, at) AS MATERIALIZED (
           SELECT id, at FROM (SELECT id, at, created_at FROM scanned) AS s WHERE {+span_of_near}),
         enough (yes) AS MATERIALIZED (
           SELECT (SELECT count(*) FROM near) >= {needed} OR (SELECT count(*) FROM scanned) < {most})
         SELECT near.id, near.at FROM enough CROSS JOIN near WHERE enough.yes
         UNION ALL
         {pg: SELECT id, at FROM (SELECT s.id, s.updated_at AS at FROM listed_submissions s WHERE {+span}) AS span
              WHERE NOT (SELECT yes FROM enough)
         | lite: SELECT s.id, s.updated_at FROM enough CROSS JOIN listed_submissions s WHERE NOT enough.yes AND {+span}}
         {+order_of_page}{page scan}",
        scanned,
        span_of_near = all_of(span()),
        needed,
        most = SCAN_AHEAD,
        span = all_of(span().chain(is_behind(by, scan))),
        order_of_page = order_by_position(scan.direction),
        scan,
    );
    sql.with_custom_plan()
}

fn page_of_label(id: i64, shared: bool, scan: &PageScan) -> Sql {
    let order = match scan.direction {
        SortDirection::Ascending => "updated_at, submission_id",
        SortDirection::Descending => "updated_at DESC, submission_id DESC",
    };
    let of_label =
        sql!("label_id = {id} AND shared = {+shared}", id, shared = Sql::text(if shared { "true" } else { "false" }));
    sql!(
        "SELECT submission_id AS id, updated_at AS at FROM listed_by_label
         WHERE {+of_label} ORDER BY {+order_of_label}{page scan}",
        of_label = all_of([of_label].into_iter().chain(is_row_behind("updated_at, submission_id", scan))),
        order_of_label = Sql::text(order),
        scan,
    )
}
