//! The rules about groups in the plainest words, and writes at random to hold against them.
//!
//! The few names, identifiers and addresses are chosen so that writes meet: the same group by identifier and by name,
//! two groups of one name, one user in several spellings.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::ALL_USERS;

const NAMES: [&str; 6] = ["Managers", "managers", "Ünï ☃", "'; DROP TABLE groups; --", "100%_\\", "All Users "];

const EXTERNAL_IDS: [&str; 5] = ["x1", "X1", "ü", "cn=\"a\",dc=b", "00000000-0000-0000-0000-000000000000"];

/// Spellings of nine addresses.
const EMAILS: [&str; 16] = [
    "ana@example.com",
    "ANA@Example.com",
    "ben@example.com",
    "Ben@example.com",
    "Ä@bücher.example",
    "ä@BÜCHER.example",
    "ΟΔΟΣ@x.example",
    "οδος@x.example",
    "İ@x.example",
    "i\u{307}@x.example",
    "straße@x.example",
    "STRASSE@x.example",
    "o'brien+100%_@x.example",
    "Zoë@x.example",
    "_@x.example",
    "ZOË@x.example",
];

/// Bodies of `PUT /group` at random, without faults.
pub(super) struct Writes {
    pub(super) random: StdRng,
}

impl Writes {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed) }
    }

    pub(super) fn next(&mut self) -> Value {
        let random = &mut self.random;
        let name = if random.random_bool(0.04) { "All Users" } else { NAMES.choose(random).unwrap() };
        let mut body = json!({ "name": name });
        if random.random_bool(0.6) {
            body["external_id"] = (*EXTERNAL_IDS.choose(random).unwrap()).into();
        }
        if random.random_bool(0.75) {
            let most = if random.random_bool(0.1) { 0 } else { EMAILS.len() };
            body["members"] = (0..random.random_range(0..=most)).map(|_| Self::member(random)).collect();
        }
        body
    }

    fn member(random: &mut StdRng) -> Value {
        let mut member = json!({ "email": EMAILS.choose(random).unwrap() });
        match random.random_range(0..4) {
            0 => member["name"] = Value::Null,
            1 => member["name"] = format!("Name {}", random.random_range(0..100)).into(),
            2 => member["name"] = "".into(),
            _ => {}
        }
        member
    }
}

struct Group {
    name: String,
    external_id: Option<String>,
    managed: bool,
    built_in: bool,
    members: BTreeSet<String>,
}

struct User {
    email: String,
    name: String,
}

/// What an account's groups have to be. Users and members are known by their folded addresses.
pub(super) struct Model {
    groups: BTreeMap<i64, Group>,
    users: BTreeMap<String, User>,
    used_in_flows: BTreeSet<i64>,
}

impl Model {
    /// The groups of a new account.
    pub(super) fn new() -> Self {
        let mut model = Self { groups: BTreeMap::new(), users: BTreeMap::new(), used_in_flows: BTreeSet::new() };
        model.add(number(ALL_USERS), "All Users", None);
        model.groups.values_mut().for_each(|group| group.built_in = true);
        model
    }

    /// Adds a group that was not made through the API.
    pub(super) fn add(&mut self, id: i64, name: &str, external_id: Option<&str>) {
        let external_id = external_id.map(str::to_owned);
        let group =
            Group { name: name.to_owned(), external_id, managed: false, built_in: false, members: BTreeSet::new() };
        self.groups.insert(id, group);
    }

    /// Lets a flow step ask a group.
    pub(super) fn use_in_flow(&mut self, id: i64) {
        self.used_in_flows.insert(id);
    }

    /// Every id, ascending.
    pub(super) fn ids(&self) -> Vec<i64> {
        self.groups.keys().copied().collect()
    }

