//! `formgate explain`, and `formgate check --deep`.

use crate::support::fixture::{Engine, Site, Tenant, on_both_databases};
use crate::support::process::Output;
use crate::support::redis::Redis;

/// The line of a step, and what stands below it.
fn step<'o>(output: &'o Output, name: &str) -> &'o str {
    let start = output.stdout.lines().find(|line| line.starts_with(name));
    let start = start.unwrap_or_else(|| panic!("no step {name} in:\n{}", output.stdout));
    let at = start.as_ptr() as usize - output.stdout.as_ptr() as usize;
    let rest = &output.stdout[at..];
    let end =
        rest.match_indices('\n').find(|(at, _)| !rest[at + 1..].starts_with(' ')).map_or(rest.len(), |(at, _)| at);
    &rest[..end]
}

fn assert_step(output: &Output, name: &str, texts: &[&str]) {
    for text in texts {
        assert!(
            step(output, name).contains(text),
            "{text:?} at the step {name}:\n{}\n{}",
            output.stdout,
            output.stderr
        );
    }
}

on_both_databases! {
    async fn a_request_that_would_be_served_passes_every_step(engine: Engine) {
        let site = Site::new().tenant_with("acme", engine, |tenant| tenant.domain("forms.acme.test")).write();
        let token = site.token("acme", "Payroll sync");
        for host in ["acme.example.test", "forms.acme.test", "https://FORMS.acme.test:8443/api/v1/me"] {
            let output = site.run(&["explain", host, "--token", "-"], token.as_bytes());
            assert_eq!(output.code, 0, "{output:?}");
            for (name, text) in [
                ("name", "of the tenant `acme`"),
                ("certificate", ".pem`, until "),
                ("tenant", "callers read “Acme”"),
                ("database", "at the schema that is needed"),
                ("token", "number 1, “Payroll sync”, never used"),
                ("budget", "60 requests in 60 s"),
            ] {
                assert_step(&output, name, &[" ok ", text]);
            }
            assert!(!output.stdout.contains(&token[3..]), "the token is shown:\n{}", output.stdout);
        }
    }

    async fn each_step_reports_why_it_stops_and_the_remedy(engine: Engine) {
        let site = Site::new().tenant_with("acme", engine, Tenant::unmigrated).tenant("globex", Engine::Sqlite).write();
        let output = site.run(&["explain", "acme.example.test"], b"");
        assert_eq!(output.code, 1);
        assert_step(&output, "database", &["STOP", "503", "formgate migrate --tenant acme"]);
        assert!(output.stderr.contains("stop at the step `database`"), "{}", output.stderr);

        site.migrate();
        let (good, other) = (site.token("acme", "one"), site.token("globex", "other"));
        let other_end = if good.ends_with('x') { 'y' } else { 'x' };
        let mistyped = format!("{}{other_end}", &good[..good.len() - 1]);
        let revoked = site.token("acme", "two");
        assert_eq!(site.run(&["token", "revoke", "--tenant", "acme", "2"], b"").code, 0);
        for (token, text) in [
            (&*other, "none of the 2 tokens of the tenant `acme`"),
            (&*mistyped, "mistyped or cut off"),
            (&*revoked, "number 2, “two”, was revoked at "),
            ("secret", "does not begin with `fg_`"),
        ] {
            let output = site.run(&["explain", "acme.example.test", "--token", token], b"");
            assert_eq!(output.code, 1, "{output:?}");
            assert_step(&output, "token", &["STOP", text, "401"]);
        }
        let revoked = site.run(&["explain", "acme.example.test", "--token", &revoked], b"").stdout;
        let at = revoked.split_once("was revoked at ").and_then(|(_, rest)| rest.split_once(':').map(|_| &rest[..27]));
        assert!(at.is_some_and(|at| at.ends_with('Z') && at.as_bytes()[19] == b'.'), "six digits: {revoked}");
        let office = site.run(&["token", "create", "--tenant", "acme", "--name", "x", "--networks", "192.0.2.0/24"], b"");
        for (from, texts, code) in [
            (None, &["warn", "401 outside of its networks: 192.0.2.0/24", "--from"][..], 0),
            (Some("192.0.2.7"), &["ok", "192.0.2.0/24"], 0),
            (Some("198.51.100.1"), &["STOP", "is refused from 198.51.100.1: 401", "192.0.2.0/24"], 1),
        ] {
            let given = from.map(|from| ["--from", from]).into_iter().flatten();
            let arguments: Vec<_> = ["explain", "acme.example.test", "--token", "-"].into_iter().chain(given).collect();
            let output = site.run(&arguments, office.stdout.trim().as_bytes());
            assert_eq!(output.code, code, "{from:?}: {output:?}");
            assert_step(&output, "token", texts);
        }
        let output = site.run(&["explain", "acme.example.test"], b"");
        assert_eq!(output.code, 0, "{output:?}");
        assert_step(&output, "token", &["warn", "--token"]);
    }
}

#[test]
fn an_unknown_tenant_name_is_reported_with_the_nearest_one() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let output = site.run(&["explain", "acmee.example.test"], b"");
    assert_eq!(output.code, 1);
    assert_step(&output, "name", &["STOP", "unrecognized_name", "was `acme.example.test` meant"]);
    let output = site.run(&["explain", "a b"], b"");
    assert_step(&output, "name", &["STOP", "no host name", "400"]);
}

