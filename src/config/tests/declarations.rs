//! The declarations of the keys, and what the readers of the tables make of them.

use super::{ACME, Folder, GATEWAY};
use crate::config::Problem;
use crate::config::declaration::{Default, Key, Kind, Place, Shown, places};
use crate::config::include;
use crate::outbound::Settings;
use crate::store::DatabaseLimits;

/// A key of each table that is required, or that others need.
const SETTINGS: [(&str, &str); 10] = [
    (
        "gateway",
        "listen = [\"127.0.0.1:0\"]\nadmin_listen = \"127.0.0.1:0\"\nredis = \"redis://a\"\nregistry = \"sqlite:r.db\"\n",
    ),
    ("gateway.tls", "certificate = \"certs/wildcard.pem\"\nprivate_key = \"certs/wildcard.key\"\n"),
    ("gateway.administration.oidc", OIDC),
    ("gateway.domains", "target = \"edge.example.com\"\n"),
    (
        "gateway.acme",
        "contact = [\"it@example.com\"]\naccept_terms = true\nseal_keys = [\"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\"]\n",
    ),
    ("gateway.acme.ca", "name = \"own\"\ndirectory = \"https://ca.internal/dir\"\n"),
    ("gateway.acme.ca.eab", "key_id = \"kid\"\nhmac_key = \"c2VjcmV0\"\n"),
    ("gateway.operator", "listen = [\"unix:operator.sock\"]\n"),
    ("tenant", "slug = \"acme\"\nname = \"Acme\"\naddress = \"acme.example.com\"\ndatabase = \"sqlite:acme.db\"\n"),
    ("tenant.oidc", OIDC),
];
const OIDC: &str = "issuer = \"https://login.example.com\"\nclient_id = \"a\"\nclient_secret = \"b\"\nrole_claim = \"c\"\n\
    admin_values = [\"d\"]\n";

/// The header of a table, as a table of its own.
fn header(place: &Place) -> String {
    let path = place.path.replace("HOST", "acme.example.com");
    match place.of.map(|key| key.kind) {
        None => String::new(),
        Some(Kind::Tables(_) | Kind::StringsOrTables(_)) => format!("[[{path}]]\n"),
        Some(_) => format!("[{path}]\n"),
    }
}

/// The same below the tables that it is in.
fn headers(place: &Place) -> String {
    let all = places(include::key::KEYS);
    let is_around = |other: &&Place| {
        let is_array = matches!(other.of.map(|key| key.kind), Some(Kind::Tables(_)));
        is_array && place.path.starts_with(&format!("{}.", other.path))
    };
    all.iter().filter(is_around).map(header).collect::<String>() + &header(place)
}

fn is_a_table(key: &Key) -> bool {
    key.keys().is_some()
}

/// The problems of a text, and the line of each.
fn problems(text: &str) -> Vec<(usize, Problem)> {
    let loaded = Folder::new().load(text);
    let problems = loaded.err().into_iter().flat_map(|problems| problems.iter().cloned().collect::<Vec<_>>());
    problems.map(|problem| (problem.line_and_column().unwrap_or_default().0, problem)).collect()
}

/// No key takes a date.
#[test]
fn every_declared_key_is_read_and_a_fault_of_its_value_has_its_name_and_its_line() {
    let all = places(include::key::KEYS);
    let mut text = String::new();
    for place in &all {
        text += &header(place);
        for key in place.keys.iter().filter(|key| !is_a_table(key)) {
            text += &format!("{} = 1979-05-27\n", key.name);
        }
    }
    let problems = problems(&text);
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.contains(" = ")) {
        let (name, _) = line.split_once(" = ").unwrap();
        let (_, problem) =
            problems.iter().find(|(at, _)| *at == number).unwrap_or_else(|| panic!("{name} is not read"));
        let report = problem.to_string();
        assert!(report.contains(name) && !report.contains("unknown key"), "{report}");
        let may_be_shown = |key: &&&Key| key.name == name && key.shown != Shown::Plain;
        let is_shown = all.iter().flat_map(|place| place.keys).find(may_be_shown).is_none();
        assert_eq!(report.contains(line), is_shown, "{report}");
    }
}

/// Whether a key takes a value of this type, whatever it is.
fn takes(kind: Kind, value: &str) -> bool {
    match kind {
        Kind::Boolean => value == "true",
        Kind::Integer { .. } => false,
        // The empty list is a fault where an entry is required.
        Kind::Strings | Kind::Choices(_) => value == "[]",
        Kind::String => value.starts_with('"'),
        Kind::Choice(_) => false,
        Kind::StringsOrTables(_) => value == "[]",
        Kind::Table(_) | Kind::NamedTables(..) => value.starts_with('{'),
        Kind::Tables(_) => value.starts_with("[{") || value == "[]",
    }
}

#[test]
fn a_value_that_a_key_does_not_take_is_reported_at_its_line_with_its_name() {
    let folder = Folder::new();
    for place in places(include::key::KEYS) {
        for key in place.keys {
            for value in ["true", "-1", "0.5", "\"\\u0001 ?\"", "[]", "[1]", "[[\"a\"]]", "{ a = 1 }", "[{ a = 1 }]"] {
                if takes(key.kind, value) {
                    continue;
                }
                let text = format!("{}{} = {value}\n", headers(&place), key.name);
                let last = text.lines().count();
                let problems = folder.load(&text).expect_err("the value is wrong");
                let is_at_value = |problem: &&Problem| problem.line_and_column().is_some_and(|(line, _)| line == last);
                let reports: Vec<_> = problems.iter().filter(is_at_value).map(ToString::to_string).collect();
                let names = |report: &String| report.contains(key.name) && !report.contains("unknown key");
                assert!(reports.iter().any(names), "{}.{} = {value}: {problems}", place.path, key.name);
            }
        }
    }
}

