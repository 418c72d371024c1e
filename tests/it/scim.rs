//! SCIM below `/scim/v2`: what directories write, and what the API and the tables then say.

mod conditions;
mod discovery;
mod gate;
mod groups;
mod inactive;
mod lists;
mod model;
mod owners;
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
    fn start(engine: Engine) -> Self {
        let site = Site::new().tenant_with("acme", engine, |tenant| tenant.set("scim_requests_per_minute", 100_000));
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
