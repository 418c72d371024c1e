//! JSON values read as they come: by their shape, without building what no reader asks for.
//!
//! A tree of values costs up to sixteen times its JSON. So a reader gives a [`ValueReader`] that decides what to keep of a value
//! of each kind, and gets texts as they are in the body; a list is read item by item, and [`Skip`] passes over the rest.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::values::FieldPath;
use crate::error::Faults;

/// A value that has no others inside. Its text lives while it is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Null,
    String(&'a str),
    Integer(i64),
    Float(f64),
    /// A truth value, an integer past 64 bits, and for those who expected a scalar, a list or an object.
    Other,
}

/// What becomes of a value that may be of any kind.
pub(super) trait ValueReader<'b>: Sized {
    type Value;

    /// Of a scalar, and by default of everything else.
    fn scalar(self, value: Scalar<'_>) -> Self::Value;

    /// Of an array.
    fn array<A: SeqAccess<'b>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element_seed(Skip)?.is_some() {}
        Ok(self.scalar(Scalar::Other))
    }

    /// Of an object.
    fn object<A: MapAccess<'b>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        while entries.next_key_seed(Skip)?.is_some() {
            entries.next_value_seed(Skip)?;
        }
        Ok(self.scalar(Scalar::Other))
    }
}

/// Reads a value by its [`ValueReader`].
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

    fn visit_f64<E>(self, number: f64) -> Result<S::Value, E> {
        Ok(self.0.scalar(Scalar::Float(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<S::Value, E> {
        Ok(self.0.scalar(Scalar::String(text)))
    }
}

/// Passes over a value. Unlike serde's `IgnoredAny` it looks into texts and numbers and bounds the nesting, so that the
/// same JSON is valid whatever name it has.
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

/// A scalar, read by a function.
pub(super) struct ReadScalar<F>(pub(super) F);

impl<T, F: FnOnce(Scalar<'_>) -> T> ValueReader<'_> for ReadScalar<F> {
    type Value = T;

    fn scalar(self, value: Scalar<'_>) -> T {
        (self.0)(value)
    }
}

/// The name of an object's entry, read by a function.
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

/// An array of scalars, each read by a function; the faulty ones are left out. Nothing where there are too many, and then
/// the faults of its items are forgotten.
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
                let item = |value: Scalar<'_>| read(&value, FieldPath::Item(&path, at), faults);
                items.next_element_seed(ReaderSeed(ReadScalar(item)))?
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
