//! Secrets of subscriptions that are encrypted in the database.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::scene::{Scene, received};
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Received, Receiver};

const CREATED: &str = "submission.created";

fn key(byte: u8) -> String {
    STANDARD.encode([byte; 32])
}

/// Restarts the node with other keys.
fn restart(scene: &mut Scene, from: &str, to: &str) {
    let path = scene.site.folder().join("tenants.toml");
    let config = fs::read_to_string(&path).expect("the site has a configuration");
    assert!(config.contains(from), "{config}");
    scene.nodes.clear();
    fs::write(&path, config.replace(from, to)).expect("it can be written");
    scene.nodes.push(scene.site.start());
}

fn assert_signed(request: &Received, secret: &str) {
    let text = |name: &str| request.headers[name].to_str().expect("ASCII").to_owned();
    let bytes = STANDARD.decode(secret.trim_start_matches("whsec_")).expect("Base64");
    let mut mac = Hmac::<Sha256>::new_from_slice(&bytes).expect("a key of any length");
    mac.update(format!("{}.{}.", text("webhook-id"), text("webhook-timestamp")).as_bytes());
    mac.update(&request.body);
    assert_eq!(text("webhook-signature"), format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())));
}

on_both_databases! {
    async fn a_sealed_secret_signs_while_a_node_has_its_key(engine: Engine) {
        let (first, second) = (key(1), key(2));
        let mut scene = Scene::with(engine, |webhooks| {
            webhooks.insert("secret_key".into(), first.clone().into());
        }).await;
        let receiver = Receiver::always(Act::status(204)).await;
        let made = scene.subscribe(&receiver, CREATED, None).await;
        let secret = made["secret"].as_str().unwrap();
        let stored = scene.database.text("SELECT secret FROM subscriptions").await;
        assert!(stored.starts_with("sealed1.") && !stored.contains(secret), "{stored}");
        scene.insert(1, 1, "x").await;
        assert_signed(&received(&receiver, 1).await[0], secret);
        assert!(!scene.site.run(&["check"], b"").stdout.contains("sealed"));

        // Without the key nothing is sent, and nothing is lost.
        let with_first = format!("secret_key = \"{first}\"\n");
        restart(&mut scene, &with_first, &format!("secret_key = \"{second}\"\n"));
        scene.insert(2, 1, "x").await;
        let failing = "SELECT count(*) FROM subscriptions WHERE state = 'failing' \
            AND reason LIKE '%\"unknown_key\"%'";
        scene.wait_for(failing, 1).await;
        let checked = scene.site.run(&["check"], b"").stdout;
        assert!(checked.contains("warning: tenant `acme`: 1 subscriptions have a secret that is sealed"), "{checked}");
        let id = made["id"].as_str().unwrap();
        let explained = scene.site.run(&["explain", &scene.site.host("acme"), "--webhook", id], b"");
        assert_eq!(explained.code, 1);
        assert!(explained.stdout.contains("previous_secret_key") && explained.stderr.contains("`secret`"), "{explained:?}");
        assert_eq!(receiver.requests().len(), 1);

        // The previous key still opens; new secrets are sealed with the current one.
        restart(&mut scene, &format!("secret_key = \"{second}\"\n"),
            &format!("secret_key = \"{second}\"\nprevious_secret_key = \"{first}\"\n"));
        assert_signed(&received(&receiver, 2).await[1], secret);
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE state = 'active'", 1).await;
    }

    async fn a_secret_from_before_there_was_a_key_still_signs(engine: Engine) {
        let mut scene = Scene::with(engine, |webhooks| {
            webhooks.insert("per_subscription".into(), 3.into());
        }).await;
        let receiver = Receiver::always(Act::status(204)).await;
        let made = scene.subscribe(&receiver, CREATED, None).await;
        let plain = "per_subscription = 3\n";
        restart(&mut scene, plain, &format!("{plain}secret_key = \"{}\"\n", key(1)));
        scene.insert(1, 1, "x").await;
        assert_signed(&received(&receiver, 1).await[0], made["secret"].as_str().unwrap());
    }

    async fn a_damaged_secret_disables_the_subscription_with_a_reason(engine: Engine) {
        let scene = Scene::with(engine, |webhooks| {
            webhooks.insert("secret_key".into(), key(1).into());
        }).await;
        let receiver = Receiver::always(Act::status(204)).await;
        scene.subscribe(&receiver, CREATED, None).await;
        // Sealed for another URL.
        scene.execute("UPDATE subscriptions SET target_url = target_url || '?moved'").await;
        scene.insert(1, 1, "x").await;
        let disabled = "SELECT count(*) FROM subscriptions WHERE state = 'disabled' AND reason LIKE '%\"damaged_secret\"%'";
        scene.wait_for(disabled, 1).await;
        assert_eq!(receiver.requests().len(), 0);
    }
}
