//! The ACME account: one that a CA has deactivated, and the command that creates another one.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use formgate::acme::AccountKey;
use formgate::domains::Reason;
use formgate::seal::{SealKey, Seals};
use formgate::store::registry::DomainState;

use super::keys::readiness_becomes;
use super::scene::{LIMIT, SEAL_KEY, Scene};
use crate::support::acme_proxy::{Fault, Kind};
use crate::support::fixture::{Engine, on_both_databases};

/// The account key of the registry.
async fn account_key(scene: &Scene) -> AccountKey {
    let registry = scene.registry().await;
    let stored = registry.account_key().await.unwrap().expect("a node has made one");
    registry.close().await;
    let seals = Seals::new(Some(SealKey::parse(SEAL_KEY).expect("it is a key")), []);
    let opened = seals.open(&stored, "acme account").expect("it is sealed with that key");
    AccountKey::from_pkcs8(&STANDARD.decode(opened).expect("Base64")).expect("an account key")
}

on_both_databases! {
    async fn a_deactivated_account_is_named_and_a_command_creates_another_one(engine: Engine) {
        let scene = Scene::new(engine).await;
        let mut nodes = [scene.start(0), scene.start(1)];
        let host = scene.host().to_owned();
        scene.goes_live(&host).await;
        let before = scene.is_served(&nodes[0], &host).await;
        let key = account_key(&scene).await;
        scene.pebble.deactivate(&key).await;
        scene.renew_now(&host).await;

        scene.becomes(&host, DomainState::Live, "ca_account").await;
        let shown = scene.run(&["domain", "show", &host]);
        assert!(shown.stdout.contains("Run `formgate acme account new`: the CA pebble no longer accepts"), "{shown:?}");
        assert!(shown.stdout.contains("deactivated"), "with the words of the CA: {shown:?}");
        let listed = scene.run(&["domain", "list"]);
        assert!(listed.stdout.contains("ca_account"), "{listed:?}");
        let status = scene.run(&["acme", "status"]);
        assert!(status.stderr.contains("run `formgate acme account new`"), "{status:?}");
        for node in &mut nodes {
            readiness_becomes(node, |ready| {
                ready["parts"]["domains"].as_str().is_some_and(|text| text.contains("`formgate acme account new`"))
            })
            .await;
        }
        // Whichever node has ordered.
        let began = Instant::now();
        let count = |log: String| log.matches("the CA has deactivated the ACME account").count();
        while nodes.iter_mut().map(|node| count(node.log())).sum::<usize>() == 0 {
            assert!(began.elapsed() < LIMIT, "it is logged");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }

        let output = scene.run_in_thread(&["acme", "account", "new"]).await;
        assert_eq!(output.code, 0, "{output:?}");
        assert!(output.stdout.starts_with("pebble: https://") && output.stdout.contains("/my-account/"), "{output:?}");
        assert_ne!(account_key(&scene).await.thumbprint(), key.thumbprint());
        scene.goes_live(&host).await;
        let began = Instant::now();
        while scene.is_served(&nodes[0], &host).await == before {
            assert!(began.elapsed() < LIMIT, "the running nodes renew with the new account");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(scene.proxy.accounts(), 2);
        for node in &mut nodes {
            readiness_becomes(node, |ready| ready["parts"]["domains"] == "ok").await;
            assert!(count(node.log()) <= 1, "once: {}", node.log());
        }
    }

    async fn an_account_that_a_ca_refuses_replaces_none(engine: Engine) {
        let scene = Scene::new(engine).await;
        let _node = scene.start(0);
        scene.goes_live(scene.host()).await;
        let key = account_key(&scene).await;
        let refusal = Fault::refusal(400, "externalAccountRequired", "the key was used before");
        scene.proxy.break_all(Kind::Account, refusal);
        let output = scene.run_in_thread(&["acme", "account", "new"]).await;
        assert_eq!(output.code, 1, "{output:?}");
        assert!(output.stderr.contains("nothing was changed") && output.stderr.contains("the key was used before"), "{output:?}");
        assert_eq!(account_key(&scene).await.thumbprint(), key.thumbprint());
        // One that only does not answer registers it later.
        scene.proxy.break_all(Kind::Account, Fault::refusal(503, "serverInternal", "busy"));
        let output = scene.run_in_thread(&["acme", "account", "new"]).await;
        assert!(output.code == 0 && output.stderr.contains("registered with the next order"), "{output:?}");
        assert_ne!(account_key(&scene).await.thumbprint(), key.thumbprint());
        scene.proxy.heal();
        scene.renew_now(scene.host()).await;
        let began = Instant::now();
        while scene.proxy.accounts() < 2 {
            assert!(began.elapsed() < LIMIT, "the next order registers it");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What the owner of a domain reads about it is nothing that only the operator can do.
#[tokio::test]
async fn the_owner_of_a_domain_is_told_that_the_operator_has_to_act() {
    let scene = Scene::new(Engine::Sqlite).await;
    let _node = scene.start(0);
    scene.goes_live(scene.host()).await;
    scene.pebble.deactivate(&account_key(&scene).await).await;
    scene.renew_now(scene.host()).await;
    let row = scene.becomes(scene.host(), DomainState::Live, "ca_account").await;
    let reason = Reason::read(&row.reason);
    assert!(reason.next_step().contains("formgate acme account new"));
    let told = reason.told();
    assert_eq!(told.name(), "ca_account");
    let step = told.next_step();
    assert!(step.contains("The operator of this gateway") && !step.contains("acme account"), "{step}");
}
