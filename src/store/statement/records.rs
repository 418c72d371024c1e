//! Lists of records in one column: the details of a row arrive with it instead of as further rows.
//!
//! A row costs the driver as much as dozens of values, and most of a page of submissions is entries. Postgres sends
//! one record of arrays, an array per field, in its binary format (`record_send` and `array_send` in its source); an
//! array of records would cost it half as much again. SQLite sends an array of arrays as JSON. Text is borrowed from
//! the row unless JSON escapes it.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use sqlx::{Row as _, ValueRef as _};

use super::row::{Row, sqlite_text};

/// A record of a list.
pub(in crate::store) trait ListRecord<'r>: Deserialize<'r> {
    /// Reads the fields in the order in which the statement selects them.
    fn take(fields: &mut Fields<'r>) -> Result<Self, MalformedRecord>;
}

impl Row {
    /// Whether a column is NULL.
    pub(in crate::store) fn is_null(&self, column: usize) -> Result<bool, sqlx::Error> {
        Ok(match self {
            Self::Postgres(row) => row.try_get_raw(column)?.is_null(),
            Self::Sqlite(row, _) => row.try_get_raw(column)?.is_null(),
        })
    }

    /// The list of records in a column; empty if it is NULL.
    pub(in crate::store) fn records<'r, T: ListRecord<'r>>(&'r self, column: usize) -> Result<Vec<T>, sqlx::Error> {
        match self {
            Self::Postgres(row) => {
                let value = row.try_get_raw(column)?;
                if value.is_null() {
                    return Ok(Vec::new());
                }
                let bytes = value.as_bytes().map_err(sqlx::Error::Decode)?;
                list(bytes).map_err(|error| sqlx::Error::Decode(error.into()))
            }
            Self::Sqlite(row, repaired_texts) => {
                let json = sqlite_text(row, repaired_texts, column)?;
                serde_json::from_str(json.unwrap_or("[]")).map_err(|error| sqlx::Error::Decode(error.into()))
            }
        }
    }
}

/// A value that is not a record of equally long arrays in the binary format of Postgres.
#[derive(Debug, thiserror::Error)]
#[error("a list of records is malformed")]
pub(in crate::store) struct MalformedRecord;

/// Microseconds from 1970, the epoch here, to 2000, the epoch of Postgres.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// Reads a boolean from SQLite, which stores it as a number.
pub(in crate::store) fn truth<'de, D: Deserializer<'de>>(number: D) -> Result<bool, D::Error> {
    i64::deserialize(number).map(|number| number != 0)
}

/// The most fields of a record. Larger: every list reserves room for more arrays. Smaller: a statement with more
/// fails.
const MAX_FIELDS: usize = 6;

/// Reads the fields of a list of records, one record after another.
pub(in crate::store) struct Fields<'r> {
    /// The rest of each field's array.
    arrays: [ByteReader<'r>; MAX_FIELDS],
    /// The field that is read next.
    next: usize,
}

impl<'r> Fields<'r> {
    pub(in crate::store) fn integer(&mut self) -> Result<i64, MalformedRecord> {
        let value = self.value()?.ok_or(MalformedRecord)?;
        Ok(i64::from_be_bytes(value.try_into().map_err(|_| MalformedRecord)?))
    }

    pub(in crate::store) fn truth(&mut self) -> Result<bool, MalformedRecord> {
        match self.value()? {
            Some(&[byte]) => Ok(byte != 0),
            _ => Err(MalformedRecord),
        }
    }

    /// In microseconds since 1970.
    pub(in crate::store) fn instant(&mut self) -> Result<i64, MalformedRecord> {
        Ok(self.integer()?.saturating_add(POSTGRES_EPOCH))
    }

    pub(in crate::store) fn text(&mut self) -> Result<Cow<'r, str>, MalformedRecord> {
        self.optional_text()?.ok_or(MalformedRecord)
    }

    pub(in crate::store) fn optional_text(&mut self) -> Result<Option<Cow<'r, str>>, MalformedRecord> {
        let text = self.value()?.map(std::str::from_utf8).transpose().map_err(|_| MalformedRecord)?;
        Ok(text.map(Cow::Borrowed))
    }

    fn value(&mut self) -> Result<Option<&'r [u8]>, MalformedRecord> {
        let array = self.arrays.get_mut(self.next).ok_or(MalformedRecord)?;
        self.next += 1;
        array.value()
    }
}

fn list<'r, T: ListRecord<'r>>(bytes: &'r [u8]) -> Result<Vec<T>, MalformedRecord> {
    let mut record = ByteReader(bytes);
    let mut fields = Fields { arrays: [ByteReader(&[]); MAX_FIELDS], next: 0 };
    let count = usize::try_from(record.number()?).map_err(|_| MalformedRecord)?;
    let mut length = 0;
    for array in fields.arrays.get_mut(..count).ok_or(MalformedRecord)? {
        let _type = record.number()?;
        (length, *array) = record.value()?.map_or(Ok((0, ByteReader(&[]))), array_of)?;
    }
    let mut records = Vec::with_capacity(length.min(bytes.len()));
    for _ in 0..length {
        fields.next = 0;
        records.push(T::take(&mut fields)?);
    }
    if fields.arrays.iter().all(|array| array.0.is_empty()) { Ok(records) } else { Err(MalformedRecord) }
}

