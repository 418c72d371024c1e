//! The script of deploy/backup.md that restores one tenant of the registry, as printed: the others keep what happened to them.

use std::fs;
use std::process::Command;

use http::Method;
use serde_json::{Value, json};

use super::scene::{Scene, me, me_becomes};
use crate::support::database::Database;
use crate::support::document::block;
use crate::support::fixture::Engine;
use crate::support::postgres::{Postgres, find_client, path_with_clients};
use crate::support::process::Node;

const GUIDE: &str = include_str!("../../../deploy/backup.md");

/// A node with the tenants `acme`, on Postgres, and `globex`, after a backup of the registry and of `acme`.
struct BackedUp {
    scene: Scene,
    server: Postgres,
    node: Node,
    /// Tokens of the two.
    tokens: [String; 2],
}

impl BackedUp {
    async fn new() -> Self {
        let server = Postgres::start();
        server.execute("CREATE ROLE registry LOGIN");
        server.execute("CREATE DATABASE registry OWNER registry");
        server.execute("CREATE ROLE account_acme LOGIN");
        server.execute("CREATE DATABASE account_acme OWNER account_acme");
        let registry = server.url("registry").replace("postgres@", "registry@");
        let scene = Scene::new(Engine::Sqlite).gateway("registry", registry);
        let node = scene.start(0);
        let mut backed_up = Self { scene, server, node, tokens: Default::default() };
        backed_up.tokens = [backed_up.put("acme", "ACME").await, backed_up.put("globex", "GLOBEX").await];
        let database = backed_up.database().await;
        database.execute("INSERT INTO forms (id, name, graduated) VALUES (1, 'Leave', FALSE)").await;
        for id in [1, 2] {
            let row = format!("({id}, 1, 'pending', now(), now())");
            database
                .execute(&format!("INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES {row}"))
                .await;
        }
        database.close().await;
        for (database, file) in [("registry", "registry.dump"), ("account_acme", "acme.dump")] {
            let mut dump = Command::new(find_client("pg_dump"));
            dump.args(["--format=custom", "--file", file, "--dbname", &backed_up.server.url(database)]);
            let dumped = dump.current_dir(backed_up.scene.folder()).output().expect("there is a pg_dump");
            assert!(dumped.status.success(), "{dumped:?}");
        }
        backed_up
    }

    async fn database(&self) -> Database {
        Database::connect(&self.server.url("account_acme")).await
    }

    /// Adds a tenant, or changes its name. Returns a new token.
    async fn put(&self, slug: &str, name: &str) -> String {
        let mut tenant = self.scene.tenant(slug);
        tenant["name"] = name.into();
        if slug == "acme" {
            tenant["database"] = self.server.url("account_acme").replace("postgres@", "account_acme@").into();
        }
        let target = format!("/v1/tenants/{slug}?migrate=1&wait=60&token={name}");
        let answer = self.scene.call(0, Method::PUT, &target, Some(&tenant)).await;
        assert!(answer.status == 201 || answer.status == 200, "{answer:?}");
        answer.body["token"]["token"].as_str().expect("a token").to_owned()
    }

    async fn shown(&self, slug: &str) -> Value {
        self.scene.call(0, Method::GET, &format!("/v1/tenants/{slug}"), None).await.body["data"]["tenant"].clone()
    }

    async fn submissions(&self) -> Value {
        let client = super::scene::client(&self.node, "acme", &self.tokens[0]);
        client.post("/api/v1/submission").json(&json!({})).send().await.json()["meta"]["total"].clone()
    }

    /// Runs a script as an operator of this node does.
    fn run(&self, script: &str) {
        let folder = self.scene.folder();
        let real = fs::read_to_string(self.scene.config(0)).unwrap();
        let restored = real.replace("/registry\"", "/registry_restored\"");
        assert_ne!(real, restored);
        fs::write(folder.join("restored.toml"), restored).unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .current_dir(folder)
            .env("FORMGATE_CONFIG", self.scene.config(0))
            .env("PATH", path_with_clients());
        command.env("PGHOST", "127.0.0.1").env("PGPORT", self.server.port().to_string()).env("PGUSER", "postgres");
        let output = command.output().expect("there is a shell");
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(output.status.success(), "{said}");
    }

    /// What happens to others after the backup.
    async fn change_others(&self) -> [String; 2] {
        [self.put("globex", "RENAMED").await, self.put("initech", "INITECH").await]
    }

    /// The others are as they were before the restore.
    async fn assert_others_are_kept(&self, [globex, initech]: &[String; 2]) {
        for (slug, token) in [("globex", &self.tokens[1]), ("globex", globex), ("initech", initech)] {
            assert_eq!(me(&self.node, slug, token).await, 200, "{slug}");
        }
        assert_eq!(self.shown("globex").await["name"], "RENAMED");
    }
}

#[tokio::test]
async fn one_tenant_is_restored_with_its_data_and_the_others_keep_what_happened_since() {
    let backed_up = BackedUp::new().await;
    let others = backed_up.change_others().await;
    let late = backed_up.put("acme", "WRONG").await;
    let database = backed_up.database().await;
    database.execute("DELETE FROM submissions WHERE id = 2").await;
    database.close().await;
    assert_eq!(backed_up.submissions().await, 1);
    backed_up.run(block(GUIDE, "sh", "slug=acme"));
    let acme = backed_up.shown("acme").await;
    assert!(acme["name"] == "ACME" && acme["database"].as_str().unwrap().ends_with("/account_acme_restored"), "{acme}");
    assert_eq!(backed_up.submissions().await, 2, "with the token of before");
    assert_eq!(me(&backed_up.node, "acme", &late).await, 401, "a token that was created since the backup");
    backed_up.assert_others_are_kept(&others).await;
}

#[tokio::test]
async fn a_tenant_that_was_removed_comes_back_with_the_data_that_it_had() {
    let backed_up = BackedUp::new().await;
    let others = backed_up.change_others().await;
    let database = backed_up.database().await;
    database.execute("DELETE FROM submissions WHERE id = 2").await;
    database.close().await;
    let removed = backed_up.scene.call(0, Method::DELETE, "/v1/tenants/acme?wait=60", None).await;
    assert_eq!(removed.status, 200, "{removed:?}");
    me_becomes(&backed_up.node, "acme", &backed_up.tokens[0], 404).await;
    let script = block(GUIDE, "sh", "slug=acme");
    let (before, rest) = script.split_once("# 3.").expect("a part about data");
    let (_, after) = rest.split_once("# 4.").expect("a part after it");
    backed_up.run(&format!("{before}# {after}"));
    assert_eq!(backed_up.submissions().await, 1, "its database was kept");
    backed_up.assert_others_are_kept(&others).await;
}
