//! A changed configuration is served without a restart, and a faulty one changes nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use sqlx::{Connection, PgConnection};

use crate::support::acme::Acme;
use crate::support::client::operator_get;
use crate::support::fixture::{Engine, Site};
use crate::support::folder;
use crate::support::process::Node;

/// A change is noticed, read once the files are quiet, and served well within this, on a busy machine too.
const NOTICED: Duration = Duration::from_secs(30);

fn site() -> Site {
    Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000)
}

/// Waits for the line of the log with a text.
fn wait_for(node: &mut Node, text: &str) -> String {
    let line = node.wait_for_log(NOTICED, |line| line.contains(text).then(|| line.to_owned()));
    line.unwrap_or_else(|| panic!("no line has {text:?}:\n{}", node.log()))
}

/// Puts a file in place in one step, so that the node never reads half of it.
fn replace(file: &Path, content: impl AsRef<[u8]>) {
    let elsewhere = folder::temporary("draft");
    let draft = elsewhere.path().join("draft");
    fs::write(&draft, content).expect("a temporary folder can be written");
    fs::rename(&draft, file).expect("the site's folder can be written");
}

/// Waits until the node has handled every change that was made in its folders until now. It handles them in order, and
/// logs that a certificate is gone.
fn wait_until_changes_are_handled(site: &Site, node: &mut Node) {
    let certificate = site.folder().join("certs/wildcard.example.test.pem");
    let elsewhere = folder::temporary("kept");
    let kept = elsewhere.path().join("kept.pem");
    fs::rename(&certificate, &kept).expect("the site's folder can be written");
    wait_for(node, "the previous one stays in effect");
    fs::rename(&kept, &certificate).expect("the site's folder can be written");
}

#[tokio::test]
async fn a_tenant_that_is_added_is_served_from_its_first_handshake_on() {
    let Acme { site, mut node, token } = Acme::of(site());
    let globex = node.client().to("globex.example.test");
    assert!(globex.get("/api/v1/me").try_send().await.is_err(), "no tenant has the name");

    let site = site.tenant("globex", Engine::Sqlite).write();
    wait_for(&mut node, "the configuration is reloaded");
    let globex = globex.with(&site.token("globex", "tests"));
    assert_eq!(globex.get("/api/v1/me").send().await.status, 200);
    let acme = node.client().to(&site.host("acme")).with(&token);
    assert_eq!(acme.get("/api/v1/me").send().await.status, 200);
}

#[tokio::test]
async fn a_tenant_that_remains_keeps_its_window_and_gets_its_new_limit() {
    let Acme { site, mut node, token } = Acme::of(site());
    let acme = node.client().to(&site.host("acme")).with(&token);
    for _ in 0..5 {
        acme.get("/api/v1/me").send().await;
    }
    let _site = site.requests_per_minute(7).write();
    wait_for(&mut node, "the configuration is reloaded");
    let answer = acme.get("/api/v1/me").send().await;
    assert_eq!((answer.number("x-ratelimit-limit"), answer.number("x-ratelimit-remaining")), (Some(7), Some(1)));
}

