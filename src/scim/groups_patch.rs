//! What a request says about a group: a resource, or the operations of PATCH, as steps of one change.
//!
//! The steps name users to add and to remove; they never contain members that the client did not send. A member that can
//! be no user of this account, such as a nested group, is skipped and reported.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::error::{Fault, FaultKind};
use super::filter::{Literal, Test, canonical};
use super::json::Object;
use super::parse_id;
use super::patch::{Operation, OperationKind, operations, text_of};
use super::users::ID;
use crate::error::abbreviate;
use crate::store::{Comparison, DirectoryGroupChange, Filter};

/// How many skipped members are named.
///
/// Larger: the header of the response gets longer than proxies take. Smaller: more of them have to be looked for.
pub(super) const MAX_NAMED: usize = 50;

/// Users that a request names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NamedUsers {
    ids: Vec<i64>,
    skipped: Skipped,
}

/// References that name no user of this account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Skipped {
    /// The first of them.
    pub(super) named: Vec<String>,
    /// How many there are.
    pub(super) count: usize,
}

impl Skipped {
    pub(super) fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.named.len() < MAX_NAMED {
            self.named.push(name());
        }
    }
}

/// The change of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupPatch {
    /// Its steps.
    pub(super) steps: Vec<DirectoryGroupChange>,
    /// Members that can be no users.
    pub(super) skipped: Skipped,
}

/// A group as a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupResource {
    pub(super) name: String,
    pub(super) external_id: Option<String>,
    /// `None` if it names none, not even an empty list.
    pub(super) members: Option<Vec<i64>>,
    pub(super) skipped: Skipped,
}

impl GroupResource {
    /// Reads a resource.
    pub(super) fn read(body: &[u8]) -> Result<Self, Fault> {
        let object = Object::of_body(body, is_read)?;
        let (mut name, mut external_id, mut members, mut skipped) = (None, None, None, Skipped::default());
        for (key, value) in object.entries().filter(|(_, value)| value.get() != "null") {
            match canonical(key).as_str() {
                "displayname" => name = text_of("displayName", Some(value))?,
                "externalid" => external_id = text_of("externalId", Some(value))?,
                _ => {
                    let named = NamedUsers::read(value)?;
                    (members, skipped) = (Some(named.ids), named.skipped);
                }
            }
        }
        let name = name.ok_or_else(|| Fault::value("The displayName is required."))?;
        Ok(Self { name, external_id, members, skipped })
    }

    /// The change that makes a group this resource. Members stay as they are if the resource names none.
    pub(super) fn into_patch(self) -> GroupPatch {
        let mut steps = vec![DirectoryGroupChange::Rename(self.name), DirectoryGroupChange::Identify(self.external_id)];
        steps.extend(self.members.map(DirectoryGroupChange::Replace));
        GroupPatch { steps, skipped: self.skipped }
    }
}

impl GroupPatch {
    /// Reads the operations of PATCH.
    pub(super) fn of_operations(body: &[u8]) -> Result<Self, Fault> {
        let mut patch = Self::default();
        for operation in operations(body)? {
            patch.read(&operation)?;
        }
        Ok(patch)
    }

    fn read(&mut self, operation: &Operation<'_>) -> Result<(), Fault> {
        let Some(path) = &operation.path else {
            if operation.kind == OperationKind::Remove {
                return Err(Fault::new(FaultKind::Target, "The operation remove needs a path."));
            }
            let object = operation.value.and_then(|value| Object::of_value(value, is_read));
            let object =
                object.ok_or_else(|| Fault::value("An operation without a path needs an object as its value."))?;
            for (key, value) in object.entries().filter(|(_, value)| value.get() != "null") {
                self.set(operation.kind, &canonical(key), Some(value))?;
            }
            return Ok(());
        };
        match (path.attribute.as_str(), &path.filter, &path.sub_attribute) {
            ("members", Some(filter), None) if operation.kind == OperationKind::Remove => {
                let mut named = NamedUsers::default();
                named.add_filtered(filter)?;
                self.push(DirectoryGroupChange::Remove(named.ids));
                Ok(())
            }
            ("members", Some(_), None) => {
                Err(Fault::new(FaultKind::Path, "A member can be added and removed, but not changed."))
            }
            (attribute, None, None) => self.set(operation.kind, attribute, operation.value),
            // What a member is called, and other attributes that are not stored.
            _ => Ok(()),
        }
    }

