//! The reports of `check`: one case per kind of fault, with its position and text.
//!
//! This file has the folder that each test gets, and configurations without a fault; the faults are in `tests/`.

mod administration;
mod declarations;
mod documents;
mod domains;
mod faults;
mod files;
mod oidc;
mod registry;
mod secrets;
mod served;
mod webhooks;

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use secrecy::ExposeSecret;
use tempfile::TempDir;

use super::{Config, ListenProtocol, Problems, RedisTarget, ServedConfig};

/// A valid gateway, in seven lines.
const GATEWAY: &str = r#"[gateway]
listen = ["127.0.0.1:0"]
[gateway.tls]
certificate = "certs/wildcard.pem"
private_key = "certs/wildcard.key"

"#;

/// A valid tenant, in six lines.
const ACME: &str = r#"[[tenant]]
slug = "acme"
name = "Acme"
address = "acme.example.com"
database = "sqlite:acme.db"
"#;

/// A folder with certificates for `*.example.com` and `forms.acme.org`, and configuration files.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (file, name) in [("certs/wildcard", "*.example.com"), ("certs/acme", "forms.acme.org")] {
            folder.issue(file, name, 2020..4096);
        }
        folder
    }

    /// Issues a certificate that is valid from the start of one year to the start of another.
    fn issue(&self, file: &str, name: &str, years: Range<i32>) {
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        self.write(&format!("{file}.pem"), params.self_signed(&key).unwrap().pem());
        self.write(&format!("{file}.key"), key.serialize_pem());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn load(&self, text: &str) -> Result<Config, Problems> {
        self.write("tenants.toml", text);
        let environment = |name: &str| match name {
            "SLUG" => Some("acme".to_owned()),
            "PASSWORD" => Some("hunter2".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        Config::load_with(&self.path("tenants.toml"), &environment)
    }

    /// The faults as `file:line:column title`, with paths relative to the folder.
    fn faults(&self, text: &str) -> Vec<String> {
        let problems = self.load(text).expect_err("the configuration has a fault");
        let faults: Vec<_> = problems.iter().map(|problem| self.short(problem)).collect();
        let report = problems.to_string();
        for problem in &problems {
            let (line, column) = problem.line_and_column().unwrap();
            let place = format!("--> {}:{line}:{column}\n", problem.path().display());
            assert!(format!("{report}\n").contains(&place), "{place} is missing in\n{report}");
            let key = problem.key().unwrap_or_default();
            assert!(problem.to_string().contains(key), "{key} is missing in\n{problem}");
        }
        faults
    }

    fn short(&self, problem: &super::Problem) -> String {
        let path = problem.path().strip_prefix(self.0.path()).unwrap().display();
        let (line, column) = problem.line_and_column().unwrap_or_default();
        format!("{path}:{line}:{column} {}", problem.title())
    }
}

/// Asserts that a text has exactly this fault.
fn assert_fault(text: &str, expected: &str) {
    let folder = Folder::new();
    assert_eq!(folder.faults(text), [format!("tenants.toml:{expected}")], "{text}");
}

/// `GATEWAY` and `ACME` with one complete line replaced.
fn with(line: &str, replacement: &str) -> String {
    let text = format!("{GATEWAY}{ACME}");
    assert_eq!(text.matches(line).count(), 1, "{line} stands once");
    text.replace(line, replacement)
}

#[test]
fn the_example_has_no_fault_with_and_without_its_comments() {
    let folder = Folder::new();
    let example = include_str!("../../tenants.example.toml");
    let uncommented = example.lines().map(|line| match line.strip_prefix("# ") {
        Some(setting) if setting.split(' ').nth(1) == Some("=") => format!("{setting}\n"),
        _ => format!("{line}\n"),
    });
    let load = |text: &str| folder.load(text).unwrap_or_else(|problems| panic!("{problems}"));
    let (config, shown) = (load(example), load(&uncommented.collect::<String>()));
    assert!(shown.gateway.redis.is_some() && shown.gateway.registry.is_some());
    assert_eq!(shown.gateway.limits, config.gateway.limits);
    assert_eq!(shown.gateway.databases, config.gateway.databases);
    assert_eq!(shown.gateway.webhooks, config.gateway.webhooks);
    assert_eq!(config.tenants.len(), 2);
    assert_eq!(*config.tenants[0].certificates[0].1.private_key, *folder.path("certs/acme.key"));
    assert_eq!(config.tenants[0].database.identity(), format!("sqlite {}", folder.path("data/acme.db").display()));
    assert_eq!(config.tenants[1].timezone.iana_name(), Some("UTC"));
    let shared = config.gateway.certificate.as_ref().expect("it speaks TLS");
    assert_eq!(*shared.certificate, *folder.path("certs/wildcard.pem"));
}

#[test]
fn a_listener_is_an_address_or_a_table() {
    let folder = Folder::new();
    let entries = r#""127.0.0.1:0", { address = "[::1]:1", tls = false }, { address = "[::1]:2", tls = false, http2 = true },
        { address = "[::1]:3", redirect_to_https = true }, { address = "[::1]:4", redirect_to_https = true, https_port = 8443 },
        { address = "[::1]:5", tls = true, proxy_protocol_from = ["10.0.0.0/8", "2001:db8::1"] }"#;
    let listen = folder.load(&with(r#""127.0.0.1:0""#, entries)).unwrap().gateway.listen;
    let protocol: Vec<_> = listen.iter().map(|entry| (entry.address.port(), entry.protocol)).collect();
    let redirect = |https_port| ListenProtocol::Redirect { https_port };
    let expected = [
        ListenProtocol::Tls,
        ListenProtocol::Http1,
        ListenProtocol::Http2,
        redirect(443),
        redirect(8443),
        ListenProtocol::Tls,
    ];
    assert_eq!(protocol, (0..).zip(expected).collect::<Vec<_>>());
    let proxies: Vec<_> = listen.iter().flat_map(|entry| &entry.proxies).map(ToString::to_string).collect();
    assert_eq!(proxies, ["10.0.0.0/8", "2001:db8::1/128"]);
    let header = "[[gateway.listen]]\naddress = \"127.0.0.1:1\"\ntls = false\n\n[gateway.tls]";
    let text = with("[gateway.tls]", header).replace("listen = [\"127.0.0.1:0\"]\n", "");
    assert_eq!(folder.load(&text).unwrap().gateway.listen[0].protocol, ListenProtocol::Http1);
}

#[test]
fn a_certificate_is_needed_and_read_only_if_a_listener_uses_tls() {
    let folder = Folder::new();
    let plain = r#"{ address = "127.0.0.1:1", tls = false }"#;
    let redirect = r#"{ address = "127.0.0.1:2", redirect_to_https = true }"#;
    let with = |listen: &str, rest: &str| format!("[gateway]\nlisten = [{listen}]\n{rest}{ACME}");
    for listen in [plain.to_owned(), redirect.to_owned(), format!("{plain}, {redirect}")] {
        for tls in ["", "[gateway.tls]\ncertificate = \"none.pem\"\nprivate_key = \"none.key\"\n"] {
            let config = folder.load(&with(&listen, tls)).unwrap_or_else(|problems| panic!("{problems}"));
            assert_eq!(config.gateway.certificate, None);
        }
    }
    for listen in [r#""127.0.0.1:3""#.to_owned(), format!("{plain}, \"127.0.0.1:3\"")] {
        let Err(problems) = folder.load(&with(&listen, "")) else { panic!("{listen} needs one") };
        let problem = problems.iter().next().map(ToString::to_string).unwrap_or_default();
        assert!(problem.contains("missing table `tls`") && problem.contains("`listen` speaks TLS"), "{problem}");
    }
}

#[test]
fn redis_is_one_server_or_a_group() {
    let folder = Folder::new();
    let target = |keys: &str| {
        let config = folder.load(&with("[gateway.tls]", &format!("{keys}\n[gateway.tls]"))).unwrap();
        config.gateway.redis.expect("there is a Redis").target
    };
    for url in ["redis://:x@localhost:7/2", "rediss://user:x@redis.internal", "unix:///run/redis.sock"] {
        let RedisTarget::Server { url: read } = target(&format!("redis = \"{url}\"")) else { panic!("{url}") };
        assert_eq!(read.expose_secret(), url);
    }
    let RedisTarget::Cluster { nodes } = target("redis_cluster = [\"redis://a\", \"redis://b\"]") else { panic!() };
    assert_eq!(nodes.len(), 2);
    let keys = "redis_sentinel = { sentinels = [\"redis://a\"], master = \"m\", password = \"x\" }";
    let RedisTarget::Sentinel { sentinels, master, username, password, database } = target(keys) else { panic!() };
    assert_eq!((sentinels.len(), master.as_str(), username, database), (1, "m", None, 0));
    assert_eq!(password.unwrap().expose_secret(), "x");
}

#[test]
fn a_report_shows_the_line_and_points_at_the_fault() {
    let folder = Folder::new();
    let text = with("slug = \"acme\"", "slug = \"acme\"\ntimezone = \"Europe/Pariss\"");
    let report = folder.load(&text).unwrap_err().to_string();
    let path = folder.path("tenants.toml");
    let expected = format!(
        r#"error: unknown time zone
 --> {}:9:12
  |
9 | timezone = "Europe/Pariss"
  |            ^^^^^^^^^^^^^^^ expected an IANA name such as `Europe/Berlin`"#,
        path.display()
    );
    assert_eq!(report, expected);
}

#[test]
fn columns_count_characters() {
    assert_fault(&with("name = \"Acme\"", "\"größe\" = 1\nname = \"Acme\""), "9:1 unknown key `größe`");
    assert_fault(
        &with("slug = \"acme\"", "slug = \"acme\"\ndomains = [\"b\u{fc}cher.example.com\", 7]"),
        "9:34 expected a string",
    );
}

/// Nothing may grow with the square of the tenants or faults. Compares with a tenth of them in the same run, because a
/// loaded machine slows down both.
#[test]
fn many_tenants_and_many_faults_are_read_in_linear_time() {
    let folder = Folder::new();
    let read = |count: usize| {
        let tenants =
            |faults: &str| -> String { (0..count).map(|n| ACME.replace("acme", &format!("t{n}")) + faults).collect() };
        let started = Instant::now();
        assert_eq!(folder.load(&format!("{GATEWAY}{}", tenants(""))).unwrap().tenants.len(), count);
        let faults = tenants("timezone = \"x\"\nmax_connections = 0\n");
        let problems = folder.load(&format!("{GATEWAY}{faults}")).unwrap_err();
        assert_eq!(problems.len(), 2 * count);
        (started.elapsed(), problems.to_string())
    };
    let (few, _) = read(1_000);
    let (many, problems) = read(10_000);
    assert!(problems.contains("tenants.toml:70006:19"));
    assert!(many < 50 * few, "{few:?} for a thousand, {many:?} for ten thousand");
}
