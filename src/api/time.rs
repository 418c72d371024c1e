//! Timestamps in requests, and the account's time zone.

use std::borrow::Cow;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::fmt::temporal::Pieces;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, ToSpan};

/// Which end of a time range a parameter sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// The first instant of the range.
    Start,
    /// The last instant of the range.
    End,
}

/// The first instant of a range that starts at `YYYY-MM-DD`, a day in a time zone, or at an RFC 3339 date-time.
#[must_use]
pub fn parse_range_start(text: &str, zone: &TimeZone) -> Option<Timestamp> {
    parse_bound(text, Bound::Start, zone)
}

/// The last instant of a range that ends with such a day, or at such a date-time.
#[must_use]
pub fn parse_range_end(text: &str, zone: &TimeZone) -> Option<Timestamp> {
    parse_bound(text, Bound::End, zone)
}

/// Parses `YYYY-MM-DD`, a day in the account's time zone, or an RFC 3339 date-time. Stored timestamps have
/// microseconds, so a finer bound is rounded into the range. The last day of the year 9999, which some clients use for
/// "forever", ends after the last timestamp that can be stored, and is read as that one.
pub(super) fn parse_bound(text: &str, bound: Bound, zone: &TimeZone) -> Option<Timestamp> {
    if text.len() == "YYYY-MM-DD".len() {
        let date: Date = text.parse().ok()?;
        return Some(day_bound(date, bound, zone));
    }
    // RFC 3339 requires a full date, a `T`, seconds and an offset; the parser accepts more.
    let bytes = text.as_bytes();
    let digits =
        |range: std::ops::Range<usize>| bytes.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_digit));
    let time_follows =
        matches!(bytes.get(10), Some(b'T' | b't' | b' ')) && digits(0..4) && digits(11..13) && digits(17..19);
    if !time_follows || text.contains('[') {
        return None;
    }
    let pieces = Pieces::parse(text).ok()?;
    let (time, offset) = (pieces.time()?, pieces.to_numeric_offset()?);
    let instant = offset.to_timestamp(pieces.date().to_datetime(time)).unwrap_or(Timestamp::MAX);
    let micros = instant.as_nanosecond().div_euclid(1000);
    let cut = instant.as_nanosecond().rem_euclid(1000) > 0;
    let micros = if cut && bound == Bound::Start { micros + 1 } else { micros };
    Some(Timestamp::from_microsecond(i64::try_from(micros).ok()?).unwrap_or_else(|_| last_instant()))
}

/// A day starts at its first instant, which is not midnight if a clock change skips it, and ends a microsecond before
/// the next day starts.
fn day_bound(date: Date, bound: Bound, zone: &TimeZone) -> Timestamp {
    let instant = match bound {
        Bound::Start => first_instant(date, zone),
        Bound::End => {
            let next = date.checked_add(1.day()).ok().and_then(|next| first_instant(next, zone));
            next.and_then(|next| next.checked_sub(SignedDuration::from_micros(1)).ok())
        }
    };
    instant.unwrap_or_else(last_instant)
}

/// The last whole second that can be represented: microseconds are counted no further.
fn last_instant() -> Timestamp {
    Timestamp::from_second(Timestamp::MAX.as_second()).expect("it is not later than the last one")
}

fn first_instant(date: Date, zone: &TimeZone) -> Option<Timestamp> {
    Some(date.to_zoned(zone.clone()).ok()?.start_of_day().ok()?.timestamp())
}

