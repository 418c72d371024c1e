//! The pages of a search: by number, or behind a cursor.
//!
//! Owns the parameters `page`, `cursor` and `limit`, and what follows the submissions of a page.

use serde::Serialize;

use super::cursor::{CursorScope, read_cursor};
use crate::api::json::Json;
use crate::api::{Call, page, query};
use crate::error::{Faults, Refusal};
use crate::store::{PageStart, Position, SearchPage};

/// The number of submissions on a page, as in the service description.
///
/// Larger: a response, which contains whole answers, takes longer and more memory. Smaller: reading all submissions
/// takes more requests of the budget.
const PAGE_SIZE: u32 = 20;

/// How many submissions a page by cursor may have.
///
/// Larger: a response takes longer. Smaller: reading all submissions takes more requests of the budget.
const MAX_LIMIT: u32 = 100;

const PATH: &str = "/api/v1/submission";

/// Which page was asked for. A cursor has yet to be compared with the filters.
#[derive(Debug)]
pub(super) struct SearchStart {
    start: PageStart,
    made_with: Option<CursorScope>,
}

impl SearchStart {
    pub(super) fn parse(call: &Call<'_>, faults: &mut Faults) -> Self {
        let by_number = page::parse(call, PAGE_SIZE, faults);
        let limit = query::integer(call, "limit", 1..=MAX_LIMIT, faults);
        let is_given = |name| query::values(call, name).next().is_some();
        if !is_given("cursor") {
            if limit.is_some() {
                faults.add("limit", "The limit is one of pages by cursor: add `cursor=`.");
            }
            return Self { start: by_number.into(), made_with: None };
        }
        if is_given("page") {
            faults.add("cursor", "The cursor can't be combined with a page.");
        }
        let text = query::value(call, "cursor", faults).filter(|text| !text.is_empty());
        let cursor = text.as_deref().map(read_cursor);
        if cursor == Some(None) {
            faults.add("cursor", "The cursor must be one that an answer had, or empty to begin.");
        }
        let (position, made_with) = cursor.flatten().unzip();
        Self { start: PageStart::Behind { position, size: limit.unwrap_or(PAGE_SIZE) }, made_with }
    }

    /// The start for a search of a scope.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if the cursor is of another one.
    pub(super) fn of(self, scope: &CursorScope) -> Result<PageStart, Refusal> {
        match self.made_with.and_then(|made_with| scope.fault_of(&made_with)) {
            Some(fault) => Err(Faults::single("cursor", fault)),
            None => Ok(self.start),
        }
    }
}

/// What follows the submissions of a page.
#[derive(Debug)]
pub(super) enum SearchEnd {
    Number(page::Envelope),
    Cursor(CursorEnd),
}

/// The links and the figures of a page behind a cursor.
#[derive(Debug, Serialize)]
pub(super) struct CursorEnd {
    links: Links,
    meta: Meta,
}

#[derive(Debug, Serialize)]
struct Links {
    first: String,
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct Meta {
    cursor: Option<String>,
    has_more: bool,
    total: u64,
}

impl SearchEnd {
    /// The end of a page of a search of a scope.
    pub(super) fn new(call: &Call<'_>, start: PageStart, scope: &CursorScope, page: &SearchPage) -> Self {
        match start {
            PageStart::Number(request) => {
                Self::Number(page::Envelope::new(call, PATH, request, page.total).with_cursors())
            }
            PageStart::Behind { .. } => Self::Cursor(CursorEnd::new(call, scope, page.next, page.total)),
        }
    }

    /// Closes a page that shows `shown` submissions.
    pub(super) fn write(&self, json: &mut Json, shown: u64) {
        match self {
            Self::Number(envelope) => envelope.write_end(json, shown),
            Self::Cursor(CursorEnd { links, meta }) => {
                json.raw(",\"links\":").value(links).raw(",\"meta\":").value(meta).raw("}");
            }
        }
    }
}

impl CursorEnd {
    fn new(call: &Call<'_>, scope: &CursorScope, next: Option<Position>, total: u64) -> Self {
        let cursor = next.map(|position| scope.cursor_behind(position));
        let others = query::without(call, "cursor");
        let link = |cursor: &str| format!("{}{PATH}?{others}cursor={cursor}", call.origin);
        let links = Links { first: link(""), next: cursor.as_deref().map(link) };
        Self { links, meta: Meta { has_more: cursor.is_some(), cursor, total } }
    }
}
