//! The members in a body of `PUT /group`, read as they come.
//!
//! A body may have a hundred thousand, which as values of their own would be as many pieces of memory, and most of what a
//! group costs a node. Here a member is two texts of the body, which are looked at and put into columns.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, SeqAccess};
use serde_json_borrow::Value;

use super::ask::{self, Any, Path, Shape};
use super::body::Reader;
use crate::error::Faults;
use crate::store::mailbox::Address;
use crate::store::{NewMembers, Texts};

/// Its name in the body.
pub(super) const NAME: &str = "members";

/// Memory is asked for at once for so many of them.
const ROOM: usize = 64;

/// The members of a body, each address once, and what is wrong with them.
#[derive(Debug, Default)]
pub(super) struct Members {
    emails: Texts,
    keys: Texts,
    names: Texts,
    have_spellings: bool,
    faults: Faults,
}

impl<'b> Reader<'b> for Members {
    fn value<A: MapAccess<'b>>(&mut self, name: &str, from: &mut A) -> Result<Value<'b>, A::Error> {
        if name != NAME {
            return from.next_value();
        }
        // Where the name comes twice, the last one counts.
        *self = Self::with_room();
        from.next_value_seed(Any(List(self)))
    }
}

/// The list of them. In the body, one that is empty stands for it.
struct List<'m>(&'m mut Members);

impl<'b> Shape<'b> for List<'_> {
    type Value = Value<'b>;

    fn array<A: SeqAccess<'b>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut at = 0;
        while items.next_element_seed(Any(Member { members: &mut *self.0, at }))?.is_some() {
            at += 1;
        }
        Ok(Value::Array(Vec::new()))
    }

    fn null(self) -> Self::Value {
        Value::Null
    }

    fn other(self) -> Self::Value {
        self.0.faults.add(NAME, format_args!("The {NAME} must be an array."));
        Value::Array(Vec::new())
    }
}

/// One of them, and its place.
struct Member<'m> {
    members: &'m mut Members,
    at: usize,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Email,
    Name,
    #[serde(other)]
    Other,
}

impl<'b> Shape<'b> for Member<'_> {
    type Value = ();

    fn object<A: MapAccess<'b>>(self, mut entries: A) -> Result<(), A::Error> {
        // Of a name that comes twice the last one counts; what is null is as if it were not sent.
        let (mut email, mut name, mut name_is_first) = (Value::Null, Value::Null, false);
        while let Some(key) = entries.next_key()? {
            match key {
                Key::Email => (email, name_is_first) = (entries.next_value()?, true),
                Key::Name => (name, name_is_first) = (entries.next_value()?, false),
                Key::Other => _ = entries.next_value::<IgnoredAny>()?,
            }
        }
        self.add(&email, &name, name_is_first);
        Ok(())
    }

    fn other(self) {
        let path = self.path();
        self.members.faults.add(path, format_args!("The {path} must be an object with an email."));
    }
}

impl Member<'_> {
    fn path(&self) -> Path<'static> {
        Path::Item(&Path::Top(NAME), self.at)
    }

    /// Notes its faults in the order of the body, or adds it.
    fn add(self, email: &Value<'_>, name: &Value<'_>, name_is_first: bool) {
        let path = self.path();
        let Members { emails, keys, names, have_spellings, faults } = self.members;
        let name_of = |faults: &mut Faults| match name {
            Value::Null => Some(""),
            name => ask::text(name, Path::Key(&path, "name"), faults),
        };
        let (email, name) = if email.is_null() || name_is_first {
            let name = name_of(faults);
            (address(email, Path::Key(&path, "email"), faults), name)
        } else {
            (address(email, Path::Key(&path, "email"), faults), name_of(faults))
        };
        if let (Some(email), Some(name)) = (email, name) {
            emails.push(&email.stored);
            keys.push(&email.key);
            names.push(name);
            *have_spellings |= email.has_spellings;
        }
    }
}

fn address<'a>(value: &'a Value<'_>, path: Path<'_>, faults: &mut Faults) -> Option<Address<'a>> {
    if value.is_null() {
        faults.add(path, format_args!("The {path} is required."));
        return None;
    }
    let text = ask::text(value, path, faults)?;
    Address::parse(text).map_err(|invalid| faults.add(path, format_args!("The {path} {invalid}."))).ok()
}

impl Members {
    fn with_room() -> Self {
        let column = || Texts::with_capacity(ROOM, ROOM * 32);
        Self { emails: column(), keys: column(), names: column(), ..Self::default() }
    }

    /// The members, and notes what is wrong with them.
    pub(super) fn finish(mut self, faults: &mut Faults) -> NewMembers {
        faults.append(std::mem::take(&mut self.faults));
        let Self { emails, keys, names, have_spellings, .. } = self.each_once();
        NewMembers::new(emails, keys, names, have_spellings)
    }

    /// Each address once: the last name that was given wins, and the first place stays.
    fn each_once(self) -> Self {
        if all_differ(&self.keys) {
            return self;
        }
        let (mut places, mut once) = (HashMap::new(), Vec::new());
        for ((key, email), mut name) in self.keys.iter().zip(self.emails.iter()).zip(self.names.iter()) {
            let place = *places.entry(key).or_insert(once.len());
            if place == once.len() {
                once.push((key, email, name));
            } else {
                if name.is_empty() {
                    name = once[place].2;
                }
                once[place] = (key, email, name);
            }
        }
        Self {
            emails: once.iter().map(|member| member.1).collect(),
            keys: once.iter().map(|member| member.0).collect(),
            names: once.iter().map(|member| member.2).collect(),
            have_spellings: self.have_spellings,
            faults: self.faults,
        }
    }
}

/// Whether no text comes twice. Where two have the same hash by chance, or by intent, it tells that one does.
fn all_differ(texts: &Texts) -> bool {
    let hasher = FixedState::default();
    let mut hashes: Vec<u64> = texts.iter().map(|text| hasher.hash_one(text)).collect();
    hashes.sort_unstable();
    hashes.array_windows().all(|[one, next]| one != next)
}

#[cfg(test)]
mod tests {
    use super::super::body::Body;
    use super::*;

    #[test]
    fn an_address_listed_twice_counts_once_and_the_last_name_wins() {
        let mut members = Members::default();
        let body = br#"{"name": "G", "members": [{"email": "A@x.de", "name": "1"}, {"email": "b@x.de"},
            {"email": "a@X.de", "name": "2"}, {"email": "a@x.DE"}]}"#;
        Body::parse_with(body, &mut members).unwrap();
        let members = members.finish(&mut Faults::default());
        let read: Vec<_> = members.folded.iter().zip(members.names.iter()).collect();
        assert_eq!(read, [("a@x.de", "2"), ("b@x.de", "")]);
    }

    #[test]
    fn of_a_name_that_comes_twice_the_last_one_counts() {
        let mut members = Members::default();
        let body =
            br#"{"members": [7, {}], "members": [{"email": "a@x.de", "email": "b@x.de", "name": 7, "name": null}]}"#;
        Body::parse_with(body, &mut members).unwrap();
        assert_eq!(members.faults, Faults::default());
        assert_eq!(members.emails.iter().collect::<Vec<_>>(), ["b@x.de"]);
    }
}
