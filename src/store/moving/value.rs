//! The values of rows that are copied from one database to another, whichever these are: the one place where types are
//! converted.
//!
//! A value is read by the type that Postgres has for its column, and is written as that database wants it. Its digest is the
//! same on both: instants are microseconds, and JSON is compared by what it says, since Postgres stores it in another form.

use jiff::Timestamp;
use serde_json::{Number, Value as Json};
use sha2::{Digest, Sha256};

use crate::store::statement::{Argument, Dialect, Row};

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Integer,
    /// An integer of 32 bits on Postgres.
    Short,
    Truth,
    Text,
    Bytes,
    Instant,
    Json,
}

impl Kind {
    /// That of a column of Postgres' catalog.
    pub(super) fn of(state: &str) -> Self {
        let name = state.split(" not null").next().unwrap_or(state);
        match name {
            "bigint" => Self::Integer,
            "integer" => Self::Short,
            "boolean" => Self::Truth,
            "bytea" => Self::Bytes,
            "jsonb" => Self::Json,
            "timestamp with time zone" => Self::Instant,
            _ => Self::Text,
        }
    }

    /// How it is in a batch, as a type of Postgres. Bytes are written as hexadecimal digits.
    pub(super) fn in_batch(self) -> &'static str {
        match self {
            Self::Integer | Self::Short => "bigint",
            Self::Truth => "boolean",
            Self::Text | Self::Bytes | Self::Json => "text",
            Self::Instant => "timestamptz",
        }
    }

    /// What selects a column so that [`Value::read`] can read it.
    pub(super) fn selected(self, column: &str) -> String {
        match self {
            Self::Short => format!("CAST({column} AS bigint)"),
            Self::Json => format!("CAST({column} AS text)"),
            _ => column.to_owned(),
        }
    }

    /// What a column of a batch is in its table.
    pub(super) fn of_batch(self, column: &str, dialect: Dialect) -> String {
        match (self, dialect) {
            (Self::Bytes, Dialect::Postgres) => format!("decode({column}, 'hex')"),
            (Self::Bytes, Dialect::Sqlite) => format!("unhex({column})"),
            (Self::Json, Dialect::Postgres) => format!("CAST({column} AS jsonb)"),
            (Self::Short, Dialect::Postgres) => format!("CAST({column} AS integer)"),
            _ => column.to_owned(),
        }
    }

    /// A column in a note of a trigger, as JSON can have it: bytes as hexadecimal digits, instants in microseconds.
    pub(super) fn noted(self, column: &str, dialect: Dialect) -> String {
        match (self, dialect) {
            (Self::Bytes, Dialect::Postgres) => format!("encode({column}, 'hex')"),
            (Self::Bytes, Dialect::Sqlite) => format!("hex({column})"),
            (Self::Instant, Dialect::Postgres) => format!("CAST(extract(epoch FROM {column}) * 1000000 AS bigint)"),
            _ => column.to_owned(),
        }
    }
}

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Integer(i64),
    Truth(bool),
    Text(String),
    Bytes(Vec<u8>),
    Instant(Timestamp),
}

impl Value {
    pub(super) fn read(row: &Row, column: usize, kind: Kind) -> Result<Self, sqlx::Error> {
        Ok(match kind {
            Kind::Integer | Kind::Short => row.get::<Option<i64>>(column)?.map_or(Self::Null, Self::Integer),
            // No column of these types can be NULL.
            Kind::Truth => Self::Truth(row.get(column)?),
            Kind::Bytes => Self::Bytes(row.get(column)?),
            Kind::Text | Kind::Json => row.get::<Option<String>>(column)?.map_or(Self::Null, Self::Text),
            Kind::Instant => row.get::<Option<Timestamp>>(column)?.map_or(Self::Null, Self::Instant),
        })
    }