    fn set(&mut self, kind: OperationKind, attribute: &str, value: Option<&RawValue>) -> Result<(), Fault> {
        match (attribute, kind, value) {
            ("displayname", OperationKind::Add | OperationKind::Replace, value) => {
                let name = text_of("displayName", value)?;
                let name = name.ok_or_else(|| Fault::value("The displayName must not be empty."))?;
                self.push(DirectoryGroupChange::Rename(name));
            }
            ("displayname", OperationKind::Remove, _) => {
                return Err(Fault::new(FaultKind::Mutability, "The displayName is required and can't be removed."));
            }
            ("externalid", OperationKind::Remove, _) => self.push(DirectoryGroupChange::Identify(None)),
            ("externalid", _, value) => self.push(DirectoryGroupChange::Identify(text_of("externalId", value)?)),
            ("members", OperationKind::Remove, None) => self.push(DirectoryGroupChange::Empty),
            ("members", OperationKind::Add | OperationKind::Replace, None) => {
                return Err(Fault::value("The operation on members needs a value."));
            }
            ("members", kind, Some(value)) => {
                let NamedUsers { ids, skipped } = NamedUsers::read(value)?;
                if kind != OperationKind::Remove {
                    self.skipped.count += skipped.count;
                    let room = MAX_NAMED - self.skipped.named.len();
                    self.skipped.named.extend(skipped.named.into_iter().take(room));
                }
                self.push(match kind {
                    OperationKind::Add => DirectoryGroupChange::Add(ids),
                    OperationKind::Remove => DirectoryGroupChange::Remove(ids),
                    OperationKind::Replace => DirectoryGroupChange::Replace(ids),
                });
            }
            ("members.value" | "members.$ref", ..) => {
                return Err(Fault::new(FaultKind::Path, "A member is named by members[value eq \"…\"]."));
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds a step, which is joined with the one before if both add or both remove members.
    fn push(&mut self, step: DirectoryGroupChange) {
        match (self.steps.last_mut(), step) {
            (Some(DirectoryGroupChange::Add(last)), DirectoryGroupChange::Add(mut more))
            | (Some(DirectoryGroupChange::Remove(last)), DirectoryGroupChange::Remove(mut more)) => {
                last.append(&mut more);
            }
            (_, step) => self.steps.push(step),
        }
    }
}

/// Whether an attribute is read, by its name in lower case, in its long form too.
fn is_read(name: &str) -> bool {
    ["displayname", "externalid", "members"].contains(&canonical(name).as_str())
}

impl NamedUsers {
    /// Reads members: a text, an object with a value, or a list of these.
    fn read(value: &RawValue) -> Result<Self, Fault> {
        let mut named = Self::default();
        let mut json = serde_json::Deserializer::from_str(value.get());
        let read = ReadMembers { named: &mut named, is_item: false }.deserialize(&mut json);
        read.map_err(|_| Fault::value("The members must be a list of objects with the id of a user as their value."))?;
        Ok(named)
    }

    fn add(&mut self, text: &str) {
        match parse_id(ID, text) {
            Some(id) => self.ids.push(id),
            None => self.skipped.add(|| abbreviate(text).into()),
        }
    }

    /// Adds the users that a filter of members names.
    fn add_filtered(&mut self, filter: &Filter<Test>) -> Result<(), Fault> {
        match filter {
            Filter::Any(parts) => parts.iter().try_for_each(|part| self.add_filtered(part)),
            Filter::Test(Test { attribute, comparison: Comparison::Equal, value: Literal::Text(text) })
                if attribute == "value" =>
            {
                self.add(text);
                Ok(())
            }
            Filter::All(_) | Filter::Not(_) | Filter::Test(_) => {
                Err(Fault::new(FaultKind::Filter, "Members are named by value eq \"…\", with or between several."))
            }
        }
    }
}

/// Reads members as a stream: a request may name a hundred thousand.
struct ReadMembers<'m> {
    named: &'m mut NamedUsers,
    is_item: bool,
}

impl<'b> DeserializeSeed<'b> for ReadMembers<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'b>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'b> Visitor<'b> for ReadMembers<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("members")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.named.add(text);
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.named.add(&number.to_string());
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'b>>(self, mut items: A) -> Result<(), A::Error> {
        if self.is_item {
            return Err(A::Error::custom("a list in a list"));
        }
        while items.next_element_seed(ReadMembers { named: &mut *self.named, is_item: true })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'b>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut value: Option<String> = None;
        while let Some(key) = entries.next_key::<String>()? {
            if key.eq_ignore_ascii_case("value") {
                value = Some(entries.next_value()?);
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        // Without this, `remove` of an empty object would be one of all members.
        let value = value.ok_or_else(|| A::Error::custom("a member without a value"))?;
        self.named.add(&value);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