/// Formats a `time` answer: `HH:MM` with the abbreviation of the account's time zone at an instant, such as `09:30
/// CEST`. Values that are not `HH:MM` are unchanged.
pub(super) fn time_of_day<'v>(value: &'v str, at: Timestamp, zone: &TimeZone) -> Cow<'v, str> {
    let is_time = matches!(
        value.as_bytes(),
        [b'0'..=b'1', b'0'..=b'9', b':', b'0'..=b'5', b'0'..=b'9']
            | [b'2', b'0'..=b'3', b':', b'0'..=b'5', b'0'..=b'9']
    );
    if is_time { format!("{value} {}", zone.to_offset_info(at).abbreviation()).into() } else { value.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instant::Rfc3339Micros;

    fn zone(name: &str) -> TimeZone {
        TimeZone::get(name).unwrap()
    }

    fn bound(text: &str, bound: Bound, name: &str) -> Option<String> {
        parse_bound(text, bound, &zone(name)).map(|instant| Rfc3339Micros(instant).to_string())
    }

    #[test]
    fn a_plain_date_is_a_day_of_the_accounts_zone_also_when_clocks_change() {
        assert_eq!(bound("2024-03-31", Bound::Start, "Europe/Berlin").unwrap(), "2024-03-30T23:00:00.000000Z");
        assert_eq!(bound("2024-03-31", Bound::End, "Europe/Berlin").unwrap(), "2024-03-31T21:59:59.999999Z");
        // In São Paulo, clocks went from midnight to 01:00.
        assert_eq!(bound("2018-11-04", Bound::Start, "America/Sao_Paulo").unwrap(), "2018-11-04T03:00:00.000000Z");
        assert_eq!(bound("2018-11-03", Bound::End, "America/Sao_Paulo").unwrap(), "2018-11-04T02:59:59.999999Z");
    }

    #[test]
    fn a_date_time_is_an_instant_and_a_finer_bound_moves_inside() {
        assert_eq!(bound("2024-05-01T13:45:30+02:00", Bound::Start, "UTC").unwrap(), "2024-05-01T11:45:30.000000Z");
        assert_eq!(bound("2024-05-01T00:00:00.0000001Z", Bound::Start, "UTC").unwrap(), "2024-05-01T00:00:00.000001Z");
        assert_eq!(bound("2024-05-01T00:00:00.0000019Z", Bound::End, "UTC").unwrap(), "2024-05-01T00:00:00.000001Z");
    }

    #[test]
    fn invalid_dates_are_refused_and_the_ends_of_time_do_not_panic() {
        for text in [
            "",
            "yesterday",
            "2024-02-30",
            "2024-5-1",
            "20240501",
            "2024-05-01T13",
            "2024-05-01T13:45:30",
            "2024-05-01T13:45:30Z[UTC]",
            "+002024-05-01",
            "2024-05-01 ",
            "0000-00-00",
        ] {
            assert_eq!(bound(text, Bound::Start, "UTC"), None, "{text:?}");
        }
        for text in ["9999-12-31", "0000-01-01", "9999-12-31T23:59:59.999999999Z", "-009999-01-01"] {
            for zone in ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"] {
                let _ = (bound(text, Bound::Start, zone), bound(text, Bound::End, zone));
            }
        }
    }

    #[test]
    fn the_last_day_of_the_year_9999_is_read_as_the_last_instant() {
        let last = "9999-12-30T22:00:00.000000Z";
        for text in ["9999-12-31", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999999-12:00"] {
            for zone in ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"] {
                assert_eq!(bound(text, Bound::End, zone).as_deref(), Some(last), "{text} {zone}");
            }
        }
        assert_eq!(bound("9999-12-31", Bound::Start, "UTC").as_deref(), Some(last));
        assert_eq!(bound("9999-12-31T00:00:00.0000001Z", Bound::Start, "UTC").as_deref(), Some(last));
    }

    #[test]
    fn a_time_answer_carries_the_abbreviation_of_its_instant() {
        let berlin = zone("Europe/Berlin");
        assert_eq!(time_of_day("09:30", "2024-07-01T00:00:00Z".parse().unwrap(), &berlin), "09:30 CEST");
        assert_eq!(time_of_day("09:30", "2024-01-01T00:00:00Z".parse().unwrap(), &berlin), "09:30 CET");
        assert_eq!(time_of_day("half past nine", "2024-01-01T00:00:00Z".parse().unwrap(), &berlin), "half past nine");
        assert_eq!(time_of_day("24:00", "2024-01-01T00:00:00Z".parse().unwrap(), &berlin), "24:00");
    }
}
