//! Which attributes a response has: `attributes` and `excludedAttributes` (RFC 7644, section 3.9).

use serde_json::{Map, Value};

use super::filter::canonical;

/// The attributes that every resource has, whatever the client asks for.
const ALWAYS: [&str; 2] = ["schemas", "id"];

/// Which attributes are shown, by names in lower case, with a dot before a sub-attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Projection {
    /// All.
    #[default]
    Whole,
    /// These.
    Only(Vec<String>),
    /// All but these.
    Without(Vec<String>),
}

impl Projection {
    /// Of two lists of names, the one of what is shown counts.
    pub(super) fn new(shown: &[String], excluded: &[String]) -> Self {
        let canonical = |names: &[String]| names.iter().map(|name| canonical(name.trim())).collect();
        match (shown, excluded) {
            ([], []) => Self::Whole,
            ([], excluded) => Self::Without(canonical(excluded)),
            (shown, _) => Self::Only(canonical(shown)),
        }
    }

    /// Whether an attribute, or one of its sub-attributes, is shown.
    pub(super) fn shows(&self, attribute: &str) -> bool {
        let is_of =
            |name: &String| name.strip_prefix(attribute).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        match self {
            Self::Whole => true,
            Self::Only(names) => names.iter().any(is_of),
            Self::Without(names) => names.iter().all(|name| name != attribute),
        }
    }

    /// Whether a sub-attribute of an attribute that is shown is shown too.
    pub(super) fn shows_part(&self, attribute: &str, part: &str) -> bool {
        let is_it = |name: &String| name.strip_prefix(attribute).and_then(|rest| rest.strip_prefix('.')) == Some(part);
        match self {
            Self::Whole => true,
            Self::Only(names) => names.iter().any(|name| name == attribute || is_it(name)),
            Self::Without(names) => !names.iter().any(is_it),
        }
    }

    /// Removes what is not shown from a resource.
    pub(super) fn apply(&self, resource: &mut Map<String, Value>) {
        if *self == Self::Whole {
            return;
        }
        resource.retain(|name, value| {
            let attribute = name.to_ascii_lowercase();
            if ALWAYS.contains(&name.as_str()) {
                return true;
            }
            if !self.shows(&attribute) {
                return false;
            }
            let parts = |object: &mut Map<String, Value>| {
                object.retain(|part, _| self.shows_part(&attribute, &part.to_ascii_lowercase()));
            };
            match value {
                Value::Object(object) => parts(object),
                Value::Array(items) => items.iter_mut().filter_map(Value::as_object_mut).for_each(parts),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_resource_has_the_attributes_that_are_asked_for_and_always_its_id() {
        let whole = json!({"schemas": ["s"], "id": "usr_1", "userName": "ana", "name": {"givenName": "A", "familyName": "B"},
            "emails": [{"value": "a@b.example", "type": "work"}], "active": true});
        for (shown, excluded, expected) in [
            ("", "", whole.clone()),
            ("username", "", json!({"schemas": ["s"], "id": "usr_1", "userName": "ana"})),
            (
                "urn:ietf:params:scim:schemas:core:2.0:User:name.givenName, emails.value",
                "active",
                json!({"schemas": ["s"], "id": "usr_1", "name": {"givenName": "A"}, "emails": [{"value": "a@b.example"}]}),
            ),
            ("nothing", "", json!({"schemas": ["s"], "id": "usr_1"})),
            (
                "",
                "id,schemas,userName,name.familyName,emails,active",
                json!({"schemas": ["s"], "id": "usr_1", "name": {"givenName": "A"}}),
            ),
        ] {
            let names =
                |text: &str| text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>();
            let mut resource = whole.as_object().unwrap().clone();
            Projection::new(&names(shown), &names(excluded)).apply(&mut resource);
            assert_eq!(Value::Object(resource), expected, "{shown} {excluded}");
        }
    }
}
