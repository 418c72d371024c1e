//! `formgate erase`: what formgate itself holds about a person goes, and the product's own tables stay as they are.

use std::fs;

use serde_json::{Value, json};

use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};

/// The columns of formgate's tables in which an address can be.
const COLUMNS: [&str; 25] = [
    "tokens.name",
    "tokens.created_by",
    "tokens.form_key",
    "request_log.id",
    "request_log.agent",
    "admin_links.email",
    "admin_links.name",
    "admin_sessions.email",
    "admin_sessions.name",
    "admin_sessions.user_agent",
    "audit_log.actor",
    "audit_log.subject",
    "audit_log.details",
    "group_syncs.actor",
    "group_syncs.group_name",
    "directory_held.actor",
    "subscriptions.reason",
    "webhook_events.body",
    "webhook_attempts.error",
    "webhook_attempts.response",
    "directory_users.user_name",
    "directory_users.user_name_folded",
    "group_syncs.attached",
    "group_syncs.detached",
    "admin_sessions.subject",
];

/// Writes what formgate would have written about Ana, user 7, and about Mariana.
async fn plant(site: &Site, engine: Engine, email: &str) {
    let database = Database::connect(site.database_url("acme")).await;
    let (now, digest) = (database.in_hours(0), |digit: char| match engine {
        Engine::Sqlite => format!("X'{}'", digit.to_string().repeat(64)),
        _ => format!("'\\x{}'", digit.to_string().repeat(64)),
    });
    let escaped = json!({ "answer": format!("first\n{email}"), "other": format!("mari{email}") }).to_string();
    let statements = [
        format!("INSERT INTO users (id, email, active) VALUES (7, '{email}', {}), (8, 'mari{email}', {})", off(engine), on(engine)),
        "INSERT INTO forms (id, name) VALUES (1, 'Leave')".to_owned(),
        format!(
            "INSERT INTO tokens (name, prefix, digest, created_at, created_by, form_key)
             VALUES ('Laptop of {email}', 'fg_aaaaa', {}, {now}, '{email}', 'operator put {email}'),
               ('Laptop of mari{email}', 'fg_bbbbb', {}, {now}, 'mari{email}', NULL)",
            digest('a'),
            digest('b')
        ),
        format!(
            "INSERT INTO request_log (at, number, id, method, status, duration_ms, agent)
             VALUES ({now}, 1, 'of {email}', 'GET', 200, 1, 'sync for <{email}>'), ({now}, 2, 'r', 'GET', 200, 1, 'mari{email}')"
        ),
        format!("INSERT INTO admin_links (digest, email, name, role, created_at, expires_at) VALUES ({}, '{email}', '{email}', 'admin', {now}, {now})", digest('c')),
        format!(
            "INSERT INTO admin_sessions
               (digest, email, name, role, issuer, subject, created_at, last_seen_at, expires_at, network, user_agent)
             VALUES ({}, '{}', '{email}', 'admin', 'https://id', 'sub-of-ana', {now}, {now}, {now}, '192.0.2.0/24', 'Firefox'),
               ({}, 'other@example.com', 'Other', 'admin', 'https://id', 'sub', {now}, {now}, {now}, '192.0.2.0/24', 'tool of {email}')",
            digest('d'),
            email.to_uppercase(),
            digest('e')
        ),
        format!(
            "INSERT INTO group_syncs (at, group_id, group_name, is_new, actor, attached, detached, attached_count, detached_count)
             VALUES ({now}, 1, 'Team of {email}', {}, '{email}', '[7,8,77]', '[7]', 3, 1)",
            off(engine)
        ),
        format!(
            "INSERT INTO subscriptions (id, target_url, event, secret, created_at, reason)
             {} VALUES (1, 'https://receiver.example/{email}', 'submission.created', 's', {now}, '{{\"by\":\"{email}\"}}')",
            if engine == Engine::Sqlite { "" } else { "OVERRIDING SYSTEM VALUE" }
        ),
        format!("INSERT INTO webhook_events (subscription_id, seq, submission_id, body) VALUES (1, 1, 1, '{escaped}')"),
        format!(
            "INSERT INTO webhook_attempts (subscription_id, event_id, event, submission_id, attempt, at, duration_ms, accepted, response)
             VALUES (1, 'evt_1', 'submission.created', 1, 1, {now}, 1, {}, 'no {email} here')",
            off(engine)
        ),
        format!(
            "INSERT INTO directory_users (user_id, user_name, user_name_folded, given_name, created_at, updated_at)
             VALUES (7, 'ana', 'ana', 'Ana', {now}, {now})"
        ),
        format!("INSERT INTO directory_removals (group_id, user_id, ends_at) SELECT id, 7, {now} FROM groups WHERE built_in"),
        format!(
            "INSERT INTO directory_held (group_id, user_id, kind, at, actor)
             SELECT groups.id, users.id, 'removed', {now}, 'sync of {email}' FROM groups CROSS JOIN users WHERE built_in"
        ),
    ];
    for statement in statements {
        database.execute(&statement).await;
    }
    database.close().await;
}

