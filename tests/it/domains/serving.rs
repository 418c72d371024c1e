//! What is served: through renewals, without the registry, and never for strangers.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::scene::{LIMIT, NEW_SEAL_KEY, SEAL_KEY, Scene, shake};
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::pebble::Pebble;

/// How many hosts renew, and how often each of them.
const HOSTS: usize = 100;
const ROUNDS: usize = 1;

on_both_databases! {
    async fn keys_are_sealed_wherever_they_are_stored(engine: Engine) {
        let scene = Scene::new(engine).await;
        let node = scene.start(0);
        scene.goes_live(scene.host()).await;
        scene.is_served(&node, scene.host()).await;
        let registry = scene.registry().await;
        let stored = registry.find_certificate(scene.host()).await.unwrap().unwrap().pair.unwrap();
        let account = registry.account_key().await.unwrap().unwrap();
        registry.close().await;
        for text in [&stored.key, &account] {
            assert!(text.starts_with("sealed1."), "{text}");
        }
        for file in fs::read_dir(scene.folder()).unwrap().flatten() {
            let bytes = fs::read(file.path()).unwrap_or_default();
            let is_clear = bytes.windows(11).any(|window| window == b"PRIVATE KEY");
            assert!(!is_clear, "{}", file.path().display());
        }
    }

    async fn a_stranger_causes_no_order(engine: Engine) {
        let scene = Scene::new(engine).await;
        let node = scene.start(0);
        scene.goes_live(scene.host()).await;
        for host in ["stranger.example.org", &scene.zones.name("other.acme"), "edge.example.net"] {
            let error = scene.shake(&node, host).await.unwrap_err().to_string();
            assert!(error.contains("UnrecognisedName"), "{host}: {error}");
        }
        assert_eq!(scene.proxy.orders(), 1);
    }

    async fn the_key_that_seals_is_replaced_without_another_certificate(engine: Engine) {
        let mut scene = Scene::new(engine).await;
        let mut node = scene.start(0);
        scene.goes_live(scene.host()).await;
        let leaf = scene.is_served(&node, scene.host()).await;
        // One that is killed counts as running for a while.
        node.terminate();
        assert_eq!(node.wait(LIMIT), 0);
        scene.seal_keys(&[NEW_SEAL_KEY, SEAL_KEY]);
        let mut node = scene.start(0);
        let output = scene.run(&["seal", "rotate"]);
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
        assert_eq!(scene.is_served(&node, scene.host()).await, leaf);
        node.kill();
        scene.seal_keys(&[NEW_SEAL_KEY]);
        let node = scene.start(0);
        assert_eq!(scene.is_served(&node, scene.host()).await, leaf);
        assert_eq!(scene.proxy.orders(), 1);
    }

    async fn what_was_served_is_served_without_the_registry_after_a_restart(engine: Engine) {
        let scene = Scene::new(engine).await;
        let mut node = scene.start(0);
        scene.goes_live(scene.host()).await;
        let leaf = scene.is_served(&node, scene.host()).await;
        node.kill();
        // The same configuration with a registry that can't be reached.
        let mut away = scene;
        away.registry_url = match engine {
            Engine::Sqlite => "sqlite:/proc/no/registry.db".to_owned(),
            _ => "postgres://formgate@127.0.0.1:1/registry".to_owned(),
        };
        let node = away.start(0);
        assert_eq!(away.is_served(&node, away.host()).await, leaf);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_renewals_break_no_handshake() {
    let pebble = Pebble::with(|options| options.validity = Some(Duration::from_mins(2))).await;
    let scene = Scene::of(Engine::Sqlite, pebble).await.with_hosts(HOSTS);
    let node = scene.start(0);
    for host in &scene.hosts {
        scene.is_served(&node, host).await;
    }
    let first = scene.proxy.finalized();
    let (address, root) = (node.address, scene.pebble.root.clone());
    let done = Arc::new(AtomicUsize::new(0));
    let shaking = (0..4).map(|task| {
        let (hosts, root, done) = (scene.hosts.clone(), root.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            let mut at = task;
            while done.load(Ordering::Relaxed) == 0 {
                let host = &hosts[at % HOSTS];
                if let Err(error) = shake(address, host, root.clone()).await {
                    panic!("{host}: {error}");
                }
                at += 1;
            }
            at
        })
    });
    let shaking: Vec<_> = shaking.collect();
    let began = Instant::now();
    while scene.proxy.finalized() < first + HOSTS * ROUNDS {
        assert!(began.elapsed() < 3 * LIMIT, "{} renewals", scene.proxy.finalized() - first);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    done.store(1, Ordering::Relaxed);
    let mut handshakes = 0;
    for task in shaking {
        handshakes += task.await.expect("no handshake failed");
    }
    assert!(handshakes > HOSTS * ROUNDS, "{handshakes}");
}
