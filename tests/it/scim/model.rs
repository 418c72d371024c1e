//! Random sequences of requests in the spellings of directories, compared with a model, by several clients at once.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::Scene;
use crate::support::fixture::{on_all_databases, on_both_databases};

/// How many clients write at once.
const CLIENTS: usize = 4;

/// How many requests each client sends.
const REQUESTS: usize = 60;

/// What one client wrote: each has users and groups of its own, so that their order does not matter to the others.
struct Model {
    users: Vec<String>,
    active: BTreeMap<String, bool>,
    groups: Vec<String>,
    members: BTreeMap<String, BTreeSet<String>>,
}

impl Model {
    async fn new(scene: &Scene, client: usize) -> Self {
        let mut model = Self { users: vec![], active: BTreeMap::new(), groups: vec![], members: BTreeMap::new() };
        for number in 0..6 {
            let user = scene.user(&format!("u{number}@client{client}.example")).await;
            model.active.insert(user.clone(), true);
            model.users.push(user);
        }
        for number in 0..3 {
            let group = scene.group(&format!("Group {number} of {client}"), &[]).await;
            model.members.insert(group.clone(), BTreeSet::new());
            model.groups.push(group);
        }
        model
    }

    fn some_users(&self, random: &mut StdRng) -> Vec<String> {
        let count = random.random_range(1..4);
        (0..count).map(|_| self.users.choose(random).unwrap().clone()).collect()
    }

    /// A random operation on members in a random spelling, carried out on the model too.
    fn operation(&mut self, group: &str, random: &mut StdRng) -> Value {
        let users = self.some_users(random);
        let members = self.members.get_mut(group).unwrap();
        let list: Vec<Value> = users.iter().map(|user| json!({ "value": user })).collect();
        match random.random_range(0..9) {
            0 => {
                members.extend(users);
                json!({"op": "Add", "path": "members", "value": list})
            }
            1 => {
                members.extend(users);
                json!({"op": "add", "value": {"members": list}})
            }
            2 => {
                members.extend(users);
                let with_unknown = [list, vec![json!({"value": "usr_987654321"})]].concat();
                json!({"op": "add", "path": "members", "value": with_unknown})
            }
            3 => {
                users.iter().for_each(|user| _ = members.remove(user));
                json!({"op": "Remove", "path": "members", "value": list})
            }
            4 | 5 => {
                members.remove(&users[0]);
                json!({"op": "remove", "path": format!("members[value eq \"{}\"]", users[0])})
            }
            6 => {
                *members = users.into_iter().collect();
                json!({"op": "replace", "path": "members", "value": list})
            }
            7 => json!({"op": "remove", "path": "members", "value": []}),
            _ => {
                members.clear();
                json!({"op": "remove", "path": "members"})
            }
        }
    }

    /// Sends one random request.
    async fn step(&mut self, scene: &Scene, random: &mut StdRng) {
        let user = self.users.choose(random).unwrap().clone();
        let group = self.groups.choose(random).unwrap().clone();
        match random.random_range(0..10) {
            0 | 1 => {
                let active = random.random_bool(0.5);
                self.active.insert(user.clone(), active);
                let value = if random.random_bool(0.5) { json!(active) } else { json!(active.to_string()) };
                scene
                    .patch(&format!("/Users/{user}"), &json!([{"op": "Replace", "path": "active", "value": value}]))
                    .await;
            }
            2 => {
                let users = self.some_users(random);
                let list: Vec<Value> = users.iter().map(|user| json!({ "value": user })).collect();
                let name = format!("Renamed {group}");
                let answer = scene
                    .send("PUT", &format!("/Groups/{group}"), &json!({"displayName": name, "members": list}))
                    .await;
                assert_eq!(answer.status, 200, "{answer:?}");
                self.members.insert(group, users.into_iter().collect());
            }
            _ => {
                let count = random.random_range(1..4);
                let operations: Vec<_> = (0..count).map(|_| self.operation(&group, random)).collect();
                scene.patch(&format!("/Groups/{group}"), &json!(operations)).await;
            }
        }
    }

    async fn check(&self, scene: &Scene, seed: u64) {
        for group in &self.groups {
            let expected: BTreeSet<_> = self.members[group].iter().filter(|user| self.active[*user]).cloned().collect();
            let found: BTreeSet<_> = scene.members(group).await.into_iter().collect();
            assert_eq!(found, expected, "{group}, seed {seed}");
        }
    }
}

on_both_databases! {
    async fn random_requests_of_clients_at_once_agree_with_a_model(engine: Engine) {
        let seed: u64 = rand::rng().random();
        let scene = Scene::start(engine);
        let mut models = Vec::new();
        for client in 0..CLIENTS {
            models.push((Model::new(&scene, client).await, StdRng::seed_from_u64(seed ^ client as u64)));
        }
        let clients = models.iter_mut().map(async |(model, random)| {
            for _ in 0..REQUESTS {
                model.step(&scene, random).await;
            }
        });
        futures_util::future::join_all(clients).await;
        for (model, _) in &mut models {
            model.check(&scene, seed).await;
        }
        // Nobody's membership was lost while it was hidden.
        for (model, _) in &mut models {
            for user in model.users.clone() {
                scene.patch(&format!("/Users/{user}"), &json!([{"op": "replace", "value": {"active": true}}])).await;
                model.active.insert(user, true);
            }
            model.check(&scene, seed).await;
        }
    }

}

on_all_databases! {
    async fn clients_that_change_one_group_at_once_lose_nothing(engine: Engine) {
        let scene = Scene::start(engine);
        let mut users = Vec::new();
        for number in 0..24 {
            users.push(scene.user(&format!("u{number:02}@example.com")).await);
        }
        let leaving: Vec<&str> = users[..12].iter().map(String::as_str).collect();
        let group = scene.group("Sales", &leaving).await;
        let path = format!("/Groups/{group}");
        let changes = users.iter().enumerate().map(async |(number, user)| {
            let operation = if number < 12 {
                json!({"op": "Remove", "path": format!("members[value eq \"{user}\"]")})
            } else {
                json!({"op": "Add", "path": "members", "value": [{"value": user}]})
            };
            scene.patch(&path, &json!([operation])).await;
        });
        futures_util::future::join_all(changes).await;
        assert_eq!(scene.members(&group).await, users[12..]);
    }
}
