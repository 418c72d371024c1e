//! The values of a statement.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::Arguments as _;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgBindIterExt};
use sqlx::sqlite::SqliteArguments;

use super::page::PageScan;
use super::sql::{Dialect, Sql};
use super::texts::TextList;

/// What stands at a place of a statement.
#[derive(Clone, Debug)]
pub(in crate::store) enum Argument {
    Integer(i64),
    Text(String),
    /// A text that is not logged.
    Secret(String),
    Bytes(Vec<u8>),
    Time(Timestamp),
    /// A time between an instant and now: bound in milliseconds on Postgres, as that instant on SQLite.
    Span(Duration),
    /// Lists are shared with the caller, and with the copy of the statement that is sent again after a lost
    /// connection.
    Integers(Arc<[i64]>),
    Texts(Arc<TextList>),
    /// The same for a long text.
    SharedText(Arc<str>),
    OptionalText(Option<String>),
    OptionalInteger(Option<i64>),
    OptionalTime(Option<Timestamp>),
    OptionalBytes(Option<Vec<u8>>),
    Truth(bool),
    /// Not a value: a part of the statement, and which rows of it are read.
    Part(Sql),
    Page(PageScan),
}

macro_rules! from {
    ($($kind:ty => |$value:ident| $argument:expr;)*) => {$(
        impl From<$kind> for Argument {
            fn from($value: $kind) -> Self {
                $argument
            }
        }
    )*};
}

from! {
    i64 => |value| Self::Integer(value);
    i32 => |value| Self::Integer(value.into());
    u32 => |value| Self::Integer(value.into());
    &str => |value| Self::Text(value.to_owned());
    &String => |value| Self::Text(value.clone());
    String => |value| Self::Text(value);
    &Arc<str> => |value| Self::SharedText(Arc::clone(value));
    Vec<u8> => |value| Self::Bytes(value);
    &[u8] => |value| Self::Bytes(value.to_vec());
    &[u8; 32] => |value| Self::Bytes(value.to_vec());
    Timestamp => |value| Self::Time(value);
    Duration => |value| Self::Span(value);
    bool => |value| Self::Truth(value);
    Option<String> => |value| Self::OptionalText(value);
    Option<&str> => |value| Self::OptionalText(value.map(ToOwned::to_owned));
    Option<i64> => |value| Self::OptionalInteger(value);
    Option<Timestamp> => |value| Self::OptionalTime(value);
    Option<Vec<u8>> => |value| Self::OptionalBytes(value);
    Vec<i64> => |value| Self::Integers(value.into());
    &[i64] => |value| Self::Integers(value.into());
    &Vec<i64> => |value| Self::Integers(value.as_slice().into());
    &Arc<[i64]> => |value| Self::Integers(Arc::clone(value));
    TextList => |value| Self::Texts(value.into());
    &Arc<TextList> => |value| Self::Texts(Arc::clone(value));
    &[String] => |value| Self::Texts(value.iter().collect::<TextList>().into());
    Sql => |value| Self::Part(value);
    PageScan => |value| Self::Page(value);
    &PageScan => |value| Self::Page(*value);
}

