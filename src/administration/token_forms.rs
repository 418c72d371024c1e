//! What the forms of tokens ask for: a name, an expiry, an overlap, and the key that makes sending a form idempotent.

use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use rand::RngExt;

use super::forms::Form;
use super::protection::hex;
use super::texts::TokenFormsTexts;
use super::times::Moment;
use crate::tenant::token::is_valid_name;

/// The furthest expiry, in years. Larger: a mistyped year passes. Smaller: tokens that are meant to last can't have an
/// expiry.
const MAX_YEARS: i64 = 10;

/// Bytes of a form key.
const KEY: usize = 16;

/// A choice in a form: its value, and what it says.
pub(super) type Choice = (&'static str, &'static str);

/// When a token may expire. `on` is the day in the field `expires_on`.
pub(super) fn expiries(text: &'static TokenFormsTexts) -> [Choice; 5] {
    [
        ("never", &text.never),
        ("30d", &text.in_30_days),
        ("90d", &text.in_90_days),
        ("1y", &text.in_a_year),
        ("on", &text.on_a_day),
    ]
}

/// How long the old value may be accepted after a rotation.
pub(super) fn overlaps(text: &'static TokenFormsTexts) -> [Choice; 4] {
    [("none", &text.not_at_all), ("1h", &text.one_hour), ("24h", &text.one_day), ("7d", &text.one_week)]
}

/// A field that can't be accepted, and why.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FieldFaults {
    pub(super) name: Option<&'static str>,
    pub(super) expires: Option<&'static str>,
    pub(super) overlap: Option<&'static str>,
    pub(super) form_key: Option<&'static str>,
}

impl FieldFaults {
    pub(super) fn any(&self) -> bool {
        [self.name, self.expires, self.overlap, self.form_key].iter().any(Option::is_some)
    }
}

/// The fields of a form as they are shown: empty, or as they were typed.
#[derive(Clone, Debug)]
pub(super) struct TypedToken {
    pub(super) name: String,
    pub(super) expires: String,
    pub(super) expires_on: String,
    pub(super) overlap: String,
    pub(super) form_key: String,
    /// The expiry of the token that is to be replaced, which is the first choice.
    pub(super) kept: Option<Moment>,
    pub(super) faults: FieldFaults,
}

impl TypedToken {
    /// A form that nothing was typed into. Sending it twice creates one token.
    pub(super) fn empty() -> Self {
        Self {
            name: String::new(),
            // The first choice.
            expires: String::new(),
            expires_on: String::new(),
            overlap: "24h".to_owned(),
            form_key: hex(&rand::rng().random::<[u8; KEY]>()),
            kept: None,
            faults: FieldFaults::default(),
        }
    }

    pub(super) fn of(form: &Form) -> Self {
        Self {
            name: form.field("name").trim().to_owned(),
            expires: form.field("expires").to_owned(),
            expires_on: form.field("expires_on").to_owned(),
            overlap: form.field("overlap").to_owned(),
            form_key: form.field("form_key").to_owned(),
            kept: None,
            faults: FieldFaults::default(),
        }
    }

    /// The name, or a fault.
    pub(super) fn check_name(&mut self, text: &'static TokenFormsTexts) -> String {
        if !is_valid_name(&self.name) {
            self.faults.name = Some(match self.name.is_empty() {
                true => &text.no_name,
                false => &text.bad_name,
            });
        }
        self.name.clone()
    }

    /// The key, or a fault.
    pub(super) fn check_key(&mut self, text: &'static TokenFormsTexts) -> String {
        let is_key = self.form_key.len() == 2 * KEY && self.form_key.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_key {
            self.faults.form_key = Some(&text.incomplete);
            self.form_key = Self::empty().form_key;
        }
        self.form_key.clone()
    }

    /// The instant of expiry, or a fault.
    pub(super) fn check_expiry(
        &mut self,
        now: Timestamp,
        zone: &TimeZone,
        text: &'static TokenFormsTexts,
    ) -> Option<Timestamp> {
        let days = |days: i64| Ok(Some(now + Duration::from_hours(24) * u32::try_from(days).unwrap_or(0)));
        let expiry = match self.expires.as_str() {
            "" | "never" => Ok(None),
            "30d" => days(30),
            "90d" => days(90),
            "1y" => days(365),
            "on" => end_of(&self.expires_on, now, zone, text).map(Some),
            _ => Err(&*text.no_choice),
        };
        expiry.unwrap_or_else(|fault| {
            self.faults.expires = Some(fault);
            None
        })
    }

    /// The instant of expiry of a token that replaces one, or a fault. The form has the old one's as an instant: it means
    /// what the page showed, also if somebody rotated the token since. A form without the field keeps it too.
    pub(super) fn check_next_expiry(
        &mut self,
        old: Option<Timestamp>,
        now: Timestamp,
        zone: &TimeZone,
        text: &'static TokenFormsTexts,
    ) -> Option<Timestamp> {
        if old.is_some_and(|old| old <= now) {
            // Rotating reports that it has expired.
            return None;
        }
        match self.expires.parse() {
            _ if self.expires.is_empty() => old,
            Ok(kept) if old.is_some() => Some(kept),
            Ok(_) | Err(_) => self.check_expiry(now, zone, text),
        }
    }

