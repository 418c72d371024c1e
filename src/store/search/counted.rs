//! Searches whose total comes from `listed_counts` and whose pages come from an index in their order.
//!
//! The counts are exact: the transaction that changes a list also changes its counts.

use jiff::Timestamp;

use super::covered_forms::{CoveredForms, ResolvedFilter};
use super::{column, order_by_position, scan_ahead};
use crate::store::Texts;
use crate::store::filter::{SortBy, Status, SubmissionFilter};
use crate::store::settle::write_is_settled;
use crate::store::statement::{Dialect, PageScan, SortDirection, Sql};

/// The filter of such a search.
#[derive(Clone, Debug)]
pub(super) enum CountedSearch<'f> {
    /// No filter.
    Everything,
    /// By forms, by statuses, or by both; ordered by the last change.
    Groups { forms: &'f CoveredForms<'f>, statuses: Vec<Status> },
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

    /// Adds the query of the total, and of whether the intake is empty.
    pub(super) fn write_total(&self, sql: &mut Sql) {
        sql.push("SELECT (");
        self.write_count(sql);
        sql.push(") AS total, ");
        write_is_settled(sql);
        sql.push(" AS is_settled");
    }

    fn write_count(&self, sql: &mut Sql) {
        match self {
            Self::Everything => {
                sql.push(SUM).push("'form'");
            }
            Self::Groups { forms, statuses } => {
                sql.force_custom_plan().push(SUM).push("'form'");
                if !forms.are_all() {
                    // As an array, which Postgres sorts and looks up in the order of the index.
                    sql.push_either(" AND key = ANY (ARRAY ", " AND key IN ");
                    forms.write(sql);
                    sql.push_either(")", "");
                }
                if !statuses.is_empty() {
                    sql.push(" AND status").in_texts(texts(statuses));
                }
            }
            Self::Created { start, end } => write_total_of_span(sql, *start, *end),
            Self::Label { id, shared } => write_total_of_label(sql, *id, *shared),
        }
    }

    /// Adds the query of the ids and timestamps of a page, unordered.
    pub(super) fn write_page(&self, sql: &mut Sql, by: SortBy, scan: &PageScan) {
        match self {
            Self::Everything => {
                write_listed(sql, by);
                if let Some(instant) = scan.start_at {
                    sql.push(" AND s.").push(column(by));
                    sql.push(match scan.direction {
                        SortDirection::Ascending => " >= ",
                        SortDirection::Descending => " < ",
                    });
                    sql.bind(instant);
                }
                sql.push(in_order(by, scan.direction)).limit(scan);
            }
            Self::Groups { forms, statuses } => write_page_of_groups(sql, forms, statuses, scan),
            Self::Created { start, end } => write_page_of_span(sql, *start, *end, by, scan),
            Self::Label { id, shared } => write_page_of_label(sql, *id, *shared, scan),
        }
    }

    /// Adds the query of the whole days before a page that is far inside: how many submissions they have, and the last
    /// of them. Returns whether it added anything: not if the page is near the end, or if there are no counts by day.
    pub(super) fn write_days_before(&self, sql: &mut Sql, by: SortBy, scan: &PageScan) -> bool {
        if !matches!(self, Self::Everything) || scan.offset < MAX_SKIPPED {
            return false;
        }
        let descending = scan.direction == SortDirection::Descending;
        sql.force_custom_plan().push("SELECT CAST(coalesce(max(through), 0) AS bigint), ");
        sql.push(if descending { "min(key)" } else { "max(key)" });
        sql.push(" FROM (SELECT key, sum(listed) OVER (ORDER BY key").push(if descending { " DESC" } else { "" });
        sql.push(") AS through FROM listed_counts WHERE counted = ").push(match by {
            SortBy::CreatedAt => "'created'",
            SortBy::UpdatedAt => "'updated'",
        });
        sql.push(") AS days WHERE through <= ").bind(scan.offset);
        true
    }
}

const SUM: &str = "SELECT CAST(coalesce(sum(listed), 0) AS bigint) FROM listed_counts WHERE counted = ";

fn texts(statuses: &[Status]) -> impl Iterator<Item = &'static str> + '_ {
    statuses.iter().map(|status| status.as_str())
}

fn write_listed(sql: &mut Sql, by: SortBy) {
    sql.push("SELECT s.id, s.").push(column(by)).push(" AS at FROM listed_submissions s WHERE true");
}

/// The order of an index of submissions.
fn in_order(by: SortBy, direction: SortDirection) -> &'static str {
    match (by, direction) {
        (SortBy::UpdatedAt, SortDirection::Descending) => " ORDER BY s.updated_at DESC, s.id DESC",
        (SortBy::UpdatedAt, SortDirection::Ascending) => " ORDER BY s.updated_at, s.id",
        (SortBy::CreatedAt, SortDirection::Descending) => " ORDER BY s.created_at DESC, s.id DESC",
        (SortBy::CreatedAt, SortDirection::Ascending) => " ORDER BY s.created_at, s.id",
    }
}

