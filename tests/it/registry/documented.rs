//! What deploy/registry.md documents of the registry works as written: the rights of a node's role, and the recipe.

use std::fs;
use std::process::Command;

use http::Method;
use serde_json::{Value, json};

use super::scene::{Scene, me, readiness_becomes, readiness_begins};
use crate::support::document::block;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::postgres::{Postgres, Version, find_client, path_with_clients};
use crate::support::process::python;

const GUIDE: &str = include_str!("../../../deploy/registry.md");

/// The documented rights, for the database at a URL.
pub(crate) fn documented_grants(url: &str) -> String {
    let database = url.rsplit('/').next().expect("a name");
    block(GUIDE, "sql", "registry_node").replace("ON DATABASE registry ", &format!("ON DATABASE \"{database}\" "))
}

/// The rights of every node, those for the operator API, and those for domains.
pub(crate) fn parts(grants: &str) -> [&str; 3] {
    let (of_all, rest) = grants.split_once("-- also for nodes with [gateway.operator]:").expect("the operator API");
    let (of_operator, of_domains) = rest.split_once("-- also for nodes with [gateway.domains]:").expect("domains");
    [of_all, of_operator, of_domains]
}

#[tokio::test]
async fn a_role_with_the_documented_rights_follows_the_registry_and_serves_the_operator_api() {
    let server = Postgres::start();
    let url = server.new_database();
    let scene = Scene::new(Engine::Sqlite).gateway("registry", url.clone());
    scene.succeed(&["operator-token", "create", "--name", "product"]);
    let grants = documented_grants(&url);
    let [of_all, of_operator, _] = parts(&grants);
    Postgres::execute_in(&url, &format!("CREATE ROLE registry_node LOGIN; {of_all}"));
    let scene = scene.gateway("registry", url.replace("postgres@", "registry_node@"));
    let mut node = scene.start(0);
    let nodes = scene.call(0, Method::GET, "/v1/nodes", None).await;
    assert_eq!((&nodes.body["data"][0]["live"], nodes.status.as_u16()), (&json!(true), 200), "{nodes:?}");
    let put = scene.call(0, Method::PUT, "/v1/tenants/acme", Some(&scene.tenant("acme"))).await;
    assert_eq!(put.status, 503, "{put:?}");
    assert!(put.body["message"].as_str().unwrap().contains("grant the role of `registry`"), "{put:?}");
    let checked = scene.run(&["check"]);
    assert!(checked.code == 1 && checked.stdout.contains("lacks rights: DELETE on registry_budgets, "), "{checked:?}");
    readiness_begins(&mut node, "the role of this node lacks DELETE on registry_budgets, ").await;
    Postgres::execute_in(&url, of_operator);
    assert_eq!(scene.run(&["check"]).code, 0);
    readiness_begins(&mut node, "ok").await;
    let token = scene.add(0, "acme").await;
    assert_eq!(me(&node, "acme", &token).await, 200);
    let mut changed = scene.tenant("acme");
    changed["domains"] = json!(["forms.acme.test"]);
    let batch = json!({ "operations": [{ "put": "acme", "tenant": changed }] });
    assert_eq!(scene.call(0, Method::POST, "/v1/batch?wait=60", Some(&batch)).await.status, 200);
    assert_eq!(scene.call(0, Method::DELETE, "/v1/tenants/acme?wait=60", None).await.status, 200);
    scene.add(0, "globex").await;
    let erased = scene.call(0, Method::DELETE, "/v1/tenants/globex?erase=1&wait=60", None).await;
    assert_eq!(erased.status, 200, "{erased:?}");
}

#[tokio::test]
async fn a_right_that_is_revoked_while_a_node_runs_is_named_at_once() {
    let server = Postgres::start();
    let url = server.new_database();
    let scene = Scene::new(Engine::Sqlite).gateway("registry", url.clone());
    scene.succeed(&["operator-token", "create", "--name", "product"]);
    let grants = documented_grants(&url);
    Postgres::execute_in(&url, &format!("CREATE ROLE registry_node LOGIN; {grants}"));
    let scene = scene.gateway("registry", url.replace("postgres@", "registry_node@"));
    let mut node = scene.start(0);
    readiness_becomes(&mut node, "ok").await;
    for right in ["UPDATE on registry_nodes", "SELECT on registry_head", "SELECT on registry_subscribed"] {
        let change = |verb: &str, preposition: &str| {
            Postgres::execute_in(
                &url,
                &format!("{verb} {} {preposition} registry_node", right.replace(" on ", " ON ")),
            );
        };
        change("REVOKE", "FROM");
        readiness_begins(&mut node, &format!("the role of this node lacks {right} in the registry; grant them")).await;
        let checked = scene.run(&["check"]);
        assert!(checked.code == 1 && checked.stdout.contains(&format!("lacks rights: {right}")), "{checked:?}");
        change("GRANT", "TO");
        readiness_becomes(&mut node, "ok").await;
        assert_eq!(scene.run(&["check"]).code, 0);
    }
    // It can write that it lives, and is waited for.
    Postgres::execute_in(&url, "REVOKE DELETE ON registry_nodes FROM registry_node");
    drop(node);
    let mut node = scene.start(1);
    readiness_becomes(
        &mut node,
        "the role of this node lacks DELETE on registry_nodes in the registry; grant them, as `Rights of a node` in \
         deploy/registry.md shows",
    )
    .await;
}

