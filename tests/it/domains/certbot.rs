//! certbot, another client of the same authority, agrees on which hosts can have a certificate.

use std::process::Command;

use formgate::store::registry::DomainState;

use super::scene::{HOST, LIMIT, Scene};
use crate::support::certificate;
use crate::support::child::Child;
use crate::support::fixture::Engine;
use crate::support::process::python;

/// Whether certbot gets a certificate for a host, with a server of its own at the port of HTTP-01.
fn is_issued(scene: &Scene, host: &str) -> bool {
    let folder = scene.folder().join("certbot");
    let mut command = Command::new(python().with_file_name("certbot"));
    command.args(["certonly", "--standalone", "--non-interactive", "--agree-tos", "--register-unsafely-without-email"]);
    command.args(["--server", &scene.proxy.directory(), "--http-01-address", "127.0.0.1", "-d", host]);
    command.args(["--http-01-port", &scene.http_port().to_string()]);
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
    let hosts = [HOST, "alias.acme.org", "blocked.acme.org", "away.acme.org", "none.acme.org"];
    let block = |options: &mut crate::support::pebble::Options| {
        options.blocked_domains = vec!["blocked.acme.org".to_owned()];
    };
    let scene = Scene::with(Engine::Sqlite, block).await.domains(&hosts[1..]);
    let records = "forms A 127.0.0.1\nalias CNAME forms.acme.org\nblocked A 127.0.0.1\naway A 127.0.0.99";
    scene.zones.serve("acme.org", &[2], records);
    let by_certbot: Vec<bool> =
        hosts.iter().map(|host| tokio::task::block_in_place(|| is_issued(&scene, host))).collect();
    assert_eq!(by_certbot, [true, true, false, false, false]);

    let _node = scene.start(0);
    for (host, is_issued) in hosts.iter().zip(by_certbot) {
        let (state, reason) = match *host {
            _ if is_issued => (DomainState::Live, ""),
            "blocked.acme.org" => (DomainState::Queued, "ca_refused"),
            "away.acme.org" => (DomainState::Dns, "elsewhere"),
            _ => (DomainState::Dns, "no_records"),
        };
        scene.becomes(host, state, reason).await;
    }
}