impl Argument {
    /// Its size in bytes: about what the driver copies.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Secret(text) | Self::OptionalText(Some(text)) => text.len(),
            Self::Bytes(bytes) | Self::OptionalBytes(Some(bytes)) => bytes.len(),
            Self::Texts(texts) => texts.bytes(),
            Self::SharedText(text) => text.len(),
            Self::Integers(list) => size_of_val(&**list),
            Self::Part(part) => part.bytes(),
            Self::Integer(_) | Self::Time(_) | Self::Span(_) | Self::Truth(_) | Self::Page(_) => 0,
            Self::OptionalText(None) | Self::OptionalBytes(None) | Self::OptionalInteger(_) | Self::OptionalTime(_) => {
                0
            }
        }
    }

    pub(super) fn add_to_postgres(self, arguments: &mut PgArguments) -> Result<(), BoxDynError> {
        match self {
            Self::Integer(value) => arguments.add(value),
            Self::Text(value) | Self::Secret(value) => arguments.add(value),
            Self::Bytes(value) => arguments.add(value),
            Self::Time(value) => arguments.add(jiff_sqlx::Timestamp::from(value)),
            Self::Span(value) => arguments.add(milliseconds(value)),
            Self::Integers(value) => arguments.add(&value[..]),
            Self::Texts(value) => arguments.add(value.iter().bind_iter()),
            Self::SharedText(value) => arguments.add(&*value),
            Self::OptionalText(value) => arguments.add(value),
            Self::OptionalInteger(value) => arguments.add(value),
            Self::OptionalTime(value) => arguments.add(value.map(jiff_sqlx::Timestamp::from)),
            Self::OptionalBytes(value) => arguments.add(value),
            Self::Truth(value) => arguments.add(value),
            Self::Part(_) | Self::Page(_) => unreachable!("it is no value"),
        }
    }

    /// Timestamps are microseconds, lists JSON.
    pub(super) fn add_to_sqlite(self, arguments: &mut SqliteArguments) -> Result<(), BoxDynError> {
        match self {
            Self::Integer(value) => arguments.add(value),
            Self::Text(value) | Self::Secret(value) => arguments.add(value),
            Self::Bytes(value) => arguments.add(value),
            Self::Time(value) => arguments.add(value.as_microsecond()),
            Self::Integers(value) => arguments.add(serde_json::to_string(&*value)?),
            Self::Texts(value) => arguments.add(serde_json::to_string(&*value)?),
            Self::SharedText(value) => arguments.add(value),
            Self::OptionalText(value) => arguments.add(value),
            Self::OptionalInteger(value) => arguments.add(value),
            Self::OptionalTime(value) => arguments.add(value.map(Timestamp::as_microsecond)),
            Self::OptionalBytes(value) => arguments.add(value),
            Self::Truth(value) => arguments.add(value),
            Self::Span(_) | Self::Part(_) | Self::Page(_) => unreachable!("it is no value"),
        }
    }

    /// The value as it can be written into a statement, for logs.
    pub(super) fn literal(&self, dialect: Dialect) -> String {
        let text = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let instant = |instant: Timestamp| match dialect {
            Dialect::Postgres => format!("'{instant}'::timestamptz"),
            Dialect::Sqlite => instant.as_microsecond().to_string(),
        };
        let bytes = |bytes: &[u8]| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            match dialect {
                Dialect::Postgres => format!("'\\x{hex}'::bytea"),
                Dialect::Sqlite => format!("x'{hex}'"),
            }
        };
        let list = |json: Result<String, serde_json::Error>, kind: &str| {
            let json = json.unwrap_or_default();
            match dialect {
                Dialect::Postgres if kind == "bigint" => format!("'{{{}}}'::bigint[]", json.trim_matches(['[', ']'])),
                Dialect::Postgres => {
                    format!("ARRAY (SELECT jsonb_array_elements_text({}))", text(&json))
                }
                Dialect::Sqlite => text(&json),
            }
        };
        let null = |kind: &str| match dialect {
            Dialect::Postgres => format!("NULL::{kind}"),
            Dialect::Sqlite => "NULL".to_owned(),
        };
        match self {
            Self::Integer(value) | Self::OptionalInteger(Some(value)) => value.to_string(),
            Self::Text(value) | Self::OptionalText(Some(value)) => text(value),
            Self::SharedText(value) => text(value),
            Self::Secret(_) => "'…'".to_owned(),
            Self::Bytes(value) | Self::OptionalBytes(Some(value)) => bytes(value),
            Self::Time(value) | Self::OptionalTime(Some(value)) => instant(*value),
            Self::Span(value) => milliseconds(*value).to_string(),
            Self::Integers(value) => list(serde_json::to_string(&**value), "bigint"),
            Self::Texts(value) => list(serde_json::to_string(&**value), "text"),
            Self::Truth(value) => value.to_string().to_uppercase(),
            Self::OptionalText(None) => null("text"),
            Self::OptionalInteger(None) => null("bigint"),
            Self::OptionalTime(None) => null("timestamptz"),
            Self::OptionalBytes(None) => null("bytea"),
            Self::Part(_) | Self::Page(_) => unreachable!("it is no value"),
        }
    }
}

fn milliseconds(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
