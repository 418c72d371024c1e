//! A row of a table, and what the text of an answer stands for.
//!
//! Graduated children have their answers in the row of their parent, so a cell may have several: one a line, in the order
//! of the children. A child that left a field empty keeps its line, so the lines of two cells belong together.

use std::borrow::Cow;

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

use super::super::id::IdKind;
use super::super::submissions::{FileJson, ShownAnswer, shown_answer};
use super::columns::Columns;
use crate::store::{Field, Submission};

/// The answers in a row to one field.
#[derive(Debug, Default)]
pub(super) struct Cell<'r> {
    /// As the API shows them, one a line; empty if all are.
    pub(super) text: Cow<'r, str>,
    /// The text to parse: as stored, if there is one answer.
    pub(super) stored: Cow<'r, str>,
    pub(super) files: Vec<FileJson>,
    answers: usize,
}

impl<'r> Cell<'r> {
    fn add(&mut self, stored: &'r str, ShownAnswer { value, files }: ShownAnswer<'r>) {
        if self.answers == 0 {
            (self.text, self.stored) = (value, stored.into());
        } else {
            let text = self.text.to_mut();
            text.push('\n');
            text.push_str(&value);
            self.stored = Cow::default();
        }
        self.files.extend(files);
        self.answers += 1;
    }

    fn end(&mut self) {
        if self.answers > 1 && self.text.bytes().all(|byte| byte == b'\n') {
            self.text = Cow::default();
        }
    }
}

/// A row: a submission, or that it was deleted.
#[derive(Debug)]
pub(super) struct TableRow<'r> {
    /// As the API shows it.
    pub(super) id: String,
    /// `None` if it was deleted.
    pub(super) facts: Option<RowFacts<'r>>,
    /// One for each field.
    pub(super) cells: Vec<Cell<'r>>,
}

/// The properties of a submission that are not answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowFacts<'r> {
    pub(super) status: &'r str,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

/// Which column each field of submissions has, if any, and whether the field is a time.
#[derive(Debug, Default)]
pub(super) struct ColumnsOfFields(Vec<(Option<usize>, bool)>);

impl ColumnsOfFields {
    pub(super) fn of(columns: &Columns, fields: &[Field<'_>]) -> Self {
        Self(fields.iter().map(|field| (columns.position(field.id), field.kind == "time")).collect())
    }
}

impl<'r> TableRow<'r> {
    /// The row of a submission. An answer to a field that the table does not have is left out.
    pub(super) fn of(
        columns: &Columns,
        fields: &ColumnsOfFields,
        submission: &'r Submission<'_>,
        zone: &TimeZone,
    ) -> Self {
        let mut cells: Vec<Cell<'r>> = columns.fields.iter().map(|_| Cell::default()).collect();
        for answer in &submission.entries {
            if let (Some(position), is_time) = fields.0[answer.field] {
                cells[position].add(&answer.value, shown_answer(is_time, answer, zone));
            }
        }
        cells.iter_mut().for_each(Cell::end);
        let facts = RowFacts {
            status: submission.status,
            created_at: submission.created_at,
            updated_at: submission.updated_at,
        };
        Self { id: IdKind::Submission.id(submission.id).to_string(), facts: Some(facts), cells }
    }

    /// The row of a submission that was deleted.
    pub(super) fn deleted(columns: &Columns, id: i64) -> Self {
        let cells = columns.fields.iter().map(|_| Cell::default()).collect();
        Self { id: IdKind::Submission.id(id).to_string(), facts: None, cells }
    }
}

/// Whether a text is a decimal number as JSON, SQL and spreadsheets in English read it: `-1.5`, `+2`, `.5`, `1e9`.
pub(super) fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).map_or((unsigned, None), |(m, e)| (m, Some(e)));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let has_digits = !(whole.is_empty() && fraction.is_empty()) && are_digits(whole) && are_digits(fraction);
    let exponent = exponent.map(|exponent| exponent.strip_prefix(['+', '-']).unwrap_or(exponent));
    has_digits && exponent.is_none_or(|digits| !digits.is_empty() && are_digits(digits))
}

