//! What a node keeps on disk of the registry: all of it, whenever the node joined.

use http::Method;

use super::scene::{Scene, me};
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::postgres::Postgres;

#[tokio::test]
async fn a_node_that_joins_later_starts_with_every_tenant_while_the_registry_is_away() {
    let mut server = Postgres::start();
    let scene = Scene::new(Engine::Sqlite).gateway("registry", server.new_database());
    let first = scene.start(0);
    let mut tokens = vec![("a", scene.add(0, "a").await), ("b", scene.add(0, "b").await)];
    let second = scene.start(1);
    tokens.push(("c", scene.add(1, "c").await));
    scene.keeps(1, 3).await;
    drop(second);
    server.crash();
    let second = scene.start(1);
    for (slug, token) in &tokens {
        assert_eq!(me(&second, slug, token).await, 200, "{slug}");
    }
    drop(first);
}

on_both_databases! {
    async fn a_node_that_joins_keeps_the_registry_although_nothing_changes(engine: Engine) {
        let scene = Scene::new(engine);
        let _first = scene.start(0);
        for slug in ["a", "b"] {
            scene.add(0, slug).await;
        }
        let _second = scene.start(1);
        scene.keeps(1, 2).await;
        assert_eq!(scene.kept(1).await, [2, 2]);
    }

    async fn a_node_is_waited_for_before_it_accepts_connections(engine: Engine) {
        let scene = Scene::new(engine);
        let _first = scene.start(0);
        scene.add(0, "a").await;
        let mut second = scene.start(1);
        second.signal("STOP");
        let put = scene.call(0, Method::PUT, "/v1/tenants/b?wait=1", Some(&scene.tenant("b"))).await;
        second.signal("CONT");
        assert_eq!(put.status, 202, "{put:?}");
    }
}
