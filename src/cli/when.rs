//! Durations and instants on the command line: `90d`, `12h`, `2026-05-01T12:00:00Z`.

use std::time::Duration;

use jiff::Timestamp;

/// The longest duration, a hundred years of seconds.
///
/// Larger: sums with it are no instants. Smaller: no purpose.
const MAX_SECONDS: u64 = 100 * 365 * 86_400;

/// When something expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// Never.
    Never,
    /// A while from now.
    After(Duration),
    /// At an instant.
    At(Timestamp),
}

impl Expiry {
    /// The instant, if there is one.
    pub(super) fn instant(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Never => None,
            Self::After(duration) => Some(now + duration),
            Self::At(instant) => Some(instant),
        }
    }
}

/// A duration: a number and `s`, `m`, `h` or `d`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let fault = || "a duration is a number and s, m, h or d, such as 90d, 12h".to_owned();
    let unit = text.chars().last().ok_or_else(fault)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(fault()),
    };
    let number = &text[..text.len() - 1];
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(fault());
    }
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    let seconds = seconds.filter(|seconds| *seconds <= MAX_SECONDS);
    seconds.map(Duration::from_secs).ok_or_else(|| "a duration is at most a hundred years".to_owned())
}

/// An expiry: a duration, an RFC 3339 date-time, or `never`. Whether it lies in the future is decided when it is used.
pub(super) fn expiry(text: &str) -> Result<Expiry, String> {
    if text == "never" {
        return Ok(Expiry::Never);
    }
    if let Ok(duration) = duration(text) {
        return Ok(Expiry::After(duration));
    }
    let instant = text.parse::<Timestamp>();
    instant.map(Expiry::At).map_err(|_| {
        "an expiry is a number and s, m, h or d, such as 90d, an RFC 3339 date-time such as 2030-05-01T12:00:00Z, or \
         never"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_with_a_unit() {
        for (text, seconds) in [
            ("90d", Some(90 * 86_400)),
            ("12h", Some(12 * 3600)),
            ("30m", Some(1800)),
            ("0s", Some(0)),
            ("36500d", Some(MAX_SECONDS)),
            ("36501d", None),
            ("18446744073709551616s", None),
            ("18446744073709551615d", None),
            ("", None),
            ("d", None),
            ("90", None),
            ("-1d", None),
            ("+1d", None),
            ("1.5h", None),
            ("1 d", None),
            ("90D", None),
            ("1ü", None),
        ] {
            assert_eq!(duration(text).ok(), seconds.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn an_expiry_is_a_duration_or_an_instant() {
        let instant = Timestamp::from_second(1_900_000_000).unwrap();
        assert_eq!(expiry("1d"), Ok(Expiry::After(Duration::from_hours(24))));
        assert_eq!(expiry("2030-03-17T17:46:40Z"), Ok(Expiry::At(instant)));
        assert_eq!(expiry("2030-03-17T18:46:40+01:00"), Ok(Expiry::At(instant)));
        assert_eq!(expiry("never"), Ok(Expiry::Never));
        for text in ["", "2030-03-17", "tomorrow", "2030-03-17T17:46:40"] {
            assert!(expiry(text).is_err(), "{text}");
        }
        assert_eq!(Expiry::After(Duration::from_mins(1)).instant(instant), Some(instant + Duration::from_mins(1)));
        assert_eq!(Expiry::Never.instant(instant), None);
    }
}