    /// Does a write, and tells its answer with a report; or the field that is at fault. A group that is new gets the id.
    pub(super) fn put(&mut self, body: &Value, new_id: i64) -> Result<Value, &'static str> {
        let name = body["name"].as_str().unwrap();
        let external_id = body["external_id"].as_str();
        let named: Vec<i64> = self.groups.iter().filter(|(_, group)| group.name == name).map(|(&id, _)| id).collect();
        if named.iter().any(|id| self.groups[id].built_in) {
            return Err("name");
        }
        let identified = |wanted| self.groups.iter().find(|(_, group)| group.external_id.as_deref() == Some(wanted));
        let found = match external_id {
            Some(wanted) => identified(wanted)
                .map(|(&id, _)| id)
                .or_else(|| named.into_iter().find(|id| self.groups[id].external_id.is_none())),
            None if named.len() > 1 => return Err("name"),
            None => named.first().copied(),
        };
        let id = found.unwrap_or_else(|| {
            self.add(new_id, name, None);
            new_id
        });
        let group = self.groups.get_mut(&id).unwrap();
        group.name = name.to_owned();
        group.managed = true;
        group.external_id = external_id.map(str::to_owned).or(group.external_id.take());
        let report = match body["members"].as_array() {
            Some(members) => self.replace_members(id, members),
            None => Default::default(),
        };
        let [attached, detached, created] = report.each_ref().map(Vec::len);
        Ok(json!({
            "data": self.summary(id),
            "result": if found.is_some() { "updated" } else { "created" },
            "members": { "attached": attached, "detached": detached, "created": created },
            "report": { "attached": report[0], "detached": report[1], "created": report[2] },
        }))
    }

    /// Replaces a group's members: who was attached, detached, created.
    fn replace_members(&mut self, id: i64, members: &[Value]) -> [Vec<String>; 3] {
        let mut wanted: BTreeMap<String, User> = BTreeMap::new();
        for member in members {
            let email = member["email"].as_str().unwrap().to_owned();
            let user = wanted.entry(email.to_lowercase()).or_insert(User { email: String::new(), name: String::new() });
            user.email = email;
            if let Some(name) = member["name"].as_str().filter(|name| !name.is_empty()) {
                user.name = name.to_owned();
            }
        }
        let listed: BTreeSet<String> = wanted.keys().cloned().collect();
        let new: Vec<String> = listed.iter().filter(|folded| !self.users.contains_key(*folded)).cloned().collect();
        for (folded, user) in wanted {
            self.users.entry(folded).or_insert(user);
        }
        let before = std::mem::replace(&mut self.groups.get_mut(&id).unwrap().members, listed.clone());
        let spell = |folded: &String| self.users[folded].email.clone();
        [
            listed.difference(&before).map(spell).collect(),
            before.difference(&listed).map(spell).collect(),
            new.iter().map(spell).collect(),
        ]
    }

    /// Does a deletion, and tells its status and answer.
    pub(super) fn delete(&mut self, id: i64) -> (u16, Value) {
        let Some(group) = self.groups.get_mut(&id) else { return (404, json!({"message": "Group not found"})) };
        if group.built_in {
            return (403, json!({"message": "The All Users group cannot be deleted"}));
        }
        let detached = std::mem::take(&mut group.members).len();
        if self.used_in_flows.contains(&id) {
            return (200, json!({"deleted": false, "reason": "used_in_flows", "detached": detached}));
        }
        self.groups.remove(&id);
        (200, json!({"deleted": true, "detached": detached}))
    }

    fn members(&self, id: i64) -> Vec<&User> {
        let group = &self.groups[&id];
        self.users
            .iter()
            .filter(|(key, _)| group.built_in || group.members.contains(*key))
            .map(|(_, user)| user)
            .collect()
    }

    fn summary(&self, id: i64) -> Value {
        let group = &self.groups[&id];
        json!({
            "id": format!("grp_{id}"),
            "name": group.name,
            "external_id": group.external_id,
            "managed": group.managed,
            "managed_by": group.managed.then_some("api"),
            "members_count": self.members(id).len(),
        })
    }

    /// Every group with its members, as the API has to show them.
    pub(super) fn everything(&self) -> Vec<Value> {
        let show = |id: i64| {
            let members = self.members(id).into_iter().map(|user| json!({"email": user.email, "name": user.name}));
            let mut group = self.summary(id);
            group["members"] = members.collect();
            group
        };
        self.groups.keys().map(|&id| show(id)).collect()
    }
}

/// The number of an id.
pub(super) fn number(id: &str) -> i64 {
    id.trim_start_matches("grp_").parse().unwrap()
}
