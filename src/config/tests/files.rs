//! Faults across files: includes, unreadable files, and invalid TOML.

use std::fs;
use std::os::unix::fs::symlink;

use super::super::Config;
use super::{ACME, Folder, GATEWAY};

#[test]
fn all_faults_are_reported_in_file_order() {
    let folder = Folder::new();
    folder.write("tenants.d/b.toml", "[[tenant]]\nslug = \"b\"\naddress = \"acme.example.com\"\n");
    folder.write("tenants.d/a.toml", "[[tenant]]\nslug = 'b'\n\n[gateway]\n");
    let text = r#"include = ["tenants.d/*.toml", "more.toml"]
[gateway]
listen = ["x"]
drain_seconds = "20"
[gateway.tls]
certificate = "none.pem"
private_key = "certs/wildcard.key"
[[tenant]]
slug = "ACME"
address = "acme.example.com"
database = "${DATABASE}"
timezone = "Mars/Olympus"
requests_per_minute = 0
color = "red"
"#;
    let expected = [
        "tenants.toml:1:32 the included file does not exist",
        "tenants.toml:3:11 not an address to listen on",
        "tenants.toml:4:17 expected an integer",
        "tenants.toml:6:15 can't read the certificate",
        "tenants.toml:8:1 missing key `name`",
        "tenants.toml:9:8 not a slug",
        "tenants.toml:11:12 the environment variable `DATABASE` is not set",
        "tenants.toml:12:12 unknown time zone",
        "tenants.toml:13:23 `requests_per_minute` must be from 1 to 100000",
        "tenants.toml:14:1 unknown key `color`",
        "tenants.d/a.toml:1:1 missing key `name`",
        "tenants.d/a.toml:1:1 missing key `address`",
        "tenants.d/a.toml:1:1 missing key `database`",
        "tenants.d/a.toml:4:2 an included file can't hold `gateway`: it may hold `[[tenant]]` tables only",
        "tenants.d/b.toml:1:1 missing key `name`",
        "tenants.d/b.toml:1:1 missing key `database`",
        "tenants.d/b.toml:2:8 the slug `b` is taken",
        "tenants.d/b.toml:3:11 the host `acme.example.com` is claimed twice",
    ];
    assert_eq!(folder.faults(text), expected);
    assert_eq!(folder.load(text).unwrap_err().len(), expected.len());
}

#[test]
fn tenants_may_be_in_included_files() {
    let folder = Folder::new();
    for slug in ["b", "a"] {
        folder.write(&format!("tenants.d/{slug}.toml"), ACME.replace("acme", slug));
    }
    folder.write("tenants.d/notes.txt", "no TOML");
    let text =
        format!("include = [\"tenants.d/*.toml\", \"tenants.d/a.toml\", \"*.toml\", \"none/*\"]\n{GATEWAY}{ACME}");
    let config = folder.load(&text).unwrap_or_else(|problems| panic!("{problems}"));
    let slugs: Vec<_> = config.tenants.iter().map(|tenant| &*tenant.slug).collect();
    assert_eq!(slugs, ["acme", "a", "b"]);
    let database = config.tenants[1].database.identity();
    assert_eq!(database, format!("sqlite {}", folder.path("tenants.d/a.db").display()));
    let none = folder.load(&format!("include = [\"none/*\"]\n{GATEWAY}")).unwrap();
    assert!(none.tenants.is_empty());
}

#[test]
fn a_pattern_that_matches_nothing_is_a_warning_at_its_place() {
    let folder = Folder::new();
    folder.write("tenants.d/a.toml", ACME);
    let config = folder.load(&format!("include = [\"tenants.d/*.toml\", \"none/*\"]\n{GATEWAY}")).unwrap();
    let [warning] = config.warnings.as_slice() else { panic!("{:?}", config.warnings) };
    assert!(warning.starts_with("warning: no file matches this pattern"), "{warning}");
    assert!(warning.contains("tenants.toml:1:32"), "{warning}");
}