#[tokio::test]
async fn the_budget_of_a_shared_window_is_shown_without_spending_it() {
    let mut redis = Redis::start();
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(3).redis(&redis).write();
    let token = site.token("acme", "tests");
    let node = site.start();
    let caller = node.client().to("acme.example.test").with(&token);
    for left in [2, 1] {
        assert_eq!(caller.get("/api/v1/me").send().await.status, 200);
        for _ in 0..2 {
            let output = site.run(&["explain", "acme.example.test"], b"");
            assert_step(&output, "budget", &[" ok ", &format!("{left} of 3 requests in 60 s are left")]);
        }
    }
    assert_eq!(caller.get("/api/v1/me").send().await.status, 200);
    let output = site.run(&["explain", "acme.example.test"], b"");
    assert_eq!(output.code, 1);
    assert_step(&output, "budget", &["STOP", "429"]);
    redis.kill();
    let output = site.run(&["explain", "acme.example.test"], b"");
    assert_eq!(output.code, 0, "{output:?}");
    assert_step(&output, "budget", &["warn", "Redis does not answer"]);
}

#[test]
fn a_deep_check_reports_the_tenants_that_need_attention() {
    let site = Site::new().tenant("acme", Engine::Sqlite).tenant("globex", Engine::Sqlite).write();
    site.token("acme", "tests");
    let output = site.run(&["check", "--deep"], b"");
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.contains("\nglobex (globex.example.test)\n"), "{}", output.stdout);
    assert_step(&output, "token", &["warn", "there is none", "formgate token create --tenant globex"]);
    assert!(!output.stdout.contains("acme (acme.example.test)"), "{}", output.stdout);
    assert!(output.stdout.ends_with("2 would be served, 1 of them with a warning; 0 would not\n"), "{}", output.stdout);
}

#[test]
fn a_certificate_is_reported_before_its_start_and_before_and_after_its_expiry() {
    for (days, finding, text) in [
        (-30..-1, "STOP", "expired on"),
        (2..60, "STOP", "is not valid before"),
        (-30..5, "warn", "in 4 days"),
        (-30..60, " ok ", "(59 days)"),
    ] {
        let site = Site::new().tenant("acme", Engine::Sqlite).certificate_for_days(days).write();
        let output = site.run(&["explain", "acme.example.test"], b"");
        assert_step(&output, "certificate", &[finding, text]);
        assert_eq!(output.code, i32::from(finding == "STOP"));
        let output = site.run(&["check", "--deep"], b"");
        assert_step(&output, "certificate", &[finding, text]);
        assert_eq!(output.code, i32::from(finding == "STOP"));
        assert_eq!(output.stdout.contains("error: the certificate is out of date"), finding == "STOP");
    }
}

#[test]
fn how_administrators_sign_in_is_reported_without_the_secret() {
    const SECRET: &str = "hunter2-of-the-client";
    let provider = |issuer: &str, more: &str| -> toml::Table {
        let table = format!(
            "issuer = '{issuer}'\nclient_id = 'formgate'\nclient_secret = '{SECRET}'\nrole_claim = 'groups'\n\
             admin_values = ['forms-admins', 'owners']\n{more}"
        );
        table.parse().unwrap()
    };
    let site = |area: Option<toml::Table>| {
        let own = provider("https://id.acme.test", "");
        let site = Site::new().tenant_with("acme", Engine::Sqlite, |acme| acme.set("oidc", own));
        let site = site.tenant("globex", Engine::Sqlite);
        let site = match area {
            Some(area) => site.gateway("administration", area),
            None => site,
        };
        site.write()
    };
    let mut area = toml::Table::new();
    area.insert("sign_in_url".to_owned(), "https://product.test/admin?account={slug}".into());
    area.insert("oidc".to_owned(), provider("https://id.test/shared", "viewer_values = ['staff']").into());
    let both = site(Some(area));
    let output = both.run(&["explain", "acme.example.test"], b"");
    let own = "`[tenant.oidc]`: the provider https://id.acme.test, client `formgate`; in the claim `groups`, \
               `forms-admins` or `owners` gives the role admin, and no value the role viewer";
    assert_step(&output, "sign-in", &[" ok ", "https://product.test/admin?account=acme", own]);
    let shared = both.run(&["explain", "globex.example.test"], b"");
    assert_step(
        &shared,
        "sign-in",
        &["`[gateway.administration.oidc]`: the provider https://id.test/shared", "`staff`"],
    );
    let check = both.run(&["check"], b"");
    for line in [
        "the tenant `acme` has administrators who sign in by the OpenID provider https://id.acme.test, client `formgate`\n",
        "the tenant `globex` has administrators who sign in by the OpenID provider https://id.test/shared, client",
    ] {
        assert!(check.stdout.contains(line), "{line} in {}", check.stdout);
    }
    for output in [&output, &shared, &check] {
        assert_eq!(output.code, 0, "{output:?}");
        assert!(!output.stdout.contains(SECRET), "{}", output.stdout);
    }

    let only_links = Site::new().tenant("acme", Engine::Sqlite).gateway("administration", toml::Table::new()).write();
    let output = only_links.run(&["explain", "acme.example.test"], b"");
    assert!(step(&output, "sign-in").ends_with(" ok    administrators sign in by one-time links"), "{}", output.stdout);
    assert!(!only_links.run(&["check"], b"").stdout.contains("OpenID"));

    let unused = site(None);
    let output = unused.run(&["explain", "acme.example.test"], b"");
    assert_step(&output, "sign-in", &["warn", "no administration area", "add `[gateway.administration]`"]);
    let output = unused.run(&["explain", "globex.example.test"], b"");
    assert!(!output.stdout.lines().any(|line| line.starts_with("sign-in")), "{}", output.stdout);
    let check = unused.run(&["check"], b"");
    assert!(check.stdout.contains("warning: the tenant `acme` has `[tenant.oidc]`, but"), "{}", check.stdout);
}