fn on(engine: Engine) -> &'static str {
    if engine == Engine::Sqlite { "1" } else { "true" }
}

fn off(engine: Engine) -> &'static str {
    if engine == Engine::Sqlite { "0" } else { "false" }
}

/// How often the columns have a text, but not after `mari`.
async fn places(database: &Database, text: &str) -> Vec<&'static str> {
    let mut found = Vec::new();
    for place in COLUMNS {
        let (table, column) = place.split_once('.').unwrap();
        let values = database.texts(&format!("SELECT coalesce({column}, '') FROM {table}")).await;
        if values.iter().any(|value| value.to_lowercase().replace(&format!("mari{text}"), "").contains(text)) {
            found.push(place);
        }
    }
    found
}

/// A site whose audit log has rows by and about the person.
fn site(engine: Engine, email: &str) -> Site {
    let site = Site::new().tenant("acme", engine).gateway("administration", toml::Table::new()).write();
    for email in [email, "other@example.com"] {
        let link = site.run(&["admin", "link", "--tenant", "acme", "--email", email], b"");
        assert_eq!(link.code, 0, "{link:?}");
    }
    site
}

on_both_databases! {
    async fn what_formgate_holds_about_a_person_is_erased_and_the_product_keeps_its_tables(engine: Engine) {
        let email = "ana@example.com";
        let site = site(engine, email);
        plant(&site, engine, email).await;
        let database = Database::connect(site.database_url("acme")).await;
        assert!(places(&database, email).await.len() > 10);

        let erased = site.run(&["erase", "--tenant", "acme", "--email", "Ana@Example.COM", "--json"], b"");
        assert_eq!(erased.code, 0, "{erased:?}");
        let printed: Value = serde_json::from_str(&erased.stdout).unwrap();
        for (table, rows) in [
            ("admin_links", 2), ("admin_sessions", 2), ("directory_users", 1), ("request_log", 2), ("tokens", 2),
            ("webhook_attempts", 1), ("webhook_events", 1), ("group_syncs", 3), ("audit_log", 1), ("subscriptions", 1),
            ("directory_removals", 1), ("directory_held", 2),
        ] {
            assert_eq!(printed["erased"][table], rows, "{table}: {printed}");
        }
        assert_eq!(printed["subscriptions"], json!(["hook_1"]));
        assert!(erased.stderr.contains("hook_1"), "{}", erased.stderr);
        assert_eq!(places(&database, email).await, Vec::<&str>::new());
        assert_eq!(database.texts("SELECT attached || detached FROM group_syncs").await, ["[8,77][]"]);
        assert_eq!(database.texts("SELECT actor FROM directory_held").await, ["sync of (erased)"], "of the other user");
        assert_eq!(database.texts("SELECT email FROM admin_sessions").await, ["other@example.com"]);
        let body = database.text("SELECT body FROM webhook_events").await;
        let body: Value = serde_json::from_str(&body).expect("it is JSON as before");
        assert_eq!(body, json!({ "answer": "first\n(erased)", "other": format!("mari{email}") }));
        assert_eq!(database.texts("SELECT name FROM tokens ORDER BY id").await, ["Laptop of (erased)".to_owned(), format!("Laptop of mari{email}")]);
        assert_eq!(database.texts("SELECT email FROM users ORDER BY id").await, [email.to_owned(), format!("mari{email}")], "the product's");

        let verified = site.run(&["audit", "verify", "--tenant", "acme"], b"");
        assert_eq!(verified.code, 0, "{verified:?}");
        let log = site.run(&["audit", "list", "--tenant", "acme", "--json"], b"").stdout;
        let newest: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
        assert_eq!((&newest["action"], &newest["details"]["erased"]["tokens"]), (&json!("person.erase"), &json!(2)), "{newest}");
        assert!(!log.contains(email) && log.contains("other@example.com"), "{log}");
        let refused = database.try_execute("UPDATE audit_log SET actor = 'x'").await;
        assert!(refused.is_err(), "rows are only added, as before");
        database.close().await;
        assert_eq!(site.run(&["check"], b"").code, 0, "the schema is as it was");

        let again = site.run(&["erase", "--tenant", "acme", "--email", email], b"");
        assert_eq!((again.code, again.stdout.as_str()), (0, "acme: formgate holds nothing about this address\n"));
        let faulty = site.run(&["erase", "--tenant", "acme", "--email", "nobody"], b"");
        assert_eq!(faulty.code, 2, "{faulty:?}");
    }
}

#[tokio::test]
async fn the_bytes_of_an_erased_person_are_overwritten_on_sqlite() {
    let site = site(Engine::Sqlite, "planted@example.com");
    let file = site.database_url("acme").strip_prefix("sqlite:").unwrap().to_owned();
    let content = || ["", "-wal"].map(|end| fs::read(format!("{file}{end}")).unwrap_or_default()).concat();
    let has = |content: &[u8]| content.windows(7).any(|bytes| bytes == b"planted");
    assert!(has(&content()));
    let erased = site.run(&["erase", "--tenant", "acme", "--email", "planted@example.com"], b"");
    assert_eq!(erased.code, 0, "{erased:?}");
    assert!(!has(&content()));
}
