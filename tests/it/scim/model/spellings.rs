//! The requests of Entra ID and of Okta.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::super::{USER, patch_of};
use super::User;

/// Whose requests they are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Directory {
    Entra,
    Okta,
}

/// The URN of an extension that every request of Entra ID has, and that is not stored.
const ENTERPRISE: &str = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User";

fn query(parameters: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish()
}

/// Looks for a user by its name.
pub(super) fn filter_of(user_name: &str) -> String {
    let filter = format!("userName eq \"{user_name}\"");
    format!("/Users?{}", query(&[("filter", &filter), ("startIndex", "1"), ("count", "100")]))
}

/// Whether a user is a member, as Entra ID asks.
pub(super) fn membership_of(group: &str, user: &str) -> String {
    let filter = format!("id eq \"{group}\" and members eq \"{user}\"");
    format!("/Groups?{}", query(&[("excludedAttributes", "members"), ("filter", &filter)]))
}

fn values(users: &[String]) -> Vec<Value> {
    users.iter().map(|user| json!({ "value": user })).collect()
}

/// These users become the members.
pub(super) fn replaced(users: &[String], random: &mut StdRng) -> Value {
    match random.random_range(0..3) {
        0 => json!({"op": "replace", "path": "members", "value": values(users)}),
        1 => json!({"op": "Replace", "value": {"members": values(users)}}),
        _ => {
            json!({"op": "replace", "path": "urn:ietf:params:scim:schemas:core:2.0:Group:members", "value": values(users)})
        }
    }
}

/// All members are removed.
pub(super) fn emptied(random: &mut StdRng) -> Value {
    match random.random_range(0..3) {
        0 => json!([{"op": "replace", "path": "members", "value": []}]),
        1 => json!([{"op": "Remove", "path": "members"}]),
        _ => json!([{"op": "replace", "value": {"members": []}}]),
    }
}

/// Nothing changes, although others have removed all members then.
pub(super) fn nothing(random: &mut StdRng) -> Value {
    let operations = [
        json!([]),
        json!([{"op": "remove", "path": "members", "value": []}]),
        json!([{"op": "Add", "path": "members", "value": []}]),
        json!([{"op": "remove", "path": "members[value eq \"usr_987654321\"]"}]),
        json!([{"op": "replace", "path": "description", "value": "x"}]),
        json!([{"op": "Remove", "path": "description"}]),
        json!([{"op": "replace", "value": {"description": "x"}}]),
    ];
    operations.choose(random).unwrap().clone()
}

impl Directory {
    /// A user as it is created, without its id.
    pub(super) fn new_user(self, user_name: &str) -> Value {
        let short = user_name.split('@').next().unwrap();
        match self {
            Self::Entra => json!({
                "schemas": [USER, ENTERPRISE], "externalId": format!("oid-{user_name}"), "userName": user_name, "active": true,
                "displayName": format!("Person {short}"), "name": {"formatted": short, "givenName": "P", "familyName": short},
                "emails": [{"primary": true, "type": "work", "value": user_name}], "meta": {"resourceType": "User"},
                "roles": [], "title": "none", ENTERPRISE: {"department": "X"},
            }),
            Self::Okta => json!({
                "schemas": [USER], "userName": user_name, "name": {"givenName": "P", "familyName": short},
                "emails": [{"primary": true, "value": user_name, "type": "work"}], "displayName": format!("Person {short}"),
                "locale": "en-US", "externalId": format!("00u{user_name}"), "groups": [], "password": "xxxxxxxx", "active": true,
            }),
        }
    }

    /// The method and the body that make a user what it is.
    pub(super) fn changed_user(self, user: &User, random: &mut StdRng) -> (&'static str, Value) {
        let User { user_name, display_name, active } = user;
        let text = if *active { "True" } else { "False" };
        match self {
            Self::Entra if random.random_bool(0.5) => {
                let operations = json!([
                    {"op": "Replace", "path": "active", "value": text},
                    {"op": "Replace", "path": "displayName", "value": display_name},
                    {"op": "Add", "path": format!("{ENTERPRISE}:department"), "value": "Y"},
                ]);
                ("PATCH", patch_of(&operations))
            }
            Self::Entra => {
                let operations = json!([
                    {"op": "Replace", "value": {"active": active, "displayName": display_name, "title": "x"}},
                    {"op": "Add", "path": "emails[type eq \"work\"].value", "value": user_name},
                ]);
                ("PATCH", patch_of(&operations))
            }
            Self::Okta if random.random_bool(0.5) => {
                let operations = json!([{"op": "replace", "value": {"active": active, "displayName": display_name}}]);
                ("PATCH", patch_of(&operations))
            }
            Self::Okta => {
                let mut body = self.new_user(user_name);
                body["displayName"] = json!(display_name);
                body["active"] = json!(active);
                ("PUT", body)
            }
        }
    }

    /// The operation that adds users, sometimes with one that does not exist.
    pub(super) fn added(self, users: &[String], random: &mut StdRng) -> Value {
        let with_unknown = random.random_bool(0.1).then(|| json!({"value": "usr_987654321"}));
        match self {
            Self::Entra => {
                let list: Vec<Value> = users.iter().map(|user| json!({"$ref": null, "value": user})).collect();
                json!({"op": "Add", "path": "members", "value": list.into_iter().chain(with_unknown).collect::<Vec<_>>()})
            }
            Self::Okta => {
                let list: Vec<Value> = users.iter().map(|user| json!({"value": user, "display": "x"})).collect();
                let list: Vec<_> = list.into_iter().chain(with_unknown).collect();
                match random.random_range(0..3) {
                    0 => json!({"op": "add", "value": {"members": list}}),
                    1 if list.len() == 1 => json!({"op": "add", "path": "members", "value": list[0]}),
                    _ => json!({"op": "add", "path": "members", "value": list}),
                }
            }
        }
    }

    /// The operations that remove users.
    pub(super) fn removed(self, users: &[String]) -> Vec<Value> {
        match self {
            Self::Entra => vec![json!({"op": "Remove", "path": "members", "value": values(users)})],
            Self::Okta => {
                let one = |user: &String| json!({"op": "remove", "path": format!("members[value eq \"{user}\"]")});
                users.iter().map(one).collect()
            }
        }
    }

    /// The operations that give a group another name.
    pub(super) fn renamed(self, group: &str, name: &str) -> Value {
        match self {
            Self::Entra => json!([{"op": "Replace", "path": "displayName", "value": name}]),
            Self::Okta => json!([{"op": "replace", "value": {"id": group, "displayName": name}}]),
        }
    }
}
