//! What is counted is written once, and added up over hours, minutes and nodes.

use super::*;

const START: i64 = 30_000_000;

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second((START + minute) * 60 + 59).unwrap()
}

fn counts(admitted: i64, refused: i64) -> RequestCounts {
    RequestCounts { admitted, refused }
}

/// The sum of hours, by token.
fn sums(hours: &[TokenHour]) -> BTreeMap<i64, RequestCounts> {
    let mut sums = BTreeMap::<_, RequestCounts>::new();
    hours.iter().for_each(|hour| sums.entry(hour.token).or_default().add(hour.counts));
    sums
}

#[test]
fn requests_are_kept_by_the_minute_for_an_hour() {
    let usage = TokenUsage::default();
    for minute in [0, 0, 1, 40, 59] {
        usage.count(7, RateOutcome::Admitted, at(minute));
    }
    usage.count(3, RateOutcome::Refused, at(59));
    let minutes = |now| usage.minutes(at(now)).iter().map(|usage| usage.minute - START).collect::<Vec<_>>();
    assert_eq!(minutes(59), [0, 1, 40, 59]);
    assert_eq!(minutes(60), [1, 40, 59]);
    assert_eq!(minutes(118), [59]);
    assert_eq!(usage.minutes(at(59))[0].tokens, [(7, counts(2, 0))]);
    assert_eq!(usage.minutes(at(59))[3].tokens, [(3, counts(0, 1)), (7, counts(1, 0))]);
    usage.take(at(200));
    assert!(minutes(200).is_empty() && usage.lock().past.is_empty(), "an account that became quiet keeps nothing");
}

#[test]
fn what_was_taken_is_written_once_whatever_becomes_of_the_write() {
    let usage = TokenUsage::default();
    let one = || usage.count(7, RateOutcome::Admitted, at(0));
    one();
    assert_eq!(usage.age(START + 9), Some(9));
    assert_eq!(sums(&usage.take(at(0))), [(7, counts(1, 0))].into());
    one();
    assert_eq!(sums(&usage.unwritten()), [(7, counts(2, 0))].into(), "a page shows what is being written");
    // It failed.
    assert_eq!(sums(&usage.take(at(0))), [(7, counts(2, 0))].into());
    one();
    usage.confirm();
    assert_eq!(usage.age(START), Some(0));
    assert_eq!(sums(&usage.unwritten()), [(7, counts(1, 0))].into());
    assert_eq!(sums(&usage.take(at(0))), [(7, counts(1, 0))].into());
    let mark = CommitMark::Transaction(4);
    usage.doubt(Some(mark));
    assert_eq!(usage.in_doubt(), Some(mark));
    usage.confirm();
    assert_eq!((usage.in_doubt(), usage.age(START)), (None, None));
    assert!(usage.unwritten().is_empty() && usage.take(at(0)).is_empty());
}

#[test]
fn requests_of_an_hour_are_one_row_and_those_of_the_next_another() {
    let usage = TokenUsage::default();
    (0..120).for_each(|minute| _ = usage.count(7, RateOutcome::Admitted, at(minute)));
    let hours = usage.take(at(119));
    assert!(hours.len() == 2 && hours.iter().all(|hour| hour.counts == counts(60, 0)), "{hours:?}");
    assert!(hours.iter().all(|hour| hour.hour.as_second() % SECONDS_AN_HOUR == 0));
}

#[test]
fn what_waits_and_what_a_minute_holds_is_bounded() {
    let usage = TokenUsage::default();
    for token in 1..=1000 {
        usage.count(token, RateOutcome::Admitted, at(0));
        usage.count(1000, RateOutcome::Refused, at(0));
    }
    let [minute] = &usage.minutes(at(0))[..] else { panic!("one minute") };
    assert_eq!((minute.tokens.len(), minute.tokens[0]), (MAX_TOKENS_A_MINUTE + 1, (1000, counts(1, 1000))));
    assert_eq!(minute.tokens.last(), Some(&(OTHERS, counts(1000 - 64, 0))));
    let mut hours: Hours = (0..60_000).map(|row| ((row / 20_000, row), counts(1, 0))).collect();
    drop_oldest(&mut hours);
    assert_eq!((hours.len(), hours.first_key_value().unwrap().0), (40_000, &(1, 20_000)));
}

#[test]
fn a_clock_that_is_set_back_loses_no_request() {
    let usage = TokenUsage::default();
    for minute in [100, 99, 40, 41] {
        usage.count(7, RateOutcome::Admitted, at(minute));
    }
    assert_eq!(sums(&usage.unwritten()), [(7, counts(4, 0))].into());
    let minutes: Vec<_> = usage.minutes(at(41)).iter().map(|usage| usage.minute - START).collect();
    assert_eq!(minutes, [40, 41]);
}

#[test]
fn only_minutes_that_changed_are_published_and_again_after_a_failure() {
    let usage = TokenUsage::default();
    assert!(usage.count(7, RateOutcome::Admitted, at(0)) && !usage.count(7, RateOutcome::Admitted, at(1)));
    let published = |usages: &[MinuteUsage]| usages.iter().map(|usage| usage.minute - START).collect::<Vec<_>>();
    let first = usage.take_unpublished();
    assert_eq!(published(&first), [0, 1]);
    assert!(usage.count(7, RateOutcome::Admitted, at(1)), "the first one since");
    assert_eq!(published(&usage.take_unpublished()), [1]);
    usage.count(7, RateOutcome::Admitted, at(3));
    assert!(!usage.put_back(&first), "it waits already");
    assert_eq!(published(&usage.take_unpublished()), [0, 1, 3]);
    assert!(usage.put_back(&first));
}
