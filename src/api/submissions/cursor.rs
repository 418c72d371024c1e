//! The text of a cursor of a search: with which filters and which reach it was made, and the last submission before it.
//!
//! It is opaque, and only used with the same filters: behind the same position, another search would leave out what comes
//! before it. The order of the values of a filter makes no difference, and neither does `fields`.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::changes::digest_of;
use crate::store::filter::{Keyword, SubmissionFilter};
use crate::store::{FormReach, Position};

/// With which filters and which reach a cursor was made: 64 bits of SHA-256 of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CursorScope {
    filters: [u8; 8],
    /// Zero: everything was in reach.
    reach: [u8; 8],
}

impl CursorScope {
    pub(super) fn of(filter: &SubmissionFilter, reach: &FormReach) -> Self {
        let filters = Sha256::digest(canonical(filter).to_string());
        Self {
            filters: *filters.first_chunk().expect("SHA-256 has 32 bytes"),
            reach: reach.forms().map(digest_of).unwrap_or_default(),
        }
    }

    /// Why a cursor of a search with another scope can't be used.
    pub(super) fn fault_of(&self, made_with: &Self) -> Option<&'static str> {
        if made_with.reach != self.reach {
            Some("The cursor was made with another reach.")
        } else if made_with.filters != self.filters {
            Some("The cursor was made with other filters or another order.")
        } else {
            None
        }
    }

    /// The text of the cursor behind a position: the digests, microseconds since 1970, the id, a checksum.
    pub(super) fn cursor_behind(&self, position: Position) -> String {
        let numbers = [position.at.as_microsecond(), position.id].map(i64::to_be_bytes);
        let mut bytes = [self.filters, self.reach, numbers[0], numbers[1]].concat();
        bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }
}

/// A position, and the scope of the cursor that has it. None if it is not the text of one.
pub(super) fn read_cursor(text: &str) -> Option<(Position, CursorScope)> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (rest, checksum) = bytes.split_last_chunk::<4>()?;
    if crc32fast::hash(rest) != u32::from_be_bytes(*checksum) {
        return None;
    }
    let (&[filters, reach, at, id], []) = rest.as_chunks::<8>() else { return None };
    let at = Timestamp::from_microsecond(i64::from_be_bytes(at)).ok()?;
    Some((Position { at, id: i64::from_be_bytes(id) }, CursorScope { filters, reach }))
}

/// The filters that are there, with the values of each in order.
fn canonical(filter: &SubmissionFilter) -> Value {
    // Destructured, so that a new filter is not forgotten. One that is absent changes nothing, so older cursors stay valid.
    let SubmissionFilter {
        forms,
        statuses,
        search,
        submitters,
        pending,
        participants,
        terms,
        start,
        end,
        labels,
        shared_labels,
        flows,
        sort_by,
        sort_direction,
    } = filter;
    let ids = |ids: &[i64]| json!(ids.iter().collect::<BTreeSet<_>>());
    let terms: BTreeSet<_> =
        terms.iter().map(|term| (term.element, term.answers.iter().collect::<BTreeSet<_>>())).collect();
    let mut filters = BTreeMap::from([
        ("forms", ids(forms)),
        ("statuses", json!(statuses.iter().map(|status| status.as_str()).collect::<BTreeSet<_>>())),
        ("search", json!(search.as_ref().map(Keyword::as_str))),
        ("submitters", ids(submitters)),
        ("pending", ids(pending)),
        ("participants", ids(participants)),
        ("terms", json!(terms)),
        ("start", json!(start.map(Timestamp::as_microsecond))),
        ("end", json!(end.map(Timestamp::as_microsecond))),
        ("labels", ids(labels)),
        ("shared_labels", ids(shared_labels)),
        ("flows", ids(flows)),
        ("order", json!(format!("{sort_by:?} {sort_direction:?}"))),
    ]);
    filters.retain(|_, values| !values.is_null() && *values != json!([]));
    json!(filters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::filter::{Keyword, SortBy, SortDirection, Status, Term};

    fn none() -> SubmissionFilter {
        SubmissionFilter::default()
    }

    fn position() -> Position {
        Position { at: "2026-03-14T13:52:09.384768Z".parse().unwrap(), id: 2005 }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let newest = Position { at: "-000001-01-01T00:00:00Z".parse().unwrap(), id: i64::MAX };
        for reach in [FormReach::All, FormReach::of([]), FormReach::of([3])] {
            let scope = CursorScope::of(&none(), &reach);
            for position in [position(), newest] {
                let text = scope.cursor_behind(position);
                assert_eq!((text.len(), read_cursor(&text)), (48, Some((position, scope))));
            }
        }
    }

    #[test]
    fn a_text_that_was_changed_is_no_cursor() {
        let text = CursorScope::of(&none(), &FormReach::All).cursor_behind(position());
        for other in ["", "x", &text[1..], &text[..47], &format!("{text}A"), &text.replacen('A', "B", 1)] {
            assert_eq!(read_cursor(other), None, "{other}");
        }
    }

    #[test]
    fn every_filter_and_the_order_are_of_the_scope_and_the_order_of_values_is_not() {
        let term = |element, answers: &[&str]| Term {
            element: Some(element),
            answers: answers.iter().map(|answer| (*answer).to_owned()).collect(),
        };
        let at = |text: &str| Some(text.parse().unwrap());
        let others = [
            SubmissionFilter { forms: vec![1, 2], ..none() },
            SubmissionFilter { statuses: vec![Status::Back, Status::Info], ..none() },
            SubmissionFilter { search: Keyword::new("ab"), ..none() },
            SubmissionFilter { submitters: vec![1, 2], ..none() },
            SubmissionFilter { pending: vec![1, 2], ..none() },
            SubmissionFilter { participants: vec![1, 2], ..none() },
            SubmissionFilter { terms: vec![term(1, &["a", "b"]), term(2, &["a"])], ..none() },
            SubmissionFilter { terms: vec![term(1, &["a"]), term(2, &["a", "b"])], ..none() },
            SubmissionFilter { start: at("2026-03-01T00:00:00Z"), ..none() },
            SubmissionFilter { end: at("2026-03-01T00:00:00Z"), ..none() },
            SubmissionFilter { labels: vec![1, 2], ..none() },
            SubmissionFilter { shared_labels: vec![1, 2], ..none() },
            SubmissionFilter { flows: vec![1, 2], ..none() },
            SubmissionFilter { sort_by: SortBy::CreatedAt, ..none() },
            SubmissionFilter { sort_direction: SortDirection::Ascending, ..none() },
            none(),
        ];
        for (at, filter) in others.iter().enumerate() {
            let scope = CursorScope::of(filter, &FormReach::All);
            for (other_at, other) in others.iter().enumerate() {
                let fault = scope.fault_of(&CursorScope::of(other, &FormReach::All));
                assert_eq!(fault.is_none(), at == other_at, "{filter:?} {other:?}");
            }
            for reach in [FormReach::of([]), FormReach::of([1])] {
                let fault = scope.fault_of(&CursorScope::of(filter, &reach));
                assert_eq!(fault, Some("The cursor was made with another reach."));
            }
            let mut turned = filter.clone();
            for ids in [&mut turned.forms, &mut turned.labels, &mut turned.flows] {
                ids.reverse();
            }
            turned.statuses.reverse();
            turned.terms.reverse();
            turned.terms.iter_mut().for_each(|term| term.answers.reverse());
            assert_eq!(CursorScope::of(&turned, &FormReach::All), scope, "{filter:?}");
        }
    }
}