/// The length of an array, and its values.
fn array_of(bytes: &[u8]) -> Result<(usize, ByteReader<'_>), MalformedRecord> {
    let mut bytes = ByteReader(bytes);
    let (dimensions, _has_null, _type) = (bytes.number()?, bytes.number()?, bytes.number()?);
    if dimensions == 0 {
        return Ok((0, bytes));
    }
    let (length, _first) = (bytes.number()?, bytes.number()?);
    Ok((usize::try_from(length).map_err(|_| MalformedRecord)?, bytes))
}

/// Reads a value of the binary format from its beginning.
#[derive(Clone, Copy)]
struct ByteReader<'r>(&'r [u8]);

impl<'r> ByteReader<'r> {
    fn number(&mut self) -> Result<i32, MalformedRecord> {
        let (number, rest) = self.0.split_first_chunk().ok_or(MalformedRecord)?;
        self.0 = rest;
        Ok(i32::from_be_bytes(*number))
    }

    /// A value, which follows its length; -1 is NULL.
    fn value(&mut self) -> Result<Option<&'r [u8]>, MalformedRecord> {
        let Ok(length) = usize::try_from(self.number()?) else { return Ok(None) };
        let (value, rest) = self.0.split_at_checked(length).ok_or(MalformedRecord)?;
        self.0 = rest;
        Ok(Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Pair<'r>(i64, #[serde(borrow)] Option<Cow<'r, str>>);

    impl<'r> ListRecord<'r> for Pair<'r> {
        fn take(fields: &mut Fields<'r>) -> Result<Self, MalformedRecord> {
            Ok(Self(fields.integer()?, fields.optional_text()?))
        }
    }

    /// A value as Postgres sends it: after its length.
    fn sent(value: Option<&[u8]>) -> Vec<u8> {
        let Some(value) = value else { return (-1_i32).to_be_bytes().to_vec() };
        [&i32::try_from(value.len()).unwrap().to_be_bytes(), value].concat()
    }

    /// An array as Postgres sends it.
    fn sent_array(kind: i32, values: &[Option<&[u8]>]) -> Vec<u8> {
        let head = [1, i32::from(values.contains(&None)), kind, i32::try_from(values.len()).unwrap(), 1];
        let head: Vec<u8> = head.iter().flat_map(|number| number.to_be_bytes()).collect();
        [head, values.iter().flat_map(|value| sent(*value)).collect()].concat()
    }

    /// A record of two fields, which are arrays of `bigint` and of `text`.
    fn sent_record(ids: Option<&[u8]>, texts: Option<&[u8]>) -> Vec<u8> {
        let number = |number: i32| number.to_be_bytes().to_vec();
        [number(2), number(1016), sent(ids), number(1009), sent(texts)].concat()
    }

    /// `SELECT ROW (ARRAY [7, -1]::bigint[], ARRAY ['ä', NULL]::text[])`, as Postgres 15 sends it.
    fn two() -> Vec<u8> {
        let ids = sent_array(20, &[Some(&7_i64.to_be_bytes()), Some(&(-1_i64).to_be_bytes())]);
        sent_record(Some(&ids), Some(&sent_array(25, &[Some("ä".as_bytes()), None])))
    }

    #[test]
    fn a_record_of_arrays_is_read_in_place() {
        let bytes = two();
        let pairs: Vec<Pair<'_>> = list(&bytes).unwrap();
        assert_eq!(pairs, [Pair(7, Some("ä".into())), Pair(-1, None)]);
        assert!(matches!(pairs[0].1, Some(Cow::Borrowed(_))));
        let empty: [u8; 12] = std::array::from_fn(|_| 0);
        for none in [None, Some(&empty[..])] {
            assert_eq!(list::<Pair<'_>>(&sent_record(none, none)).unwrap(), []);
        }
    }

    #[test]
    fn a_truncated_record_is_malformed() {
        let bytes = two();
        for length in 0..bytes.len() {
            assert!(list::<Pair<'_>>(&bytes[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn arrays_of_different_lengths_are_malformed() {
        let id = 7_i64.to_be_bytes();
        let (one, two) = (sent_array(20, &[Some(&id)]), sent_array(20, &[Some(&id), Some(&id)]));
        let texts = sent_array(25, &[Some(b"a")]);
        assert!(list::<Pair<'_>>(&sent_record(Some(&one), Some(&texts))).is_ok());
        for (ids, texts) in [(Some(&two), Some(&texts)), (None, Some(&texts)), (Some(&one), None)] {
            let record = sent_record(ids.map(Vec::as_slice), texts.map(Vec::as_slice));
            assert!(list::<Pair<'_>>(&record).is_err(), "{ids:?} {texts:?}");
        }
    }
}
