//! Faults of values, keys and certificates, within and across tenants.

use super::{ACME, Folder, GATEWAY, assert_fault, with};

#[test]
fn faults_of_the_gateway_have_a_position() {
    let listen = r#"listen = ["127.0.0.1:0"]"#;
    for (line, replacement, expected) in [
        (listen, "", "1:1 missing key `listen`"),
        (listen, "listen = []", "2:10 `listen` needs at least one entry"),
        (listen, "listen = \"127.0.0.1:0\"", "2:10 expected an array of strings or tables"),
        (listen, "listen = [\"127.0.0.1:0\", \"localhost:1\"]", "2:26 not an address to listen on"),
        (listen, "listen = [\"127.0.0.1:7\", \"127.0.0.1:7\"]", "2:26 `127.0.0.1:7` stands here twice"),
        (listen, "listen = [\"127.0.0.1:7\", 8]", "2:26 expected a string or a table"),
        (listen, "listen = [\"[::]:7\"]\nadmin_listen = \"[::]:7\"", "3:16 `[::]:7` stands here twice"),
        (listen, "listen = [\"[::]:7\"]\nadmin_listen = \"9464\"", "3:16 not an address to listen on"),
        (listen, "listen = [\"[::]:7\"]\nredis = \"http://x\"", "3:9 not the URL of a Redis server"),
        (listen, "listen = [\"[::]:7\"]\nredis = \"redis://:x@:y\"", "3:9 not the URL of a Redis server"),
        (listen, "listen = [\"[::]:7\"]\nredis = \"redis-sentinel://x\"", "3:9 not the URL of a Redis server"),
        (listen, "listen = [\"[::]:7\"]\nredis_cluster = [\"unix:///x\"]", "3:18 not the URL of a Redis server"),
        (
            listen,
            "listen = [\"[::]:7\"]\nredis_sentinel = { sentinels = [\"redis://x\", \"x:26379\"], master = \"m\" }",
            "3:46 not the URL of a Redis server",
        ),
        (
            listen,
            "listen = [\"[::]:7\"]\nredis_sentinel = { sentinels = [], name = \"m\" }",
            "3:18 missing key `master`|3:32 `sentinels` needs at least one entry|3:36 unknown key `name`",
        ),
        (
            listen,
            "listen = [\"[::]:7\"]\nredis = \"redis://x\"\nredis_cluster = [\"redis://y\"]",
            "4:1 `redis`, `redis_sentinel` and `redis_cluster` exclude each other",
        ),
        (listen, "listen = [\"[::]:7\"]\non_redis_failure = \"hope\"", "3:20 unknown policy"),
        (listen, "listen = [\"[::]:7\"]\nredis_timeout_ms = 0", "3:20 `redis_timeout_ms` must be from 1 to 60000"),
        (listen, "listen = [\"[::]:7\"]\ndrain_seconds = -1", "3:17 `drain_seconds` must be from 0 to 3600"),
        (listen, "listen = [\"[::]:7\"]\ndatabases = { wait = 5 }", "3:15 unknown key `wait`"),
        (listen, "listen = [\"[::]:7\"]\nwindow_seconds = 1.5", "3:18 expected an integer"),
        (listen, "listen = [\"[::]:7\"]\nhsts = \"max-age\"", "3:8 not a value of `Strict-Transport-Security`"),
        (listen, "listen = [\"[::]:7\"]\nlisten_on = 7", "3:1 unknown key `listen_on`"),
        (listen, "listen = [\"[::]:7\"]\nlimits = 7", "3:10 expected a table"),
        (listen, "listen = [\"[::]:7\"]\nlimits = { stream = 7 }", "3:12 unknown key `stream`"),
        ("[gateway.tls]", "[gateway.tsl]", "1:1 missing table `tls`|3:10 unknown key `tsl`"),
        ("private_key = \"certs/wildcard.key\"", "", "3:1 missing key `private_key`"),
    ] {
        let expected: Vec<_> = expected.split('|').map(|fault| format!("tenants.toml:{fault}")).collect();
        assert_eq!(Folder::new().faults(&with(line, replacement)), expected, "{replacement}");
    }
    assert_fault(ACME, "1:1 missing table `gateway`");
}

