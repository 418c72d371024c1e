//! SCIM below `/scim/v2`: what directories write, and what the API and the tables then say.

mod conditions;
mod discovery;
mod gate;
mod groups;
mod guard;
mod held_users;
mod inactive;
mod lists;
mod model;
mod owners;
mod runs;
mod search;
mod users;
mod wrecks;

use serde_json::{Value, json};

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site};

/// An account, and the directory that provisions it.
struct Scene {
    acme: Acme,
    directory: Client,
}

impl Scene {
    /// An account whose guard holds nothing.
    fn start(engine: Engine) -> Self {
        Self::with_guard(engine, Some(100))
    }

    /// An account with a guard, or with the default one.
    fn with_guard(engine: Engine, percent: Option<i64>) -> Self {
        let site = Site::new().tenant_with("acme", engine, |tenant| {
            let tenant = tenant.set("scim_requests_per_minute", 100_000);
            let guard =
                |percent| toml::Table::from_iter([("max_detached_percent".to_owned(), toml::Value::Integer(percent))]);
            percent.map(guard).into_iter().fold(tenant, |tenant, guard| tenant.set("group_guard", guard))
        });
        let acme = Acme::of(site.requests_per_minute(100_000));
        let token = acme.site.limited_token("acme", "Directory", &["--scopes", "scim"]);
        let directory = acme.stranger().with(&token);
        Self { acme, directory }
    }

    async fn database(&self) -> Database {
        Database::connect(self.acme.site.database_url("acme")).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.directory.get(&format!("/scim/v2{path}")).send().await
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let call = self.directory.method(method.parse().unwrap(), &format!("/scim/v2{path}"));
        let body = serde_json::to_vec(body).unwrap();
        call.header("content-type", "application/scim+json").body(body).send().await
    }

    /// The URL of a path.
    fn url(&self, path: &str) -> String {
        format!("https://{}/scim/v2{path}", self.acme.host())
    }

    /// A resource that exists.
    async fn read(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    /// A new resource.
    async fn create(&self, path: &str, body: &Value) -> Value {
        let answer = self.send("POST", path, body).await;
        assert_eq!(answer.status, 201, "{body}: {answer:?}");
        answer.json()
    }

    /// The id of a new user with an address.
    async fn user(&self, email: &str) -> String {
        let user = self.create("/Users", &json!({"schemas": [USER], "userName": email})).await;
        user["id"].as_str().unwrap().to_owned()
    }

    /// The id of a new group with members.
    async fn group(&self, name: &str, members: &[&str]) -> String {
        let members: Vec<_> = members.iter().map(|id| json!({ "value": id })).collect();
        let body = json!({"schemas": [GROUP], "displayName": name, "members": members});
        self.create("/Groups", &body).await["id"].as_str().unwrap().to_owned()
    }

    /// Creates this number of users, and returns their ids.
    async fn many_users(&self, count: usize) -> Vec<String> {
        let mut users = Vec::new();
        for number in 0..count {
            users.push(self.user(&format!("u{number:02}@example.com")).await);
        }
        users
    }

    /// Removes a member in a request of its own.
    async fn remove(&self, group: &str, user: &str) {
        let path = format!("members[value eq \"{user}\"]");
        let removed = self.patch(&format!("/Groups/{group}"), &json!([{"op": "remove", "path": path}])).await;
        assert_eq!(removed.status, 204);
    }

    /// How many members of a group are held, and whether it has diverged.
    async fn standing(&self, group: &str) -> (u64, bool) {
        let shown = self.acme.caller().get(&format!("/api/v1/group/{group}")).send().await.json();
        let paged = self.acme.caller().get(&format!("/api/v1/group/{group}?page=1")).send().await.json();
        assert_eq!(
            (&shown["data"]["held"], &shown["data"]["diverged"]),
            (&paged["data"]["held"], &paged["data"]["diverged"])
        );
        // Groups that do not belong to SCIM have neither, unless something is held.
        (shown["data"]["held"].as_u64().unwrap_or(0), shown["data"]["diverged"].as_bool().unwrap_or(false))
    }

    /// Applies or drops what is held of a group.
    async fn decide(&self, group: &str, apply: bool) -> Value {
        let decided = self
            .acme
            .caller()
            .post(&format!("/api/v1/group/{group}/held"))
            .json(&json!({ "apply": apply }))
            .send()
            .await;
        assert_eq!(decided.status, 200, "{decided:?}");
        decided.json()["data"].clone()
    }

    /// A PATCH that is carried out.
    async fn patch(&self, path: &str, operations: &Value) -> Answer {
        let answer = self.send("PATCH", path, &patch_of(operations)).await;
        assert!(matches!(answer.status.as_u16(), 200 | 204), "{operations}: {answer:?}");
        answer
    }

    /// The ids of the members of a group, which the API shows too.
    async fn members(&self, group: &str) -> Vec<String> {
        let shown = self.read(&format!("/Groups/{group}")).await;
        let mut ids: Vec<String> = Vec::new();
        for member in shown["members"].as_array().unwrap() {
            ids.push(member["value"].as_str().unwrap().to_owned());
        }
        let of_api = self.acme.caller().get(&format!("/api/v1/group/{group}")).send().await.json();
        assert_eq!(of_api["data"]["members_count"], ids.len(), "{of_api}");
        assert_eq!(of_api["data"]["members"].as_array().unwrap().len(), ids.len(), "{of_api}");
        ids
    }
}

const USER: &str = "urn:ietf:params:scim:schemas:core:2.0:User";
const GROUP: &str = "urn:ietf:params:scim:schemas:core:2.0:Group";

fn patch_of(operations: &Value) -> Value {
    json!({"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"], "Operations": operations})
}

/// Ids as they are compared.
fn owned(ids: Vec<&String>) -> Vec<String> {
    ids.into_iter().cloned().collect()
}

/// The status of a refusal and its type; empty without one.
fn refusal(answer: &Answer) -> (u16, String) {
    let json = answer.json();
    (answer.status.as_u16(), json["scimType"].as_str().unwrap_or_default().to_owned())
}

/// The names of the resources of a list, in their order.
fn listed(list: &Value, attribute: &str) -> Vec<String> {
    let resources = list["Resources"].as_array().unwrap();
    assert_eq!(list["itemsPerPage"], resources.len());
    resources.iter().map(|resource| resource[attribute].as_str().unwrap_or_default().to_owned()).collect()
}
