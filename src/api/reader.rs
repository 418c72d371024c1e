//! Streaming readers of JSON values, which build only what is kept.
//!
//! A tree of values takes up to sixteen times the memory of its JSON. Instead, a [`ValueReader`] decides what to keep
//! of a value of each kind and borrows strings from the body; arrays are read item by item, and [`Skip`] skips the
//! rest.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::values::FieldPath;
use crate::error::Faults;
use crate::json_text::whole;

/// A value that contains no others. Its string is borrowed while it is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Null,
    String(&'a str),
    Integer(i64),
    /// A boolean, a number that is no 64-bit integer or, where a scalar is expected, an array or object.
    Other,
}

impl Scalar<'_> {
    /// The same value, or the integer that the text of a value writes with a point or an exponent. JSON has one number type,
    /// and languages with only one write `7.0` or `7e0`. These are read from the text, since the nearest `f64` may be another
    /// number. Beyond 2^53, programs that write so have rounded already: such a number stays [`Scalar::Other`].
    pub(super) fn or_whole(self, text: &str) -> Self {
        match self {
            Self::Other => whole(text).map_or(self, Scalar::Integer),
            value => value,
        }
    }
}

/// Reads a value of any kind.
pub(super) trait ValueReader<'b>: Sized {
    type Value;

    /// Handles a scalar and, by default, everything else as [`Scalar::Other`].
    fn scalar(self, value: Scalar<'_>) -> Self::Value;

    /// Handles an array.
    fn array<A: SeqAccess<'b>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element_seed(Skip)?.is_some() {}
        Ok(self.scalar(Scalar::Other))
    }

    /// Handles an object.
    fn object<A: MapAccess<'b>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        while entries.next_key_seed(Skip)?.is_some() {
            entries.next_value_seed(Skip)?;
        }
        Ok(self.scalar(Scalar::Other))
    }
}

/// Adapts a [`ValueReader`] to serde.
pub(super) struct ReaderSeed<S>(pub(super) S);

impl<'b, S: ValueReader<'b>> DeserializeSeed<'b> for ReaderSeed<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'b>>(self, value: D) -> Result<S::Value, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'b, S: ValueReader<'b>> Visitor<'b> for ReaderSeed<S> {
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
        Ok(self.0.scalar(Scalar::Null))
    }

    fn visit_bool<E>(self, _: bool) -> Result<S::Value, E> {
        Ok(self.0.scalar(Scalar::Other))
    }

    fn visit_i64<E>(self, number: i64) -> Result<S::Value, E> {
        Ok(self.0.scalar(Scalar::Integer(number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<S::Value, E> {
        Ok(self.0.scalar(i64::try_from(number).map_or(Scalar::Other, Scalar::Integer)))
    }

    fn visit_f64<E>(self, _: f64) -> Result<S::Value, E> {
        Ok(self.0.scalar(Scalar::Other))
    }

    fn visit_str<E>(self, text: &str) -> Result<S::Value, E> {
        Ok(self.0.scalar(Scalar::String(text)))
    }
}

/// Skips a value. Unlike serde's `IgnoredAny`, checks strings and numbers and limits the nesting, so that the same
/// JSON is valid under every key.
pub(super) struct Skip;

impl<'b> ValueReader<'b> for Skip {
    type Value = ();

    fn scalar(self, _: Scalar<'_>) {}
}

impl<'b> DeserializeSeed<'b> for Skip {
    type Value = ();

    fn deserialize<D: Deserializer<'b>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(ReaderSeed(self))
    }
}

/// Reads a scalar with a function.
pub(super) struct ReadScalar<F>(pub(super) F);

impl<T, F: FnOnce(Scalar<'_>) -> T> ValueReader<'_> for ReadScalar<F> {
    type Value = T;

    fn scalar(self, value: Scalar<'_>) -> T {
        (self.0)(value)
    }
}

/// Reads the key of an entry with a function.
pub(super) struct ReadKey<F>(pub(super) F);

impl<'b, T, F: FnOnce(&str) -> T> DeserializeSeed<'b> for ReadKey<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'b>>(self, name: D) -> Result<T, D::Error> {
        name.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for ReadKey<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<T, E> {
        Ok((self.0)(name))
    }
}

/// Reads an array of scalars, each with a function; faulty ones are left out. `None` if there are more than `most`;
/// then the faults of the items are dropped.
pub(super) struct ReadList<'f, F> {
    pub(super) path: FieldPath<'f>,
    pub(super) most: usize,
    pub(super) faults: &'f mut Faults,
    pub(super) read: F,
}

impl<'b, T, F: FnMut(&Scalar<'_>, FieldPath<'_>, &mut Faults) -> Option<T>> ValueReader<'b> for ReadList<'_, F> {
    type Value = Option<Vec<T>>;

    fn array<A: SeqAccess<'b>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let Self { path, most, faults, mut read } = self;
        let (mark, mut values) = (faults.mark(), Vec::new());
        for at in 0.. {
            let next = if at < most && !faults.is_full() {
                match items.next_element::<&RawValue>()? {
                    Some(item) => {
                        let text = item.get();
                        let item = |value: Scalar<'_>| read(&value.or_whole(text), FieldPath::Item(&path, at), faults);
                        let value =
                            ReaderSeed(ReadScalar(item)).deserialize(&mut serde_json::Deserializer::from_str(text));
                        Some(value.map_err(A::Error::custom)?)
                    }
                    None => None,
                }
            } else {
                items.next_element_seed(Skip)?.map(|()| None)
            };
            match next {
                Some(value) => values.extend(value),
                None if at > most => break,
                None => return Ok(Some(values)),
            }
        }
        faults.truncate_to(mark);
        Ok(None)
    }

    fn scalar(self, _: Scalar<'_>) -> Self::Value {
        let path = self.path;
        self.faults.add(path, format_args!("The {path} must be an array."));
        Some(Vec::new())
    }
}
