//! Tests of the outlook of a connection, state by state.

use std::time::Duration;

use super::*;

fn new(limits: ConnectionLimits) -> Arc<Activity> {
    Activity::new(Instant::now(), limits)
}

fn assert_overdue_after(activity: &Activity, limit: Duration, expected: Outlook) {
    let due = Instant::now() + limit;
    let before = activity.outlook(due - Duration::from_secs(1));
    assert!(matches!(before, Outlook::Until(then) if then <= due), "{before:?}");
    assert_eq!(activity.outlook(due), expected);
}

#[test]
fn each_state_of_a_connection_has_its_own_time() {
    let limits = ConnectionLimits::default();
    let activity = new(limits);
    activity.await_head();
    assert_overdue_after(&activity, limits.head, Outlook::Stalled);
    activity.head_began();
    assert_overdue_after(&activity, limits.head, Outlook::Stalled);
    activity.head_ended();
    let (first, second) = (activity.handle(), activity.handle());
    drop(first);
    let long = Instant::now() + 100 * limits.idle;
    assert!(matches!(activity.outlook(long), Outlook::Until(then) if then > long));
    activity.blocked();
    assert_overdue_after(&activity, limits.write, Outlook::Stalled);
    activity.wrote();
    drop(second);
    assert_overdue_after(&activity, limits.idle, Outlook::Idle);
    activity.leave();
    assert_overdue_after(&activity, limits.farewell, Outlook::Stalled);
    assert_eq!(activity.closed(), None, "nothing was going on");
}

#[test]
fn an_answer_that_nobody_takes_is_overdue_although_others_are_taken() {
    let limits = ConnectionLimits::default();
    let activity = new(limits);
    let _handling = activity.handle();
    activity.answering(1);
    activity.answering(3);
    assert_overdue_after(&activity, limits.write, Outlook::Stalled);
    activity.answer_ended(1);
    activity.answer_ended(3);
    let long = Instant::now() + 100 * limits.write;
    assert!(matches!(activity.outlook(long), Outlook::Until(_)));
}

#[test]
fn a_stop_waits_for_what_was_asked_and_shortly_for_what_may_be() {
    let limits = ConnectionLimits::default();
    let (second, now) = (Duration::from_secs(1), Instant::now());
    assert_eq!(limits.last_call, second);
    let later = |seconds: u32| Instant::now() + seconds * second;
    let called = |since: Instant| {
        let activity = Activity::new(since, limits);
        activity.await_head();
        activity.call_last();
        activity
    };
    assert_eq!(called(now - second).outlook(Instant::now()), Outlook::Idle, "quiet for long enough");
    let young = called(now);
    assert!(matches!(young.outlook(Instant::now()), Outlook::Until(_)));
    assert_eq!(young.outlook(later(1)), Outlook::Idle);

    young.head_began();
    assert_eq!(young.outlook(later(1)), Outlook::Stalled, "a head that is dripped in");
    young.head_ended();
    let handling = young.handle();
    assert!(matches!(young.outlook(later(1000)), Outlook::Until(_)));
    drop(handling);
    assert_eq!(young.outlook(later(1)), Outlook::Idle);

    let http_2 = Activity::new(now, limits);
    http_2.call_last();
    http_2.leave();
    assert_eq!(http_2.outlook(later(1)), Outlook::Stalled, "it never asked and takes no goodbye");
    drop(http_2.handle());
    assert!(matches!(http_2.outlook(later(1)), Outlook::Until(_)), "it may have an answer to take");
    assert_eq!(http_2.outlook(later(5)), Outlook::Stalled);
}

#[test]
fn it_is_asked_again_before_anything_that_may_begin_is_overdue() {
    let limits = ConnectionLimits::default();
    let now = Instant::now();
    assert_eq!(new(limits).outlook(now), Outlook::Until(now + limits.head.min(limits.idle)));
}

#[test]
fn a_connection_is_worn_by_its_requests_and_by_its_age() {
    let by_requests = new(ConnectionLimits { requests: 2, ..ConnectionLimits::default() });
    assert!(!by_requests.handle().is_last());
    assert!(by_requests.handle().is_last());
    assert_eq!(by_requests.outlook(Instant::now()), Outlook::Worn);
    by_requests.leave();
    assert_ne!(by_requests.outlook(Instant::now()), Outlook::Worn, "it is told once");
    assert!(new(ConnectionLimits { age: Duration::ZERO, ..ConnectionLimits::default() }).handle().is_last());
}

#[test]
fn bytes_of_no_request_are_allowed_in_proportion_to_those_of_requests_and_answers() {
    let activity = new(ConnectionLimits { overhead_bytes: 1000, overhead_factor: 8, ..ConnectionLimits::default() });
    activity.received(1000).unwrap();
    activity.received(10).unwrap_err();
    activity.asked(10);
    activity.received(80).unwrap();
    activity.answered(10);
    activity.received(80).unwrap();
    assert_eq!(activity.received(1), Err(Abuse::Flood));
    assert_eq!(activity.abuse(), Some(Abuse::Flood));
}

#[test]
fn a_warned_peer_may_finish_and_is_not_waited_for_without_end() {
    let limits = ConnectionLimits::default();
    let later = |limit: Duration| Instant::now() + limit;
    let activity = new(limits);
    activity.takes_goaway(Goaway::Warning);
    let handling = activity.handle();
    activity.leave();
    assert_eq!(activity.parting(), Parting::Warning);
    assert!(matches!(activity.outlook(later(limits.last_call)), Outlook::Until(_)), "a request is being handled");
    assert_eq!(activity.outlook(later(limits.farewell)), Outlook::Warned, "others would come for ever");
    drop(handling);
    assert_overdue_after(&activity, limits.last_call, Outlook::Warned);
    activity.leave();
    assert_eq!(activity.parting(), Parting::Now);
    assert_overdue_after(&activity, limits.farewell, Outlook::Stalled);
}

#[test]
fn a_peer_that_loses_what_comes_after_a_goaway_gets_it_with_a_response() {
    let limits = ConnectionLimits { requests: 1, ..ConnectionLimits::default() };
    let activity = new(limits);
    activity.takes_goaway(Goaway::Last);
    let handling = activity.handle();
    assert_eq!(activity.parting(), Parting::WithResponse);
    assert!(matches!(activity.outlook(Instant::now() + 100 * limits.idle), Outlook::Until(_)));
    drop(handling);
    assert!(activity.ended_worn());
    assert_overdue_after(&activity, limits.idle, Outlook::Idle);
    activity.leave();
    assert_eq!(activity.parting(), Parting::Now);
    assert_eq!(activity.closed(), Some(limits.linger_total), "its next request may be under way");
    let long = Instant::now() + 100 * limits.linger;
    assert!(matches!(activity.outlook(long), Outlook::Until(_)), "the socket counts that time");
}

#[test]
fn a_stop_gives_such_a_peer_one_more_request() {
    let limits = ConnectionLimits::default();
    let activity = new(limits);
    activity.takes_goaway(Goaway::Last);
    drop(activity.handle());
    activity.call_last();
    assert_eq!(activity.parting(), Parting::WithResponse);
    assert_overdue_after(&activity, limits.last_call, Outlook::Idle);
    assert!(activity.handle().is_last());
    activity.leave();
    assert_eq!(activity.closed(), Some(limits.last_call));
}