/// The number that a text is, if a double can be near it.
pub(super) fn parse_number(text: &str) -> Option<f64> {
    if is_number(text) { text.parse().ok().filter(|number: &f64| number.is_finite()) } else { None }
}

/// The days since 1970 of a `YYYY-MM-DD`. Years begin with 1, as in all readers of Parquet.
pub(super) fn parse_date(text: &str) -> Option<i32> {
    let is_plain = text.len() == "YYYY-MM-DD".len() && text.as_bytes()[0].is_ascii_digit();
    let date: Date = if is_plain { text.parse().ok()? } else { return None };
    if date.year() < 1 {
        return None;
    }
    let hours = date.duration_since(Date::constant(1970, 1, 1)).as_hours();
    i32::try_from(hours / 24).ok()
}

/// The microseconds since midnight of an `HH:MM` or `HH:MM:SS`.
pub(super) fn parse_time(text: &str) -> Option<i64> {
    let (bytes, shape) = (text.as_bytes(), b"00:00:00");
    let is_plain = [5, 8].contains(&bytes.len())
        && bytes
            .iter()
            .zip(shape)
            .all(|(byte, shape)| if *shape == b':' { byte == shape } else { byte.is_ascii_digit() });
    let time: Time = if is_plain { text.parse().ok()? } else { return None };
    // A leap second is read as the second before it.
    Some(time.duration_since(Time::midnight()).as_secs() * 1_000_000)
}

/// The choices that a text lists.
pub(super) fn choices(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_digits_a_sign_a_point_and_an_exponent_and_nothing_else() {
        for (text, number) in [
            ("5", 5.0),
            ("-5", -5.0),
            ("+4930", 4930.0),
            ("007", 7.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("-1.25e-2", -0.0125),
            ("1E3", 1000.0),
            ("12345678901234567890", 12_345_678_901_234_567_890.0),
        ] {
            assert_eq!(parse_number(text), Some(number), "{text}");
        }
        for text in [
            "",
            "-",
            "+",
            ".",
            "-.",
            "e5",
            "1e",
            "1e+",
            "1,5",
            "1 000",
            " 1",
            "1 ",
            "+49 30",
            "0x10",
            "NaN",
            "inf",
            "-infinity",
            "=1",
            "--1",
            "1.2.3",
            "1e5e5",
            "١",
            "1_000",
        ] {
            assert_eq!(parse_number(text), None, "{text}");
            assert!(!is_number(text), "{text}");
        }
        // A number all the same.
        assert!(is_number("1e400"));
        assert_eq!(parse_number("1e400"), None);
    }

    #[test]
    fn a_date_exists_and_is_written_in_one_way() {
        assert_eq!(parse_date("1970-01-01"), Some(0));
        assert_eq!(parse_date("2024-02-29"), Some(19_782));
        assert_eq!(parse_date("1969-12-31"), Some(-1));
        assert_eq!(parse_date("0001-01-01"), Some(-719_162));
        assert_eq!(parse_date("9999-12-31"), Some(2_932_896));
        for text in [
            "",
            "2023-02-29",
            "2024-13-01",
            "0000-01-01",
            "20240229",
            "29.02.2024",
            "2024-2-9",
            "2024-02-29 ",
            "-024-01-01",
            "2024-W01-1",
        ] {
            assert_eq!(parse_date(text), None, "{text}");
        }
    }

    #[test]
    fn a_time_has_hours_and_minutes() {
        assert_eq!(parse_time("00:00"), Some(0));
        assert_eq!(parse_time("23:59:59"), Some(86_399_000_000));
        for text in
            ["", "24:00", "9:30", "09:60", "09:30 PM", "09:30 CEST", "0930", "09-30", "half past nine", "09:30:5"]
        {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn choices_are_lines() {
        assert_eq!(choices("Montag\nDIENSTAG\r\n\n").collect::<Vec<_>>(), ["Montag", "DIENSTAG"]);
        assert_eq!(choices("").count(), 0);
    }
}
