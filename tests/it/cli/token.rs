//! `formgate token create | rotate | change | list | revoke`.

use serde_json::{Value, json};

use crate::support::fixture::{Engine, Site, Tenant, on_both_databases};
use crate::support::process::Writable;

fn listed(site: &Site) -> Vec<Value> {
    let output = site.run(&["token", "list", "--tenant", "acme", "--json"], b"");
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    serde_json::from_str(&output.stdout).expect("a JSON array")
}

on_both_databases! {
    async fn only_the_token_is_printed_and_only_once(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
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
        let first = ["id", "name", "prefix", "created_at", "last_used_at", "revoked_at"];
        assert_eq!(keys[..6], first, "scripts depend on them");
        let later = ["expires_at", "created_by", "replaces", "last_used_route", "last_used_network"];
        assert_eq!(keys[6..11], later);
        assert_eq!(keys[11..], ["scopes", "forms", "networks", "requests_per_minute"]);
        assert!(record["created_by"].as_str().is_some_and(|user| !user.is_empty()), "the system user");
        assert!(record["id"].is_i64());
        assert_eq!(record["name"], "Zapier & Söhne");
        assert_eq!(record["prefix"], token[..8]);
        assert_eq!((&record["last_used_at"], &record["revoked_at"]), (&Value::Null, &Value::Null));
        assert_eq!(record["created_at"].as_str().map(str::len), Some("2026-11-27T11:35:03.064360Z".len()), "{record}");
        let created: jiff::Timestamp = record["created_at"].as_str().expect("a text").parse().expect("an instant");
        assert!((before.as_second()..=jiff::Timestamp::now().as_second()).contains(&created.as_second()), "{created}");

        let table = site.run(&["token", "list", "--tenant", "acme"], b"").stdout;
        assert!(table.starts_with("ID  NAME"), "{table}");
        assert!(table.contains("Zapier & Söhne") && table.contains(&token[..8]) && !table.contains(&token[8..]), "{table}");
    }

    async fn a_revoked_token_stays_listed_with_its_instant(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
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

    async fn a_token_may_expire_after_a_while_or_at_an_instant(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let create = |expires: &str| {
            site.run(&["token", "create", "--tenant", "acme", "--name", "x", "--expires", expires], b"")
        };
        for expires in ["90d", "12h", "2090-05-01T12:00:00+02:00", "never"] {
            let output = create(expires);
            assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{expires}");
        }
        let tokens = listed(&site);
        let lifetime = |at: usize| {
            let instant = |key: &str| tokens[at][key].as_str().expect("a text").parse::<jiff::Timestamp>().unwrap();
            instant("expires_at").duration_since(instant("created_at")).as_secs()
        };
        // The expiry is computed a moment before the token is created.
        assert!((90 * 86_400 - 10..=90 * 86_400).contains(&lifetime(0)), "{tokens:?}");
        assert!((12 * 3600 - 10..=12 * 3600).contains(&lifetime(1)), "{tokens:?}");
        assert_eq!(tokens[2]["expires_at"], "2090-05-01T10:00:00.000000Z");
        assert_eq!(tokens[3]["expires_at"], Value::Null);

        for past in ["2020-05-01T12:00:00Z", "0s"] {
            let output = create(past);
            assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{past}");
            assert_eq!(output.stderr, "error: a token must expire in the future\n");
        }
        for wrong in ["90", "soon", "2090-05-01", ""] {
            let output = create(wrong);
            assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{wrong}");
        }
        assert_eq!(listed(&site).len(), 4);
    }

    async fn a_token_is_limited_to_forms_that_need_not_exist(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        site.limited_token("acme", "some", &["--forms", "for_2,1"]);
        assert_eq!(listed(&site)[0]["forms"], json!(["for_1", "for_2"]));
        assert!(site.run(&["token", "list", "--tenant", "acme"], b"").stdout.contains("for_1 for_2"));
        let run = |arguments: &[&str]| site.run(&[&["token"], arguments, &["--tenant", "acme"]].concat(), b"").code;
        assert_eq!(run(&["rotate", "1"]), 0);
        assert_eq!(listed(&site)[1]["forms"], json!(["for_1", "for_2"]));
        for (given, expected) in [("7", json!(["for_7"])), ("all", Value::Null)] {
            assert_eq!(run(&["change", "2", "--forms", given]), 0);
            assert_eq!(listed(&site)[1]["forms"], expected);
        }
    }

    async fn a_token_is_limited_narrowed_and_widened_with_an_audit_row_each(engine: Engine) {
        let site = Site::new().tenant("acme", engine).requests_per_minute(60).write();
        let limits = |at: usize| {
            let token = &listed(&site)[at];
            json!([token["scopes"], token["networks"], token["requests_per_minute"]])
        };
        let run = |command: &str, arguments: &[&str]| {
            site.run(&[&["token", command, "--tenant", "acme"], arguments].concat(), b"")
        };
        site.token("acme", "all");
        assert_eq!(limits(0), json!([["*"], null, null]));
        let networks = "203.0.113.0/24, 2001:db8::/32";
        let options = ["--name", "some", "--scopes", "submissions:read,forms:read", "--networks", networks];
        assert_eq!(run("create", &[&options[..], &["--requests-per-minute", "60"]].concat()).code, 0);
        let created = json!([["forms:read", "submissions:read"], ["203.0.113.0/24", "2001:db8::/32"], 60]);
        assert_eq!(limits(1), created);
        let table = site.run(&["token", "list", "--tenant", "acme"], b"").stdout;
        assert!(table.contains("forms:read submissions:read") && table.contains("203.0.113.0/24 2001:db8::/32"), "{table}");

        for (arguments, expected) in [
            (&["--scopes", "forms:read"][..], json!([["forms:read"], ["203.0.113.0/24", "2001:db8::/32"], 60])),
            (&["--networks", "*"], json!([["forms:read"], null, 60])),
            (&["--requests-per-minute", "5"], json!([["forms:read"], null, 5])),
            (&["--requests-per-minute", "none", "--scopes", "*"], json!([["*"], null, null])),
            (&["--scopes", "scim", "--networks", "10.0.0.0/8"], json!([["scim"], ["10.0.0.0/8"], null])),
        ] {
            let output = run("change", &[&["2"], arguments].concat());
            assert_eq!((output.code, output.stderr.as_str()), (0, "token 2 is changed\n"), "{arguments:?}");
            assert_eq!(limits(1), expected, "{arguments:?}");
        }
        assert_eq!(run("change", &["2", "--scopes", "scim"]).stderr, "token 2 has these limits already\n");

        // The successor has the limits of the old one.
        assert_eq!(run("rotate", &["2"]).code, 0);
        assert_eq!(limits(2), limits(1));
        let audit = site.run(&["audit", "list", "--tenant", "acme", "--json"], b"").stdout;
        let rows: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let changes: Vec<_> = rows.iter().filter(|row| row["action"] == "token.change").collect();
        assert_eq!(changes.len(), 5, "{audit}");
        let first = changes.iter().min_by_key(|row| row["id"].as_i64()).expect("five rows");
        let details = json!({
            "name": "some",
            "before": {"scopes": ["forms:read", "submissions:read"]},
            "after": {"scopes": ["forms:read"]},
        });
        assert_eq!((&first["details"], &first["subject"]), (&details, &json!("token 2")));
        let created = rows.iter().find(|row| row["action"] == "token.create" && row["subject"] == "token 2");
        assert_eq!(created.expect("it was created")["details"]["requests_per_minute"], 60);
        assert_eq!(site.run(&["audit", "verify", "--tenant", "acme"], b"").code, 0);

        for (arguments, code, fault) in [
            (&["2"][..], 2, "--scopes"),
            (&["2", "--scopes", ""], 2, "at least one scope"),
            (&["2", "--scopes", "*,scim"], 2, "`*` stands alone"),
            (&["2", "--scopes", "forms:write"], 2, "there is no scope `forms:write`; there are `forms:read`"),
            (&["2", "--scopes", "forms:read,"], 2, "there is no scope ``"),
            (&["2", "--forms", ""], 2, "at least one form"),
            (&["2", "--forms", "for_1,sub_1"], 2, "`sub_1` is no id of a form"),
            (&["2", "--networks", "10.0.0.1/8"], 2, "the network is 10.0.0.0/8"),
            (&["2", "--networks", "office"], 2, "`office` is no network"),
            (&["2", "--requests-per-minute", "many"], 2, "a number of requests, or none"),
            (&["2", "--requests-per-minute", "61"], 1, "from 1 to 60, the account's"),
            (&["2", "--requests-per-minute", "0"], 1, "from 1 to 60, the account's"),
            (&["4711", "--scopes", "all"], 1, "tenant `acme` has no token 4711"),
        ] {
            let output = run("change", arguments);
            assert!(output.code == code && output.stderr.contains(fault), "{arguments:?}: {output:?}");
        }
        assert_eq!(run("revoke", &["3"]).code, 0);
        assert!(run("change", &["3", "--scopes", "all"]).stderr.contains("token 3 is revoked"));
        assert_eq!(run("create", &["--name", "x", "--requests-per-minute", "61"]).code, 1);
        assert_eq!(listed(&site).len(), 3, "nothing was created by what was refused");
    }

    async fn a_rotated_token_has_the_name_of_the_old_one_which_expires_or_is_revoked(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        site.token("acme", "zapier");
        let rotate = |arguments: &[&str]| site.run(&[&["token", "rotate", "--tenant", "acme"], arguments].concat(), b"");
        let output = rotate(&["1"]);
        assert_eq!((output.code, output.stdout.len()), (0, 50), "only the value: {}", output.stdout);
        assert!(output.stderr.starts_with("token 2 replaces token 1, which expires at "), "{}", output.stderr);
        let tokens = listed(&site);
        assert_eq!((&tokens[1]["name"], &tokens[1]["replaces"]), (&"zapier".into(), &1.into()));
        assert_eq!((&tokens[0]["revoked_at"], &tokens[1]["expires_at"]), (&Value::Null, &Value::Null));
        let expiry: jiff::Timestamp = tokens[0]["expires_at"].as_str().expect("24 hours").parse().unwrap();
        let hours = expiry.duration_since(jiff::Timestamp::now()).as_secs_f64() / 3600.0;
        assert!((23.9..=24.0).contains(&hours), "{hours}");

        let output = rotate(&["2", "--overlap", "0s", "--expires", "90d"]);
        assert_eq!((output.code, output.stderr.as_str()), (0, "token 3 replaces token 2, which is revoked\n"));
        let tokens = listed(&site);
        assert!(tokens[1]["revoked_at"].is_string() && tokens[1]["expires_at"].is_null(), "{tokens:?}");
        assert!(tokens[2]["expires_at"].is_string(), "{tokens:?}");

        let output = rotate(&["3"]);
        assert_eq!((output.code, output.stdout.as_str()), (1, ""));
        assert!(output.stderr.contains("pass --expires for the new one"), "{}", output.stderr);
        // A token never gets a later expiry from a rotation.
        let before = listed(&site)[0]["expires_at"].clone();
        assert_eq!(rotate(&["1", "--overlap", "90d", "--expires", "never"]).code, 0);
        assert_eq!(listed(&site)[0]["expires_at"], before);

        for (arguments, fault) in [
            (&["2"][..], "error: token 2 is revoked: create one with `formgate token create`\n"),
            (&["4711"], "error: tenant `acme` has no token 4711\n"),
        ] {
            let output = rotate(arguments);
            assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (1, "", fault));
        }
        assert_eq!(rotate(&["1", "--overlap", "91d"]).code, 2);
        assert_eq!(rotate(&["1", "--expires", "2020-05-01T12:00:00Z"]).code, 1);
        assert_eq!(listed(&site).len(), 4, "nothing was created by what was refused");
    }

    async fn before_its_migration_a_database_has_no_tokens(engine: Engine) {
        let site = Site::new().tenant_with("acme", engine, Tenant::unmigrated).write();
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
    let create = |name: &str| site.run(&["token", "create", "--tenant", "acme", "--name", name], b"");
    for name in ["", &"x".repeat(256), "two\nlines", "\u{1b}[31mred"] {
        let output = create(name);
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{name:?}");
    }
    assert_eq!(listed(&site), Vec::<Value>::new());
    assert_eq!(create(&"ü".repeat(255)).code, 0);
}
