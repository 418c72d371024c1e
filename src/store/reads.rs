//! The ledger of reads: which tokens were sent a submission, by day.
//!
//! `submission_reads` has a row for each day, token and chunk of 65,536 ids: a bitmap of the ids that the token was sent, and
//! the forms of these submissions. So a read costs two bytes at most and often a few bits, and "who has read this?" reads
//! one chunk of all days.
//!
//! Writes only add to the bitmaps: a write that is repeated, or that two nodes make, changes nothing. Each locks the row of
//! its day in `read_days` first, days in their order, so writers don't wait for each other in a circle.
//!
//! [`seal`] makes changes visible, [`gaps`] says when reads may be missing, [`readers`] answers.

mod digest;
mod gaps;
mod process;
mod readers;
mod seal;
mod write;

use std::collections::BTreeSet;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use roaring::RoaringBitmap;

use super::statement::Row;
pub use gaps::{NodeChange, ReadGap};
pub use readers::{Reader, SubmissionReaders, TokenReads};
pub(super) use seal::{ReadsVerdict, Seals};
pub(super) use write::add;

/// How many ids a bitmap is about.
const CHUNK: i64 = 65_536;

/// For how many days reads are kept.
///
/// Larger: the tables grow. Smaller: who read something a year ago is forgotten.
pub const KEPT_DAYS: i64 = 400;

const SECONDS_A_DAY: i64 = 86_400;

/// A day of an account: its number from 1970-01-01 on, in the account's time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(i64);

impl Day {
    /// The day of an instant in a time zone.
    #[must_use]
    pub fn of(at: Timestamp, zone: &TimeZone) -> Self {
        let offset = i64::from(zone.to_offset(at).seconds());
        Self((at.as_second() + offset).div_euclid(SECONDS_A_DAY))
    }

    /// The first instant after this day, to within a change of the clock.
    #[must_use]
    pub fn end(self, zone: &TimeZone) -> Timestamp {
        let end = Timestamp::from_second((self.0 + 1).saturating_mul(SECONDS_A_DAY)).unwrap_or(Timestamp::MAX);
        let offset = SignedDuration::from_secs(i64::from(zone.to_offset(end).seconds()));
        end.checked_sub(offset).unwrap_or(end)
    }

    /// The day as a date. Days that no calendar has, as in a row that was written by SQL, become the last one that it has.
    #[must_use]
    pub fn date(self) -> Date {
        let start = Timestamp::from_second(self.0.saturating_mul(SECONDS_A_DAY)).unwrap_or(Timestamp::MAX);
        TimeZone::UTC.to_datetime(start).date()
    }

    fn of_date(date: Date) -> Option<Self> {
        let start = date.to_zoned(TimeZone::UTC).ok()?.timestamp();
        Some(Self(start.as_second().div_euclid(SECONDS_A_DAY)))
    }
}

/// What a row of the ledger is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadKey {
    /// The day.
    pub day: Day,
    /// The token.
    pub token: i64,
    chunk: i64,
}

impl ReadKey {
    /// The row for a submission.
    #[must_use]
    pub fn new(day: Day, token: i64, submission: i64) -> Self {
        Self { day, token, chunk: chunk_of(submission) }
    }

    /// Whether it is the row for a submission, on its day and for its token.
    #[must_use]
    pub fn is_about(&self, submission: i64) -> bool {
        self.chunk == chunk_of(submission)
    }
}

fn chunk_of(submission: i64) -> i64 {
    submission.div_euclid(CHUNK)
}

/// The place of a submission in its chunk.
fn offset_of(submission: i64) -> u32 {
    u32::try_from(submission.rem_euclid(CHUNK)).expect("it is below the size of a chunk")
}

/// Submissions of one chunk, and their forms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadSet {
    /// The places of the submissions in the chunk.
    offsets: RoaringBitmap,
    forms: BTreeSet<i64>,
}

impl ReadSet {
    /// Adds a submission; its form is left out if it is unknown. Returns whether the submission is new.
    pub fn insert(&mut self, submission: i64, form: Option<i64>) -> bool {
        self.forms.extend(form);
        self.offsets.insert(offset_of(submission))
    }

    /// Adds another set of the same chunk.
    pub fn add(&mut self, other: &Self) {
        self.offsets |= &other.offsets;
        self.forms.extend(&other.forms);
    }

    /// Whether it has a submission of its chunk.
    #[must_use]
    pub fn has(&self, submission: i64) -> bool {
        self.offsets.contains(offset_of(submission))
    }

