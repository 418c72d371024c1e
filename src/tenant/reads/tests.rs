//! When held reads are due, what a write takes, and what remains if it fails.

use super::*;

const DAY: i64 = 20_000 * 86_400;

/// An instant that many minutes after the beginning of a day.
fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(DAY + 60 * minute).unwrap()
}

fn note(reads: &Reads, token: i64, ids: impl IntoIterator<Item = i64>, minute: i64) {
    let read: Vec<_> = ids.into_iter().map(|id| ReadSubmission { id, form: Some(1) }).collect();
    reads.note(token, &read, &TimeZone::UTC, at(minute));
}

fn keys(unwritten: &UnwrittenReads) -> Vec<(i64, u64)> {
    unwritten.reads.iter().map(|(key, set)| (key.token, set.len())).collect()
}

#[test]
fn an_account_that_nobody_reads_has_nothing_to_write() {
    let reads = Reads::default();
    for due in [Due::AfterRequest, Due::Afterwards, Due::All] {
        assert!(!reads.is_due(due, minute_of(at(0))) && reads.take(due, at(0)).is_none());
    }
    assert!(!reads.becomes_due());
}

#[test]
fn the_first_read_is_due_at_once_and_opens_the_row_and_the_last_write_closes_it() {
    let reads = Reads::default();
    note(&reads, 1, [5], 0);
    assert!(reads.becomes_due() && !reads.becomes_due());
    let taken = reads.take(Due::AfterRequest, at(0)).unwrap();
    assert_eq!((taken.change, keys(&taken)), (NodeChange::Open, vec![(1, 1)]));
    reads.confirm();

    note(&reads, 1, [6], 1);
    assert!(!reads.becomes_due() && !reads.is_due(Due::Afterwards, minute_of(at(2))));
    let touched = reads.take(Due::Afterwards, at(2)).unwrap();
    assert_eq!((touched.change, &touched.node), (NodeChange::Touch, &taken.node));
    reads.confirm();
    assert!(reads.take(Due::Afterwards, at(QUIET)).is_none() && !reads.is_due(Due::Afterwards, minute_of(at(QUIET))));
    assert!(reads.is_due(Due::All, minute_of(at(3))), "a stop closes the row");

    let quiet = 1 + QUIET;
    assert!(
        reads.is_due(Due::Afterwards, minute_of(at(quiet))) && !reads.is_due(Due::AfterRequest, minute_of(at(quiet)))
    );
    let closed = reads.take(Due::Afterwards, at(quiet)).unwrap();
    assert_eq!((closed.change, closed.reads.len()), (NodeChange::Close, 0));
    reads.confirm();
    assert!(!reads.is_due(Due::All, minute_of(at(quiet))) && reads.take(Due::All, at(quiet)).is_none());
    note(&reads, 1, [6], quiet);
    assert!(reads.becomes_due(), "the row is closed");
}

#[test]
fn what_was_not_confirmed_is_held_and_taken_again() {
    let reads = Reads::default();
    note(&reads, 1, [5, 70_000], 0);
    let first = reads.take(Due::AfterRequest, at(0)).unwrap();
    assert_eq!(keys(&first), [(1, 1), (1, 1)]);
    note(&reads, 1, [5, 6], 1);
    note(&reads, 2, [5], 1);
    let today = Day::of(at(0), &TimeZone::UTC);
    let mut readers = reads.of_submission(5);
    readers.dedup();
    assert_eq!(readers, [(1, today), (2, today)]);
    assert_eq!(reads.of_submission(70_000), [(1, today)]);
    assert!(reads.of_submission(5 + 65_536).is_empty() && reads.of_submission(7).is_empty());

    assert!(reads.becomes_due() && !reads.becomes_due());
    reads.stay_due();
    assert!(reads.becomes_due(), "the row is not open");
    let second = reads.take(Due::Afterwards, at(2)).unwrap();
    assert_eq!((second.change, keys(&second)), (NodeChange::Open, vec![(1, 2), (1, 1), (2, 1)]));
    reads.confirm();
    assert!(reads.of_submission(5).is_empty() && reads.of_token(1).is_empty(), "it is stored");
}

#[test]
fn the_day_of_the_last_read_is_sealed_after_its_end_and_a_day_before_by_the_next_write() {
    let reads = Reads::default();
    note(&reads, 1, [5], 1439);
    let taken = reads.take(Due::AfterRequest, at(1439)).unwrap();
    assert_eq!(taken.over_before, taken.today);
    reads.confirm();
    let over = 1440 + OVER_AFTER.as_mins();
    let taken = reads.take(Due::All, at(over)).unwrap();
    assert_eq!((taken.over_before, taken.change), (taken.today, NodeChange::Close));
    reads.confirm();

    let reads = Reads::default();
    note(&reads, 1, [5], 0);
    reads.take(Due::AfterRequest, at(0)).unwrap();
    reads.confirm();
    reads.take(Due::Afterwards, at(QUIET)).unwrap();
    reads.confirm();
    assert!(!reads.is_due(Due::Afterwards, minute_of(at(over))));
    let sealed = over + 1 + SEAL_WITHIN;
    assert!(reads.is_due(Due::Afterwards, minute_of(at(sealed))));
    let taken = reads.take(Due::Afterwards, at(sealed)).unwrap();
    assert!(taken.reads.is_empty() && taken.change == NodeChange::Close);
    reads.confirm();
    assert!(!reads.is_due(Due::Afterwards, minute_of(at(sealed))));
}

#[test]
fn reads_that_can_not_be_written_are_bounded_and_leave_a_gap() {
    let reads = Reads::default();
    let rows = i64::try_from(MAX_ROWS).unwrap();
    note(&reads, 1, (0..=rows).map(|row| row * 65_536 + 1), 0);
    assert!(reads.of_token(1).is_empty());
    note(&reads, 1, [9], 3);
    let taken = reads.take(Due::Afterwards, at(4)).unwrap();
    assert_eq!((keys(&taken), taken.lost), (vec![(1, 1)], Some(ReadGap { from: at(0), until: at(0) })));
    let again = reads.take(Due::Afterwards, at(5)).unwrap();
    assert_eq!((again.lost, keys(&again)), (taken.lost, vec![(1, 1)]));
    reads.confirm();
    note(&reads, 1, [9], 6);
    assert_eq!(reads.take(Due::All, at(7)).unwrap().lost, None);
}
