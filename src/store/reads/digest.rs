//! The digest of a day of the ledger, which its seal has.
//!
//! It is SHA-256 over these bytes, in this order:
//!
//! 1. the number of the day
//! 2. for each row, by token and chunk: a byte 1, the token, the chunk, the number of submissions, the place of each in the
//!    chunk in ascending order as 2 bytes, the number of forms, each form in ascending order
//! 3. in place of such a row, for one that formgate did not write like this: a byte 3, the token, the chunk, the number of bytes of
//!    its bitmap, these, the number of bytes of its forms, these
//! 4. for each gap that was recorded on this day, by beginning and node: a byte 2, its beginning and its end in microseconds since
//!    1970, the number of bytes of the node's name, the name
//!
//! Numbers have 8 bytes unless said otherwise, most significant first. So no two different days have the same encoding, and
//! it does not depend on how a bitmap is stored.

use sha2::{Digest, Sha256};

use super::{Day, ReadGap, ReadKey, ReadSet};

/// What a seal says about a day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DaySummary {
    /// The digest, in hexadecimal.
    pub(super) digest: String,
    /// How many tokens were sent something.
    pub(super) tokens: u64,
    /// How many submissions they were sent, by token.
    pub(super) reads: u64,
    /// How many gaps were recorded.
    pub(super) gaps: u64,
}

impl DaySummary {
    /// Whether there is neither a read nor a gap.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens == 0 && self.gaps == 0
    }
}

/// Computes the digest from the rows in their order, and then the gaps in theirs.
#[derive(Debug)]
pub(super) struct DayDigest {
    sha: Sha256,
    summary: DaySummary,
    last_token: Option<i64>,
}

impl DayDigest {
    pub(super) fn new(day: Day) -> Self {
        let sha = Sha256::new().chain_update(day.0.to_be_bytes());
        Self { sha, summary: DaySummary::default(), last_token: None }
    }

    pub(super) fn add(&mut self, key: &ReadKey, set: &ReadSet) {
        self.sha.update([1]);
        self.sha.update(key.token.to_be_bytes());
        self.sha.update(key.chunk.to_be_bytes());
        self.sha.update(set.len().to_be_bytes());
        let offsets: Vec<u8> = set.offsets.iter().flat_map(|at| at.to_be_bytes().into_iter().skip(2)).collect();
        self.sha.update(&offsets);
        self.sha.update((set.forms.len() as u64).to_be_bytes());
        set.forms.iter().for_each(|form| self.sha.update(form.to_be_bytes()));
        self.summary.tokens += u64::from(self.last_token != Some(key.token));
        self.last_token = Some(key.token);
        self.summary.reads += set.len();
    }

    pub(super) fn add_malformed(&mut self, key: &ReadKey, bitmap: &[u8], forms: &str) {
        self.sha.update([3]);
        self.sha.update(key.token.to_be_bytes());
        self.sha.update(key.chunk.to_be_bytes());
        for bytes in [bitmap, forms.as_bytes()] {
            self.sha.update((bytes.len() as u64).to_be_bytes());
            self.sha.update(bytes);
        }
        self.summary.tokens += u64::from(self.last_token != Some(key.token));
        self.last_token = Some(key.token);
    }

    pub(super) fn add_gap(&mut self, node: &str, gap: &ReadGap) {
        self.sha.update([2]);
        self.sha.update(gap.from.as_microsecond().to_be_bytes());
        self.sha.update(gap.until.as_microsecond().to_be_bytes());
        self.sha.update((node.len() as u64).to_be_bytes());
        self.sha.update(node);
        self.summary.gaps += 1;
    }

    pub(super) fn finish(self) -> DaySummary {
        let digest = self.sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        DaySummary { digest, ..self.summary }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn rows() -> Vec<(ReadKey, ReadSet)> {
        let mut reads: Vec<(ReadKey, ReadSet)> = Vec::new();
        for (token, ids) in [(1, [1, 2]), (1, [70_000, 70_001]), (3, [1, 5])] {
            let mut set = ReadSet::default();
            ids.iter().for_each(|id| _ = set.insert(*id, Some(id % 7)));
            reads.push((ReadKey::new(Day(20_000), token, ids[0]), set));
        }
        reads
    }

    fn gap(from: i64) -> ReadGap {
        ReadGap { from: Timestamp::from_second(from).unwrap(), until: Timestamp::from_second(100).unwrap() }
    }

    fn summary(day: i64, rows: &[(ReadKey, ReadSet)], gaps: &[(&str, ReadGap)]) -> DaySummary {
        let mut digest = DayDigest::new(Day(day));
        rows.iter().for_each(|(key, set)| digest.add(key, set));
        gaps.iter().for_each(|(node, gap)| digest.add_gap(node, gap));
        digest.finish()
    }

    #[test]
    fn everything_that_a_day_has_changes_its_digest() {
        let original = summary(20_000, &rows(), &[("a", gap(1))]);
        assert_eq!((original.tokens, original.reads, original.gaps), (2, 6, 1));
        assert_eq!(summary(20_000, &rows(), &[("a", gap(1))]), original);
        let with = |change: fn(&mut Vec<(ReadKey, ReadSet)>)| {
            let mut rows = rows();
            change(&mut rows);
            summary(20_000, &rows, &[("a", gap(1))])
        };
        let others = [
            with(|rows| _ = rows.pop()),
            with(|rows| rows[0].0.token = 2),
            with(|rows| rows[1].0.chunk = 2),
            with(|rows| _ = rows[2].1.insert(6, None)),
            with(|rows| _ = rows[2].1.offsets.remove(5)),
            with(|rows| _ = rows[2].1.forms.insert(9)),
            summary(20_001, &rows(), &[("a", gap(1))]),
            summary(20_000, &rows(), &[]),
            summary(20_000, &rows(), &[("b", gap(1))]),
            summary(20_000, &rows(), &[("a", gap(2))]),
        ];
        for other in others {
            assert_ne!(other.digest, original.digest);
        }
    }

    #[test]
    fn the_digest_does_not_depend_on_how_a_bitmap_is_stored() {
        let mut run = rows();
        (1..=1000).for_each(|id| _ = run[0].1.insert(id, None));
        let before = summary(20_000, &run, &[]);
        run[0].1.offsets.optimize();
        assert_eq!(summary(20_000, &run, &[]), before);
    }

    #[test]
    fn the_encoding_stays_the_documented_one() {
        // Computed from the description at the head of this file: seals must verify with later versions.
        let mut encoded = 20_000_i64.to_be_bytes().to_vec();
        encoded.push(1);
        [3_i64, 0, 2].iter().for_each(|number| encoded.extend(number.to_be_bytes()));
        [1_u16, 5].iter().for_each(|offset| encoded.extend(offset.to_be_bytes()));
        [2_i64, 1, 5].iter().for_each(|number| encoded.extend(number.to_be_bytes()));
        encoded.push(2);
        [1_000_000_i64, 100_000_000, 1].iter().for_each(|number| encoded.extend(number.to_be_bytes()));
        encoded.extend(b"a");
        let expected: String = Sha256::digest(&encoded).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(summary(20_000, &rows()[2..], &[("a", gap(1))]).digest, expected);
    }
}
