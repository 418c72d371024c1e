//! `formgate token create | list | revoke`.

use serde_json::Value;

use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::process::Writable;

fn listed(site: &Site) -> Vec<Value> {
    let output = site.run(&["token", "list", "--tenant", "acme", "--json"], b"");
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    serde_json::from_str(&output.stdout).expect("a JSON array")
}

on_both_databases! {
    async fn only_the_token_is_printed_and_only_once(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        site.migrate();
        assert_eq!(listed(&site), Vec::<Value>::new());
        let before = jiff::Timestamp::now();
        let output = site.run(&["token", "create", "--tenant", "acme", "--name", "Zapier & Söhne"], b"");
        assert_eq!((output.code, output.stderr.as_str()), (0, ""));
        let token = output.stdout.trim_end();
        assert_eq!(output.stdout, format!("{token}\n"), "one line");
        let (prefix, rest) = token.split_at(3);
        assert_eq!((prefix, rest.len()), ("fg_", 46));
        assert!(rest.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{token}");

        let [record] = &listed(&site)[..] else { panic!("one token") };
        let keys: Vec<_> = record.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["id", "name", "prefix", "created_at", "last_used_at", "revoked_at"]);
        assert!(record["id"].is_i64());
        assert_eq!(record["name"], "Zapier & Söhne");
        assert_eq!(record["prefix"], token[..8]);
        assert_eq!((&record["last_used_at"], &record["revoked_at"]), (&Value::Null, &Value::Null));
        let created: jiff::Timestamp = record["created_at"].as_str().expect("a text").parse().expect("an instant");
        assert!((before.as_second()..=jiff::Timestamp::now().as_second()).contains(&created.as_second()), "{created}");

        let table = site.run(&["token", "list", "--tenant", "acme"], b"").stdout;
        assert!(table.starts_with("ID  NAME"), "{table}");
        assert!(table.contains("Zapier & Söhne") && table.contains(&token[..8]) && !table.contains(&token[8..]), "{table}");
    }

    async fn a_revoked_token_stays_listed_with_its_instant(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        site.migrate();
        for name in ["first", "second"] {
            site.token("acme", name);
        }
        let id = listed(&site)[0]["id"].to_string();
        let output = site.run(&["token", "revoke", "--tenant", "acme", &id], b"");
        assert_eq!((output.code, output.stdout.as_str()), (0, ""));
        let tokens = listed(&site);
        let revoked = tokens[0]["revoked_at"].as_str().expect("it is revoked").to_owned();
        assert_eq!(tokens[1]["revoked_at"], Value::Null);
        assert_eq!(site.run(&["token", "revoke", "--tenant", "acme", &id], b"").code, 0, "again is no fault");
        assert_eq!(listed(&site)[0]["revoked_at"], revoked.as_str(), "and changes nothing");

        let unknown = site.run(&["token", "revoke", "--tenant", "acme", "4711"], b"");
        assert_eq!((unknown.code, unknown.stdout.as_str()), (1, ""));
        assert_eq!(unknown.stderr, "error: tenant `acme` has no token 4711\n");
    }

    async fn a_token_that_could_not_be_printed_is_revoked(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        site.migrate();
        let create = ["token", "create", "--tenant", "acme", "--name", "x"];
        for (lost, cause) in [(Writable::Full, "No space left"), (Writable::Abandoned, "Broken pipe")] {
            let output = site.run_into(&create, lost, Writable::Read);
            assert_eq!(output.code, 1, "{}", output.stderr);
            let told = format!("error: standard output can't be written: {cause}");
            assert!(output.stderr.starts_with(&told), "{}", output.stderr);
            assert!(output.stderr.ends_with("; the token is revoked again\n"), "{}", output.stderr);
        }
        let tokens = listed(&site);
        assert_eq!(tokens.len(), 2);
        assert!(tokens.iter().all(|token| token["revoked_at"].is_string()), "{tokens:?}");
    }

    async fn before_its_migration_a_database_has_no_tokens(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        if engine == Engine::Sqlite {
            std::fs::write(site.folder().join("acme.db"), b"").expect("the site's folder can be written");
        }
        let output = site.run(&["token", "create", "--tenant", "acme", "--name", "x"], b"");
        assert_eq!((output.code, output.stdout.as_str()), (1, ""));
        assert!(output.stderr.contains("run `formgate migrate --tenant acme`"), "{}", output.stderr);
    }
}

#[test]
fn a_name_must_be_one_that_a_list_can_show() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    site.migrate();
    let create = |name: &str| site.run(&["token", "create", "--tenant", "acme", "--name", name], b"");
    for name in ["", &"x".repeat(256), "two\nlines", "\u{1b}[31mred"] {
        let output = create(name);
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{name:?}");
    }
    assert_eq!(listed(&site), Vec::<Value>::new());
    assert_eq!(create(&"ü".repeat(255)).code, 0);
}
