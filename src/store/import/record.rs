//! The records of the import format, with every check that needs no database.
//!
//! A parsed record has positive ids, texts that both databases accept (no NUL), timestamps in microseconds, and no
//! unknown keys. A record describes its object completely: an omitted key gets its default, whatever the database has.
//! `check` verifies references.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use jiff::Timestamp;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, IgnoredAny, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::store::filter::Status;
use crate::store::mailbox::check_visible;

/// The longest name and external id of a group, in characters, as in the schema and the API.
///
/// Larger: the database refuses the batch instead of the line. Smaller: groups that the API accepts are refused.
const MAX_GROUP_TEXT: usize = 255;

/// The longest e-mail address, in characters: 64 before the `@` and 255 after it (RFC 5321, section 4.5.3.1).
///
/// Larger: addresses that no mail server accepts are imported. Smaller: valid ones are refused.
const MAX_EMAIL: usize = 320;

/// The first instant that Postgres reads from text: its calendar has no year 0.
const FIRST_INSTANT: i64 = -62_135_596_800;

/// One line.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    User(UserRecord),
    Label(LabelRecord),
    Form(FormRecord),
    Group(GroupRecord),
    FlowStep(FlowStepRecord),
    Submission(Box<SubmissionRecord>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserRecord {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(deserialize_with = "id")]
    pub(super) id: i64,
    #[serde(deserialize_with = "email")]
    pub(super) email: String,
    #[serde(default, deserialize_with = "text")]
    pub(super) name: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LabelRecord {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(deserialize_with = "id")]
    pub(super) id: i64,
    #[serde(deserialize_with = "text")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) shared: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FormRecord {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(deserialize_with = "id")]
    pub(super) id: i64,
    #[serde(deserialize_with = "text")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) anonymous: bool,
    #[serde(default)]
    pub(super) disabled: bool,
    #[serde(default, deserialize_with = "optional_id")]
    pub(super) parent_id: Option<i64>,
    #[serde(default)]
    pub(super) graduated: bool,
    #[serde(default, deserialize_with = "objects")]
    pub(super) elements: Vec<ElementRecord>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ElementRecord {
    #[serde(deserialize_with = "id")]
    pub(super) id: i64,
    #[serde(deserialize_with = "text")]
    pub(super) gid: String,
    #[serde(deserialize_with = "text")]
    pub(super) name: String,
    #[serde(rename = "type", deserialize_with = "text")]
    pub(super) kind: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupRecord {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(deserialize_with = "id")]
    pub(super) id: i64,
    #[serde(deserialize_with = "group_text")]
    pub(super) name: String,
    #[serde(default, deserialize_with = "optional_group_text")]
    pub(super) external_id: Option<String>,
    #[serde(default)]
    pub(super) managed: bool,
    #[serde(default, deserialize_with = "ids")]
    pub(super) members: Vec<i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlowStepRecord {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(deserialize_with = "id")]
    pub(super) id: i64,
    #[serde(deserialize_with = "id")]
    pub(super) form_id: i64,
    #[serde(deserialize_with = "text")]
    pub(super) name: String,
    #[serde(default, deserialize_with = "ids")]
    pub(super) groups: Vec<i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubmissionRecord {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(deserialize_with = "id")]
    pub(super) id: i64,
    #[serde(deserialize_with = "id")]
    pub(super) form_id: i64,
    #[serde(default, deserialize_with = "optional_id")]
    pub(super) parent_id: Option<i64>,
    #[serde(deserialize_with = "status")]
    pub(super) status: Status,
    #[serde(default)]
    pub(super) draft: bool,
    #[serde(default, deserialize_with = "optional_id")]
    pub(super) submitter_id: Option<i64>,
    #[serde(deserialize_with = "instant")]
    pub(super) created_at: Timestamp,
    #[serde(deserialize_with = "instant")]
    pub(super) updated_at: Timestamp,
    #[serde(default, deserialize_with = "ids")]
    pub(super) labels: Vec<i64>,
    #[serde(default, deserialize_with = "ids")]
    pub(super) shared_labels: Vec<i64>,
    #[serde(default, deserialize_with = "ids")]
    pub(super) pending_on: Vec<i64>,
    #[serde(default, deserialize_with = "ids")]
    pub(super) participants: Vec<i64>,
    #[serde(default, deserialize_with = "ids")]
    pub(super) flow_steps: Vec<i64>,
    #[serde(default, deserialize_with = "objects")]
    pub(super) answers: Vec<AnswerRecord>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerRecord {
    #[serde(deserialize_with = "id")]
    pub(super) element_id: i64,
    /// The value in the record. [`Self::stored_value`] is the effective one.
    #[serde(deserialize_with = "text_or_null")]
    value: String,
    #[serde(default, deserialize_with = "optional_instant")]
    pub(super) updated_at: Option<Timestamp>,
    #[serde(default, deserialize_with = "objects")]
    pub(super) files: Vec<FileRecord>,
}

impl AnswerRecord {
    /// The value as it is stored and searched: the URLs of the files, if there are any.
    pub(super) fn stored_value(&self) -> String {
        if self.files.is_empty() {
            return self.value.clone();
        }
        self.files.iter().map(|file| file.url.as_str()).collect::<Vec<_>>().join(",")
    }
}

/// A file of an answer. Every key is stored, as null if it is omitted.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileRecord {
    #[serde(deserialize_with = "text")]
    name: String,
    #[serde(deserialize_with = "text")]
    url: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default, deserialize_with = "optional_text")]
    mime_type: Option<String>,
}

