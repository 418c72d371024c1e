//! What a request says about a user: a resource, or the operations of PATCH, as one set of assignments.
//!
//! Of several assignments of one attribute the last counts. Attributes that are not stored are ignored.

use serde_json::{Map, Value};

use super::error::{Fault, FaultKind};
use super::filter::canonical;
use super::json::{Object, text, truth, whole};
use super::patch::{Operation, OperationKind, operations};
use crate::store::mailbox::Address;
use crate::store::{DirectoryError, DirectoryUserValues};

/// The attributes that are read, in lower case; and what begins with them and a dot.
const ATTRIBUTES: [&str; 6] = ["username", "displayname", "externalid", "active", "name", "emails"];

/// What is assigned. `None`: nothing; `Some(None)`: the attribute is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UserPatch {
    user_name: Option<String>,
    display_name: Option<Option<String>>,
    external_id: Option<Option<String>>,
    given_name: Option<Option<String>>,
    family_name: Option<Option<String>>,
    formatted_name: Option<Option<String>>,
    active: Option<bool>,
    /// The primary address, as it was sent.
    email: Option<String>,
}

impl UserPatch {
    /// Reads a resource.
    pub(super) fn of_resource(body: &[u8]) -> Result<Self, Fault> {
        let object = Object::of_body(body, is_read)?;
        let mut patch = Self::default();
        for (key, value) in object.entries() {
            patch.assign(&canonical(key), &whole(key, value)?)?;
        }
        Ok(patch)
    }

    /// Reads the operations of PATCH.
    pub(super) fn of_operations(body: &[u8]) -> Result<Self, Fault> {
        let mut patch = Self::default();
        for operation in operations(body)? {
            patch.read(&operation)?;
        }
        Ok(patch)
    }

    fn read(&mut self, operation: &Operation<'_>) -> Result<(), Fault> {
        let is_removal = operation.kind == OperationKind::Remove;
        let Some(path) = &operation.path else {
            if is_removal {
                return Err(Fault::new(FaultKind::Target, "The operation remove needs a path."));
            }
            let object = operation.value.and_then(|value| Object::of_value(value, is_read));
            let object =
                object.ok_or_else(|| Fault::value("An operation without a path needs an object as its value."))?;
            for (key, value) in object.entries() {
                self.assign(&canonical(key), &whole(key, value)?)?;
            }
            return Ok(());
        };
        let attribute = match &path.sub_attribute {
            Some(part) => format!("{}.{part}", path.attribute),
            None => path.attribute.clone(),
        };
        if !is_read(&attribute) {
            return Ok(());
        }
        match operation.value.filter(|_| !is_removal) {
            Some(value) => self.assign(&attribute, &whole(&attribute, value)?),
            None if is_removal && attribute == "username" => {
                Err(Fault::new(FaultKind::Mutability, "The userName is required and can't be removed."))
            }
            None if is_removal => self.assign(&attribute, &Value::Null),
            None => Err(Fault::value(format!("The operation on {attribute} needs a value."))),
        }
    }

    /// Assigns a value to an attribute; null removes it.
    fn assign(&mut self, attribute: &str, value: &Value) -> Result<(), Fault> {
        match attribute {
            // The URN of the schema, with the attributes in an object.
            "" => self.assign_parts("", value)?,
            "username" => {
                let name = text("userName", value)?;
                self.user_name = Some(name.ok_or_else(|| Fault::value("The userName must not be empty."))?);
            }
            "displayname" => self.display_name = Some(text("displayName", value)?),
            "externalid" => self.external_id = Some(text("externalId", value)?),
            "active" if value.is_null() => {}
            "active" => self.active = Some(truth("active", value)?),
            "name" if value.is_null() => {
                (self.given_name, self.family_name, self.formatted_name) = (Some(None), Some(None), Some(None));
            }
            "name" => self.assign_parts("name.", value)?,
            "name.givenname" => self.given_name = Some(text("name.givenName", value)?),
            "name.familyname" => self.family_name = Some(text("name.familyName", value)?),
            "name.formatted" => self.formatted_name = Some(text("name.formatted", value)?),
            "emails" => self.email = primary(value)?.or(self.email.take()),
            "emails.value" => self.email = text("emails", value)?.or(self.email.take()),
            _ => {}
        }
        Ok(())
    }