on_both_databases! {
    async fn the_recipe_signs_an_account_up(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let recipe = block(GUIDE, "python", "def sign_up");
        assert!(recipe.lines().filter(|line| !line.is_empty()).count() <= 20, "{recipe}");
        let recipe = recipe.replace(".example.com", ".example.test");
        let file = scene.folder().join("recipe.py");
        let last = "import sys\nprint(json.dumps(sign_up(*sys.argv[1:])))\n";
        fs::write(&file, format!("{recipe}{last}")).unwrap();
        let sign_up = |database: &str| {
            let mut command = Command::new(python());
            command.arg(&file).args(["acme", "Acme", database, "ana@acme.example"]).arg(scene.socket(0));
            command.output().expect("there is a Python")
        };
        let refused = sign_up("nothing:x");
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && errors.contains("RuntimeError: 422: "), "{errors}");
        let tenant = scene.tenant("acme");
        let database = tenant["database"].as_str().unwrap();
        let run = || {
            let output = sign_up(database);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice::<(Option<String>, String)>(&output.stdout).expect("a token and a link")
        };
        let (token, link) = run();
        assert_eq!(me(&node, "acme", &token.expect("the first call has it")).await, 200);
        assert!(link.starts_with("https://acme.example.test") && link.contains("/admin/enter/"), "{link}");
        assert_eq!(run().0, None, "a repeated call creates no second token");
        let tokens: Value = serde_json::from_str(&scene.succeed(&["token", "list", "--tenant", "acme", "--json"])).unwrap();
        assert_eq!(tokens.as_array().map(Vec::len), Some(1), "{tokens}");
    }
}

/// Runs the recipes one after the other, as a role that may create roles and databases. Returns the token, or what went wrong.
fn sign_up_on(server: &Postgres, scene: &Scene, slug: &str, password: &str) -> Result<Option<String>, String> {
    let recipes = [block(GUIDE, "python", "def sign_up"), block(GUIDE, "python", "def create_database")].concat();
    let last = "import sys\nslug, password, server, operator = sys.argv[1:]\n\
        url = create_database(slug, password, server)\nprint(json.dumps(sign_up(slug, 'Acme', url, 'ana@acme.example', operator)))\n";
    let file = scene.folder().join("new_account.py");
    fs::write(&file, format!("{}{last}", recipes.replace(".example.com", ".example.test"))).unwrap();
    let mut command = Command::new(python());
    command.arg(&file).args([slug, password, &format!("127.0.0.1:{}", server.port())]).arg(scene.socket(0));
    command.env("PGHOST", "127.0.0.1").env("PGPORT", server.port().to_string()).env("PGUSER", "provisioner");
    command.env("PGDATABASE", "postgres").env("PATH", path_with_clients());
    let output = command.output().expect("there is a Python");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let (token, _) = serde_json::from_slice::<(Option<String>, String)>(&output.stdout).expect("a token and a link");
    Ok(token)
}

/// What a role reads in a database.
fn reads(server: &Postgres, role: &str, password: &str, database: &str) -> bool {
    let url = format!("postgres://{role}:{password}@127.0.0.1:{}/{database}", server.port());
    let psql = Command::new(find_client("psql")).args(["--no-psqlrc", "--command=SELECT 1", &url]).output();
    psql.expect("there is a psql").status.success()
}

/// Signs accounts up on a server.
async fn new_accounts_have_databases_of_their_own(server: &Postgres) {
    const PASSWORD: &str = "a/b:c@d%e'f\"$${g}";
    server.execute("CREATE ROLE provisioner LOGIN CREATEDB CREATEROLE");
    for role in ["account_acme", "\"account_big-co\""] {
        server.demand_password_of(role);
    }
    let scene = Scene::new(Engine::Sqlite);
    let node = scene.start(0);
    let token = sign_up_on(server, &scene, "acme", PASSWORD).unwrap().expect("the first call has it");
    assert_eq!(me(&node, "acme", &token).await, 200);
    assert_eq!(sign_up_on(server, &scene, "acme", PASSWORD), Ok(None), "it may be repeated");
    assert_eq!(me(&node, "acme", &token).await, 200);
    let other = sign_up_on(server, &scene, "big-co", "other").unwrap().expect("the first call has it");
    assert_eq!(me(&node, "big-co", &other).await, 200);
    let password = "a%2Fb%3Ac%40d%25e%27f%22%24%24%7Bg%7D";
    assert!(reads(server, "account_acme", password, "account_acme"));
    assert!(!reads(server, "account_acme", "wrong", "account_acme"));
    assert!(
        !reads(server, "account_acme", password, "account_big-co")
            && !reads(server, "account_big-co", "other", "account_acme")
    );
    for slug in [&*"a".repeat(56), "Bad\"Slug", "-a", "a-", "", "a\n"] {
        let refused = sign_up_on(server, &scene, slug, "x").unwrap_err();
        assert!(refused.contains("1 to 55 lower-case letters, digits and hyphens"), "{slug}: {refused}");
    }
    assert!(!reads(server, "account_Bad%22Slug", "x", "postgres"), "nothing is created");
}

#[tokio::test]
async fn the_recipe_gives_each_account_a_role_and_a_database_of_its_own() {
    new_accounts_have_databases_of_their_own(&Postgres::start()).await;
}

// Since version 16, whoever may create roles may change only those that it has created.
#[tokio::test]
async fn the_recipe_gives_each_account_a_role_and_a_database_of_its_own_on_postgres_18() {
    new_accounts_have_databases_of_their_own(Postgres::of_version(Version::V18)).await;
}
