//! Random sequences of requests in the spellings of Entra ID and Okta, compared with a model: by eight clients at once, while
//! nodes are killed.
//!
//! Each client has users and groups of its own, so that its model does not depend on the order of the others; of the group that
//! all of them change, each adds and removes only its own users. A request without an answer is sent again, as directories do:
//! it may have been carried out before the node died.
//!
//! `FORMGATE_SCIM_SEQUENCES=10000` runs ten thousand sequences for each database, which takes minutes.

mod cluster;
mod spellings;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::{GROUP, Scene};
use crate::support::fixture::{on_all_databases, on_both_databases};
use cluster::Cluster;
use spellings::Directory;

/// How many clients write at once.
const CLIENTS: usize = 8;

/// How many sequences all clients carry out if the variable does not say.
const SEQUENCES: usize = 240;

/// After how many sequences a node is killed. Its successor has begun by then.
const SEQUENCES_BETWEEN_KILLS: usize = 60;

/// Overrides [`SEQUENCES`].
const VARIABLE: &str = "FORMGATE_SCIM_SEQUENCES";

/// The most users of a client: as many as can be removed from a group at once without being held back.
const MAX_USERS: usize = 9;

/// What a client knows of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    user_name: String,
    display_name: String,
    active: bool,
}

/// What one client wrote.
struct Model {
    directory: Directory,
    random: StdRng,
    users: BTreeMap<String, User>,
    /// The members of its own groups, with inactive ones.
    groups: BTreeMap<String, BTreeSet<String>>,
    /// Its members of the group of all clients.
    common: BTreeSet<String>,
    created: usize,
}

