//! Redis in each of its forms: the nodes share a window and hear of tokens through all of them alike.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use toml::{Table, Value};

use crate::support::child::until;
use crate::support::client::{operator_count, operator_get, wait_for_count};
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;
use crate::support::redis::Redis;
use crate::support::redis_group::{Cluster, MASTER, Sentinels};
use crate::support::revocation::assert_heard;
use crate::support::{certificate, child, folder};

/// Two nodes of a site with these keys share one window, and a revoked token is refused on both.
async fn assert_shared(keys: &[(&str, Value)], environment: &[(&str, &str)]) {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(20);
    let site = site.gateway("redis_timeout_ms", 5000).gateway("on_redis_failure", "deny");
    let site = keys.iter().fold(site, |site, (key, value)| site.gateway(key, value.clone())).write();
    let token = site.token("acme", "tests");
    let mut nodes = [0, 1].map(|_| Node::spawn_in(&site.config_path, environment));
    for node in &mut nodes {
        wait_for_count(node.operator_address(), "formgate_redis_up", 1).await;
        wait_for_count(node.operator_address(), "formgate_redis_shards_down", 0).await;
    }
    let clients = [0, 1].map(|n: usize| nodes[n].client().to(&site.host("acme")).with(&token));
    for left in (0..20).rev() {
        let answer = clients[left as usize % 2].get("/api/v1/form").send().await;
        assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (200, Some(left)), "{answer:?}");
    }
    for client in &clients {
        assert_eq!(client.get("/api/v1/form").send().await.status, 429);
    }
    assert_heard(&site, &clients, environment).await;
}

/// A node decides by a long window, whose tally is a second key.
async fn assert_long_window(url: &str) {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(5000).gateway("redis", url);
    let site = site.gateway("redis_timeout_ms", 5000).gateway("on_redis_failure", "deny").write();
    let mut node = site.start();
    wait_for_count(node.operator_address(), "formgate_redis_up", 1).await;
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
    // A node knows that a log is long once it held 640 requests.
    for left in (4300..5000).rev() {
        let path = if left % 10 == 0 { "/api/v1/me" } else { "/api/v1/form" };
        let answer = client.get(path).send().await;
        assert_eq!((answer.status.as_u16(), answer.number("x-ratelimit-remaining")), (200, Some(left)), "{answer:?}");
    }
}

#[tokio::test]
async fn a_socket_in_the_file_system() {
    let folder = folder::temporary("redis");
    let socket = folder.path().join("redis.sock");
    let socket = socket.to_str().unwrap();
    let _redis = Redis::start_with(&["--unixsocket", socket, "--unixsocketperm", "700"]);
    assert_eq!(std::fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o700);
    assert_shared(&[("redis", format!("unix://{socket}").into())], &[]).await;
}

/// The certificate is of an authority that the system does not know; the environment names it.
#[tokio::test]
async fn tls_with_an_authority_of_the_operators_own() {
    let folder = folder::temporary("redis");
    let issued = certificate::issue(folder.path(), &["localhost"]);
    let authority = certificate::authority(folder.path());
    let [certificate, key, authority] =
        [&issued.certificate, &issued.private_key, &authority].map(|path| path.to_str().unwrap());
    let port = child::free_port().to_string();
    let _redis = Redis::start_with(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        certificate,
        "--tls-key-file",
        key,
        "--tls-ca-cert-file",
        authority,
        "--tls-auth-clients",
        "no",
    ]);
    let url = format!("rediss://localhost:{port}");
    assert_shared(&[("redis", url.into())], &[("SSL_CERT_FILE", authority)]).await;
}

