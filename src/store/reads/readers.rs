//! Answers from the ledger: who has read a submission, and how much a token has read.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::civil::Date;
use serde_json::{Value, json};

use super::{Day, ReadGap, ReadKey, ReadSet, chunk_of, gaps};
use crate::store::statement::{Row, sql};
use crate::store::submissions::shown;
use crate::store::{Store, StoreError};

/// A token whose responses contained a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The token.
    pub token: i64,
    /// What the administrator calls it; `None` if the database does not have the token.
    pub name: Option<String>,
    /// The first day.
    pub first: Date,
    /// The last day.
    pub last: Date,
    /// On how many days.
    pub days: usize,
}

/// Who has read a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmissionReaders {
    /// By token.
    pub readers: Vec<Reader>,
    /// When reads may be missing.
    pub gaps: Vec<ReadGap>,
}

impl SubmissionReaders {
    /// As the API shows it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let readers: Vec<Value> = self.readers.iter().map(Reader::to_json).collect();
        let gaps: Vec<Value> = self.gaps.iter().map(ReadGap::to_json).collect();
        json!({ "data": readers, "meta": { "gaps": gaps } })
    }
}

impl Reader {
    fn to_json(&self) -> Value {
        json!({
            "token": self.token,
            "name": self.name,
            "first": self.first.to_string(),
            "last": self.last.to_string(),
            "days": self.days,
        })
    }
}

/// How much a token has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenReads {
    /// How many submissions.
    pub submissions: u64,
    /// Of how many forms.
    pub forms: usize,
}

impl Store {
    /// Who has read a submission, also if it was deleted since. `held` are tokens and days that are not written yet. `None`
    /// if there is no such submission and nobody has read one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn submission_readers(
        &self,
        submission: i64,
        held: Vec<(i64, Day)>,
    ) -> Result<Option<SubmissionReaders>, StoreError> {
        let mut days: BTreeMap<i64, BTreeSet<Day>> = BTreeMap::new();
        let mut note = |token, day| _ = days.entry(token).or_default().insert(day);
        held.into_iter().for_each(|(token, day)| note(token, day));
        let mut reader = self.database.reader().await?;
        let of_chunk = sql!(
            "SELECT day, token_id, bitmap, forms FROM submission_reads WHERE chunk = {chunk}",
            chunk = chunk_of(submission),
        );
        let mut each = |row: Row| {
            if ReadSet::read_or_none(&row, 2).has(submission) {
                note(row.get(1)?, Day(row.get(0)?));
            }
            Ok(())
        };
        reader.fetch_each(of_chunk, &mut each).await?;
        let is_known = sql!(
            "SELECT EXISTS ({+shown}) OR EXISTS (SELECT 1 FROM submission_changes WHERE submission_id = {submission})",
            shown = shown(sql!("= {submission}", submission), self.reach()),
            submission,
        );
        if days.is_empty() && !reader.fetch_one(is_known).await?.get::<bool>(0)? {
            return Ok(None);
        }
        let gaps = gaps::list(&mut reader, Timestamp::now()).await?;
        drop(reader);
        let tokens: Vec<i64> = days.keys().copied().collect();
        let mut names: BTreeMap<i64, String> = self.list_token_names(&tokens).await?.into_iter().collect();
        let readers = days.into_iter().filter_map(|(token, days)| {
            let (first, last) = (days.first()?.date(), days.last()?.date());
            Some(Reader { token, name: names.remove(&token), first, last, days: days.len() })
        });
        Ok(Some(SubmissionReaders { readers: readers.collect(), gaps }))
    }

    /// How much a token has read, each submission counted once. `held` is what is not written yet.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_token_reads(&self, token: i64, held: Vec<(ReadKey, ReadSet)>) -> Result<TokenReads, StoreError> {
        let mut chunks: BTreeMap<i64, ReadSet> = BTreeMap::new();
        let mut add = |chunk, set: &ReadSet| chunks.entry(chunk).or_default().add(set);
        held.iter().for_each(|(key, set)| add(key.chunk, set));
        let mut reader = self.database.reader().await?;
        let days = reader.fetch_all(sql!("SELECT day FROM read_days")).await?;
        let days = days.iter().map(|row| row.get(0)).collect::<Result<Vec<i64>, _>>()?;
        let of_token = sql!(
            "SELECT chunk, bitmap, forms FROM submission_reads WHERE day {in days} AND token_id = {token}",
            days,
            token,
        );
        let mut each = |row: Row| {
            add(row.get(0)?, &ReadSet::read_or_none(&row, 1));
            Ok(())
        };
        reader.fetch_each(of_token, &mut each).await?;
        let forms: BTreeSet<i64> = chunks.values().flat_map(|set| &set.forms).copied().collect();
        Ok(TokenReads { submissions: chunks.values().map(ReadSet::len).sum(), forms: forms.len() })
    }
}
