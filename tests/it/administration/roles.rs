//! The database role that serves, with no more rights than src/store/README.md says.

use serde_json::json;

use super::scene::{SLUGS, Scene, text};
use crate::support::fixture::{Engine, Site};
use crate::support::postgres::Postgres;

/// The rights that src/store/README.md lists.
const GRANTS: &str = "CREATE ROLE server LOGIN; GRANT USAGE ON SCHEMA public TO server; \
    GRANT SELECT, UPDATE ON SEQUENCE groups_id_seq, users_id_seq TO server; \
    DO $$ DECLARE name text; BEGIN \
      FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP \
        EXECUTE format('GRANT %s ON %I TO server', CASE name \
          WHEN 'audit_log' THEN 'SELECT, INSERT' WHEN 'audit_state' THEN 'SELECT, UPDATE' \
          WHEN 'tokens' THEN 'SELECT, INSERT, UPDATE' ELSE 'SELECT, INSERT, UPDATE, DELETE' END, name); \
      END LOOP; END $$";

#[tokio::test]
async fn a_role_with_the_documented_rights_serves_the_area() {
    let server = Postgres::start();
    let urls = SLUGS.map(|_| server.new_database());
    let site = |role: &str| {
        let url = |at: usize| urls[at].replace("postgres@", &format!("{role}@"));
        Site::new()
            .tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", url(0)))
            .tenant_with("globex", Engine::Sqlite, |tenant| tenant.set("database", url(1)))
            .gateway("administration", toml::Table::new())
            .write()
    };
    site("postgres").migrate();
    Postgres::execute_in(&urls[0], GRANTS);
    let site = site("server");
    let node = site.start();
    let scene = Scene { site, node };
    let own = scene.sign_in("acme", "admin").await;
    let (id, token) = own.generate("made by the area").await;
    let api = own.caller.with(&token);
    let group = json!({ "name": "Sales", "members": [{ "email": "ana@acme.example" }] });
    assert_eq!(api.put("/api/v1/group").json(&group).send().await.status, 201);
    let hook = json!({ "target_url": "https://hooks.example.com/x", "event": "submission.created" });
    assert_eq!(api.post("/api/v1/subscribe").json(&hook).send().await.status, 201);
    for page in [
        "",
        "/tokens",
        &format!("/tokens/{id}"),
        "/webhooks",
        "/webhooks/1",
        "/groups",
        "/groups/1",
        "/requests",
        "/export",
        "/audit",
        "/sessions",
    ] {
        assert_eq!(own.get(&format!("/admin{page}")).await.status, 200, "{page}");
    }
    let groups = own.get("/admin/groups/1").await;
    assert!(text(&groups).contains("ana@acme.example"), "{groups:?}");
    assert_eq!(own.post("/admin/groups/1", &[]).await.status, 303, "a sync is undone");
    assert_eq!(own.post(&format!("/admin/tokens/{id}/revoke"), &[]).await.status, 303);
    let verified = scene.site.run(&["audit", "verify", "--tenant", "acme"], b"");
    assert_eq!(verified.code, 0, "{}", verified.stderr);
    // The role can't change what it wrote.
    let database = scene.database("acme").await;
    for statement in ["UPDATE audit_log SET actor = 'x'", "DELETE FROM audit_log", "DELETE FROM tokens"] {
        assert!(database.try_execute(statement).await.is_err(), "{statement}");
    }
    database.close().await;
    assert_eq!(own.post("/admin/sign-out", &[]).await.status, 200);
}
