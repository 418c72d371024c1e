//! What is wrong with a request, field by field.

use std::collections::HashMap;
use std::fmt::Display;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::Refusal;

/// So many faults are told, and of the rest how many they are. Fewer, and a directory is mended in more rounds; more, and a
/// body of nothing but faults, which may have millions, is answered at many times its length.
const TOLD: usize = 10_000;

/// The faults of a request, in the order in which they were found: a field's path, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    told: Vec<(String, String)>,
    untold: usize,
}

impl Faults {
    /// Notes one fault of one field.
    pub fn add(&mut self, field: impl Display, text: impl Display) {
        if self.told.len() < TOLD {
            self.told.push((field.to_string(), text.to_string()));
        } else {
            self.untold += 1;
        }
    }

    /// Notes what was found elsewhere.
    pub fn append(&mut self, found: Self) {
        let room = TOLD - self.told.len();
        self.untold += found.untold + found.told.len().saturating_sub(room);
        self.told.extend(found.told.into_iter().take(room));
    }

    /// The value when nothing was found.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] with what was found.
    pub fn or_else<T>(self, value: T) -> Result<T, Refusal> {
        if self.told.is_empty() { Ok(value) } else { Err(Refusal::Invalid(self)) }
    }

    /// A refusal for one fault.
    pub fn only(field: impl Display, text: impl Display) -> Refusal {
        let mut faults = Self::default();
        faults.add(field, text);
        Refusal::Invalid(faults)
    }

    /// The fields, each once, with their faults.
    fn by_field(&self) -> Vec<(&str, Vec<&str>)> {
        let mut fields: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (field, text) in &self.told {
            let place = *places.entry(field).or_insert(fields.len());
            match fields.get_mut(place) {
                Some((_, texts)) => texts.push(text),
                None => fields.push((field, vec![text])),
            }
        }
        fields
    }
}

/// The answer's body: a message that sums up, and the faults by field.
impl Serialize for Faults {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Errors<'a>(&'a Faults);
        impl Serialize for Errors<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.by_field())
            }
        }
        let first = self.told.first().map_or("", |(_, text)| text.as_str());
        let message = match (self.told.len() + self.untold).saturating_sub(1) {
            0 => first.to_owned(),
            1 => format!("{first} (and 1 more error)"),
            more => format!("{first} (and {more} more errors)"),
        };
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("message", &message)?;
        map.serialize_entry("errors", &Errors(self))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_keep_their_order_and_gather_by_field() {
        let mut faults = Faults::default();
        faults.add("start", "S.");
        faults.add("forms.1", "F.");
        faults.add("start", "T.");
        assert_eq!(
            serde_json::to_string(&faults).unwrap(),
            r#"{"message":"S. (and 2 more errors)","errors":{"start":["S.","T."],"forms.1":["F."]}}"#
        );
    }

    #[test]
    fn of_very_many_faults_the_first_are_told_and_all_are_counted() {
        let faults_of = |fields: std::ops::Range<usize>| {
            let mut faults = Faults::default();
            fields.for_each(|at| faults.add(format_args!("members.{at}"), "M."));
            faults
        };
        for first in [TOLD - 1, TOLD, TOLD + 5] {
            let mut faults = faults_of(0..first);
            faults.append(faults_of(2 * TOLD..4 * TOLD));
            let body = serde_json::to_value(&faults).unwrap();
            assert_eq!(body["message"], format!("M. (and {} more errors)", first + 2 * TOLD - 1));
            assert_eq!(body["errors"].as_object().unwrap().len(), TOLD);
        }
    }
}
