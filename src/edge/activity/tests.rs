//! Tests of the timeouts of a connection, state by state.

use std::time::Duration;

use super::*;

fn new(limits: ConnectionLimits) -> Arc<Activity> {
    Activity::new(Instant::now(), limits)
}

fn assert_overdue_after(activity: &Activity, limit: Duration, expected: TimeoutCheck) {
    let due = Instant::now() + limit;
    let before = activity.check_timeouts(due - Duration::from_secs(1));
    assert!(matches!(before, TimeoutCheck::NextAt(then) if then <= due), "{before:?}");
    assert_eq!(activity.check_timeouts(due), expected);
}

#[test]
fn each_state_of_a_connection_has_its_own_time() {
    let limits = ConnectionLimits::default();
    let activity = new(limits);
    activity.await_head();
    assert_overdue_after(&activity, limits.head, TimeoutCheck::Stalled);
    activity.head_began();
    assert_overdue_after(&activity, limits.head, TimeoutCheck::Stalled);
    activity.head_ended();
    let (first, second) = (activity.begin_request(), activity.begin_request());
    drop(first);
    let long = Instant::now() + 100 * limits.idle;
    assert!(matches!(activity.check_timeouts(long), TimeoutCheck::NextAt(then) if then > long));
    activity.note_blocked_write();
    assert_overdue_after(&activity, limits.write, TimeoutCheck::Stalled);
    activity.note_write();
    drop(second);
    assert_overdue_after(&activity, limits.idle, TimeoutCheck::Idle);
    activity.begin_shutdown();
    assert_overdue_after(&activity, limits.closing, TimeoutCheck::Stalled);
    assert_eq!(activity.note_closed(), None, "the connection was idle");
}

#[test]
fn an_unread_response_is_overdue_although_others_are_read() {
    let limits = ConnectionLimits::default();
    let activity = new(limits);
    let _handling = activity.begin_request();
    activity.note_response_part(1);
    activity.note_response_part(3);
    assert_overdue_after(&activity, limits.write, TimeoutCheck::Stalled);
    activity.note_response_end(1);
    activity.note_response_end(3);
    let long = Instant::now() + 100 * limits.write;
    assert!(matches!(activity.check_timeouts(long), TimeoutCheck::NextAt(_)));
}

#[test]
fn a_drain_waits_for_open_requests_and_briefly_for_new_ones() {
    let limits = ConnectionLimits::default();
    let (second, now) = (Duration::from_secs(1), Instant::now());
    assert_eq!(limits.drain_grace, second);
    let later = |seconds: u32| Instant::now() + seconds * second;
    let called = |since: Instant| {
        let activity = Activity::new(since, limits);
        activity.await_head();
        activity.note_drain();
        activity
    };
    assert_eq!(called(now - second).check_timeouts(Instant::now()), TimeoutCheck::Idle, "quiet for long enough");
    let young = called(now);
    assert!(matches!(young.check_timeouts(Instant::now()), TimeoutCheck::NextAt(_)));
    assert_eq!(young.check_timeouts(later(1)), TimeoutCheck::Idle);

    young.head_began();
    assert_eq!(young.check_timeouts(later(1)), TimeoutCheck::Stalled, "a head that arrives byte by byte");
    young.head_ended();
    let handling = young.begin_request();
    assert!(matches!(young.check_timeouts(later(1000)), TimeoutCheck::NextAt(_)));
    drop(handling);
    assert_eq!(young.check_timeouts(later(1)), TimeoutCheck::Idle);

    let http_2 = Activity::new(now, limits);
    http_2.note_drain();
    http_2.begin_shutdown();
    assert_eq!(
        http_2.check_timeouts(later(1)),
        TimeoutCheck::Stalled,
        "it sent no request and does not read the GOAWAY"
    );
    drop(http_2.begin_request());
    assert!(matches!(http_2.check_timeouts(later(1)), TimeoutCheck::NextAt(_)), "it may have a response to read");
    assert_eq!(http_2.check_timeouts(later(5)), TimeoutCheck::Stalled);
}

#[test]
fn the_next_check_comes_before_anything_that_begins_meanwhile_is_overdue() {
    let limits = ConnectionLimits::default();
    let now = Instant::now();
    assert_eq!(new(limits).check_timeouts(now), TimeoutCheck::NextAt(now + limits.head.min(limits.idle)));
}

