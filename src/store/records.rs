//! Lists of records in one column: what hangs on a row comes with it, and not as rows of its own.
//!
//! A row costs the driver as much as dozens of values do, and most of a page of submissions is entries. Postgres sends an
//! array of records in its binary form (`array_send` and `record_send` in its source), SQLite an array of arrays as JSON.
//! Text is borrowed from the row, but where JSON escapes it.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use sqlx::{Row as _, ValueRef as _};

use super::database::Row;
use super::sql::Sql;

/// A record of a list.
pub(super) trait Record<'r>: Deserialize<'r> {
    /// Takes its fields in the order in which the statement has them.
    fn take(fields: &mut Fields<'r>) -> Result<Self, Malformed>;
}

impl Sql {
    /// Adds a query of a list of records, from `FROM` on written by the caller: the list has the order of what it reads
    /// from, and is NULL or empty where that is.
    pub(super) fn push_records(&mut self, fields: &[&'static str]) -> &mut Self {
        self.push_either("SELECT array_agg(ROW (", "SELECT json_group_array(json_array(");
        for (at, field) in fields.iter().enumerate() {
            self.push(if at == 0 { "" } else { ", " }).push(field);
        }
        self.push("))")
    }
}

impl Row {
    /// The list of records in a column; empty for NULL.
    pub(super) fn records<'r, T: Record<'r>>(&'r self, column: usize) -> Result<Vec<T>, sqlx::Error> {
        match self {
            Self::Postgres(row) => {
                let value = row.try_get_raw(column)?;
                if value.is_null() {
                    return Ok(Vec::new());
                }
                let bytes = value.as_bytes().map_err(sqlx::Error::Decode)?;
                array(bytes).map_err(|error| sqlx::Error::Decode(error.into()))
            }
            Self::Sqlite(row) => {
                let json: Option<&str> = row.try_get(column)?;
                serde_json::from_str(json.unwrap_or("[]")).map_err(|error| sqlx::Error::Decode(error.into()))
            }
        }
    }
}

/// What is no array of records in the binary form of Postgres.
#[derive(Debug, thiserror::Error)]
#[error("an array of records is malformed")]
pub(super) struct Malformed;

/// Between the beginning of 1970, from which instants are counted here, and that of 2000, from which Postgres counts.
const EPOCH_OF_POSTGRES: i64 = 946_684_800_000_000;

/// Reads a truth value of SQLite, which is a number.
pub(super) fn truth<'de, D: Deserializer<'de>>(number: D) -> Result<bool, D::Error> {
    i64::deserialize(number).map(|number| number != 0)
}

/// The fields of one record, taken one by one.
pub(super) struct Fields<'r>(Bytes<'r>);

impl<'r> Fields<'r> {
    /// A number of things, which is never negative.
    pub(super) fn count(&mut self) -> Result<u64, Malformed> {
        u64::try_from(self.integer()?).map_err(|_| Malformed)
    }

    pub(super) fn integer(&mut self) -> Result<i64, Malformed> {
        let value = self.value()?.ok_or(Malformed)?;
        Ok(i64::from_be_bytes(value.try_into().map_err(|_| Malformed)?))
    }

    pub(super) fn truth(&mut self) -> Result<bool, Malformed> {
        match self.value()? {
            Some(&[byte]) => Ok(byte != 0),
            _ => Err(Malformed),
        }
    }

    /// In microseconds since 1970.
    pub(super) fn instant(&mut self) -> Result<i64, Malformed> {
        Ok(self.integer()?.saturating_add(EPOCH_OF_POSTGRES))
    }

    pub(super) fn text(&mut self) -> Result<Cow<'r, str>, Malformed> {
        self.optional_text()?.ok_or(Malformed)
    }

    pub(super) fn optional_text(&mut self) -> Result<Option<Cow<'r, str>>, Malformed> {
        let text = self.value()?.map(std::str::from_utf8).transpose().map_err(|_| Malformed)?;
        Ok(text.map(Cow::Borrowed))
    }

    fn value(&mut self) -> Result<Option<&'r [u8]>, Malformed> {
        let _type = self.0.number()?;
        self.0.value()
    }
}

fn array<'r, T: Record<'r>>(bytes: &'r [u8]) -> Result<Vec<T>, Malformed> {
    let mut bytes = Bytes(bytes);
    let (dimensions, _has_null, _type) = (bytes.number()?, bytes.number()?, bytes.number()?);
    if dimensions == 0 {
        return Ok(Vec::new());
    }
    let (length, _first) = (bytes.number()?, bytes.number()?);
    let mut records = Vec::with_capacity(usize::try_from(length).map_err(|_| Malformed)?.min(bytes.0.len()));
    for _ in 0..length {
        let mut record = Bytes(bytes.value()?.ok_or(Malformed)?);
        let _fields = record.number()?;
        records.push(T::take(&mut Fields(record))?);
    }
    Ok(records)
}

/// What is left to read.
struct Bytes<'r>(&'r [u8]);

impl<'r> Bytes<'r> {
    fn number(&mut self) -> Result<i32, Malformed> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(i32::from_be_bytes(*number))
    }

    /// Bytes after their number, which is -1 for NULL.
    fn value(&mut self) -> Result<Option<&'r [u8]>, Malformed> {
        let Ok(length) = usize::try_from(self.number()?) else { return Ok(None) };
        let (value, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Pair<'r>(i64, #[serde(borrow)] Option<Cow<'r, str>>);

    impl<'r> Record<'r> for Pair<'r> {
        fn take(fields: &mut Fields<'r>) -> Result<Self, Malformed> {
            Ok(Self(fields.integer()?, fields.optional_text()?))
        }
    }

    /// `SELECT ARRAY [ROW (7::bigint, 'ä'), ROW (-1::bigint, NULL::text)]`, as Postgres 15 sends it.
    fn two() -> Vec<u8> {
        let mut bytes: Vec<u8> = [1_i32, 0, 2249, 2, 1].iter().flat_map(|number| number.to_be_bytes()).collect();
        for (id, text) in [(7_i64, Some("ä")), (-1, None)] {
            let text = text.map_or_else(
                || (-1_i32).to_be_bytes().to_vec(),
                |text| [&2_i32.to_be_bytes()[..], text.as_bytes()].concat(),
            );
            let head: Vec<u8> = [2_i32, 20, 8].iter().flat_map(|number| number.to_be_bytes()).collect();
            let record = [&head[..], &id.to_be_bytes(), &25_i32.to_be_bytes(), &text].concat();
            bytes.extend(i32::try_from(record.len()).unwrap().to_be_bytes());
            bytes.extend(record);
        }
        bytes
    }

    #[test]
    fn an_array_of_records_is_read_in_place() {
        let bytes = two();
        let pairs: Vec<Pair<'_>> = array(&bytes).unwrap();
        assert_eq!(pairs, [Pair(7, Some("ä".into())), Pair(-1, None)]);
        assert!(matches!(pairs[0].1, Some(Cow::Borrowed(_))));
        let none: [u8; 12] = std::array::from_fn(|_| 0);
        assert_eq!(array::<Pair<'_>>(&none).unwrap(), []);
    }

    #[test]
    fn what_is_cut_off_is_malformed() {
        let bytes = two();
        for length in 0..bytes.len() {
            assert!(array::<Pair<'_>>(&bytes[..length]).is_err(), "{length}");
        }
    }
}