    /// The number of submissions.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.offsets.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// What the columns `bitmap` and `forms` have: the portable format of Roaring bitmaps, and ids separated by blanks.
    fn stored(&self) -> (Vec<u8>, String) {
        let mut offsets = self.offsets.clone();
        offsets.optimize();
        let mut bitmap = Vec::with_capacity(offsets.serialized_size());
        offsets.serialize_into(&mut bitmap).expect("a vector takes all");
        (bitmap, self.forms.iter().map(i64::to_string).collect::<Vec<_>>().join(" "))
    }

    /// Reads the columns `bitmap` and `forms`. Refuses what formgate does not write, such as places beyond the chunk.
    fn read(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
        let bitmap: Vec<u8> = row.get(column)?;
        let mut unread = &bitmap[..];
        let offsets =
            RoaringBitmap::deserialize_from(&mut unread).map_err(|error| sqlx::Error::Decode(error.into()))?;
        if !unread.is_empty() || offsets.max().is_some_and(|last| i64::from(last) >= CHUNK) {
            return Err(sqlx::Error::Decode("a bitmap of reads is malformed".into()));
        }
        let forms = row.text(column + 1)?.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>();
        Ok(Self { offsets, forms: forms.map_err(|error: std::num::ParseIntError| sqlx::Error::Decode(error.into()))? })
    }

    /// The same for answers: a row that formgate did not write like this has no reads. `formgate audit verify` reports it.
    fn read_or_none(row: &Row, column: usize) -> Self {
        Self::read(row, column).unwrap_or_default()
    }
}

/// What a node has noted of an account's reads and not written.
#[derive(Clone, Debug)]
pub struct UnwrittenReads {
    /// By day, token and chunk, sorted.
    pub reads: Vec<(ReadKey, ReadSet)>,
    /// Identifies the node in `read_nodes`.
    pub node: String,
    /// What becomes of its row there.
    pub change: NodeChange,
    /// When reads were dropped, because too many waited to be written.
    pub lost: Option<ReadGap>,
    /// The current day.
    pub today: Day,
    /// The days before this one are over on every node.
    pub over_before: Day,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(date: &str) -> Day {
        Day::of_date(date.parse().unwrap()).unwrap()
    }

    #[test]
    fn a_day_is_that_of_the_time_zone() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let zone = |name| TimeZone::get(name).unwrap();
        for (instant, name, expected) in [
            ("2026-11-28T23:59:59Z", "UTC", "2026-11-28"),
            ("2026-11-28T23:00:00Z", "Europe/Berlin", "2026-11-29"),
            ("2026-11-28T22:59:59Z", "Europe/Berlin", "2026-11-28"),
            ("2026-11-28T11:00:00Z", "Pacific/Kiritimati", "2026-11-29"),
            ("2026-11-28T04:59:59Z", "America/New_York", "2026-11-27"),
        ] {
            let found = Day::of(at(instant), &zone(name));
            assert_eq!((found.date().to_string().as_str(), found), (expected, day(expected)), "{instant} {name}");
        }
        for name in ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati"] {
            let (of, zone) = (day("2026-11-28"), zone(name));
            assert_eq!(Day::of(of.end(&zone), &zone), day("2026-11-29"), "{name}");
            assert_eq!(Day::of(of.end(&zone) - SignedDuration::from_secs(1), &zone), of, "{name}");
        }
        assert!(Day(i64::MAX).date() > Day(0).date() && Day(i64::MIN).date() > Day(0).date(), "no panic");
    }

    #[test]
    fn every_id_has_a_chunk_and_a_place_in_it() {
        let ids = [1, 65_535, 65_536, 65_537, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, i64::MAX];
        for id in ids {
            let mut set = ReadSet::default();
            assert!(set.insert(id, Some(7)) && !set.insert(id, Some(8)) && set.has(id), "{id}");
            let key = ReadKey::new(Day(1), 1, id);
            assert_eq!(key.chunk * CHUNK + i64::from(offset_of(id)), id);
            for other in ids.iter().filter(|other| **other != id) {
                assert!(!(key.is_about(*other) && set.has(*other)), "{id} {other}");
            }
        }
    }

    #[test]
    fn sets_are_united_and_take_few_bytes() {
        let set = |ids: &[i64]| {
            let mut set = ReadSet::default();
            ids.iter().for_each(|id| _ = set.insert(*id, Some(id % 3)));
            set
        };
        let mut both = set(&[1, 2, 3]);
        both.add(&set(&[3, 4]));
        assert_eq!(both, set(&[4, 3, 2, 1]));
        both.insert(9, None);
        assert_eq!((both.len(), both.stored().1.as_str()), (5, "0 1 2"));
        let many: Vec<i64> = (0..65_536).collect();
        assert!(set(&many).stored().0.len() < 32, "a run");
        let even: Vec<i64> = (0..65_536).step_by(2).collect();
        assert!(set(&even).stored().0.len() < 8 * 1024 + 32, "a bit each");
    }
}
