//! Statements and their results: SQL text with its values, rows, lists of records, and pages.
//!
//! Nothing here runs a statement; [`super::engine`] does.

mod folding;
mod page;
mod records;
mod row;
mod rows;
mod sql;
mod texts;

pub use folding::fold;
pub(super) use folding::{SEPARATOR, folded, searchable, term, term_of_answer};
pub(super) use page::Reading;
pub use page::{Page, PageRequest, SortDirection};
pub(super) use records::{Fields, Malformed, Record, truth};
pub(super) use row::{Repairs, Row, sqlite_text};
pub(super) use rows::{Instant, Rows, Table, names};
pub(super) use sql::{Dialect, Sql};
pub use texts::Texts;