    fn assign_parts(&mut self, prefix: &str, value: &Value) -> Result<(), Fault> {
        let name = if prefix.is_empty() { "the schema" } else { prefix.trim_end_matches('.') };
        let parts = value.as_object().ok_or_else(|| Fault::value(format!("The value of {name} must be an object.")))?;
        for (key, value) in parts {
            let attribute = format!("{prefix}{}", canonical(key));
            // The URN of a schema in the object of a schema would go on without end.
            if !attribute.is_empty() {
                self.assign(&attribute, value)?;
            }
        }
        Ok(())
    }

    /// The same as a whole resource: what it does not name is removed, but a user stays as active as it is.
    pub(super) fn whole(mut self) -> Result<Self, Fault> {
        self.require_user_name()?;
        for attribute in [&mut self.external_id, &mut self.given_name, &mut self.family_name, &mut self.formatted_name]
        {
            attribute.get_or_insert_default();
        }
        let name = self.shown_name();
        self.display_name.get_or_insert(name);
        Ok(self)
    }

    /// The values of a new user.
    pub(super) fn create(self) -> Result<DirectoryUserValues, super::error::ScimError> {
        self.require_user_name()?;
        let (name, user_name) = (self.shown_name(), self.user_name.clone().unwrap_or_default());
        let nothing = DirectoryUserValues {
            user_name,
            email: String::new(),
            display_name: name.unwrap_or_default(),
            external_id: None,
            given_name: None,
            family_name: None,
            formatted_name: None,
            active: true,
        };
        Ok(self.apply(&nothing)?)
    }

    fn require_user_name(&self) -> Result<(), Fault> {
        if self.user_name.is_some() { Ok(()) } else { Err(Fault::value("The userName is required.")) }
    }

    /// What a user without a displayName is called.
    fn shown_name(&self) -> Option<String> {
        let of = |name: &Option<Option<String>>| name.clone().flatten();
        of(&self.formatted_name).or_else(|| {
            let parts: Vec<_> = [of(&self.given_name), of(&self.family_name)].into_iter().flatten().collect();
            (!parts.is_empty()).then(|| parts.join(" "))
        })
    }

    /// Whether it says that the user is active.
    pub(super) fn activates(&self) -> bool {
        self.active == Some(true)
    }

    /// What becomes of a user.
    pub(super) fn apply(&self, user: &DirectoryUserValues) -> Result<DirectoryUserValues, DirectoryError> {
        let text = |new: &Option<Option<String>>, old: &Option<String>| new.clone().unwrap_or_else(|| old.clone());
        let user_name = self.user_name.clone().unwrap_or_else(|| user.user_name.clone());
        let address = |text: &str| Address::parse(text).map(|address| address.stored.into_owned());
        let email = match (address(&user_name), &self.email) {
            // The address stays as it is stored while the user name stays.
            (Ok(_), _) if user_name == user.user_name && !user.email.is_empty() => user.email.clone(),
            (Ok(email), _) => email,
            (Err(_), Some(email)) => address(email).map_err(|_| DirectoryError::NoAddress)?,
            (Err(_), None) if user.email.is_empty() => return Err(DirectoryError::NoAddress),
            (Err(_), None) => user.email.clone(),
        };
        Ok(DirectoryUserValues {
            user_name,
            email,
            display_name: match &self.display_name {
                Some(name) => name.clone().unwrap_or_default(),
                None => user.display_name.clone(),
            },
            external_id: text(&self.external_id, &user.external_id),
            given_name: text(&self.given_name, &user.given_name),
            family_name: text(&self.family_name, &user.family_name),
            formatted_name: text(&self.formatted_name, &user.formatted_name),
            active: self.active.unwrap_or(user.active),
        })
    }
}

