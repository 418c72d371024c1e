//! Reads the values of a request. Each fault is recorded with its path, and reading continues.
//!
//! Derived deserialization stops at the first wrong type, but clients should get all faults at once. [`super::reader`]
//! owns how values are taken from JSON without building them.

use std::fmt;

use super::body::BodyEntry;
use super::id::{IdKind, parse_number};
use super::reader::{ReadList, ReadScalar, Scalar};
use crate::error::{Faults, Refusal, abbreviate};

/// The maximum number of values in a list of `POST /submission`.
///
/// Larger: a search makes the database compare more. Smaller: clients that select by hundreds of ids need two
/// searches.
pub(super) const MAX_VALUES: usize = 1_000;

/// The path of a value in its faults: `members.3.email`. It is formatted only for a fault, since a body may have a
/// hundred thousand members.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldPath<'p> {
    Top(&'p str),
    Key(&'p FieldPath<'p>, &'p str),
    Item(&'p FieldPath<'p>, usize),
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top(name) => f.write_str(name),
            Self::Key(of, key) => write!(f, "{of}.{}", abbreviate(key)),
            Self::Item(of, at) => write!(f, "{of}.{at}"),
        }
    }
}

impl<'p> From<&'p str> for FieldPath<'p> {
    fn from(name: &'p str) -> Self {
        Self::Top(name)
    }
}

/// Returns a string without NUL, which no supported database can store, or the end of a fault's message.
pub(super) fn check_text<'a>(value: &Scalar<'a>) -> Result<&'a str, &'static str> {
    match value {
        Scalar::String(text) if text.contains('\0') => Err("must not contain NUL characters"),
        Scalar::String(text) => Ok(text),
        _ => Err("must be a string"),
    }
}

/// Reads a string without NUL.
pub(super) fn text<'a>(value: &Scalar<'a>, path: FieldPath<'_>, faults: &mut Faults) -> Option<&'a str> {
    check_text(value).map_err(|fault| faults.add(path, format_args!("The {path} {fault}."))).ok()
}

/// Reads a scalar with a function.
///
/// # Errors
/// See [`BodyEntry::read`].
pub(super) fn scalar<T>(
    entry: &BodyEntry<'_>,
    faults: &mut Faults,
    read: impl FnOnce(&Scalar<'_>, FieldPath<'_>, &mut Faults) -> T,
) -> Result<T, Refusal> {
    entry.read(ReadScalar(|value: Scalar<'_>| read(&value.or_whole(entry.json.get()), entry.name.into(), faults)))
}

/// Reads each item of an array of at most [`MAX_VALUES`]; faulty ones are left out.
///
/// # Errors
/// See [`BodyEntry::read`].
pub(super) fn list<T>(
    entry: &BodyEntry<'_>,
    faults: &mut Faults,
    read: impl FnMut(&Scalar<'_>, FieldPath<'_>, &mut Faults) -> Option<T>,
) -> Result<Vec<T>, Refusal> {
    let path = FieldPath::Top(entry.name);
    let items = entry.read(ReadList { path, most: MAX_VALUES, faults: &mut *faults, read })?;
    Ok(items.unwrap_or_else(|| {
        faults.add(path, format_args!("The {path} must have at most {MAX_VALUES} values."));
        Vec::new()
    }))
}

/// Reads a positive 64-bit integer, or a string of one.
pub(super) fn number(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<i64> {
    let number = match value {
        Scalar::String(text) => parse_number(text),
        value => positive(value),
    };
    if number.is_none() {
        faults.add(path, format_args!("The {path} must be a positive integer."));
    }
    number
}

fn positive(value: &Scalar<'_>) -> Option<i64> {
    if let Scalar::Integer(number @ 1..) = *value { Some(number) } else { None }
}

/// Reads a prefixed or bare id.
pub(super) fn id(value: &Scalar<'_>, path: FieldPath<'_>, kind: IdKind, faults: &mut Faults) -> Option<i64> {
    let id = match value {
        Scalar::String(text) => kind.parse(text),
        value => positive(value),
    };
    if id.is_none() {
        faults
            .add(path, format_args!("The {path} must be a {} id: {}<number> or a number.", kind.name(), kind.prefix()));
    }
    id
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeSeed;

    use super::super::reader::ReaderSeed;
    use super::*;

    #[test]
    fn a_number_is_read_exactly_or_not_at_all() {
        for (text, expected) in [
            ("7", Some(7)),
            ("9007199254740993", Some(9_007_199_254_740_993)),
            ("9223372036854775807", Some(i64::MAX)),
            (r#""9223372036854775807""#, Some(i64::MAX)),
            ("7.0", Some(7)),
            ("7e0", Some(7)),
            ("70E-1", Some(7)),
            ("9007199254740991.0", Some(9_007_199_254_740_991)),
            ("9007199254740992.0", None),
            ("9007199254740993.0", None),
            ("4503599627370497.3", None),
            ("1.00000000000000000001", None),
            ("0.99999999999999999999", None),
            ("0.7e1", Some(7)),
            ("70000000000000000000000000e-25", Some(7)),
            ("7e15", Some(7_000_000_000_000_000)),
            ("1e16", None),
            ("7e99999999999", None),
            ("7e-99999999999", None),
            ("9223372036854775808", None),
            ("18446744073709551617", None),
            ("1e400", None),
            ("1e-400", None),
            ("7.5", None),
            ("0", None),
            ("-0", None),
            ("-0.0", None),
            ("-7", None),
            (r#""7.0""#, None),
            (r#""7e0""#, None),
        ] {
            let reader = ReaderSeed(ReadScalar(|value: Scalar<'_>| {
                number(&value.or_whole(text), FieldPath::Top("x"), &mut Faults::default())
            }));
            let read = reader.deserialize(&mut serde_json::Deserializer::from_str(text)).ok().flatten();
            assert_eq!(read, expected, "{text}");
        }
    }
}
