//! Instants as pages show them: in the account's time zone, and exactly for programs.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::texts::DatesTexts;

/// An instant on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Timestamp,
    /// For programs, such as in the attribute `datetime`: always with six digits, as in the API.
    pub(super) exact: String,
    /// To the minute or the second, with the abbreviation of the zone.
    pub(super) shown: String,
}

impl Moment {
    /// To the minute.
    pub(super) fn new(at: Timestamp, zone: &TimeZone, dates: &DatesTexts) -> Self {
        Self::formatted(at, zone, &dates.moment)
    }

    /// To the second.
    pub(super) fn with_second(at: Timestamp, zone: &TimeZone, dates: &DatesTexts) -> Self {
        Self::formatted(at, zone, &dates.second)
    }

    fn formatted(at: Timestamp, zone: &TimeZone, format: &str) -> Self {
        let zoned = at.to_zoned(zone.clone());
        Self { at, exact: exact(at), shown: zoned.strftime(format.as_bytes()).to_string() }
    }
}

/// An instant for programs.
pub(super) fn exact(at: Timestamp) -> String {
    format!("{at:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::administration::texts::Texts;
    use crate::config::Language;

    #[test]
    fn an_instant_is_shown_in_the_zone_of_the_account() {
        let at: Timestamp = "2026-07-04T22:05:59.9Z".parse().unwrap();
        let dates = &Texts::of(Language::English).dates;
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let moment = Moment::new(at, &zone, dates);
        assert_eq!((&*moment.shown, &*moment.exact), ("5 Jul 2026, 00:05 CEST", "2026-07-04T22:05:59.900000Z"));
        assert_eq!(Moment::with_second(at, &zone, dates).shown, "5 Jul 2026, 00:05:59 CEST");
    }
}