#[test]
fn faults_of_a_listener_have_a_position() {
    let taken = "`127.0.0.1:7` stands here twice";
    for (entries, expected) in [
        ("{ tls = false }", "2:11 missing key `address`".to_owned()),
        ("{ address = \"localhost:80\" }", "2:23 not an address to listen on".to_owned()),
        ("{ address = \"[::]:7\", tls = 0 }", "2:39 expected `true` or `false`".to_owned()),
        ("{ address = \"[::]:7\", http3 = true }", "2:33 unknown key `http3`".to_owned()),
        (
            "{ address = \"[::]:7\", http2 = true }",
            "2:33 with TLS, callers choose HTTP/2 themselves; `http2` needs `tls = false`".to_owned(),
        ),
        (
            "{ address = \"[::]:7\", tls = false, redirect_to_https = true }",
            "2:11 `tls` and `redirect_to_https` exclude each other".to_owned(),
        ),
        (
            "{ address = \"[::]:7\", redirect_to_https = true, http2 = false }",
            "2:59 a redirect speaks HTTP/1.1 alone".to_owned(),
        ),
        ("{ address = \"[::]:7\", https_port = 443 }", "2:33 `https_port` needs `redirect_to_https = true`".to_owned()),
        ("{ address = \"[::]:7\", proxy_protocol_from = [\"10.0.0.0/33\"] }", "2:56 not a network".to_owned()),
        ("\"127.0.0.1:7\", { address = \"127.0.0.1:7\", tls = false }", format!("2:38 {taken}")),
        ("{ address = \"127.0.0.1:7\" }]\nadmin_listen = \"127.0.0.1:7\" #", format!("3:16 {taken}")),
        ("7", "2:11 expected a string or a table".to_owned()),
    ] {
        assert_fault(&with(r#""127.0.0.1:0""#, entries), &expected);
    }
}

#[test]
fn faults_of_a_tenant_have_a_position() {
    let (slug, name, address) = (r#"slug = "acme""#, r#"name = "Acme""#, r#"address = "acme.example.com""#);
    let database = r#"database = "sqlite:acme.db""#;
    for (line, replacement, expected) in [
        (slug, "", "7:1 missing key `slug`"),
        (slug, "slug = \"Acme\"", "8:8 not a slug"),
        (slug, "slug = \"acme-\"", "8:8 not a slug"),
        (name, "", "7:1 missing key `name`"),
        (name, "name = \" \"", "9:8 expected a string that is not empty"),
        (name, "name = \"Ac\\u200Bme\"", "9:8 not a name that can be shown"),
        (name, "name = \"\\u202Eemca\"", "9:8 not a name that can be shown"),
        (name, "name = \"Acme\\nGlobex\"", "9:8 not a name that can be shown"),
        (name, "nome = \"Acme\"", "7:1 missing key `name`|9:1 unknown key `nome`"),
        (address, "", "7:1 missing key `address`"),
        (address, "address = \"acme.example.com:8443\"", "10:11 not a host name"),
        (address, "address = \"https://acme.example.com\"", "10:11 not a host name"),
        (address, "address = \"127.0.0.1\"", "10:11 an IP address is not a host name"),
        (address, "address = \"acme.org\"", "10:11 no certificate covers `acme.org`"),
        (database, "", "7:1 missing key `database`"),
        (database, "database = \"mysql://x\"", "11:12 not the address of a database"),
        (database, "database = \"postgres://db:port/x\"", "11:12 not a Postgres URL"),
        (database, "database = \"postgres://db/x?sslmod=require\"", "11:12 a faulty parameter of a Postgres URL"),
        (database, "database = \"postgres://db/x?sslmode=full\"", "11:12 a faulty parameter of a Postgres URL"),
        (database, "database = \"postgres://a:b@c/d#e@db/x\"", "11:12 not a Postgres URL"),
        (database, "database = \"sqlite:\"", "11:12 not the path of a SQLite file"),
        (database, "database = \"sqlite::memory:\"", "11:12 not the path of a SQLite file"),
        (database, "database = \"sqlite:a.db-wal\"", "11:12 not the path of a SQLite file"),
        (database, "database = \"sqlite:a.db-shm\"", "11:12 not the path of a SQLite file"),
        (database, "database = \"sqlite:a.db-journal/.\"", "11:12 not the path of a SQLite file"),
        (database, "database = \"sqlite:a?mode=memory\"", "11:12 not the path of a SQLite file"),
        (database, "database = \"sqlite:a?speed=max\"", "11:12 not the path of a SQLite file"),
        (slug, "slug = \"acme\"\ntimezone = \"Europe/Pariss\"", "9:12 unknown time zone"),
        (slug, "slug = \"acme\"\ntimezone = \"EST5EDT4,M3.2.0,M11.1.0\"", "9:12 unknown time zone"),
        (slug, "slug = \"acme\"\ntimezone = \"Etc/Unknown\"", "9:12 unknown time zone"),
        (
            slug,
            "slug = \"acme\"\nrequests_per_minute = 99999999999999999999",
            "9:23 `requests_per_minute` must be from 1 to 100000",
        ),
        (slug, "slug = \"acme\"\nmax_connections = 1_001", "9:19 `max_connections` must be from 1 to 1000"),
        (slug, "slug = \"acme\"\ndomains = [\"b.example.com\", \"x y\"]", "9:29 not a host name"),
        (slug, "slug = \"acme\"\ntls = 1", "9:7 expected a table"),
        ("[[tenant]]", "[tenant]", "7:1 expected an array of tables"),
        ("[[tenant]]", "[[tenants]]", "1:1 there is no tenant|7:3 unknown key `tenants`"),
    ] {
        let expected: Vec<_> = expected.split('|').map(|fault| format!("tenants.toml:{fault}")).collect();
        assert_eq!(Folder::new().faults(&with(line, replacement)), expected, "{replacement}");
    }
    assert_fault(GATEWAY, "1:1 there is no tenant");
}

#[test]
fn a_mistyped_key_is_reported_with_the_one_that_was_meant() {
    let folder = Folder::new();
    let text = with("[[tenant]]", "[[tenant]]\nrequest_per_minute = 5");
    let report = folder.load(&text).unwrap_err().to_string();
    assert!(report.contains("did you mean `requests_per_minute`?"), "{report}");
    let text = with("[[tenant]]", "[[tenant]]\ncolour = 5");
    let report = folder.load(&text).unwrap_err().to_string();
    assert!(report.contains("the keys here are `slug`, `name`, `address`"), "{report}");
}

#[test]
fn a_claim_of_two_tenants_is_shown_at_both_places() {
    let folder = Folder::new();
    let other = |line: &str| {
        let text = ACME.replace("acme", "globex");
        let key = line.split(' ').next().unwrap();
        let replaced: Vec<_> = text.lines().map(|own| if own.starts_with(key) { line } else { own }).collect();
        format!("{GATEWAY}{ACME}{}\n", replaced.join("\n"))
    };
    for (line, title, first) in [
        ("slug = \"acme\"", "13:8 the slug `acme` is taken", "8:8"),
        ("address = \"ACME.Example.com.\"", "15:11 the host `acme.example.com` is claimed twice", "10:11"),
        ("database = \"sqlite://./acme.db\"", "16:12 each tenant needs a database of its own", "11:12"),
    ] {
        assert_eq!(folder.faults(&other(line)), [format!("tenants.toml:{title}")], "{line}");
        let report = folder.load(&other(line)).unwrap_err().to_string();
        assert!(report.contains("first claimed here"), "{report}");
        assert!(report.contains(&format!("{}:{first}\n", folder.path("tenants.toml").display())), "{report}");
    }
    let same = with("address = ", "domains = [\"acme.example.com\"]\naddress = ");
    assert_eq!(folder.faults(&same), ["tenants.toml:10:12 the host `acme.example.com` is claimed twice"]);
}

#[test]
fn one_postgres_database_is_recognised_in_two_urls() {
    let folder = Folder::new();
    let tenants = |second: &str| {
        let first = ACME.replace("sqlite:acme.db", "postgres://app:one@db/forms");
        let second = ACME.replace("acme", "globex").replace("sqlite:globex.db", second);
        format!("{GATEWAY}{first}{second}")
    };
    for same in ["postgres://app:two@db/forms", "postgresql://app@db:5432/forms?sslmode=require"] {
        let faults = folder.faults(&tenants(same));
        assert_eq!(faults, ["tenants.toml:16:12 each tenant needs a database of its own"], "{same}");
    }
    for other in
        ["postgres://app@db/other", "postgres://app@db:5433/forms", "postgres://app@db/forms?options[search_path]=x"]
    {
        assert!(folder.load(&tenants(other)).is_ok(), "{other}");
    }
}

#[test]
fn hosts_need_a_certificate_with_their_name() {
    let folder = Folder::new();
    let own = |host: &str, files: &str| {
        format!(
            "{GATEWAY}{}[tenant.tls.\"{host}\"]\ncertificate = \"certs/{files}.pem\"\nprivate_key = \"certs/{files}.key\"\n",
            ACME.replace("[[tenant]]", "[[tenant]]\ndomains = [\"forms.acme.org\"]")
        )
    };
    assert!(folder.load(&own("FORMS.acme.org", "acme")).is_ok());
    assert_eq!(
        folder.faults(&own("forms.acme.org", "wildcard")),
        ["tenants.toml:8:12 no certificate covers `forms.acme.org`"]
    );
    assert_eq!(
        folder.faults(&own("other.acme.org", "acme")),
        [
            "tenants.toml:8:12 no certificate covers `forms.acme.org`",
            "tenants.toml:13:13 `other.acme.org` is not a host of this tenant",
        ]
    );
    let report = folder.load(&own("other.acme.org", "acme")).unwrap_err().to_string();
    assert!(report.contains("add [tenant.tls.\"forms.acme.org\"] or a gateway certificate with that name"), "{report}");
    let twice = own("forms.acme.org", "acme")
        + "[tenant.tls.\"Forms.acme.org\"]\ncertificate = \"certs/acme.pem\"\nprivate_key = \"certs/acme.key\"\n";
    assert_eq!(folder.faults(&twice), ["tenants.toml:16:13 a second certificate for `forms.acme.org`"]);
}

#[test]
fn a_certificate_may_be_given_for_all_hosts_below_a_name() {
    let folder = Folder::new();
    let given = |pattern: &str, files: &str| {
        format!(
            "{GATEWAY}{}[tenant.tls.\"{pattern}\"]\ncertificate = \"certs/{files}.pem\"\nprivate_key = \"certs/{files}.key\"\n",
            ACME.replace("[[tenant]]", "[[tenant]]\ndomains = [\"forms.acme.org\"]")
        )
    };
    assert!(folder.load(&given("*.ACME.org", "acme")).is_ok());
    let other = "tenants.toml:8:12 no certificate covers `forms.acme.org`";
    assert_eq!(folder.faults(&given("*.acme.org", "wildcard")), [other]);
    let title = "tenants.toml:13:13 no host of this tenant is a `*.acme.com`";
    assert_eq!(folder.faults(&given("*.acme.com", "acme")), [other, title]);
    for pattern in ["*", "*.", "forms.*.org", "*.*.org", "*.[::1]"] {
        let faults = folder.faults(&given(pattern, "acme"));
        assert!(faults.contains(&"tenants.toml:13:13 not a host name".to_owned()), "{pattern}: {faults:?}");
    }
}

#[test]
fn invalid_certificate_files_are_reported_at_their_paths() {
    let (certificate, key) = ("certs/wildcard.pem", "certs/wildcard.key");
    for (line, replacement, expected) in [
        (certificate, "certs/none.pem", "4:15 can't read the certificate"),
        (certificate, key, "4:15 no certificate in PEM form"),
        (certificate, "certs/broken.pem", "4:15 the first certificate is malformed"),
        (key, "certs/none.key", "5:15 can't read the private key"),
        (key, certificate, "5:15 no private key in PEM form"),
        (key, "certs/broken.key", "5:15 the private key can't be used"),
        (key, "certs/acme.key", "5:15 the private key does not fit the certificate"),
    ] {
        let folder = Folder::new();
        folder.write("certs/broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        folder.write("certs/broken.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
        let text = with(line, replacement);
        assert_eq!(folder.faults(&text), [format!("tenants.toml:{expected}")], "{replacement}");
        let report = folder.load(&text).unwrap_err().to_string();
        let file = format!("the file is `{}`", folder.path(replacement).display());
        assert!(expected.contains("fit") || report.contains(&file), "{report}");
    }
    let both = with(certificate, "certs/none.pem").replace(key, "certs/none.key");
    assert_eq!(Folder::new().faults(&both).len(), 2);
}

#[test]
fn a_certificate_that_is_out_of_date_is_reported_at_its_path() {
    let folder = Folder::new();
    folder.issue("certs/expired", "*.example.com", 2020..2021);
    folder.issue("certs/early", "forms.acme.org", 3000..4096);
    let acme = ACME.replace("[[tenant]]", "[[tenant]]\ndomains = [\"forms.acme.org\", \"hr.acme.org\"]");
    let table = "[tenant.tls.\"*.acme.org\"]\ncertificate = \"certs/early.pem\"\nprivate_key = \"certs/early.key\"\n";
    let text = format!("{GATEWAY}{acme}{table}").replace("certs/wildcard", "certs/expired");
    assert_eq!(
        folder.faults(&text),
        [
            "tenants.toml:4:15 the certificate is out of date",
            "tenants.toml:8:30 no certificate covers `hr.acme.org`",
            "tenants.toml:14:15 the certificate is out of date",
        ],
        "each once, and what their names do not cover all the same"
    );
    let report = folder.load(&text).unwrap_err().to_string();
    for cause in ["it expired on 2021-01-01 00:00 UTC", "it is not valid before 3000-01-01 00:00 UTC"] {
        assert!(report.contains(cause), "{report}");
    }
}

#[test]
fn a_key_below_the_wrong_header_is_reported_with_the_right_one() {
    let key = "private_key = \"certs/wildcard.key\"";
    let slug = "slug = \"acme\"";
    for (line, below, name, home) in [
        (key, "redis = \"redis://x\"", "redis", "`[gateway]`"),
        (key, "listen = [\"[::]:7\"]", "listen", "`[gateway]`"),
        (key, "timezone = \"UTC\"", "timezone", "`[[tenant]]`"),
        (key, "max_connections = 7", "max_connections", "`[gateway.databases]` or `[[tenant]]`"),
        ("[gateway]", "sentinels = []", "sentinels", "`[gateway.redis_sentinel]`"),
        ("[gateway]", "cache_mib = 7", "cache_mib", "`[gateway.tls]`"),
        ("[gateway]", "streams = 7", "streams", "`[gateway.limits]`"),
        ("[gateway]", "settle_ms = 7", "settle_ms", "`[gateway.webhooks]`"),
        ("[gateway]", "https_port = 7", "https_port", "an entry of `listen`"),
        (slug, "certificate = \"x\"", "certificate", "`[gateway.tls]` or `[tenant.tls.\"HOST\"]`"),
        (slug, "max_detached_percent = 7", "max_detached_percent", "`[tenant.group_guard]`"),
        (slug, "include = []", "include", "the top of the file"),
    ] {
        let report = Folder::new().load(&with(line, &format!("{line}\n{below}"))).unwrap_err().to_string();
        let expected = [format!("unknown key `{name}`"), format!("it belongs in {home}")];
        assert!(expected.iter().all(|text| report.contains(text)), "{below}: {report}");
    }
    let header = Folder::new().load(&format!("{GATEWAY}{ACME}[databases]\nwait_ms = 7\n")).unwrap_err().to_string();
    assert!(header.contains("write `[gateway.databases]`"), "{header}");
    let near = Folder::new().load(&with(key, &format!("{key}\ncache_mb = 7"))).unwrap_err().to_string();
    assert!(near.contains("did you mean `cache_mib`?"), "{near}");
}

#[test]
fn a_tenant_in_single_brackets_is_found_at_its_own_line() {
    let single = ACME.replace("[[tenant]]", "[tenant]");
    let other = ACME.replace("acme", "other");
    let second = other.replace("[[tenant]]", " [ tenant ]  # the second");
    for (tenants, expected) in [
        (format!("{single}{other}"), &["7:1"][..]),
        (format!("{other}{single}"), &["12:1"]),
        (format!("{single}{second}"), &["7:1", "12:2"]),
        (format!("{single}[tenant.group_guard]\nmax_detached_percent = 7\n{other}"), &["7:1"]),
    ] {
        let expected: Vec<_> =
            expected.iter().map(|place| format!("tenants.toml:{place} expected an array of tables")).collect();
        assert_eq!(Folder::new().faults(&format!("{GATEWAY}{tenants}")), expected, "{tenants}");
        let report = Folder::new().load(&format!("{GATEWAY}{tenants}")).unwrap_err().to_string();
        assert!(report.contains("write `[[tenant]]`"), "{report}");
    }
    let report = Folder::new().load(&with("[gateway]", "[[gateway]]")).unwrap_err().to_string();
    assert!(report.contains("one pair of brackets"), "{report}");
}

#[test]
fn keys_of_redis_that_exclude_each_other_are_pointed_at() {
    let text = with("[gateway.tls]", "redis_cluster = [\"redis://a\"]\nredis = \"redis://:hunter2@b\"\n[gateway.tls]");
    let report = Folder::new().load(&text).unwrap_err().to_string();
    for place in ["tenants.toml:4:1", "tenants.toml:3:1"] {
        assert!(report.contains(place), "{place}: {report}");
    }
    assert!(!report.contains("hunter2"), "{report}");
}

#[test]
fn a_certificate_without_the_name_of_a_host_is_reported_with_its_names() {
    let folder = Folder::new();
    let text = format!("{GATEWAY}{ACME}").replace("acme.example.com", "acme.example.org");
    let report = folder.load(&text).unwrap_err().to_string();
    assert!(report.contains("the gateway's covers `*.example.com`"), "{report}");
}

#[test]
fn a_url_without_a_password_is_shown() {
    let text = with("slug = \"acme\"", "slug = \"acme\"\ntimezone = \"https://time.example:8443/zone\"");
    let report = Folder::new().load(&text).unwrap_err().to_string();
    assert!(report.contains("timezone = \"https://time.example:8443/zone\"\n"), "{report}");
}
