//! The parameter `fields`: what of each submission a response shows.
//!
//! Owns the names of a submission's keys. The store reads the answers of the elements that were named, and no others
//! ([`ShownElements`]).

use jiff::Timestamp;

use crate::api::id::{IdKind, parse_number};
use crate::api::json::Json;
use crate::api::{Call, query};
use crate::error::{Faults, Refusal};
use crate::store::{ShownElements, Store};

/// The keys of a submission, in the order in which they are written.
const KEYS: [&str; 5] = ["id", "status", "created_at", "updated_at", "allElements"];

/// How many fields a request may name.
///
/// Larger: the database compares more. Smaller: forms of a thousand elements need several requests.
const MAX_FIELDS: usize = 1_000;

/// What is shown of each submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Which of the keys are.
    keys: [bool; KEYS.len()],
    /// Whose answers are, if `allElements` is.
    elements: ShownElements,
    /// The elements that were named, and where in the list.
    named: Vec<(usize, i64)>,
}

impl Selection {
    /// Everything.
    pub const ALL: Self = Self { keys: [true; KEYS.len()], elements: ShownElements::All, named: Vec::new() };

    /// Everything but what was entered.
    pub(super) const WITHOUT_ANSWERS: Self =
        Self { keys: [true, true, true, true, false], elements: ShownElements::All, named: Vec::new() };

    /// Parses the fields of every value, each of which is a list. Everything if there are none.
    pub(in crate::api) fn parse(call: &Call<'_>, faults: &mut Faults) -> Self {
        let values: Vec<_> = query::values(call, "fields").filter(|value| !value.is_empty()).collect();
        let mut selection = Self { keys: [false; KEYS.len()], elements: ShownElements::All, named: Vec::new() };
        for (at, field) in values.iter().flat_map(|value| value.split(',')).map(str::trim).enumerate() {
            if at == MAX_FIELDS {
                faults.add("fields", format_args!("The fields must be at most {MAX_FIELDS}."));
                break;
            }
            if let Some(key) = KEYS.iter().position(|key| *key == field) {
                selection.keys[key] = true;
            } else if let Some(element) = parse_number(field) {
                selection.named.push((at, element));
            } else {
                add_fault(at, faults);
            }
        }
        if values.is_empty() {
            return Self::ALL;
        }
        let [.., shows_all] = &mut selection.keys;
        if !*shows_all {
            selection.elements = ShownElements::of(selection.named.iter().map(|(_, element)| *element));
            *shows_all = !selection.named.is_empty();
        }
        selection
    }

    /// Whether a key is shown.
    pub(in crate::api) fn shows(&self, key: &str) -> bool {
        KEYS.iter().zip(self.keys).any(|(known, is_shown)| is_shown && *known == key)
    }

    /// Whether the answer of an element is shown.
    pub(in crate::api) fn shows_element(&self, element: i64) -> bool {
        let [.., has_elements] = self.keys;
        has_elements && self.elements.contain(element)
    }

    /// Whose answers are shown, for [`Store::showing`].
    pub(in crate::api) fn elements(&self) -> &ShownElements {
        &self.elements
    }

    /// Refuses elements that the account does not have, or that the token does not reach.
    ///
    /// # Errors
    /// [`Refusal::Invalid`], and those of the store.
    pub(in crate::api) async fn check(&self, store: &Store) -> Result<(), Refusal> {
        if self.named.is_empty() {
            return Ok(());
        }
        let elements: Vec<i64> = self.named.iter().map(|(_, element)| *element).collect();
        let (known, mut faults) = (store.known_elements(&elements).await?, Faults::default());
        for (at, _) in self.named.iter().filter(|(_, element)| !known.contains(element)) {
            add_fault(*at, &mut faults);
        }
        faults.into_result(())
    }

    /// Writes a submission up to what was entered: up to the first element, if it shows any.
    pub(in crate::api) fn write_head(
        &self,
        json: &mut Json,
        id: i64,
        status: &str,
        created_at: Timestamp,
        updated_at: Timestamp,
    ) {
        let [has_id, has_status, has_created_at, has_updated_at, has_elements] = self.keys;
        let mut separator = "{";
        let mut begin = |json: &mut Json, key| _ = json.raw(std::mem::replace(&mut separator, ",")).raw(key);
        if has_id {
            begin(json, "\"id\":");
            json.id(IdKind::Submission.id(id));
        }
        if has_status {
            begin(json, "\"status\":");
            json.text(status);
        }
        if has_created_at {
            begin(json, "\"created_at\":");
            json.instant(created_at);
        }
        if has_updated_at {
            begin(json, "\"updated_at\":");
            json.instant(updated_at);
        }
        if has_elements {
            begin(json, "\"allElements\":[");
        }
    }

    /// What closes a submission.
    pub(in crate::api) fn end(&self) -> &'static str {
        let [.., has_elements] = self.keys;
        if has_elements { "]}" } else { "}" }
    }
}

fn add_fault(at: usize, faults: &mut Faults) {
    let keys = KEYS.join(", ");
    faults.add(
        format_args!("fields.{at}"),
        format_args!("The fields.{at} must be one of {keys}, or the id of an element."),
    );
}
