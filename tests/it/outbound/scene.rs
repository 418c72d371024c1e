//! A client with a DNS server of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use formgate::outbound::{AllowedTarget, Attempt, Client, EventId, Guard, Message, Settings, SigningSecret, Target};
use jiff::Timestamp;

use crate::support::certificate;
use crate::support::dns::{DnsServer, Lookup};
use crate::support::receiver::HOST;

/// The secret of every message.
pub(super) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The id of every message.
pub(super) const ID: &str = "evt_0197a9";

/// The body of every message.
pub(super) const BODY: &str = r#"{"type":"submission.created","data":{"id":"sub_1","name":"Zoë"}}"#;

/// Longer than anything takes that works, also on a loaded machine.
pub(super) const PATIENT: Duration = Duration::from_secs(60);

/// A client, its DNS server and its guard.
pub(super) struct Scene {
    pub(super) dns: DnsServer,
    pub(super) guard: Arc<Guard>,
    pub(super) client: Client,
}

impl Scene {
    /// A client to which loopback is open, and [`HOST`] is on loopback.
    pub(super) async fn new() -> Self {
        Self::with(&["127.0.0.0/8"], |_| ()).await
    }

    /// The same with a short time limit, for receivers that never answer.
    pub(super) async fn impatient(limit: Duration) -> Self {
        Self::with(&["127.0.0.0/8"], |settings| settings.timeout = limit).await
    }

    /// A client with these exceptions, and other settings.
    pub(super) async fn with(allowed: &[&str], differ: impl FnOnce(&mut Settings)) -> Self {
        let dns = DnsServer::start().await;
        dns.answer(HOST, &[Lookup::of(&["127.0.0.1"])]);
        let allowed = allowed.iter().map(|text| AllowedTarget::parse(text).expect("a valid exception")).collect();
        let mut settings = Settings {
            timeout: PATIENT,
            authorities: vec![certificate::authority_der()],
            dns_servers: vec![dns.address],
            allowed,
            ..Settings::default()
        };
        differ(&mut settings);
        let guard = Arc::new(Guard::new(settings.allowed.clone()));
        Self { dns, client: Client::new(&settings, Arc::clone(&guard)), guard }
    }

    /// Sends the message to a URL.
    pub(super) async fn send(&self, url: &str) -> Attempt {
        self.send_signed(url, &[SECRET]).await
    }

    /// Sends the message with signatures by these secrets.
    pub(super) async fn send_signed(&self, url: &str, secrets: &[&str]) -> Attempt {
        let target = Target::parse(url).expect("a valid URL");
        let secrets: Vec<_> = secrets.iter().map(|secret| SigningSecret::parse(secret).unwrap()).collect();
        self.client.send(&message(&target, &secrets, &EventId::parse(ID).unwrap())).await
    }

    /// The kind of failure, and its text.
    pub(super) async fn failure(&self, url: &str) -> (&'static str, String) {
        let attempt = self.send(url).await;
        let error = attempt.outcome.expect_err("the request fails");
        (error.kind(), error.to_string())
    }

    /// The status of the answer.
    pub(super) async fn status(&self, url: &str) -> u16 {
        let attempt = self.send(url).await;
        attempt.outcome.unwrap_or_else(|error| panic!("{url}: {error}")).status.as_u16()
    }
}

/// The message.
pub(super) fn message<'m>(target: &'m Target, secrets: &'m [SigningSecret], id: &'m EventId) -> Message<'m> {
    Message { target, id, at: Timestamp::now(), attempt: 3, body: BODY.into(), secrets }
}

/// A listener that must see no connection.
pub(super) struct Untouched(std::net::TcpListener);

impl Untouched {
    /// Listens on a free port of an address, or on the given one.
    pub(super) fn listen(address: &str) -> Self {
        let listener = std::net::TcpListener::bind(address).expect("the address is free");
        listener.set_nonblocking(true).expect("a socket can be non-blocking");
        Self(listener)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("a bound socket has an address")
    }

    /// A connection is queued in the kernel before its client sees it open, so one that was attempted is seen here.
    pub(super) fn assert_untouched(&self) {
        let accepted = self.0.accept();
        let error = accepted.expect_err("a connection was opened");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
    }
}