#[test]
fn a_connection_ages_out_by_requests_and_by_time() {
    let by_requests = new(ConnectionLimits { requests: 2, ..ConnectionLimits::default() });
    assert!(!by_requests.begin_request().is_last());
    assert!(by_requests.begin_request().is_last());
    assert_eq!(by_requests.check_timeouts(Instant::now()), TimeoutCheck::AgedOut);
    by_requests.begin_shutdown();
    assert_ne!(by_requests.check_timeouts(Instant::now()), TimeoutCheck::AgedOut, "it is reported once");
    assert!(new(ConnectionLimits { age: Duration::ZERO, ..ConnectionLimits::default() }).begin_request().is_last());
}

#[test]
fn overhead_bytes_are_allowed_in_proportion_to_bytes_of_requests_and_responses() {
    let activity = new(ConnectionLimits { overhead_bytes: 1000, overhead_factor: 8, ..ConnectionLimits::default() });
    activity.note_received(1000).unwrap();
    activity.note_received(10).unwrap_err();
    activity.note_request_bytes(10);
    activity.note_received(80).unwrap();
    activity.note_response_bytes(10);
    activity.note_received(80).unwrap();
    assert_eq!(activity.note_received(1), Err(Abuse::Flood));
    assert_eq!(activity.abuse(), Some(Abuse::Flood));
}

#[test]
fn a_warned_peer_may_finish_within_a_bounded_time() {
    let limits = ConnectionLimits::default();
    let later = |limit: Duration| Instant::now() + limit;
    let activity = new(limits);
    activity.note_goaway_reaction(GoawayReaction::KeepsReading);
    let handling = activity.begin_request();
    activity.begin_shutdown();
    assert_eq!(activity.due_goaway(), DueGoaway::Warning);
    assert!(
        matches!(activity.check_timeouts(later(limits.drain_grace)), TimeoutCheck::NextAt(_)),
        "a request is being handled"
    );
    assert_eq!(
        activity.check_timeouts(later(limits.closing)),
        TimeoutCheck::Warned,
        "requests would keep arriving forever"
    );
    drop(handling);
    assert_overdue_after(&activity, limits.drain_grace, TimeoutCheck::Warned);
    activity.begin_shutdown();
    assert_eq!(activity.due_goaway(), DueGoaway::Now);
    assert_overdue_after(&activity, limits.closing, TimeoutCheck::Stalled);
}

#[test]
fn a_peer_that_stops_reading_at_a_goaway_gets_it_with_its_response() {
    let limits = ConnectionLimits { requests: 1, ..ConnectionLimits::default() };
    let activity = new(limits);
    activity.note_goaway_reaction(GoawayReaction::StopsReading);
    let handling = activity.begin_request();
    assert_eq!(activity.due_goaway(), DueGoaway::WithResponse);
    assert!(matches!(activity.check_timeouts(Instant::now() + 100 * limits.idle), TimeoutCheck::NextAt(_)));
    drop(handling);
    assert!(activity.ended_aged_out());
    assert_overdue_after(&activity, limits.idle, TimeoutCheck::Idle);
    activity.begin_shutdown();
    assert_eq!(activity.due_goaway(), DueGoaway::Now);
    assert_eq!(activity.note_closed(), Some(limits.linger_total), "its next request may be in transit");
    let long = Instant::now() + 100 * limits.linger;
    assert!(matches!(activity.check_timeouts(long), TimeoutCheck::NextAt(_)), "the socket counts that time");
}

#[test]
fn a_drain_serves_one_more_request_of_such_a_peer() {
    let limits = ConnectionLimits::default();
    let activity = new(limits);
    activity.note_goaway_reaction(GoawayReaction::StopsReading);
    drop(activity.begin_request());
    activity.note_drain();
    assert_eq!(activity.due_goaway(), DueGoaway::WithResponse);
    assert_overdue_after(&activity, limits.drain_grace, TimeoutCheck::Idle);
    assert!(activity.begin_request().is_last());
    activity.begin_shutdown();
    assert_eq!(activity.note_closed(), Some(limits.drain_grace));
}
