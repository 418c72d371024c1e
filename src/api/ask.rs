//! Reading a request's JSON: every fault is noted under its path, and reading goes on.
//!
//! Derived deserialisation stops at the first wrong type; callers are to learn of all faults at once.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json_borrow::{Number, Value};

use super::id::{Kind, parse_number};
use crate::error::Faults;

/// Where a value stands, as its faults name it: `members.3.email`. It becomes a text with the first fault, since a body may
/// have a hundred thousand members.
#[derive(Clone, Copy, Debug)]
pub(super) enum Path<'p> {
    Top(&'p str),
    Key(&'p Path<'p>, &'p str),
    Item(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top(name) => f.write_str(name),
            Self::Key(of, key) => write!(f, "{of}.{key}"),
            Self::Item(of, at) => write!(f, "{of}.{at}"),
        }
    }
}

impl<'p> From<&'p str> for Path<'p> {
    fn from(name: &'p str) -> Self {
        Self::Top(name)
    }
}

/// A text without NUL, which no database here can hold.
pub(super) fn text<'a>(value: &'a Value<'_>, path: Path<'_>, faults: &mut Faults) -> Option<&'a str> {
    match value {
        // JSON has no NUL that is not escaped, and what is escaped is not borrowed.
        Value::Str(Cow::Borrowed(text)) => Some(text),
        Value::Str(text) if !text.contains('\0') => Some(text),
        Value::Str(_) => {
            faults.add(path, format_args!("The {path} must not contain NUL characters."));
            None
        }
        _ => {
            faults.add(path, format_args!("The {path} must be a string."));
            None
        }
    }
}

/// Every item of an array, read one by one; the faulty ones are left out.
pub(super) fn list<'v, 'b, T>(
    value: &'v Value<'b>,
    path: Path<'_>,
    faults: &mut Faults,
    mut read: impl FnMut(&'v Value<'b>, Path<'_>, &mut Faults) -> Option<T>,
) -> Vec<T> {
    let Some(items) = value.as_array() else {
        faults.add(path, format_args!("The {path} must be an array."));
        return Vec::new();
    };
    let mut read_items = Vec::with_capacity(items.len());
    read_items.extend(items.iter().enumerate().filter_map(|(at, item)| read(item, Path::Item(&path, at), faults)));
    read_items
}

/// A positive 64-bit number, or a text of one.
pub(super) fn number(value: &Value<'_>, path: Path<'_>, faults: &mut Faults) -> Option<i64> {
    let number = match value {
        Value::Number(number) => whole(number),
        Value::Str(text) => parse_number(text),
        _ => None,
    };
    if number.is_none() {
        faults.add(path, format_args!("The {path} must be a positive integer."));
    }
    number
}

/// A positive 64-bit number, however it is spelled: JSON has one kind of numbers, and languages that do so too write
/// `7.0` or `7e0`.
fn whole(number: &Number) -> Option<i64> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    let spelled_otherwise = || {
        let number = number.as_f64().filter(|number| number.fract() == 0.0 && (1.0..END).contains(number))?;
        #[expect(clippy::cast_possible_truncation, reason = "it is whole, and within 64 bits")]
        Some(number as i64)
    };
    number.as_i64().filter(|&number| number > 0).or_else(spelled_otherwise)
}

/// A prefixed or bare id.
pub(super) fn id(value: &Value<'_>, path: Path<'_>, kind: Kind, faults: &mut Faults) -> Option<i64> {
    let id = match value {
        Value::Number(number) => whole(number),
        Value::Str(text) => kind.parse(text),
        _ => None,
    };
    if id.is_none() {
        faults
            .add(path, format_args!("The {path} must be a {} id: {}<number> or a number.", kind.name(), kind.prefix()));
    }
    id
}

/// What becomes of a value that may be of any kind, read as it comes.
pub(super) trait Shape<'b>: Sized {
    type Value;

    /// Of an object.
    fn object<A: MapAccess<'b>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(self.other())
    }

    /// Of an array.
    fn array<A: SeqAccess<'b>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(self.other())
    }

    /// Of `null`.
    fn null(self) -> Self::Value {
        self.other()
    }

    /// Of all else.
    fn other(self) -> Self::Value;
}

/// Reads a value by its [`Shape`].
pub(super) struct Any<S>(pub(super) S);

impl<'b, S: Shape<'b>> DeserializeSeed<'b> for Any<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'b>>(self, value: D) -> Result<S::Value, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'b, S: Shape<'b>> Visitor<'b> for Any<S> {
    type Value = S::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'b>>(self, entries: A) -> Result<S::Value, A::Error> {
        self.0.object(entries)
    }

    fn visit_seq<A: SeqAccess<'b>>(self, items: A) -> Result<S::Value, A::Error> {
        self.0.array(items)
    }

    fn visit_unit<E>(self) -> Result<S::Value, E> {
        Ok(self.0.null())
    }

    fn visit_bool<E>(self, _: bool) -> Result<S::Value, E> {
        Ok(self.0.other())
    }

    fn visit_i64<E>(self, _: i64) -> Result<S::Value, E> {
        Ok(self.0.other())
    }

    fn visit_u64<E>(self, _: u64) -> Result<S::Value, E> {
        Ok(self.0.other())
    }

    fn visit_f64<E>(self, _: f64) -> Result<S::Value, E> {
        Ok(self.0.other())
    }

    fn visit_str<E>(self, _: &str) -> Result<S::Value, E> {
        Ok(self.0.other())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_is_read_however_it_is_spelled() {
        for (text, expected) in [
            ("7", Some(7)),
            ("7.0", Some(7)),
            ("70e-1", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854774784.0", Some(9_223_372_036_854_774_784)),
            ("9223372036854775808", None),
            ("9223372036854775808.0", None),
            ("1e400", None),
            ("7.5", None),
            ("0.0", None),
            ("-7.0", None),
        ] {
            let read = serde_json::from_str(text)
                .ok()
                .and_then(|value| number(&value, Path::Top("x"), &mut Faults::default()));
            assert_eq!(read, expected, "{text}");
        }
    }
}