impl Model {
    async fn new(cluster: &Cluster, client: usize, seed: u64) -> Self {
        let directory = if client.is_multiple_of(2) { Directory::Entra } else { Directory::Okta };
        let random = StdRng::seed_from_u64(seed ^ client as u64);
        let (users, groups) = (BTreeMap::new(), BTreeMap::new());
        let mut model = Self { directory, random, users, groups, common: BTreeSet::new(), created: 0 };
        for _ in 0..5 {
            model.create_user(cluster, client).await;
        }
        for number in 0..3 {
            let body = json!({"schemas": [GROUP], "displayName": format!("Group {number} of {client}")});
            let created = cluster.send("POST", "/Groups", &body).await;
            assert_eq!(created.status, 201, "{created:?}");
            model.groups.insert(created.json()["id"].as_str().unwrap().to_owned(), BTreeSet::new());
        }
        model
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    fn any_user(&mut self) -> String {
        self.users.keys().collect::<Vec<_>>().choose(&mut self.random).unwrap().to_string()
    }

    fn any_group(&mut self) -> String {
        self.groups.keys().collect::<Vec<_>>().choose(&mut self.random).unwrap().to_string()
    }

    fn some_users(&mut self) -> Vec<String> {
        let count = self.random.random_range(1..4);
        (0..count).map(|_| self.any_user()).collect()
    }

    /// Looks for a user and creates it if there is none.
    async fn create_user(&mut self, cluster: &Cluster, client: usize) {
        self.created += 1;
        let user_name = format!("u{}@client{client}.example", self.created);
        let filter = spellings::filter_of(&user_name);
        assert_eq!(cluster.read(&filter).await["totalResults"], 0, "{user_name}");
        let body = self.directory.new_user(&user_name);
        let display_name = body["displayName"].as_str().unwrap().to_owned();
        let answer = cluster.send("POST", "/Users", &body).await;
        let id = match answer.status.as_u16() {
            201 => answer.json()["id"].clone(),
            // It was created before, by the same request.
            409 => cluster.read(&filter).await["Resources"][0]["id"].clone(),
            _ => panic!("{body}: {answer:?}"),
        };
        let user = User { user_name, display_name, active: true };
        self.users.insert(id.as_str().unwrap().to_owned(), user);
    }

    async fn delete_user(&mut self, cluster: &Cluster) {
        let id = self.any_user();
        let answer = cluster.send("DELETE", &format!("/Users/{id}"), &Value::Null).await;
        assert!([204, 404].contains(&answer.status.as_u16()), "{answer:?}");
        self.users.remove(&id);
        self.common.remove(&id);
        self.groups.values_mut().for_each(|members| _ = members.remove(&id));
    }

    async fn change_user(&mut self, cluster: &Cluster) {
        let id = self.any_user();
        let user = self.users.get_mut(&id).unwrap();
        if self.random.random_bool(0.7) {
            user.active = self.random.random_bool(0.5);
        } else {
            user.display_name = format!("Name {}", self.random.random::<u16>());
        }
        let user = user.clone();
        let (method, body) = self.directory.changed_user(&user, &mut self.random);
        cluster.write(method, &format!("/Users/{id}"), &body).await;
    }

    /// Operations on a group of its own, in one request.
    async fn change_group(&mut self, cluster: &Cluster) {
        let group = self.any_group();
        let path = format!("/Groups/{group}");
        let mut members = self.groups[&group].clone();
        let users = self.some_users();
        match self.random.random_range(0..10) {
            0 => {
                members = users.iter().cloned().collect();
                let name = format!("Renamed {}", self.random.random::<u32>());
                let list: Vec<Value> = users.iter().map(|user| json!({ "value": user })).collect();
                let body = json!({"schemas": [GROUP], "id": group, "displayName": name, "members": list});
                cluster.write("PUT", &path, &body).await;
            }
            1 => {
                members = users.iter().cloned().collect();
                let operation = spellings::replaced(&users, &mut self.random);
                cluster.patch(&path, &json!([operation])).await;
            }
            2 => {
                let operations = self.directory.renamed(&group, &format!("Name {}", self.random.random::<u32>()));
                cluster.patch(&path, &operations).await;
            }
            3 if self.chance(0.3) => {
                members.clear();
                cluster.patch(&path, &spellings::emptied(&mut self.random)).await;
            }
            4 => cluster.patch(&path, &spellings::nothing(&mut self.random)).await,
            _ => {
                let count = self.random.random_range(1..4);
                let mut operations = Vec::new();
                for _ in 0..count {
                    let users = self.some_users();
                    operations.extend(self.delta(&users, &mut members));
                }
                cluster.patch(&path, &json!(operations)).await;
            }
        }
        self.groups.insert(group, members);
    }

    /// Operations that add or remove users, on a set of members too.
    fn delta(&mut self, users: &[String], members: &mut BTreeSet<String>) -> Vec<Value> {
        if self.chance(0.6) {
            members.extend(users.iter().cloned());
            vec![self.directory.added(users, &mut self.random)]
        } else {
            users.iter().for_each(|user| _ = members.remove(user));
            self.directory.removed(users)
        }
    }

    async fn change_common(&mut self, cluster: &Cluster, common: &str) {
        let users = self.some_users();
        let mut members = self.common.clone();
        let operations = self.delta(&users, &mut members);
        cluster.patch(&format!("/Groups/{common}"), &json!(operations)).await;
        self.common = members;
    }

    /// One sequence, after which what it can have changed is compared.
    async fn sequence(&mut self, cluster: &Cluster, client: usize, common: &str, at: &str) {
        for _ in 0..self.random.random_range(1..6) {
            match self.random.random_range(0..12) {
                0 if self.users.len() < MAX_USERS => self.create_user(cluster, client).await,
                1 if self.users.len() > 3 => self.delete_user(cluster).await,
                2..4 => self.change_user(cluster).await,
                4..6 => self.change_common(cluster, common).await,
                _ => self.change_group(cluster).await,
            }
        }
        let (group, user) = (self.any_group(), self.any_user());
        self.compare_group(cluster, &group, at).await;
        self.compare_user(cluster, &user, at).await;
        let is_member = self.groups[&group].contains(&user) && self.users[&user].active;
        let found = cluster.read(&spellings::membership_of(&group, &user)).await;
        assert_eq!(found["totalResults"], usize::from(is_member), "{group} {user}, {at}");
    }

    async fn compare_group(&self, cluster: &Cluster, group: &str, at: &str) {
        let expected = self.active(&self.groups[group]);
        assert_eq!(cluster.members(group).await, expected, "{group}, {at}");
    }

    async fn compare_user(&self, cluster: &Cluster, id: &str, at: &str) {
        let shown = cluster.read(&format!("/Users/{id}")).await;
        let text = |name: &str| shown[name].as_str().unwrap_or_default().to_owned();
        let active = shown["active"].as_bool().unwrap();
        let found = User { user_name: text("userName"), display_name: text("displayName"), active };
        assert_eq!(found, self.users[id], "{id}, {at}");
    }

    /// The members that are shown.
    fn active(&self, members: &BTreeSet<String>) -> BTreeSet<String> {
        members.iter().filter(|id| self.users[*id].active).cloned().collect()
    }

    async fn compare(&self, cluster: &Cluster, at: &str) {
        for group in self.groups.keys() {
            self.compare_group(cluster, group, at).await;
        }
        for user in self.users.keys() {
            self.compare_user(cluster, user, at).await;
        }
    }
}

/// The members of the group of all clients.
async fn compare_common(cluster: &Cluster, models: &[Model], common: &str, at: &str) {
    let expected: BTreeSet<_> = models.iter().flat_map(|model| model.active(&model.common)).collect();
    assert_eq!(cluster.members(common).await, expected, "the common group, {at}");
}

on_both_databases! {
    async fn random_sequences_of_clients_at_once_agree_with_a_model_while_nodes_are_killed(engine: Engine) {
        let seed: u64 = rand::rng().random();
        let at = format!("seed {seed}");
        let total = std::env::var(VARIABLE).map_or(SEQUENCES, |text| text.parse().expect("a number of sequences"));
        let cluster = Cluster::start(engine);
        let common = cluster.send("POST", "/Groups", &json!({"displayName": "Common"})).await.json();
        let common = common["id"].as_str().unwrap();
        let mut models = Vec::new();
        for client in 0..CLIENTS {
            models.push(Model::new(&cluster, client, seed).await);
        }
        let clients = models.iter_mut().enumerate().map(async |(client, model)| {
            for number in 0..total.div_ceil(CLIENTS) {
                model.sequence(&cluster, client, common, &format!("seed {seed}, sequence {number} of {client}")).await;
                cluster.note_sequence();
            }
        });
        let clients = futures_util::future::join_all(clients);
        let kills = cluster.kill_while(clients, SEQUENCES_BETWEEN_KILLS).await;
        assert!(kills >= total / SEQUENCES_BETWEEN_KILLS / 2, "only {kills} nodes were killed");
        for model in &models {
            model.compare(&cluster, &at).await;
        }
        compare_common(&cluster, &models, common, &at).await;
        // Nobody's membership was lost while it was hidden.
        for model in &mut models {
            for (id, user) in &mut model.users {
                user.active = true;
                cluster.patch(&format!("/Users/{id}"), &json!([{"op": "replace", "value": {"active": true}}])).await;
            }
            model.compare(&cluster, &at).await;
        }
        compare_common(&cluster, &models, common, &at).await;
        let (requests, repeated) = (cluster.requests(), cluster.repeated());
        let done = format!("{total} sequences, {requests} requests, {repeated} of them again, {kills} nodes killed\n");
        std::io::stderr().write_all(done.as_bytes()).expect("it can be written");
    }
}

on_all_databases! {
    async fn clients_that_change_one_group_at_once_lose_nothing(engine: Engine) {
        let scene = Scene::start(engine);
        let mut users = Vec::new();
        for number in 0..24 {
            users.push(scene.user(&format!("u{number:02}@example.com")).await);
        }
        let leaving: Vec<&str> = users[..9].iter().map(String::as_str).collect();
        let group = scene.group("Sales", &leaving).await;
        let path = format!("/Groups/{group}");
        let changes = users.iter().enumerate().map(async |(number, user)| {
            let operation = if number < leaving.len() {
                json!({"op": "Remove", "path": format!("members[value eq \"{user}\"]")})
            } else {
                json!({"op": "Add", "path": "members", "value": [{"value": user}]})
            };
            scene.patch(&path, &json!([operation])).await;
        });
        futures_util::future::join_all(changes).await;
        assert_eq!(scene.members(&group).await, users[leaving.len()..]);
    }
}