    /// The overlap, or a fault.
    pub(super) fn check_overlap(&mut self, text: &'static TokenFormsTexts) -> Duration {
        match self.overlap.as_str() {
            "none" => Duration::ZERO,
            "1h" => Duration::from_hours(1),
            "24h" => Duration::from_hours(24),
            "7d" => Duration::from_hours(7 * 24),
            _ => {
                self.faults.overlap = Some(&text.no_choice);
                Duration::ZERO
            }
        }
    }
}

/// The end of a day in the account's time zone.
fn end_of(
    day: &str,
    now: Timestamp,
    zone: &TimeZone,
    text: &'static TokenFormsTexts,
) -> Result<Timestamp, &'static str> {
    if day.is_empty() {
        return Err(&text.no_day);
    }
    let is_date = day.len() == 10 && day.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let day: Date = day.parse().ok().filter(|_| is_date).ok_or(&*text.bad_day)?;
    let end = day.tomorrow().and_then(|next| next.to_zoned(zone.clone())).map_err(|_| &*text.bad_day)?;
    let end = end.timestamp();
    if end <= now {
        return Err(&text.past_day);
    }
    let furthest = now.to_zoned(zone.clone()).checked_add(MAX_YEARS.years()).map(|furthest| furthest.timestamp());
    if furthest.is_ok_and(|furthest| end > furthest) {
        return Err(&text.far_day);
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::administration::texts::Texts;
    use crate::config::Language;

    fn text() -> &'static TokenFormsTexts {
        &Texts::of(Language::English).token_forms
    }

    fn expiry(expires: &str, on: &str) -> Result<Option<String>, &'static str> {
        let mut typed = TypedToken { expires: expires.to_owned(), expires_on: on.to_owned(), ..TypedToken::empty() };
        let now = "2026-03-07T12:00:00Z".parse().unwrap();
        let at = typed.check_expiry(now, &TimeZone::get("America/New_York").unwrap(), text());
        typed.faults.expires.map_or(Ok(at.map(|at| at.to_string())), Err)
    }

    #[test]
    fn an_expiry_is_a_number_of_days_or_the_end_of_a_day_of_the_account() {
        for (expires, on, expected) in [
            ("", "", None),
            ("never", "2020-01-01", None),
            ("30d", "", Some("2026-04-06T12:00:00Z")),
            ("1y", "", Some("2027-03-07T12:00:00Z")),
            ("on", "2026-03-07", Some("2026-03-08T05:00:00Z")),
            // The clocks change on this day.
            ("on", "2026-03-08", Some("2026-03-09T04:00:00Z")),
        ] {
            assert_eq!(expiry(expires, on), Ok(expected.map(str::to_owned)), "{expires} {on}");
        }
        for (expires, on) in [
            ("on", ""),
            ("on", "2026-03-06"),
            ("on", "2026-02-30"),
            ("on", "2036-03-08"),
            ("on", "9999-12-31"),
            ("on", "2026-3-9"),
            ("on", "tomorrow"),
            ("on", "2026-03-09T00:00"),
            ("31d", ""),
            ("NEVER", ""),
        ] {
            assert!(expiry(expires, on).is_err(), "{expires} {on}");
        }
    }

    #[test]
    fn a_token_that_replaces_one_keeps_its_expiry_unless_the_form_has_another() {
        let now: Timestamp = "2026-03-07T12:00:00Z".parse().unwrap();
        let [past, soon, later] = ["2026-03-07T12:00:00Z", "2026-03-07T12:00:01Z", "2027-01-01T00:00:00.000001Z"];
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        for (old, expires, expected) in [
            (None, "", Ok(None)),
            (None, "never", Ok(None)),
            (None, later, Err(())),
            (Some(later), "", Ok(Some(at(later)))),
            (Some(later), later, Ok(Some(at(later)))),
            (Some(later), "never", Ok(None)),
            (Some(later), "30d", Ok(Some(at("2026-04-06T12:00:00Z")))),
            (Some(later), "31d", Err(())),
            // Somebody rotated the token since the page was opened.
            (Some(soon), later, Ok(Some(at(later)))),
            (Some(past), later, Ok(None)),
            (Some(past), "", Ok(None)),
        ] {
            let mut typed = TypedToken { expires: expires.to_owned(), ..TypedToken::empty() };
            let found = typed.check_next_expiry(old.map(at), now, &TimeZone::UTC, text());
            assert_eq!(typed.faults.expires.map_or(Ok(found), |_| Err(())), expected, "{old:?} {expires}");
        }
    }

    #[test]
    fn a_key_is_that_of_a_form_that_was_shown() {
        let mut shown = TypedToken::empty();
        let key = shown.form_key.clone();
        assert_eq!(shown.check_key(text()), key);
        assert!(!shown.faults.any() && shown.form_key != TypedToken::empty().form_key);
        for wrong in ["", "0", &"g".repeat(32), &"0".repeat(33)] {
            let mut typed = TypedToken { form_key: wrong.to_owned(), ..TypedToken::empty() };
            assert!(typed.check_key(text()).len() == 32 && typed.faults.form_key.is_some(), "{wrong}");
        }
    }
}
