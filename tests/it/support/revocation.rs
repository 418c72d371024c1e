//! A revoked token is refused on every node that hears of it through Redis.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::Client;
use super::fixture::Site;
use super::process::formgate_with_environment;

/// Half of how long a node caches a token unless it hears of a change, and far more than a busy machine needs for that.
const NOTICE: Duration = Duration::from_secs(30);

/// Revokes a token of `acme` by a command, and asserts that the nodes of these clients hear of it. On a machine so busy that the
/// command gives up on Redis, another time.
pub(crate) async fn assert_heard(site: &Site, nodes: &[Client], environment: &[(&str, &str)]) {
    let config = site.config_path.to_str().expect("the temporary folder has a UTF-8 name");
    for _ in 0..6 {
        let token = site.token("acme", "revoked");
        let call = async |node: &Client| node.with(&token).get("/api/v1/form").send().await.status;
        for node in nodes {
            assert_ne!(call(node).await, 401, "the token is valid");
        }
        let list = site.run(&["token", "list", "--tenant", "acme", "--json"], b"").stdout;
        let list: Vec<Value> = serde_json::from_str(&list).expect("a JSON array");
        let id = list.last().expect("it is listed")["id"].to_string();
        let revoke = ["token", "revoke", "--tenant", "acme", &id, "--config", config];
        let revoke = formgate_with_environment(&revoke, environment);
        assert_eq!(revoke.code, 0, "{revoke:?}");
        if revoke.stderr.contains("can't announce the change through Redis") {
            continue;
        }
        assert_eq!(revoke.stderr, format!("token {id} is revoked\n"));
        let revoked = Instant::now();
        for node in nodes {
            loop {
                let sent = revoked.elapsed();
                if call(node).await == 401 {
                    break;
                }
                assert!(sent < NOTICE, "the token is still accepted");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        return;
    }
    panic!("no revocation is announced through Redis");
}