/// Whether an attribute is read, by its name in lower case, in a long form too.
fn is_read(name: &str) -> bool {
    let name = canonical(name);
    let of =
        |attribute: &&str| name.strip_prefix(*attribute).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    name.is_empty() || ATTRIBUTES.iter().any(of)
}

/// The primary address of a list: the one that says so, else that of work, else the first.
fn primary(value: &Value) -> Result<Option<String>, Fault> {
    let items = match value {
        Value::Array(items) => items.as_slice(),
        other => std::slice::from_ref(other),
    };
    let has = |item: &&Value, key: &str, wanted: &dyn Fn(&Value) -> bool| {
        let object = item.as_object().map(Map::iter).into_iter().flatten();
        object.into_iter().any(|(known, value)| known.eq_ignore_ascii_case(key) && wanted(value))
    };
    let is_primary = |value: &Value| truth("primary", value) == Ok(true);
    let is_work = |value: &Value| value.as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("work"));
    let found = items.iter().find(|item| has(item, "primary", &is_primary));
    let found = found.or_else(|| items.iter().find(|item| has(item, "type", &is_work))).or(items.first());
    found.map_or(Ok(None), |item| text("emails", item))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before() -> DirectoryUserValues {
        UserPatch::of_resource(br#"{"userName": "Ana@example.com", "name": {"givenName": "Ana", "familyName": "B"}}"#)
            .unwrap()
            .create()
            .unwrap()
    }

    /// What a user becomes, as the attributes that differ.
    fn changed(body: &str) -> Result<String, String> {
        let patch = UserPatch::of_operations(body.as_bytes()).map_err(|fault| format!("{:?}", fault.kind))?;
        let (before, after) = (before(), patch.apply(&before()).map_err(|error| error.to_string())?);
        let list = |user: &DirectoryUserValues| {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            [
                user.user_name.clone(),
                user.email.clone(),
                user.display_name.clone(),
                text(&user.external_id),
                text(&user.given_name),
                text(&user.family_name),
                text(&user.formatted_name),
                user.active.to_string(),
            ]
        };
        let names = ["user", "email", "display", "external", "given", "family", "formatted", "active"];
        let (before, after) = (list(&before), list(&after));
        let differences = names.iter().zip(before.iter().zip(&after)).filter(|(_, (before, after))| before != after);
        Ok(differences.map(|(name, (_, after))| format!("{name}={after}")).collect::<Vec<_>>().join(" "))
    }

    /// Requests of Entra ID, Okta, JumpCloud and Keycloak.
    #[test]
    fn a_user_is_patched_in_every_spelling() {
        for (operations, expected) in [
            (r#"{"op": "Replace", "path": "active", "value": "False"}"#, "active=false"),
            (r#"{"op": "replace", "value": {"active": false}}"#, "active=false"),
            (r#"{"op": "replace", "path": "active", "value": [{"value": "false"}]}"#, "active=false"),
            (r#"{"op": "Add", "path": "displayName", "value": "Ana C"}"#, "display=Ana C"),
            (r#"{"op": "replace", "path": "displayName", "value": ["Ana C"]}"#, "display=Ana C"),
            (r#"{"op": "Remove", "path": "displayName"}"#, "display="),
            (r#"{"op": "Replace", "path": "name.familyName", "value": "C"}"#, "family=C"),
            (r#"{"op": "Add", "value": {"name.familyName": "C", "externalId": "7"}}"#, "external=7 family=C"),
            (r#"{"op": "replace", "value": {"name": {"familyName": "C"}}}"#, "family=C"),
            (r#"{"op": "remove", "path": "name"}"#, "given= family="),
            (
                r#"{"op": "Replace", "path": "userName", "value": "c@example.com"}"#,
                "user=c@example.com email=c@example.com",
            ),
            (
                r#"{"op": "Replace", "path": "urn:ietf:params:scim:schemas:core:2.0:User:userName", "value": "anac"},
                   {"op": "Replace", "path": "emails[type eq \"work\"].value", "value": "c@example.com"}"#,
                "user=anac email=c@example.com",
            ),
            (
                r#"{"op": "replace", "value": {"userName": "anac", "emails": [{"value": "h@example.com", "type": "home"},
                   {"value": "w@example.com", "primary": true}]}}"#,
                "user=anac email=w@example.com",
            ),
            (r#"{"op": "replace", "value": {"userName": "anac"}}"#, "user=anac"),
            (
                r#"{"op": "Add", "path": "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department", "value": "X"},
                   {"op": "Add", "path": "phoneNumbers[type eq \"work\"].value", "value": "+1"}, {"op": "add", "path": "title"}"#,
                "",
            ),
            (
                r#"{"op": "replace", "value": {"id": "usr_1", "schemas": [], "groups": [], "password": "x",
                   "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User": {"department": "X"}}}"#,
                "",
            ),
            (
                r#"{"op": "replace", "value": {"urn:ietf:params:scim:schemas:core:2.0:User": {"active": "false"}}}"#,
                "active=false",
            ),
            (
                r#"{"op": "replace", "path": "active", "value": true}, {"op": "replace", "path": "active", "value": false}"#,
                "active=false",
            ),
        ] {
            let body = format!(r#"{{"schemas": ["x"], "Operations": [{operations}]}}"#);
            assert_eq!(changed(&body).as_deref(), Ok(expected), "{operations}");
        }
    }

    #[test]
    fn faulty_operations_on_a_user_are_refused() {
        for (operations, expected) in [
            (r#"{"op": "remove"}"#, "Target"),
            (r#"{"op": "replace", "value": "x"}"#, "Value"),
            (r#"{"op": "replace"}"#, "Value"),
            (r#"{"op": "replace", "path": "active"}"#, "Value"),
            (r#"{"op": "replace", "path": "active", "value": "yes"}"#, "Value"),
            (r#"{"op": "replace", "path": "userName", "value": ""}"#, "Value"),
            (r#"{"op": "remove", "path": "userName"}"#, "Mutability"),
            (r#"{"op": "replace", "path": "name", "value": "x"}"#, "Value"),
            (r#"{"op": "replace", "path": "displayName", "value": {"a": 1}}"#, "Value"),
            (r#"{"op": "replace", "path": "emails[type", "value": "x"}"#, "Path"),
            (r#"{"op": "copy", "path": "displayName", "value": "x"}"#, "Syntax"),
            (
                r#"{"op": "replace", "value": {"userName": "x", "emails": "no address"}}"#,
                "the user has no e-mail address",
            ),
        ] {
            let body = format!(r#"{{"Operations": [{operations}]}}"#);
            assert_eq!(changed(&body), Err(expected.to_owned()), "{operations}");
        }
    }

    #[test]
    fn a_resource_needs_a_user_name_and_an_address() {
        let create = |body: &str| UserPatch::of_resource(body.as_bytes()).ok()?.create().ok();
        let user =
            create(r#"{"USERNAME": "anab", "emails": [{"value": "A@example.com"}], "active": "False"}"#).unwrap();
        assert_eq!((&*user.user_name, &*user.email, user.active), ("anab", "A@example.com", false));
        assert_eq!(before().display_name, "Ana B");
        for body in [
            r#"{}"#,
            r#"{"userName": "anab"}"#,
            r#"{"userName": "", "emails": "a@example.com"}"#,
            r#"{"userName": {}}"#,
        ] {
            assert_eq!(create(body), None, "{body}");
        }
    }

    #[test]
    fn a_whole_resource_removes_what_it_does_not_name_and_leaves_active_as_it_is() {
        let patch = UserPatch::of_resource(br#"{"userName": "Ana@example.com"}"#).unwrap().whole().unwrap();
        let after = patch.apply(&DirectoryUserValues { active: false, external_id: Some("7".to_owned()), ..before() });
        let after = after.unwrap();
        assert_eq!((after.active, after.external_id, after.given_name, &*after.display_name), (false, None, None, ""));
        assert_eq!(after.email, "Ana@example.com");
    }
}
