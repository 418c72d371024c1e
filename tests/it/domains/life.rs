//! A domain from its claim to a certificate, and every way in which it stops on the way.

use formgate::store::registry::DomainState;

use super::scene::{HOST, Scene, reason_of};
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn a_host_of_a_file_goes_live_without_a_hand_by_http(engine: Engine) {
        let scene = Scene::new(engine).await;
        let node = scene.start(0);
        let row = scene.goes_live(HOST).await;
        assert!(row.not_after.is_some() && row.renew_at < row.not_after, "{row:?}");
        scene.is_served(&node, HOST).await;
        assert_eq!(scene.proxy.orders(), 1);
        assert_eq!(scene.proxy.accounts(), 1);
    }

    async fn a_host_goes_live_by_a_handshake_where_port_80_is_not_ours(engine: Engine) {
        let scene = Scene::new(engine).await.challenges(&["tls-alpn-01"]);
        let node = scene.start(0);
        scene.goes_live(HOST).await;
        scene.is_served(&node, HOST).await;
    }

    async fn records_are_named_until_they_are_right(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.zones.serve("acme.org", &[2], "www A 192.0.2.1");
        let node = scene.start(0);
        let row = scene.becomes(HOST, DomainState::Dns, "no_records").await;
        let reason = reason_of(&row);
        assert!(reason.to_string().contains("acme.edge.example.net"), "{reason}");
        scene.zones.serve("acme.org", &[2], "forms A 192.0.2.1");
        scene.becomes(HOST, DomainState::Dns, "elsewhere").await;
        scene.zones.serve("acme.org", &[2], "forms A 127.0.0.1");
        scene.goes_live(HOST).await;
        scene.is_served(&node, HOST).await;
    }
}
