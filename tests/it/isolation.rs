//! No answer to a tenant's token ever has another tenant's row, whatever is asked for.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::api::world::World;
use crate::support::client::Client;
use crate::support::fixture::{Engine, Server, Site};

/// Every id, gid, name and URL of a world holds its base; no word of the other world's does.
const BASES: [i64; 2] = [71_000_000, 84_000_000];

#[tokio::test]
async fn no_answer_holds_a_row_of_another_tenant_with_a_database_each() {
    no_answer_holds_a_row_of_another_tenant([Engine::Sqlite, Engine::Postgres, Engine::Postgres]).await;
}

#[tokio::test]
async fn no_answer_holds_a_row_of_another_tenant_with_a_schema_each() {
    no_answer_holds_a_row_of_another_tenant([Engine::PostgresOn(Server::Schema); 3]).await;
}

async fn no_answer_holds_a_row_of_another_tenant(engines: [Engine; 3]) {
    let site = Site::new().tenant("acme", engines[0]).tenant("globex", engines[1]).tenant("initech", engines[2]);
    // Tenants with a schema each use the same connection in turns.
    let site = site.databases("max_shared_connections", 1);
    let site = site.requests_per_minute(100_000).write();
    let mut worlds = BASES.map(|base| World::new(base.unsigned_abs(), base, 60));
    site.import("acme", &worlds[0].ndjson());
    site.import("globex", &worlds[1].ndjson());
    let node = site.start();
    let slugs = ["acme", "globex"];
    let tokens = slugs.map(|slug| site.token(slug, "tests"));
    let clients: Vec<Client> =
        slugs.iter().zip(&tokens).map(|(slug, token)| node.client().to(&site.host(slug)).with(token)).collect();

    let mut random = StdRng::seed_from_u64(1);
    let mut found = 0;
    for _ in 0..400 {
        // Whose token asks, and whose ids it asks for: as often the other's as its own.
        let (asks, about) = (random.random_range(0..2), random.random_range(0..2));
        let (client, other) = (&clients[asks], BASES[1 - asks] / 1_000_000);
        let id = BASES[about] + random.random_range(1..=60);
        let call = match random.random_range(0..4) {
            0 => client.get(&format!("/api/v1/form/for_{}", BASES[about] + random.random_range(1..=8))),
            1 => client.get("/api/v1/form"),
            2 => client.get(&format!("/api/v1/submission/sub_{id}")),
            _ => client.post("/api/v1/submission").json(&worlds[about].filter()),
        };
        let answer = call.send().await;
        let body = String::from_utf8(answer.body).expect("JSON is UTF-8");
        let row = |base: i64| body.contains(&format!("{base}0000"));
        assert!(!row(other), "{} was shown: {body}", slugs[1 - asks]);
        found += usize::from(row(BASES[asks] / 1_000_000));
    }
    assert!(found > 50, "only {found} answers held a row: they prove little");

    for (asks, token) in tokens.iter().enumerate() {
        for slug in [slugs[1 - asks], "initech"] {
            let answer = node.client().to(&site.host(slug)).with(token).get("/api/v1/form").send().await;
            assert_eq!(answer.status, 401, "{} at {slug}", slugs[asks]);
        }
    }
}