#[test]
fn no_report_shows_a_value_that_may_hold_a_secret() {
    for place in places(include::key::KEYS) {
        for key in place.keys.iter().filter(|key| matches!(key.shown, Shown::Hidden | Shown::Secret)) {
            for value in ["{ a = \"hunter2\" }", "[[\"hunter2\"]]", "\"hunter2\"\nunknown = 1", "\"\"\"\nhunter2"] {
                let text = format!("{}{} = {value}\n", headers(&place), key.name);
                let problems = problems(&text);
                assert!(problems.iter().all(|(_, problem)| !problem.to_string().contains("hunter2")), "{problems:?}");
            }
        }
    }
}

#[test]
fn every_integer_is_taken_within_its_range_and_no_further() {
    for place in places(include::key::KEYS) {
        for key in place.keys {
            let Kind::Integer { least, most } = key.kind else { continue };
            let reports = |value: i64| {
                let text = format!("{}redirect_to_https = true\n{} = {value}\n", headers(&place), key.name);
                let last = text.lines().count();
                let at_value = problems(&text).into_iter().filter(|(line, _)| *line == last);
                let titles = at_value.map(|(_, problem)| problem.title().to_owned());
                // A value in its range may still make no sense with another one: `sense`.
                titles.filter(|title| title.contains("must be")).collect::<Vec<_>>()
            };
            for value in [least, most] {
                assert_eq!(reports(value.into()), Vec::<String>::new(), "{} = {value}", key.name);
            }
            for value in [i64::from(least) - 1, i64::from(most) + 1] {
                assert_eq!(reports(value), [format!("`{}` must be from {least} to {most}", key.name)]);
            }
        }
    }
}

/// A file with a table of each kind, and with or without the keys that have a value as their default.
pub(super) fn every_table(defaults: bool) -> String {
    let tables = places(include::key::KEYS).into_iter().filter(|place| {
        // Each is in place of others, or for hosts that there are.
        !["gateway.listen", "gateway.redis_sentinel", "tenant.group_guard", "tenant.tls.\"HOST\""]
            .contains(&&*place.path)
    });
    tables.fold(String::new(), |mut text, place| {
        let settings = SETTINGS.iter().find(|(path, _)| *path == place.path).map_or("", |(_, lines)| lines);
        text += &(header(&place) + settings);
        for key in place.keys.iter().filter(|key| !settings.contains(&format!("{} = ", key.name))) {
            match key.default {
                // What else they are for has a default of its own.
                Default::Value(_) if ["redis_cluster", "idle_seconds"].contains(&key.name) => {}
                Default::Value(value) if defaults => {
                    text += &format!("{} = {value}\n", key.name);
                }
                _ => {}
            }
        }
        text
    })
}

#[test]
fn a_declared_default_is_what_holds_without_the_key() {
    let folder = Folder::new();
    let load = |defaults| folder.load(&every_table(defaults)).unwrap_or_else(|problems| panic!("{problems}"));
    let (without, with) = (load(false), load(true));
    let (with_defaults, expected) = (format!("{:#?}", with.gateway), format!("{:#?}", without.gateway));
    for (line, other) in with_defaults.lines().zip(expected.lines()) {
        assert_eq!(line, other, "{with_defaults}");
    }
    assert!(with.tenants[0].is_same(&without.tenants[0]));
    assert_eq!(without.gateway.databases, DatabaseLimits::default());
    let Settings { timeout, in_flight, per_host, .. } = without.gateway.webhooks.requests;
    let default = Settings::default();
    assert_eq!((timeout, in_flight, per_host), (default.timeout, default.in_flight, default.per_host));
}

#[test]
fn a_change_is_announced_if_the_declaration_says_that_it_waits() {
    let folder = Folder::new();
    let load = |keys: &str, tables: &str| {
        let text = GATEWAY.replace("[gateway]\n", &format!("[gateway]\n{keys}")) + tables + ACME;
        folder.load(&text).unwrap_or_else(|problems| panic!("{problems}")).gateway
    };
    let before = load("registry = \"sqlite:a.db\"\n", "");
    let keys = "registry = \"sqlite:b.db\"\nadmin_listen = \"127.0.0.1:0\"\nredis = \"redis://a\"\nhsts = \"max-age=1\"\n\
        shutdown_delay_seconds = 1\ndrain_seconds = 1\nthreads = 1000\npublic_port = 1\ntenant_variables = []\n\
        tenant_metrics = \"all\"\nwindow_seconds = 1\n";
    let tables = "[gateway.databases]\nwait_ms = 1\n[gateway.limits]\nstreams = 1\n[gateway.webhooks]\nenabled = false\n\
        [gateway.administration]\n[gateway.operator]\nlisten = [\"unix:a\"]\n[gateway.domains]\ntarget = \"a.example.com\"\n";
    let waiting = before.waiting_for_restart(&load(keys, tables));
    let expected = [
        "admin_listen",
        "redis",
        "databases",
        "window_seconds",
        "shutdown_delay_seconds",
        "drain_seconds",
        "threads",
        "tenant_metrics",
        "limits",
        "webhooks",
        "registry",
        "tenant_variables",
        "operator",
        "domains",
    ];
    assert_eq!(waiting, expected);
    assert_eq!(before.waiting_for_restart(&before), Vec::<String>::new());
    let cache =
        GATEWAY.replace("[gateway.tls]", "[gateway.tls]\ncache_mib = 1").replace("127.0.0.1:0", "127.0.0.1:1") + ACME;
    let cache = folder.load(&cache).unwrap_or_else(|problems| panic!("{problems}")).gateway;
    assert_eq!(load("", "").waiting_for_restart(&cache), ["listen", "tls.cache_mib"]);
}
