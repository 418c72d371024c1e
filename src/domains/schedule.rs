//! When a domain is checked next, and when its certificate is renewed.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::acme::RenewalWindow;

/// How long after each failed order in a row the next one is tried.
const BACK_OFF: [Duration; 6] = [
    Duration::from_mins(5),
    Duration::from_mins(15),
    Duration::from_hours(1),
    Duration::from_hours(4),
    Duration::from_hours(12),
    Duration::from_hours(24),
];

/// How often a domain with wrong records is checked, by its age in that state: often while its owner sets records, and
/// rarely later.
const DNS_CHECKS: [(Duration, Duration); 4] = [
    (Duration::from_mins(10), Duration::from_secs(5)),
    (Duration::from_hours(1), Duration::from_mins(1)),
    (Duration::from_hours(24), Duration::from_mins(10)),
    (Duration::from_hours(30 * 24), Duration::from_hours(1)),
];

/// How often a live domain is checked: records may change later.
///
/// Larger: records that were changed are noticed later, at worst when the certificate can't be renewed. Smaller: more
/// queries.
pub(super) const LIVE_CHECK: Duration = Duration::from_hours(24);

/// How often a domain is checked that has a certificate and whose records became wrong.
pub(super) const FAILING_CHECK: Duration = Duration::from_mins(10);

/// How long until DNS is asked again after it was unreachable.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Below this lifetime, a certificate is renewed when half of it is left.
const SHORT_LIVED: Duration = Duration::from_hours(10 * 24);

/// The same instant, or the whole second after it: what people read and what rows store.
pub(super) fn to_second(at: Timestamp) -> Timestamp {
    let second = Timestamp::from_second(at.as_second()).unwrap_or(at);
    if second < at { second + Duration::from_secs(1) } else { second }
}

/// How long an order waits after this number of failures in a row.
pub(super) fn back_off(failures: i64) -> Duration {
    let at = usize::try_from(failures.max(1) - 1).unwrap_or(usize::MAX).min(BACK_OFF.len() - 1);
    BACK_OFF[at]
}

/// How long until the next check of a domain whose records have been wrong since an instant.
pub(super) fn until_dns_check(since: Timestamp, now: Timestamp) -> Duration {
    let age = now.duration_since(since).unsigned_abs();
    let check = DNS_CHECKS.iter().find(|(until, _)| age < *until);
    check.map_or(LIVE_CHECK, |(_, pause)| *pause)
}

/// The latest instant at which a certificate is renewed: a third of its life is left, or half of a short one.
fn latest_renewal(not_before: Timestamp, not_after: Timestamp) -> Timestamp {
    let life = not_after.duration_since(not_before);
    let left = if life.unsigned_abs() < SHORT_LIVED { life / 2 } else { life / 3 };
    not_after - left
}

/// When a certificate is renewed: a random instant in the window that its CA suggests, never later than with a
/// third of its life left. `random` is between 0 and 1.
pub(super) fn renew_at(
    not_before: Timestamp,
    not_after: Timestamp,
    window: Option<&RenewalWindow>,
    random: f64,
) -> Timestamp {
    let latest = latest_renewal(not_before, not_after);
    match window {
        Some(window) => {
            let length = window.end.duration_since(window.start).max(SignedDuration::ZERO);
            (window.start + length.mul_f64(random)).min(latest)
        }
        // Spread over a twentieth of its life, so that certificates that were issued together are not renewed together.
        None => latest - not_after.duration_since(not_before).mul_f64(random / 20.0),
    }
}

/// From when on a renewal is late: half of the time between the latest renewal and the end has passed.
pub(super) fn late_at(not_before: Timestamp, not_after: Timestamp) -> Timestamp {
    let latest = latest_renewal(not_before, not_after);
    latest + not_after.duration_since(latest) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(hours * 3600).unwrap()
    }

    fn window(start: i64, end: i64) -> RenewalWindow {
        RenewalWindow { start: at(start), end: at(end), explanation: None, retry_after: Duration::from_hours(6) }
    }

    #[test]
    fn a_certificate_is_renewed_with_a_third_of_its_life_left_and_a_short_one_with_half() {
        assert_eq!(renew_at(at(0), at(90 * 24), None, 0.0), at(60 * 24));
        assert_eq!(renew_at(at(0), at(6 * 24), None, 0.0), at(3 * 24));
        let early = renew_at(at(0), at(90 * 24), None, 1.0);
        assert_eq!(early, at(60 * 24) - SignedDuration::from_hours(108), "spread over a twentieth");
    }

    #[test]
    fn the_window_of_the_authority_decides_up_to_the_latest_instant() {
        assert_eq!(renew_at(at(0), at(90 * 24), Some(&window(100, 200)), 0.5), at(150));
        assert_eq!(renew_at(at(0), at(90 * 24), Some(&window(88 * 24, 89 * 24)), 0.5), at(60 * 24), "the guard");
        assert_eq!(
            renew_at(at(0), at(90 * 24), Some(&window(200, 100)), 0.5),
            at(200),
            "a window that ends before it begins"
        );
    }

    #[test]
    fn a_renewal_is_late_half_way_to_the_end() {
        assert_eq!(late_at(at(0), at(90 * 24)), at(75 * 24));
    }

    #[test]
    fn no_instant_becomes_earlier() {
        for (milliseconds, second) in [(7_000, 7), (7_001, 8), (7_999, 8)] {
            assert_eq!(
                to_second(Timestamp::from_millisecond(milliseconds).unwrap()),
                Timestamp::from_second(second).unwrap()
            );
        }
    }

    #[test]
    fn tries_become_rare() {
        let minutes: Vec<_> = (0..9).map(|failures| back_off(failures).as_secs() / 60).collect();
        assert_eq!(minutes, [5, 5, 15, 60, 240, 720, 1440, 1440, 1440]);
        assert_eq!(until_dns_check(at(0), at(0)), Duration::from_secs(5));
        assert_eq!(until_dns_check(at(0), at(2)), Duration::from_mins(10));
        assert_eq!(until_dns_check(at(0), at(24 * 365)), LIVE_CHECK);
        assert_eq!(until_dns_check(at(1), at(0)), Duration::from_mins(10), "the clock was set back");
    }
}