#[tokio::test]
async fn a_faulty_configuration_is_refused_whole_logged_and_counted() {
    let Acme { site, mut node, token } = Acme::of(site());
    let sound = fs::read_to_string(&site.config_path).expect("a configuration");
    let faulty = sound.replace("\"Acme\"", "\"Another name\"") + "\n[[tenant]]\nslug = \"x\"\n";
    replace(&site.config_path, faulty);
    let line = wait_for(&mut node, "invalid configuration ignored");
    assert!(line.contains("tenants.toml:") && line.contains("missing key `address`"), "{line}");
    let acme = node.client().to(&site.host("acme")).with(&token);
    assert_eq!(acme.get("/api/v1/me").send().await.json()["account"]["name"], "Acme");
    let metrics = operator_get(node.operator_address(), "/metrics").await;
    let metrics = String::from_utf8(metrics.body).expect("text");
    assert!(metrics.contains(r#"formgate_config_reloads_total{result="refused"} 1"#), "{metrics}");

    fs::write(&site.config_path, sound.replace("\"Acme\"", "\"Another name\"")).expect("it can be written");
    wait_for(&mut node, "the configuration is reloaded");
    assert_eq!(acme.get("/api/v1/me").send().await.json()["account"]["name"], "Another name");
}

#[tokio::test]
async fn a_hangup_reloads_and_writing_to_a_database_does_not() {
    let Acme { site, mut node, token } = Acme::of(site());
    let acme = node.client().to(&site.host("acme")).with(&token);
    for round in 0..5 {
        let group = serde_json::json!({"name": format!("Group {round}"), "members": []});
        assert_eq!(acme.put("/api/v1/group").json(&group).send().await.status, 201);
    }
    wait_until_changes_are_handled(&site, &mut node);
    assert!(!node.log().contains("reloaded"), "the database lies beside the configuration:\n{}", node.log());
    node.signal("HUP");
    wait_for(&mut node, "the configuration is reloaded");
    assert_eq!(acme.get("/api/v1/me").send().await.status, 200);
}

#[tokio::test]
async fn changes_that_need_a_restart_are_named() {
    let Acme { site, mut node, token: _ } = Acme::of(site());
    let _site = site.gateway("drain_seconds", 1).gateway("threads", 7).write();
    for key in ["drain_seconds", "threads"] {
        wait_for(&mut node, &format!(r#""key":"{key}""#));
    }
    assert!(wait_for(&mut node, "waits for a restart").contains("drain_seconds"));
}

#[tokio::test]
async fn a_file_that_is_none_of_the_configuration_reloads_nothing() {
    let Acme { site, mut node, token: _ } = Acme::of(site());
    for round in 0..5 {
        fs::write(site.folder().join("formgate.log"), format!("line {round}")).expect("it can be written");
    }
    wait_until_changes_are_handled(&site, &mut node);
    assert!(!node.log().contains("reloaded"), "a log lies beside the configuration:\n{}", node.log());
    let text = fs::read_to_string(&site.config_path).expect("a configuration");
    fs::write(&site.config_path, text + "\n# a comment\n").expect("it can be written");
    wait_for(&mut node, "the configuration is reloaded");
}

#[tokio::test]
async fn a_certificate_that_can_not_be_served_keeps_the_change_out_that_brings_it() {
    let Acme { site, mut node, token } = Acme::of(site());
    let site = site.tenant_with("globex", Engine::Sqlite, |tenant| tenant.domain("forms.globex.test"));
    let certificate = site.folder().join("certs/forms.globex.test.pem");
    let site = site.write();
    let sound = fs::read(site.folder().join("certs/forms.globex.test.pem")).expect("it was issued");
    wait_for(&mut node, "the configuration is reloaded");

    // The same tenant with a certificate for another host more, whose file is broken.
    let text = fs::read_to_string(&site.config_path).expect("a configuration");
    fs::write(site.folder().join("certs/broken.pem"), "no certificate").expect("it can be written");
    let key = site.folder().join("certs/forms.globex.test.key");
    let broken = text.replace("[\"forms.globex.test\"]", "[\"forms.globex.test\", \"hr.globex.test\"]")
        + &format!(
            "\n[tenant.tls.\"hr.globex.test\"]\ncertificate = \"certs/broken.pem\"\nprivate_key = \"{}\"\n",
            key.display()
        );
    assert_ne!(broken.len(), text.len());
    replace(&site.config_path, &broken);
    let line = wait_for(&mut node, "invalid configuration ignored");
    let number = 1 + broken.lines().position(|line| line.contains("broken.pem")).expect("it was written");
    assert!(line.contains(&format!("tenants.toml:{number}:")), "{number}: {line}");
    assert!(line.contains("no certificate in PEM form"), "{line}");
    let metrics = operator_get(node.operator_address(), "/metrics").await;
    let metrics = String::from_utf8(metrics.body).expect("text");
    assert!(metrics.contains(r#"formgate_config_reloads_total{result="refused"} 1"#), "{metrics}");
    let check = site.run(&["check"], b"");
    assert_eq!(check.code, 1);
    assert!(check.stdout.contains("no certificate in PEM form"), "by the same code: {}", check.stdout);

    // A certificate that is served already and was renewed badly keeps no other change out.
    fs::write(&certificate, "half of it").expect("it can be written");
    let named = text.replace("\"Acme\"", "\"Another name\"");
    fs::write(&site.config_path, named).expect("it can be written");
    let acme = node.client().to(&site.host("acme")).with(&token);
    let began = std::time::Instant::now();
    while acme.get("/api/v1/me").send().await.json()["account"]["name"] != "Another name" {
        assert!(began.elapsed() < NOTICED, "the change is kept out");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(site.run(&["check"], b"").code, 1, "the check tells of it all the same");
    fs::write(&certificate, sound).expect("it can be written");
    assert_eq!(site.run(&["check"], b"").code, 0);
}

#[tokio::test]
async fn a_file_that_a_refused_change_lacks_lets_it_in_when_it_comes() {
    let Acme { site, mut node, token: _ } = Acme::of(site());
    let site = site.tenant_with("globex", Engine::Sqlite, |tenant| tenant.domain("forms.globex.test"));
    let site = site.write();
    let certificate = site.folder().join("certs/forms.globex.test.pem");
    let sound = fs::read(&certificate).expect("it was issued");
    wait_for(&mut node, "the configuration is reloaded");
    let text = fs::read_to_string(&site.config_path).expect("a configuration");
    let late = site.folder().join("certs/late.pem");
    let text = text.replace(&certificate.display().to_string(), &late.display().to_string());
    fs::write(&site.config_path, text).expect("it can be written");
    wait_for(&mut node, "can't read the certificate");
    fs::write(late, sound).expect("it can be written");
    node.wait_for_lines(NOTICED, "the configuration is reloaded", 2);
}

/// As for who starts the gateway by hand: what a refusal writes there is no reason to read the configuration again, and
/// what it lacks lets it in all the same.
#[tokio::test]
async fn a_log_next_to_a_refused_configuration_does_not_cause_a_reload() {
    let Acme { site, mut node, token: _ } = Acme::of(site());
    let site = site.tenant_with("globex", Engine::Sqlite, |tenant| tenant.domain("forms.globex.test")).write();
    wait_for(&mut node, "the configuration is reloaded");
    let [log, key, half] =
        ["formgate.log", "certs/forms.globex.test.key", "certs/half.key"].map(|name| site.folder().join(name));
    for file in [&log, &half] {
        fs::write(file, "half of it").expect("the folder can be written");
    }
    let text = fs::read_to_string(&site.config_path).expect("a configuration");
    let text = text.replace(&key.display().to_string(), &half.display().to_string());
    replace(&site.config_path, text);
    wait_for(&mut node, "no private key in PEM form");
    for _ in 0..10 {
        fs::write(&log, node.log()).expect("the folder can be written");
        // Longer than files must be quiet, so that each write is handled for itself.
        tokio::time::sleep(Duration::from_millis(400)).await;
    }

    replace(&half, fs::read(&key).expect("it was issued"));
    node.wait_for_lines(NOTICED, "the configuration is reloaded", 2);
    // Changes are handled in order: the writes of the log by now.
    assert_eq!(node.count_lines("invalid configuration ignored"), 1, "{}", node.log());
}

#[tokio::test]
async fn a_removed_tenant_finishes_requests_in_flight_and_then_closes_its_database() {
    let site = site().tenant("globex", Engine::Postgres).requests_per_minute(100_000);
    let Acme { site, mut node, token: _ } = Acme::of(site);
    let (host, database) = (site.host("globex"), site.database_url("globex").to_owned());
    let globex = node.client().to(&host).with(&site.token("globex", "tests"));
    assert_eq!(globex.get("/api/v1/me").send().await.status, 200);
    let mut other = PgConnection::connect(&database).await.expect("the database takes connections");
    // Groups are read once nobody writes them: so a request is in flight until we let it go on.
    sqlx::query("BEGIN").execute(&mut other).await.expect("a transaction");
    sqlx::query("LOCK TABLE groups IN ACCESS EXCLUSIVE MODE").execute(&mut other).await.expect("a lock");
    let in_flight = tokio::spawn(async move { globex.get("/api/v1/group").send().await });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    until(async || sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut other).await.is_ok_and(|n| n > 0)).await;

    let text = fs::read_to_string(&site.config_path).expect("a configuration");
    let mut root: toml::Table = text.parse().expect("TOML");
    let tenants = root["tenant"].as_array_mut().expect("tenants");
    tenants.retain(|tenant| tenant["slug"].as_str() != Some("globex"));
    fs::write(&site.config_path, root.to_string()).expect("it can be written");
    wait_for(&mut node, "the configuration is reloaded");
    assert!(node.client().to(&host).get("/api/v1/me").try_send().await.is_err(), "no tenant has the name");
    let of_the_gateway = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'formgate' \
                          AND datname = current_database()";
    let connections = sqlx::query_scalar::<_, i64>(of_the_gateway).fetch_one(&mut other).await;
    assert!(connections.expect("a number") > 0, "the request still uses one");

    sqlx::query("ROLLBACK").execute(&mut other).await.expect("the lock is let go");
    assert_eq!(in_flight.await.expect("no panic").status, 200, "it is answered as if nothing had happened");
    until(async || sqlx::query_scalar::<_, i64>(of_the_gateway).fetch_one(&mut other).await.is_ok_and(|n| n == 0))
        .await;
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let began = std::time::Instant::now();
    while !holds().await {
        assert!(began.elapsed() < NOTICED, "it does not come about");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_pipe_or_a_huge_file_among_the_included_files_holds_up_no_later_change_and_no_stop() {
    let Acme { site, mut node, token } = Acme::of(site());
    let include = site.folder().join("more");
    fs::create_dir(&include).expect("the site's folder can be written");
    let text = fs::read_to_string(&site.config_path).expect("a configuration");
    replace(&site.config_path, format!("include = [\"more/*.toml\"]\n{text}"));
    node.wait_for_lines(NOTICED, "the configuration is reloaded", 1);
    let odd = include.join("odd.toml");
    for (round, fault) in [(1, "not a regular file"), (2, "larger than 8 MiB")] {
        if round == 1 {
            folder::make_pipe(&odd);
        } else {
            let elsewhere = include.join("draft");
            fs::File::create(&elsewhere).and_then(|file| file.set_len(600 * 1024 * 1024)).expect("it can be written");
            fs::rename(&elsewhere, &odd).expect("it can be written");
        }
        let line = wait_for(&mut node, fault);
        assert!(line.contains("odd.toml") && line.contains("invalid configuration ignored"), "{line}");
        fs::remove_file(&odd).expect("it can be written");
        replace(&include.join("comment.toml"), format!("# {round}\n"));
        node.wait_for_lines(NOTICED, "the configuration is reloaded", 1 + round);
    }
    let acme = node.client().to(&site.host("acme")).with(&token);
    assert_eq!(acme.get("/api/v1/me").send().await.status, 200);
    folder::make_pipe(&odd);
    node.signal("HUP");
    assert_eq!(node.stop(NOTICED).await, 0);
}
