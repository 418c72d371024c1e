//! Rows behind a position: keyset pagination, which costs the same however far inside a page is.
//!
//! Postgres seeks an index of an instant and an id by comparing both as a row. SQLite seeks by the instant only if the id is
//! the key of the table itself, and would read all rows of that instant again for each page: an import can give a hundred
//! thousand rows the same one. So it reads the rest of the instant and what follows it, each by a seek of its own.

use super::{column, order_by_position};
use crate::store::filter::SortBy;
use crate::store::statement::{PageScan, Position, SortDirection, Sql, sql};

/// Listed submissions in an order, those behind the position of a scan if it has one. `rows` selects the rows of a scan from
/// listed submissions `s`, with columns `id` and `at`, under a condition.
pub(super) fn rows_behind(by: SortBy, scan: &PageScan, rows: impl Fn(Option<Sql>, &PageScan) -> Sql) -> Sql {
    let Some(Position { at, id }) = scan.behind else { return rows(None, scan) };
    let rest = sql!("s.{+column} = {at} AND s.id {+than} {id}", column = column(by), at, than = than(scan), id);
    let following = sql!("s.{+column} {+than} {at}", column = column(by), than = than(scan), at);
    let needed = scan.with_skipped();
    sql!(
        "{pg: {+seek}
         | lite: SELECT * FROM ({+rest}) UNION ALL SELECT * FROM ({+following}) {+order_of_page}{page scan}}",
        seek = rows(is_behind(by, scan), scan),
        rest = rows(Some(rest), &needed),
        following = rows(Some(following), &needed),
        order_of_page = order_by_position(scan.direction),
        scan,
    )
}

/// The condition that a listed submission `s` is behind the position of a scan, if it has one.
pub(super) fn is_behind(by: SortBy, scan: &PageScan) -> Option<Sql> {
    let Position { at, id } = scan.behind?;
    Some(sql!("(s.{+column}, s.id) {+than} ({at}, {id})", column = column(by), than = than(scan), at, id))
}

/// The same of a row with other columns. No index is sought on SQLite unless both are columns of its key.
pub(super) fn is_row_behind(columns: &'static str, scan: &PageScan) -> Option<Sql> {
    let Position { at, id } = scan.behind?;
    Some(sql!("({+columns}) {+than} ({at}, {id})", columns = Sql::text(columns), than = than(scan), at, id))
}

/// How what is behind compares.
fn than(scan: &PageScan) -> Sql {
    Sql::text(match scan.direction {
        SortDirection::Ascending => ">",
        SortDirection::Descending => "<",
    })
}
