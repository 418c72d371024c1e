//! Values from the environment; no report shows a secret.

use super::{ACME, Folder, GATEWAY, with};

#[test]
fn strings_take_variables_from_the_environment() {
    let folder = Folder::new();
    let text = format!("{GATEWAY}{ACME}")
        .replace("\"acme\"", "\"${SLUG}\"")
        .replace("sqlite:acme.db", "postgres://app:${PASSWORD}@db/${SLUG}");
    let config = folder.load(&text).unwrap();
    assert_eq!(&*config.tenants[0].slug, "acme");
    assert_eq!(config.tenants[0].database.identity(), "postgres db:5432/acme ");
    for (value, expected) in [
        ("${A} ${B}", "9:8 the environment variable `A` is not set|9:8 the environment variable `B` is not set"),
        ("${EMPTY}", "9:8 expected a string that is not empty"),
        ("${SLUG", "9:8 `${` without a variable's name and `}`"),
    ] {
        let text = with("name = \"Acme\"", &format!("name = \"{value}\""));
        let expected: Vec<_> = expected.split('|').map(|fault| format!("tenants.toml:{fault}")).collect();
        assert_eq!(folder.faults(&text), expected);
    }
}

/// No report shows a password, wherever a typing mistake moves it.
#[test]
fn no_report_and_no_debug_shows_a_secret() {
    let folder = Folder::new();
    let database = r#"database = "sqlite:acme.db""#;
    let url = "postgres://app:hunter2@db:port/forms";
    for replacement in [
        format!("database = \"{url}\""),
        format!("databse = \"{url}\""),
        "database_password = \"hunter2\"".to_owned(),
        "database = { password = \"hunter2\", port = 5 }".to_owned(),
        "database = [\"hunter2\"]".to_owned(),
        "database = \"postgres://app@db/forms?hunter2=1\"".to_owned(),
        "database = \"postgres://app@db/forms?sslmode=hunter2\"".to_owned(),
        "database = \"postgres://app:7?hunter2@db/forms\"".to_owned(),
        "database = \"\"\"\nhunter2\"\"\"".to_owned(),
        format!("domains = [\"{url}\"]"),
        format!("timezone = \"{url}\" # {url}"),
        "timezone = \"${PASSWORD}\"".to_owned(),
        "timezone = \"redis://:hunter2\"".to_owned(),
        "timezone = \"https://a.example?token=hunter2\"".to_owned(),
        "timezone = \"https://hunter2@a.example\"".to_owned(),
        "domains = [\"a b ${PASSWORD}\"]".to_owned(),
        "database = \"${PASSWORD}\"".to_owned(),
        "tls.\"acme.example.com\" = { certificate = \"${PASSWORD}\", private_key = \"${PASSWORD}\" }".to_owned(),
        format!("database = \"{url}\nslug = 1"),
        format!("database \"{url}\""),
        format!("name = {url}"),
        "database = 'hunter2\nx = = 1".to_owned(),
        "name = 'x' password = 'hunter2'".to_owned(),
        "[[tenant]] password = 'hunter2'".to_owned(),
        "database = \"a\"\ndatabase = \"hunter2\"".to_owned(),
    ] {
        let text = with(database, &replacement);
        for text in [text.clone(), text.replace("[gateway]", "[gateway]\nredis = \"hunter2\"")] {
            let problems = folder.load(&text).expect_err(&replacement);
            assert!(!problems.to_string().contains("hunter2"), "{replacement}\n{problems}");
            assert!(!format!("{problems:?}").contains("hunter2"), "{replacement}\n{problems:?}");
        }
    }
    let text = with(database, "database = \"postgres://app:hunter2@db/forms\"")
        .replace("[gateway]", "[gateway]\nredis = \"redis://:hunter2@localhost\"");
    let config = folder.load(&text).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
    let later = config.tenants[0].database_problem("can't reach the database");
    assert_eq!(folder.short(&later), "tenants.toml:12:12 can't reach the database");
    let report = later.to_string();
    assert!(report.contains("tenants.toml:12:12") && report.contains("slug = \"acme\""), "{report}");
    assert!(!report.contains("hunter2") && !report.contains("postgres"), "{report}");
}

#[test]
fn a_file_writes_a_dollar_and_a_brace_with_a_second_dollar() {
    let config = Folder::new().load(&with("name = \"Acme\"", "name = \"Cash $${More} ${SLUG}\"")).unwrap();
    assert_eq!(&*config.tenants[0].name, "Cash ${More} acme");
}