/// The words of the ACL in a document. Of each line, `mark` is left out.
fn documented_acl(document: &str, mark: &str) -> Vec<String> {
    let (_, rest) = document.split_once("ACL SETUSER formgate ").expect("it has the ACL");
    let lines = rest.lines().map(|line| line.strip_prefix(mark).unwrap_or(line).trim());
    let lines = lines.enumerate().take_while(|(at, line)| *at == 0 || line.starts_with('+')).map(|(_, line)| line);
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// The ACL that the documents have.
fn acl() -> Vec<String> {
    let reference = documented_acl(include_str!("../../../deploy/configuration.md"), "");
    assert_eq!(documented_acl(include_str!("../../../tenants.example.toml"), "#"), reference, "they are one text");
    reference
}

/// Creates a user with an ACL. Returns the URL.
fn user(redis: &Redis, name: &str, acl: &[String]) -> String {
    let secret = acl.iter().map(|word| if word == ">PASSWORD" { ">secret" } else { word });
    redis.run::<()>(&["ACL", "SETUSER", name].into_iter().chain(secret).collect::<Vec<_>>());
    redis.url().replace("redis://", &format!("redis://{name}:secret@"))
}

/// The rights that the documentation asks for, and none in addition.
#[tokio::test]
async fn a_user_with_the_documented_rights() {
    let redis = Redis::start();
    let url = user(&redis, "gate", &acl());
    assert_shared(&[("redis", url.clone().into())], &[]).await;
    assert_long_window(&url).await;
    let site = Site::new().tenant("acme", Engine::Sqlite).gateway("redis", url).write();
    let checked = site.run(&["check"], b"");
    assert!(checked.code == 0 && !checked.stdout.contains("may evict budgets"), "{checked:?}");
    let mut node = site.start();
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
    assert_eq!(client.get("/api/v1/me").send().await.status, 200);
    until(Duration::from_secs(60), || redis.run::<Vec<String>>(&["KEYS", "formgate:minutes:*"]).len().checked_sub(1))
        .expect("usage is published");
    wait_for_count(node.operator_address(), "formgate_redis_refuses", 0).await;
    let refused: Vec<redis::Value> = redis.run(&["ACL", "LOG"]);
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn check_tries_each_of_the_documented_rights() {
    let redis = Redis::start();
    let mut site = Site::new().tenant("acme", Engine::Sqlite);
    let commands: Vec<_> = acl().into_iter().filter(|word| word.starts_with('+')).collect();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        let name = command.trim_start_matches('+');
        let fewer: Vec<_> = acl().into_iter().filter(|word| *word != command).collect();
        site = site.gateway("redis", user(&redis, name, &fewer)).write();
        let checked = site.run(&["check"], b"");
        let expected = if name == "info" { 0 } else { 1 };
        assert_eq!(checked.code, expected, "{name}: {checked:?}");
        assert!(checked.stdout.contains("deploy/configuration.md lists"), "{name}: {checked:?}");
    }
}

/// No request notices it, so a log line, a metric and readiness say it.
#[tokio::test]
async fn a_call_of_the_background_that_is_refused_is_counted_logged_and_shown() {
    for (missing, consequence) in [("+hset", "the chart of the last hour"), ("+subscribe", "a revoked token")] {
        let redis = Redis::start();
        let fewer: Vec<_> = acl().into_iter().filter(|word| word != missing).collect();
        let site = Site::new().tenant("acme", Engine::Sqlite).gateway("redis", user(&redis, "gate", &fewer)).write();
        let mut node = site.start();
        let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
        assert_eq!(client.get("/api/v1/me").send().await.status, 200);
        let address = node.operator_address();
        wait_for_count(address, "formgate_redis_refuses", 1).await;
        let readiness = operator_get(address, "/readyz").await;
        let state = readiness.json()["parts"]["redis"].as_str().unwrap().to_owned();
        assert!(readiness.status == 200 && state.contains("refuses calls"), "{missing}: {state}");
        let metrics = operator_count(address, "formgate_redis_failures_total{reason=\"refused\"}").await;
        assert!(metrics > 0, "{missing}");
        node.wait_for_lines(Duration::from_secs(30), consequence, 1);
        user(&redis, "gate", &acl());
        wait_for_count(address, "formgate_redis_refuses", 0).await;
        assert_eq!(operator_get(address, "/readyz").await.json()["parts"]["redis"], "ok");
    }
}

/// As after an upgrade to a version whose windows need another one. It is told at the start, and not by the first request.
#[tokio::test]
async fn a_user_without_one_of_the_rights() {
    let redis = Redis::start();
    redis.run::<()>(&"ACL SETUSER gate on >secret ~* &* +@all -append".split_whitespace().collect::<Vec<_>>());
    let site = Site::new().tenant("acme", Engine::Sqlite);
    let site = site.gateway("redis", redis.url().replace("redis://", "redis://gate:secret@")).write();
    let mut node = site.start();
    let told =
        node.wait_for_log(Duration::from_secs(30), |line| line.contains("unreachable:").then(|| line.to_owned()));
    let told = told.expect("the node says it");
    assert!(told.contains("can't run this command"), "{told}");
}

#[tokio::test]
async fn a_password_alone() {
    let redis = Redis::start();
    redis.run::<()>(&["CONFIG", "SET", "requirepass", "secret"]);
    let url = redis.url().replace("redis://", "redis://:secret@");
    assert_shared(&[("redis", url.into())], &[]).await;
}

#[tokio::test]
async fn the_master_that_sentinels_name() {
    let sentinels = Sentinels::start("secret");
    let mut table = Table::new();
    table.insert("sentinels".into(), sentinels.urls().into());
    table.insert("master".into(), MASTER.into());
    table.insert("password".into(), "secret".into());
    assert_shared(&[("redis_sentinel", table.into())], &[]).await;
}

#[tokio::test]
async fn a_cluster() {
    let cluster = Cluster::start("{acme}");
    assert_shared(&[("redis_cluster", cluster.urls().into())], &[]).await;
}