/// Accepts only a JSON object; a derived struct would also accept an array of its values.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Objects<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Objects<T> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(Objects(PhantomData)).map(Self)
    }
}

fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let objects = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|Object(object)| object).collect())
}

struct PositiveInteger;

impl Visitor<'_> for PositiveInteger {
    type Value = i64;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a positive 64-bit integer")
    }
    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<i64, E> {
        if value > 0 { Ok(value) } else { Err(E::invalid_value(Unexpected::Signed(value), &self)) }
    }
    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<i64, E> {
        match i64::try_from(value) {
            Ok(value) if value > 0 => Ok(value),
            _ => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
        }
    }
}

#[derive(Deserialize)]
struct IdField(#[serde(deserialize_with = "id")] i64);

fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    deserializer.deserialize_i64(PositiveInteger)
}

fn optional_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    Ok(Option::<IdField>::deserialize(deserializer)?.map(|IdField(id)| id))
}

fn ids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i64>, D::Error> {
    Ok(Vec::<IdField>::deserialize(deserializer)?.into_iter().map(|IdField(id)| id).collect())
}

#[derive(Deserialize)]
struct TextField(#[serde(deserialize_with = "text")] String);

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.contains('\0') { Err(D::Error::custom("a text can't hold the character NUL")) } else { Ok(text) }
}

fn optional_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<TextField>::deserialize(deserializer)?.map(|TextField(text)| text))
}

fn text_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    optional_text(deserializer).map(Option::unwrap_or_default)
}

fn email<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let email = text(deserializer)?;
    if !email.contains('@') || email.chars().nth(MAX_EMAIL).is_some() {
        return Err(D::Error::custom("expected an e-mail address of at most 320 characters"));
    }
    check_visible(&email).map_err(|invalid| D::Error::custom(format_args!("the address {invalid}")))?;
    Ok(email)
}

fn sized_for_group<E: serde::de::Error>(text: String) -> Result<String, E> {
    if text.is_empty() || text.chars().nth(MAX_GROUP_TEXT).is_some() {
        return Err(E::custom("expected 1 to 255 characters"));
    }
    Ok(text)
}

fn group_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    sized_for_group(text(deserializer)?)
}

fn optional_group_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    optional_text(deserializer)?.map(sized_for_group).transpose()
}

fn status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Status, D::Error> {
    let text = String::deserialize(deserializer)?;
    Status::parse(&text).ok_or_else(|| {
        let all = Status::ALL.map(Status::as_str).join("`, `");
        D::Error::custom(format!("unknown status `{text}`, expected one of `{all}`"))
    })
}

#[derive(Deserialize)]
struct InstantField(#[serde(deserialize_with = "instant")] Timestamp);

fn instant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    parse_instant(&String::deserialize(deserializer)?)
        .ok_or_else(|| D::Error::custom("expected an RFC 3339 date-time such as `2024-05-01T13:45:30.123456Z`"))
}

fn optional_instant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(Option::<InstantField>::deserialize(deserializer)?.map(|InstantField(instant)| instant))
}

/// Parses an RFC 3339 date-time, truncated to the microsecond. The parser of `jiff` also accepts times without
/// seconds, zone names in brackets and signed years, which the format does not allow.
fn parse_instant(text: &str) -> Option<Timestamp> {
    let shape = |pattern: &str, text: &[u8]| {
        pattern.len() == text.len()
            && pattern.bytes().zip(text).all(|(pattern, byte)| match pattern {
                b'0' => byte.is_ascii_digit(),
                b'T' => matches!(byte, b'T' | b't' | b' '),
                b'+' => matches!(byte, b'+' | b'-'),
                other => *byte == other,
            })
    };
    let (date_time, rest) = text.as_bytes().split_at_checked(19)?;
    let offset = match rest {
        [b'.', fraction @ ..] => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if !(1..=9).contains(&digits) {
                return None;
            }
            &fraction[digits..]
        }
        _ => rest,
    };
    if !shape("0000-00-00T00:00:00", date_time) || !(matches!(offset, b"Z" | b"z") || shape("+00:00", offset)) {
        return None;
    }
    let instant: Timestamp = text.parse().ok()?;
    let microsecond = i64::try_from(instant.as_nanosecond().div_euclid(1_000)).ok()?;
    Timestamp::from_microsecond(microsecond).ok().filter(|instant| instant.as_second() >= FIRST_INSTANT)
}

/// The ids of a list without duplicates.
pub(super) fn distinct(ids: &[i64]) -> impl Iterator<Item = i64> + '_ {
    let mut seen = HashSet::new();
    ids.iter().copied().filter(move |id| seen.insert(*id))
}