    /// Why a database can't have it.
    pub(super) fn unfit_for(&self, kind: Kind, dialect: Dialect) -> Option<&'static str> {
        if dialect == Dialect::Sqlite {
            return None;
        }
        match (self, kind) {
            (Self::Integer(number), Kind::Short) if i32::try_from(*number).is_err() => {
                Some("a number has more than 32 bits")
            }
            (Self::Text(text), Kind::Json) => match serde_json::from_str::<Json>(text) {
                Ok(json) if has_nul(&json) => Some("a text has the character U+0000"),
                Ok(_) => None,
                Err(_) => Some("a text is no JSON"),
            },
            (Self::Text(text), _) if text.contains('\0') => Some("a text has the character U+0000"),
            _ => None,
        }
    }

    /// In a batch for a database.
    pub(super) fn in_batch(&self, dialect: Dialect) -> Json {
        match self {
            Self::Instant(instant) if dialect == Dialect::Postgres => Json::String(instant.to_string()),
            other => other.noted(),
        }
    }

    /// As triggers note it, on either database.
    pub(super) fn noted(&self) -> Json {
        match self {
            Self::Null => Json::Null,
            Self::Integer(number) => Json::from(*number),
            Self::Truth(truth) => Json::from(*truth),
            Self::Text(text) => Json::from(text.as_str()),
            Self::Bytes(bytes) => Json::from(hex(bytes)),
            Self::Instant(instant) => Json::from(instant.as_microsecond()),
        }
    }

    /// Reads what a trigger noted.
    pub(super) fn of_note(noted: &Json, kind: Kind) -> Option<Self> {
        Some(match kind {
            Kind::Integer | Kind::Short => Self::Integer(noted.as_i64()?),
            Kind::Truth => Self::Truth(noted.as_bool().or_else(|| Some(noted.as_i64()? != 0))?),
            Kind::Text | Kind::Json => Self::Text(noted.as_str()?.to_owned()),
            Kind::Bytes => Self::Bytes(bytes(noted.as_str()?)?),
            Kind::Instant => Self::Instant(Timestamp::from_microsecond(noted.as_i64()?).ok()?),
        })
    }

    pub(super) fn argument(&self) -> Argument {
        match self {
            // A key has none.
            Self::Null => Argument::OptionalInteger(None),
            Self::Integer(number) => (*number).into(),
            Self::Truth(truth) => (*truth).into(),
            Self::Text(text) => text.into(),
            Self::Bytes(bytes) => bytes.clone().into(),
            Self::Instant(instant) => (*instant).into(),
        }
    }

    /// Adds it to the digest of its row. No two different rows add the same bytes.
    pub(super) fn add_to(&self, digest: &mut Sha256, kind: Kind) {
        let mut part = |tag: u8, bytes: &[u8]| {
            digest.update([tag]);
            digest.update((bytes.len() as u64).to_be_bytes());
            digest.update(bytes);
        };
        match self {
            Self::Null => part(0, &[]),
            Self::Integer(number) => part(1, &number.to_be_bytes()),
            Self::Truth(truth) => part(2, &[u8::from(*truth)]),
            Self::Text(text) if kind == Kind::Json => {
                let plain = serde_json::from_str(text).map(plain).unwrap_or(Json::Null);
                part(3, plain.to_string().as_bytes());
            }
            Self::Text(text) => part(4, text.as_bytes()),
            Self::Bytes(bytes) => part(5, bytes),
            Self::Instant(instant) => part(6, &instant.as_microsecond().to_be_bytes()),
        }
    }
}

fn has_nul(json: &Json) -> bool {
    match json {
        Json::String(text) => text.contains('\0'),
        Json::Array(items) => items.iter().any(has_nul),
        Json::Object(object) => object.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}

/// JSON in one form for all that says the same: sorted keys, and whole numbers without a point.
fn plain(json: Json) -> Json {
    match json {
        Json::Array(items) => items.into_iter().map(plain).collect(),
        Json::Object(object) => {
            let mut keys: Vec<_> = object.into_iter().collect();
            keys.sort_by(|one, other| one.0.cmp(&other.0));
            keys.into_iter().map(|(key, value)| (key, plain(value))).collect()
        }
        Json::Number(number) => {
            let float = number.as_f64().unwrap_or_default();
            let is_whole = number.as_i64().is_none() && float.fract() == 0.0 && float.abs() < 9e15;
            #[expect(clippy::cast_possible_truncation, reason = "it is whole, and below 2^53")]
            Json::Number(if is_whole { Number::from(float as i64) } else { number })
        }
        other => other,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.1.is_empty().then(|| digits.0.iter().map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> [u8; 32] {
        let mut digest = Sha256::new();
        Value::Text(text.to_owned()).add_to(&mut digest, Kind::Json);
        digest.finalize().into()
    }

    #[test]
    fn json_has_the_digest_of_what_it_says() {
        let one = digest(r#"[{"name": "a", "size": 10}]"#);
        assert_eq!(one, digest(r#"[{"size":1e1,"name":"\u0061"}]"#));
        assert_ne!(one, digest(r#"[{"size":11,"name":"a"}]"#));
        assert_ne!(digest("[1.5]"), digest("[1]"));
    }

    #[test]
    fn a_key_is_read_as_it_was_noted() {
        let instant = Timestamp::from_microsecond(1_700_000_000_123_456).unwrap();
        for (value, kind) in [
            (Value::Integer(-7), Kind::Integer),
            (Value::Truth(true), Kind::Truth),
            (Value::Text("ä\"".to_owned()), Kind::Text),
            (Value::Bytes(vec![0, 255, 16]), Kind::Bytes),
            (Value::Instant(instant), Kind::Instant),
        ] {
            assert_eq!(Value::of_note(&value.noted(), kind), Some(value));
        }
        assert_eq!(Value::of_note(&Json::from(1), Kind::Truth), Some(Value::Truth(true)), "as SQLite has it");
        assert_eq!(Value::of_note(&Json::from("0g"), Kind::Bytes), None);
        assert_eq!(Value::of_note(&Json::from("0AF"), Kind::Bytes), None);
        assert_eq!(Value::of_note(&Json::from("0AFF"), Kind::Bytes), Some(Value::Bytes(vec![10, 255])));
    }

    #[test]
    fn what_postgres_can_not_have_is_named() {
        let unfit = |value: Value, kind| value.unfit_for(kind, Dialect::Postgres).is_some();
        assert!(unfit(Value::Text("a\0b".to_owned()), Kind::Text));
        assert!(unfit(Value::Text(r#"["\u0000"]"#.to_owned()), Kind::Json));
        assert!(unfit(Value::Integer(1 << 31), Kind::Short));
        assert!(!unfit(Value::Integer(1 << 31), Kind::Integer));
        assert_eq!(Value::Text("a\0b".to_owned()).unfit_for(Kind::Text, Dialect::Sqlite), None);
    }
}
