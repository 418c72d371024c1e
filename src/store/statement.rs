//! Statements and their results: SQL text with its values, rows, lists of records, and pages.
//!
//! Nothing here runs a statement; [`super::engine`] does.

mod argument;
mod folding;
mod listed;
mod page;
mod records;
mod row;
mod rows;
mod sql;
mod template;
mod texts;
mod writer;

pub(super) use argument::Argument;
pub use folding::fold;
pub(super) use folding::{
    MAX_INDEXED, SEPARATOR, UNINDEXED_END, answer_digest, folded, length_is, searchable, term_digest,
};
pub use listed::statement_texts;
pub(super) use page::PageScan;
pub use page::{Page, PageRequest, PageStart, Position, SortDirection};
pub(super) use records::{Fields, ListRecord, MalformedRecord, truth};
pub(super) use row::{RepairedTexts, Row, RowHandler};
pub(super) use rows::{JsonRows, JsonTimestamp, TableSpec};
pub(super) use sql::{Dialect, Sql, sql};
pub(super) use template::Template;
pub use texts::TextList;