/// Adds the query of a page over several groups: from each group's index as many rows as the page can need, then the
/// page out of these.
fn write_page_of_groups(sql: &mut Sql, forms: &CoveredForms<'_>, statuses: &[Status], scan: &PageScan) {
    sql.force_custom_plan().push("SELECT s.id, s.updated_at AS at FROM ");
    if !forms.are_all() {
        // Forms without submissions have no page to read: most sub-forms, in an account that creates them ahead.
        sql.push("(SELECT id AS form FROM ");
        forms.write(sql);
        sql.push(" AS forms WHERE id IN (SELECT key FROM listed_counts WHERE counted = 'form' AND listed > 0)");
        sql.push(") AS f CROSS JOIN ");
    }
    if !statuses.is_empty() {
        sql.push_either("unnest(", "(SELECT value AS status FROM json_each(").bind(texts(statuses).collect::<Texts>());
        sql.push_either(") AS g (status)", ")) AS g").push(" CROSS JOIN ");
    }
    sql.push_either("LATERAL (", "listed_submissions s WHERE s.id IN (");
    sql.push_either("SELECT s.id, s.updated_at", "SELECT s.id").push(" FROM listed_submissions s WHERE true");
    if !forms.are_all() {
        sql.push(" AND s.form_id = f.form");
    }
    if !statuses.is_empty() {
        sql.push(" AND s.status = g.status");
    }
    sql.push(in_order(SortBy::UpdatedAt, scan.direction)).limit(&scan.with_skipped()).push(")");
    sql.push_either(" AS s", "").push(order_by_position(scan.direction)).limit(scan);
}

/// Adds the total of a span: whole days from their counts, the partial first and last day from the index.
fn write_total_of_span(sql: &mut Sql, start: Option<Timestamp>, end: Option<Timestamp>) {
    sql.force_custom_plan();
    // The first whole day, and the first day after it that is not whole.
    let first = start
        .map(|start| start.as_microsecond().div_euclid(DAY) + i64::from(start.as_microsecond().rem_euclid(DAY) > 0));
    let after = end.map(|end| (end.as_microsecond() + 1).div_euclid(DAY));
    let instant = |day: i64| Timestamp::from_microsecond(day.saturating_mul(DAY)).ok();
    let count = |sql: &mut Sql, from: Option<Timestamp>, through: Option<Timestamp>, before: Option<Timestamp>| {
        sql.push("(SELECT count(*) FROM listed_submissions s WHERE true");
        for (bound, condition) in
            [(from, " AND s.created_at >= "), (through, " AND s.created_at <= "), (before, " AND s.created_at < ")]
        {
            if let Some(bound) = bound {
                sql.push(condition).bind(bound);
            }
        }
        sql.push(")");
    };
    sql.push("SELECT ");
    if let (Some(first), Some(after)) = (first, after)
        && first >= after
    {
        count(sql, start, end, None);
        return;
    }
    sql.push("(").push(SUM).push("'created'");
    if let Some(first) = first {
        sql.push(" AND key >= ").bind(first);
    }
    if let Some(after) = after {
        sql.push(" AND key < ").bind(after);
    }
    sql.push(")");
    if let Some(first) = first {
        sql.push(" + ");
        count(sql, start, None, instant(first));
    }
    if let Some(after) = after {
        sql.push(" + ");
        count(sql, instant(after), end, None);
    }
}

fn write_span(sql: &mut Sql, start: Option<Timestamp>, end: Option<Timestamp>) {
    if let Some(start) = start {
        sql.push(" AND s.created_at >= ").bind(start);
    }
    if let Some(end) = end {
        sql.push(" AND s.created_at <= ").bind(end);
    }
}

/// Adds the query of a page of a span. No index covers both the span of creation and the order by last change. Either
/// a scan from the requested end finds enough submissions, or the whole span is read and sorted.
fn write_page_of_span(sql: &mut Sql, start: Option<Timestamp>, end: Option<Timestamp>, by: SortBy, scan: &PageScan) {
    sql.force_custom_plan();
    let needed = scan.offset.saturating_add(scan.length);
    if by == SortBy::CreatedAt {
        write_listed(sql, by);
        write_span(sql, start, end);
        sql.push(in_order(by, scan.direction)).limit(scan);
        return;
    }
    if needed > SCAN_AHEAD {
        write_listed(sql, by);
        write_span(sql, start, end);
        sql.push(order_by_position(scan.direction)).limit(scan);
        return;
    }
    sql.push("WITH near (id, at) AS MATERIALIZED (SELECT s.id, s.updated_at FROM (");
    sql.push("SELECT s.id, s.updated_at, s.created_at FROM listed_submissions s WHERE true");
    sql.push(in_order(by, scan.direction)).limit(&PageScan { offset: 0, length: SCAN_AHEAD, ..*scan });
    sql.push(") AS s WHERE true");
    write_span(sql, start, end);
    sql.push("), enough (yes) AS MATERIALIZED (SELECT count(*) >= ").bind(needed).push(" FROM near)");
    sql.push(" SELECT near.id, near.at FROM enough CROSS JOIN near WHERE enough.yes UNION ALL ");
    // The condition has to be evaluated before the table is read. Each database needs its own form for that.
    sql.push_either(
        "SELECT id, at FROM (SELECT s.id, s.updated_at AS at FROM listed_submissions s WHERE true",
        "SELECT s.id, s.updated_at FROM enough CROSS JOIN listed_submissions s WHERE NOT enough.yes",
    );
    write_span(sql, start, end);
    sql.push_either(") AS span WHERE NOT (SELECT yes FROM enough)", "");
    sql.push(order_by_position(scan.direction)).limit(scan);
}

fn write_total_of_label(sql: &mut Sql, id: i64, shared: bool) {
    sql.push(SUM).push(if shared { "'shared label'" } else { "'label'" }).push(" AND key = ").bind(id);
}

fn write_page_of_label(sql: &mut Sql, id: i64, shared: bool, scan: &PageScan) {
    sql.push("SELECT submission_id AS id, updated_at AS at FROM listed_by_label WHERE label_id = ").bind(id);
    sql.push(if shared { " AND shared = true" } else { " AND shared = false" });
    sql.push(match scan.direction {
        SortDirection::Ascending => " ORDER BY updated_at, submission_id",
        SortDirection::Descending => " ORDER BY updated_at DESC, submission_id DESC",
    });
    sql.limit(scan);
}
