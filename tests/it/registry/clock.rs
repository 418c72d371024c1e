//! The clock of the nodes steps: changes are served by every node as before, and none is acknowledged too early.

use http::Method;
use jiff::Timestamp;

use super::scene::{Scene, me};
use crate::support::clock::SteppingClock;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn nodes_whose_clock_steps_serve_each_change_that_was_waited_for(engine: Engine) {
        let scene = Scene::new(engine);
        let clock = SteppingClock::new(scene.folder());
        let nodes = [0, 1].map(|node| scene.start_in(node, &clock.environment()));
        let mut tokens = Vec::new();
        for slug in ["a", "b", "c"] {
            tokens.push((slug, scene.add(0, slug).await));
        }
        for (step, slugs, hours) in [("+3d", ["d", "e"], 72), ("-2h", ["f", "g"], -2), ("+0", ["h", "i"], 0)] {
            clock.step(step);
            for (at, slug) in slugs.into_iter().enumerate() {
                // Fails unless it is 201: every live node serves it.
                let token = scene.add(at, slug).await;
                for node in &nodes {
                    assert_eq!(me(node, slug, &token).await, 200, "{step}");
                }
                tokens.push((slug, token));
                let shown = scene.call(at, Method::GET, &format!("/v1/tenants/{slug}"), None).await;
                let changed_at: Timestamp = shown.body["data"]["changed_at"].as_str().unwrap().parse().unwrap();
                let offset = changed_at.duration_since(Timestamp::now()).as_secs_f64() / 3600.0;
                assert!((offset - f64::from(hours)).abs() < 0.5, "the clock did not step: {offset} h");
            }
        }
        for (slug, token) in &tokens {
            for node in &nodes {
                assert_eq!(me(node, slug, token).await, 200, "{slug}");
            }
        }
    }

    async fn a_node_that_stalls_while_the_clock_steps_is_waited_for(engine: Engine) {
        let scene = Scene::new(engine);
        let clock = SteppingClock::new(scene.folder());
        let mut nodes = [0, 1].map(|node| scene.start_in(node, &clock.environment()));
        for slug in ["a", "b", "c"] {
            scene.add(0, slug).await;
        }
        loop {
            nodes[1].signal("STOP");
            // It may have been stopped while it wrote: then it holds the write lock of the registry's file.
            let unchanged = scene.call(0, Method::PUT, "/v1/tenants/c", Some(&scene.tenant("c"))).await;
            if unchanged.status != 503 {
                break;
            }
            nodes[1].signal("CONT");
        }
        clock.step("+3d");
        let put = scene.call(0, Method::PUT, "/v1/tenants/d?migrate=1&wait=1", Some(&scene.tenant("d"))).await;
        nodes[1].signal("CONT");
        assert_eq!((put.status.as_u16(), put.body["waiting_for"].as_array().map(Vec::len)), (202, Some(1)), "{put:?}");
        let again = scene.call(0, Method::PUT, "/v1/tenants/d?wait=60", Some(&scene.tenant("d"))).await;
        assert_eq!(again.status, 200, "{again:?}");
    }
}
