//! Which tokens used the budget, as a 429 and `GET /me` report it.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::redis::Redis;

async fn spend(client: &Client, requests: u32) {
    for _ in 0..requests {
        assert_eq!(client.get("/api/v1/form").send().await.status, 200);
    }
}

async fn usage(client: &Client) -> Value {
    client.get("/api/v1/me").send().await.json()["usage"].take()
}

fn share(token: &str, requests: u32) -> Value {
    json!({"token": token, "requests": requests})
}

on_both_databases! {
    async fn the_shares_of_all_nodes_are_reported_largest_first(engine: Engine) {
        let redis = Redis::start();
        let site = Site::new().tenant("acme", engine).requests_per_minute(16);
        let site = site.redis(&redis).gateway("redis_timeout_ms", 5000).write();
        let [small, large, revoked] = ["small", "large", "revoked"].map(|name| site.token("acme", name));
        let nodes = [site.start(), site.start()];
        let [here, there] = [&nodes[0], &nodes[1]].map(|node| node.client().to(&site.host("acme")));
        spend(&here.with(&small), 2).await;
        spend(&there.with(&large), 4).await;
        spend(&there.with(&revoked), 3).await;
        let revoke = site.run(&["token", "revoke", "--tenant", "acme", "3"], b"");
        assert_eq!(revoke.code, 0, "{}", revoke.stderr);
        // The request that asks is counted.
        let expected = json!([share("large", 4), share("small", 3), share("revoked", 3)]);
        assert_eq!(usage(&here.with(&small)).await, expected);
        // A token that was made after the names were read, and that this node never sees.
        let new = site.token("acme", "new");
        spend(&there.with(&new), 5).await;
        let expected = json!([share("new", 5), share("small", 4), share("large", 4), share("revoked", 3)]);
        assert_eq!(usage(&here.with(&small)).await, expected);
        for client in [&here, &there] {
            for _ in 0..2 {
                let refused = client.with(&large).get("/api/v1/form").send().await;
                assert_eq!((refused.status.as_u16(), refused.json()["message"].as_str()), (429, Some("Too Many Attempts.")));
                assert_eq!(refused.json()["usage"], expected);
            }
        }
    }
}

#[tokio::test]
async fn the_embedded_window_reports_the_same() {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(6).write();
    let [one, other] = ["one", "other"].map(|name| site.token("acme", name));
    let node = site.start();
    let client = node.client().to(&site.host("acme"));
    spend(&client.with(&one), 2).await;
    spend(&client.with(&other), 3).await;
    assert_eq!(usage(&client.with(&one)).await, json!([share("one", 3), share("other", 3)]));
    let refused = client.with(&other).get("/api/v1/me").send().await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["usage"]),
        (429, &json!([share("one", 3), share("other", 3)]))
    );
}
