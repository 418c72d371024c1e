//! Reads the members in the body of `PUT /group` as a stream.
//!
//! A body may have a hundred thousand. As separate values they would be as many allocations, and most of a group's
//! cost. Here each string is checked in the body and copied once, into its column.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess};

use super::body::BodyEntry;
use super::dedup::dedup;
use super::reader::{ReadScalar, ReaderSeed, Scalar, Skip, ValueReader};
use super::values::{self, FieldPath};
use crate::error::{Faults, Refusal};
use crate::store::mailbox::{self, Address, InvalidAddress};
use crate::store::{NewMembers, TextList};

/// The key in the body.
pub(super) const KEY: &str = "members";

/// Reads the members, without duplicate addresses. Adds their faults to `faults`.
///
/// # Errors
/// See [`BodyEntry::read`].
pub(super) fn read(entry: &BodyEntry<'_>, faults: &mut Faults) -> Result<NewMembers, Refusal> {
    let mut columns = Columns::with_max_bytes(entry.json.get().len());
    entry.read(ReadMembers { columns: &mut columns, faults })?;
    let Columns { emails, keys, names, have_spellings, .. } = columns;
    let emails = Arc::new(emails);
    let keys = keys.map_or_else(|| Arc::clone(&emails), Arc::new);
    let (emails, keys, names) = dedup(emails, keys, Arc::new(names));
    Ok(NewMembers::new(emails, keys, names, have_spellings))
}

/// The maximum length of a member's name in characters.
///
/// Larger: a single name costs SQLite, which copies bound values and parses them as JSON, many times its size.
/// Smaller: names in real directories are refused.
const MAX_NAME: usize = 1_000;

/// The minimum size of a member in a body: `{"email":"a@b"},`. Columns are allocated for as many members as fit.
///
/// Larger: columns of the shortest members grow, which copies them. Smaller: columns are allocated for more members
/// than a body can hold.
const MIN_MEMBER_BYTES: usize = 16;

/// The values of all members by column, in body order.
#[derive(Debug)]
struct Columns {
    /// The maximum size of a column in bytes. Columns are allocated at this size, since growing would copy them
    /// repeatedly.
    max_bytes: usize,
    emails: TextList,
    /// The keys by which addresses are compared; `None` while they all equal `emails`.
    keys: Option<TextList>,
    names: TextList,
    /// Whether the mailbox of any address has several spellings.
    have_spellings: bool,
}

impl Columns {
    fn with_max_bytes(max_bytes: usize) -> Self {
        let column = || TextList::with_capacity(max_bytes / MIN_MEMBER_BYTES, max_bytes);
        Self { max_bytes, emails: column(), keys: None, names: column(), have_spellings: false }
    }

    /// Adds the key of the last added address.
    fn add_key(&mut self) {
        let email = self.emails.last().unwrap_or_default();
        let key = mailbox::key(email);
        self.have_spellings |= mailbox::has_spellings(&key);
        match (&mut self.keys, key) {
            (Some(all), key) => all.push(&key),
            (None, Cow::Borrowed(_)) => {}
            (None, Cow::Owned(key)) => {
                let mut all = TextList::with_capacity(self.max_bytes / MIN_MEMBER_BYTES, self.max_bytes);
                all.extend(self.emails.iter().take(self.emails.len() - 1));
                all.push(&key);
                self.keys = Some(all);
            }
        }
    }
}

/// Reads the array of members.
struct ReadMembers<'m> {
    columns: &'m mut Columns,
    faults: &'m mut Faults,
}

impl<'b> ValueReader<'b> for ReadMembers<'_> {
    type Value = ();

    fn array<A: SeqAccess<'b>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { columns, faults } = self;
        for at in 0.. {
            let next = if faults.is_full() {
                items.next_element_seed(Skip)?
            } else {
                items.next_element_seed(ReaderSeed(ReadMember { columns, faults, at }))?
            };
            if next.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn scalar(self, _: Scalar<'_>) {
        self.faults.add(KEY, format_args!("The {KEY} must be an array."));
    }
}

/// Reads one member, at an index of the array.
struct ReadMember<'m> {
    columns: &'m mut Columns,
    faults: &'m mut Faults,
    at: usize,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum MemberKey {
    Email,
    Name,
    #[serde(other)]
    Other,
}

/// Why a field of a member is refused. The messages continue after the name of the field.
#[derive(Clone, Copy)]
enum MemberFault {
    Missing,
    Text(&'static str),
    LongName,
    Address(InvalidAddress),
}

impl fmt::Display for MemberFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is required"),
            Self::Text(fault) => f.write_str(fault),
            Self::LongName => write!(f, "must have at most {MAX_NAME} characters"),
            Self::Address(invalid) => invalid.fmt(f),
        }
    }
}

/// The state of a member's field while its object is read. If a key is repeated, the last value counts; `null` counts
/// as absent.
#[derive(Clone, Copy)]
enum MemberText {
    Absent,
    /// The last value of its column.
    Stored,
    /// The value is faulty.
    Faulty(MemberFault),
}