#[test]
fn a_file_that_can_not_be_read_is_named() {
    let folder = Folder::new();
    let problems = Config::load(&folder.path("none.toml")).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert!(problems.to_string().contains(&*folder.path("none.toml").to_string_lossy()), "{problems}");
    folder.write("big.toml", "=\n".repeat(4 * 1024 * 1024 + 1));
    let problems = folder.load(&format!("include = [\"big.toml\"]\n{GATEWAY}{ACME}")).unwrap_err();
    assert!(problems.len() == 1 && problems.to_string().contains("larger than 8 MiB"), "{problems}");
    folder.write("small.toml", "=\n".repeat(100_000));
    assert!(folder.load(&format!("include = [\"small.toml\"]\n{GATEWAY}{ACME}")).unwrap_err().len() <= 1000);
    folder.write("tenants.d/a.toml", b"[[tenant]]\nname = \"\xff\"\n");
    fs::create_dir(folder.path("tenants.d/b.toml")).unwrap();
    let faults = folder.faults(&format!("include = [\"tenants.d/*.toml\"]\n{GATEWAY}"));
    let unreadable = folder.path("tenants.d/b.toml");
    assert_eq!(
        faults,
        [
            format!("tenants.toml:1:12 can't read the included file `{}`", unreadable.display()),
            "tenants.d/a.toml:2:9 the file is not UTF-8".to_owned(),
        ]
    );
}

#[test]
fn every_syntax_error_is_reported() {
    let folder = Folder::new();
    let faults = folder.faults("[gateway]\nlisten = \nlisten = 1\n[[tenant]\n");
    let spans: Vec<_> = faults.iter().map(|fault| fault.split(' ').next().unwrap()).collect();
    assert_eq!(spans, ["tenants.toml:2:10", "tenants.toml:3:1", "tenants.toml:4:10"]);
    assert!(faults[1].ends_with("the key `listen` is given twice"), "{faults:?}");
    let secret = ACME.replacen("database = ", "database = \"postgres://u:hunter2@db/x\"\ndatabase = ", 1);
    folder.write("tenants.toml", format!("{GATEWAY}{secret}"));
    let report = Config::load(&folder.path("tenants.toml")).unwrap_err().to_string();
    assert!(report.contains("the key `database` is given twice") && !report.contains("hunter2"), "{report}");
    let include = format!("include = [\"a.toml\"]\n{GATEWAY}{ACME}");
    folder.write("a.toml", "[[tenant]]\nname = \"unclosed\nslug = = 1\n");
    assert!(folder.faults(&include).iter().all(|fault| fault.starts_with("a.toml:")));
}

#[test]
fn one_sqlite_file_is_recognised_under_every_name() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name);
    for name in ["data/acme.db", "data/acme.db-wal", "data/acme.db-journal"] {
        folder.write(name, name);
    }
    fs::hard_link(at("data/acme.db"), at("hard.db")).unwrap();
    fs::hard_link(at("data/acme.db-wal"), at("log.db")).unwrap();
    fs::hard_link(at("data/acme.db-journal"), at("journal.db")).unwrap();
    for (target, link) in
        [("data", "folder"), ("data/acme.db", "link.db"), ("later.db", "to later.db"), ("later.db-wal", "to a log.db")]
    {
        symlink(target, at(link)).unwrap();
    }
    let tenants = |one: &str, other: &str| {
        let globex = ACME.replace("acme", "globex").replace("globex.db", other);
        format!("{GATEWAY}{}{globex}", ACME.replace("acme.db", one))
    };
    for (one, other) in [
        ("data/acme.db", "link.db"),
        ("data/acme.db", "hard.db"),
        ("hard.db", "link.db"),
        ("data/acme.db", "log.db"),
        ("log.db", "data/acme.db"),
        ("link.db", "journal.db"),
        ("data/acme.db", "folder/acme.db"),
        ("data/acme.db", "none/../data/acme.db"),
        ("later.db", "to later.db"),
        ("none/later.db", "folder/../none/../none/later.db"),
    ] {
        let faults = folder.faults(&tenants(one, other));
        assert!(
            faults.len() == 1 && faults[0].contains("each tenant needs a database of its own"),
            "{one}: {faults:?}"
        );
    }
    let faults = folder.faults(&tenants("later.db", "to a log.db"));
    assert!(faults.len() == 1 && faults[0].contains("not the path of a SQLite file"), "{faults:?}");
    folder.load(&tenants("data/acme.db", "data/globex.db")).unwrap();
}
