//! What is noted is written once, held until then, and bounded.

use super::*;
use crate::tenant::token::PresentedToken;

const START: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(START + seconds).unwrap()
}

fn request(id: &str, seconds: i64) -> EndedRequest<'_> {
    EndedRequest {
        at: at(seconds),
        id,
        token: RequestToken::Known(7),
        method: "GET",
        route: Some("/me"),
        status: 200,
        duration_ms: 3,
        rows: None,
        caller: Some("192.0.2.77".parse().unwrap()),
        agent: Some("curl/8"),
        reason: None,
        is_counted: false,
    }
}

fn refusal(token: RequestToken, seconds: i64) -> EndedRequest<'static> {
    let (status, reason) = (401, Some("token_unknown"));
    EndedRequest { token, status, reason, route: None, is_counted: true, ..request("refused", seconds) }
}

fn invented() -> RequestToken {
    let header = format!("Bearer {}", PresentedToken::generate().expose());
    RequestToken::Refused(SentToken::from_authorization(header.as_bytes()).unwrap())
}

fn ids(rows: &[LoggedRequest]) -> Vec<&str> {
    rows.iter().map(|row| &*row.id).collect()
}

#[test]
fn a_row_is_held_until_its_write_is_confirmed_and_a_failed_write_is_repeated() {
    let log = RequestLog::default();
    log.note(&request("one", 0));
    log.note(&request("two", 0));
    let failed = log.take(at(1));
    log.note(&request("three", 0));
    assert_eq!(ids(&log.unwritten()), ["one", "two", "three"]);
    let again = log.take(at(6));
    assert_eq!((ids(&failed.rows), ids(&again.rows)), (vec!["one", "two"], vec!["one", "two", "three"]));
    assert_eq!(failed.rows[..], again.rows[..2], "with the same keys");
    log.note(&request("four", 0));
    log.confirm(&again, at(7));
    assert_eq!(ids(&log.unwritten()), ["four"]);
    let keys: std::collections::BTreeSet<_> = again.rows.iter().map(|row| row.key).collect();
    assert_eq!(keys.len(), 3, "requests of one instant");
    let row = &again.rows[0];
    assert_eq!(
        (row.network.as_deref(), row.agent.as_deref(), row.token),
        (Some("192.0.2.0/24"), Some("curl/8"), Some(7))
    );
}

#[test]
fn refusals_are_counted_by_token_reason_and_minute_and_written_as_their_sum() {
    let log = RequestLog::default();
    let [one, two] = [invented(), invented()];
    for token in [one, one, two, RequestToken::Known(7), one] {
        log.note(&refusal(token, 0));
    }
    let count = |rows: &[LoggedRequest]| rows.iter().map(|row| row.counted.unwrap()).sum::<u32>();
    let first = log.take(at(5));
    assert_eq!((first.rows.len(), count(&first.rows)), (3, 5));
    log.note(&refusal(one, 1));
    log.confirm(&first, at(6));
    let second = log.take(at(10));
    assert_eq!((second.rows.len(), count(&second.rows)), (1, 4), "only what changed, with all of its count");
    let same = first.rows.iter().find(|row| row.key == second.rows[0].key).expect("the same row");
    assert_eq!(same.counted, Some(3));
    log.confirm(&second, at(11));
    assert_eq!(log.unwritten(), []);
    // The next minute has rows of its own.
    log.note(&refusal(one, 70));
    let third = log.take(at(71));
    assert_eq!((third.rows.len(), count(&third.rows)), (1, 1));
    assert_ne!(third.rows[0].key, second.rows[0].key);
}

#[test]
fn a_flood_of_invented_tokens_has_a_hundred_rows_a_minute() {
    let log = RequestLog::default();
    for _ in 0..5_000 {
        log.note(&refusal(invented(), 0));
    }
    let rows = log.take(at(1)).rows;
    assert_eq!(rows.len(), MAX_COUNTED_APART + 1);
    assert_eq!(rows.iter().map(|row| row.counted.unwrap()).sum::<u32>(), 5_000, "none is lost");
    const REASONS: [&str; 30] = [
        "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v",
        "w", "x", "y", "z", "A", "B", "C", "D",
    ];
    let noted: Vec<_> =
        REASONS.map(|reason| log.note(&EndedRequest { reason: Some(reason), ..refusal(invented(), 0) })).into();
    assert!(noted.contains(&NotedAs::Dropped), "{noted:?}");
    assert_eq!(log.unwritten().len(), MAX_COUNTED_A_MINUTE);
    // A slow request of the minute before begins no second hundred.
    log.note(&refusal(invented(), 65));
    for _ in 0..200 {
        log.note(&refusal(invented(), 55));
        log.note(&refusal(invented(), 65));
    }
    assert_eq!(log.unwritten().len(), MAX_COUNTED_A_MINUTE + MAX_COUNTED_APART + 1);
}

#[test]
fn an_account_that_is_not_written_holds_its_newest_rows() {
    let log = RequestLog::default();
    let id = |number: usize| number.to_string();
    for number in 0..MAX_HELD {
        assert_eq!(log.note(&request(&id(number), 0)), NotedAs::Row);
    }
    let taken = log.take(at(1));
    for number in MAX_HELD..MAX_HELD + 10 {
        assert_eq!(log.note(&request(&id(number), 2)), NotedAs::Dropped);
    }
    let held = log.unwritten();
    assert_eq!((held.len(), &*held[0].id), (MAX_HELD, "10"));
    log.confirm(&taken, at(3));
    assert_eq!(ids(&log.unwritten()), (MAX_HELD..MAX_HELD + 10).map(id).collect::<Vec<_>>());
}

#[test]
fn old_rows_are_deleted_at_first_and_after_many_rows_or_hours() {
    let log = RequestLog::default();
    let write = |count: usize, seconds: i64| {
        (0..count).for_each(|_| _ = log.note(&request("one", seconds)));
        let taken = log.take(at(seconds));
        log.confirm(&taken, at(seconds));
        taken.deletes_old
    };
    let half = ROWS_BETWEEN_DELETIONS / 2;
    assert_eq!(
        [write(1, 0), write(1, 5), write(half, 10), write(half, 15), write(1, 20)],
        [true, false, false, true, false]
    );
    assert_eq!([write(1, 3600), write(1, 6 * 3600 + 120), write(1, 6 * 3600 + 180)], [false, true, false]);
}
