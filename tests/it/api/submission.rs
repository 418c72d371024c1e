//! `POST /submission`, `GET /submission/{id}`.

mod cursor;
mod fields;
mod foreign;
mod kept;
mod large;
mod long;
pub(crate) mod plan;
mod readers;
mod search;
mod show;
mod slow_settling;
mod sub_forms;
mod unsettled;
pub(crate) mod writers;

/// What `formgate reindex` says where it had nothing to do.
pub(crate) const NOTHING_WRONG: &str = "mended 0 users, 0 submissions, 0 documents, 0 labels, 0 counts\n";