impl MemberText {
    /// Reads a value into its column, replacing that of an earlier occurrence of the key.
    fn read<'b, A: MapAccess<'b>>(
        self,
        entries: &mut A,
        column: &mut TextList,
        add: impl FnOnce(&mut TextList, &str) -> Result<(), MemberFault>,
    ) -> Result<Self, A::Error> {
        self.drop_from(column);
        entries.next_value_seed(ReaderSeed(ReadScalar(|value: Scalar<'_>| {
            if value == Scalar::Null {
                return Self::Absent;
            }
            match values::check_text(&value).map_err(MemberFault::Text).and_then(|text| add(column, text)) {
                Ok(()) => Self::Stored,
                Err(fault) => Self::Faulty(fault),
            }
        })))
    }

    fn drop_from(self, column: &mut TextList) {
        if matches!(self, Self::Stored) {
            column.pop();
        }
    }

    fn fault(self) -> Option<MemberFault> {
        if let Self::Faulty(fault) = self { Some(fault) } else { None }
    }
}

impl<'b> ValueReader<'b> for ReadMember<'_> {
    type Value = ();

    fn object<A: MapAccess<'b>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self { columns, faults, at } = self;
        let (mut email, mut name, mut email_is_last) = (MemberText::Absent, MemberText::Absent, false);
        while let Some(key) = entries.next_key()? {
            match key {
                MemberKey::Email => {
                    (email, email_is_last) = (email.read(&mut entries, &mut columns.emails, add_address)?, true);
                }
                MemberKey::Name => {
                    (name, email_is_last) = (name.read(&mut entries, &mut columns.names, add_name)?, false);
                }
                MemberKey::Other => entries.next_value_seed(Skip)?,
            }
        }
        if matches!(email, MemberText::Absent) {
            (email, email_is_last) = (MemberText::Faulty(MemberFault::Missing), true);
        }
        if email.fault().is_none() && name.fault().is_none() {
            if matches!(name, MemberText::Absent) {
                columns.names.push("");
            }
            columns.add_key();
            return Ok(());
        }
        email.drop_from(&mut columns.emails);
        name.drop_from(&mut columns.names);
        let mut found = [("email", email), ("name", name)];
        if email_is_last {
            found.reverse();
        }
        for (key, value) in found {
            if let Some(fault) = value.fault() {
                let path = FieldPath::Item(&FieldPath::Top(KEY), at);
                let path = FieldPath::Key(&path, key);
                faults.add(path, format_args!("The {path} {fault}."));
            }
        }
        Ok(())
    }

    fn scalar(self, _: Scalar<'_>) {
        let path = FieldPath::Item(&FieldPath::Top(KEY), self.at);
        self.faults.add(path, format_args!("The {path} must be an object with an email."));
    }
}

fn add_address(emails: &mut TextList, text: &str) -> Result<(), MemberFault> {
    let address = Address::parse(text).map_err(MemberFault::Address)?;
    emails.push(&address.stored);
    Ok(())
}

fn add_name(names: &mut TextList, text: &str) -> Result<(), MemberFault> {
    if text.len() > MAX_NAME && text.chars().nth(MAX_NAME).is_some() {
        return Err(MemberFault::LongName);
    }
    names.push(text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::body::Body;
    use super::*;

    fn members(body: &str) -> (NewMembers, Faults) {
        let body = Body::parse(body.as_bytes(), &[KEY]).unwrap();
        let mut faults = Faults::default();
        let members = read(body.entries().next().unwrap(), &mut faults).unwrap();
        (members, faults)
    }

    #[test]
    fn an_address_listed_twice_counts_once_and_the_last_name_wins() {
        let (members, _) = members(
            r#"{"members": [{"email": "A@x.de", "name": "1"}, {"email": "b@x.de"}, {"email": "a@X.de", "name": "2"},
            {"email": "a@x.DE"}]}"#,
        );
        let read: Vec<_> = members.folded.iter().zip(members.names.iter()).collect();
        assert_eq!(read, [("a@x.de", "2"), ("b@x.de", "")]);
        assert_eq!(members.emails.iter().collect::<Vec<_>>(), ["a@x.DE", "b@x.de"]);
    }

    #[test]
    fn the_last_value_of_a_repeated_key_counts() {
        let (members, faults) = members(
            r#"{"members": [7, {}], "members": [{"email": "a@x.de", "email": "b@x.de", "name": 7, "name": null},
            {"name": "n", "email": "c@x.de", "name": "m", "other": [{}], "email": "C@x.de"}]}"#,
        );
        assert_eq!(faults, Faults::default());
        assert_eq!(members.emails.iter().collect::<Vec<_>>(), ["b@x.de", "C@x.de"]);
        assert_eq!(members.folded.iter().collect::<Vec<_>>(), ["b@x.de", "c@x.de"]);
        assert_eq!(members.names.iter().collect::<Vec<_>>(), ["", "m"]);
    }

    #[test]
    fn addresses_that_folding_does_not_change_are_kept_once() {
        let (members, _) = members(r#"{"members": [{"email": "a@x.de"}, {"email": "b@x.de"}]}"#);
        assert!(Arc::ptr_eq(&members.emails, &members.folded));
    }

    #[test]
    fn a_faulty_member_leaves_nothing_in_the_columns() {
        let (members, faults) = members(
            r#"{"members": [{"email": "a@x.de", "name": 7}, {"email": 7, "name": "n"}, {"email": "b@x.de", "name": "m"}]}"#,
        );
        assert_eq!(members.emails.iter().zip(members.names.iter()).collect::<Vec<_>>(), [("b@x.de", "m")]);
        let answer = String::from_utf8(faults.into_result(()).unwrap_err().reply().body.to_vec()).unwrap();
        assert!(answer.contains("members.0.name") && answer.contains("members.1.email"), "{answer}");
    }
}
