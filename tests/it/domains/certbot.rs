//! certbot, another client of the same authority, agrees on which hosts can have a certificate.

use std::process::Command;

use formgate::store::registry::DomainState;

use super::scene::{LIMIT, Scene};
use crate::support::certificate;
use crate::support::child::Child;
use crate::support::fixture::Engine;
use crate::support::pebble::ports;
use crate::support::process::python;

/// Whether certbot gets a certificate for a host, with a server of its own at the port of HTTP-01.
fn is_issued(scene: &Scene, host: &str) -> bool {
    let folder = scene.folder().join("certbot");
    let (address, [port, _]) = (scene.zones.address().to_string(), ports());
    let mut command = Command::new(python().with_file_name("certbot"));
    command.args(["certonly", "--standalone", "--non-interactive", "--agree-tos", "--register-unsafely-without-email"]);
    command.args(["--server", &scene.proxy.directory(), "--http-01-address", &address, "-d", host]);
    command.args(["--http-01-port", &port.to_string()]);
    for part in ["config", "work", "logs"] {
        command.arg(format!("--{part}-dir")).arg(folder.join(part));
    }
    command.env("REQUESTS_CA_BUNDLE", certificate::authority(scene.folder()));
    let mut certbot = Child::spawn(command);
    let status = certbot.wait_at_most(LIMIT).expect("certbot ends");
    status.success()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certbot_agrees_on_who_can_be_issued() {
    let scene = Scene::new(Engine::Sqlite).await;
    scene.serve("acme", &format!("forms A HERE\nalias CNAME {}\naway A 127.0.0.99", scene.host()));
    let [alias, away, none] = ["alias.acme", "away.acme", "none.acme"].map(|name| scene.zones.name(name));
    let hosts = [scene.host().to_owned(), alias, scene.serve_blocked(), away, none];
    let scene = scene.domains(&hosts[1..]);
    let by_certbot: Vec<bool> =
        hosts.iter().map(|host| tokio::task::block_in_place(|| is_issued(&scene, host))).collect();
    assert_eq!(by_certbot, [true, true, false, false, false]);

    let _node = scene.start(0);
    let others =
        [(DomainState::Queued, "ca_refused"), (DomainState::Dns, "elsewhere"), (DomainState::Dns, "no_records")];
    for (host, (state, reason)) in hosts.iter().zip([(DomainState::Live, ""); 2].into_iter().chain(others)) {
        scene.becomes(host, state, reason).await;
    }
}
