//! Walks the way of a request step by step and reports where it stops, for an operator.
//!
//! Uses the same code as sending, one step at a time: DNS → address → TCP → TLS → answer. Its texts contain addresses,
//! so they are for operators only, never for callers.

use std::fmt;
use std::time::{Duration, Instant};

use super::answer::Answer;
use super::client::{Client, Message};
use super::error::{ConnectFault, DnsFault, Phase, ProtocolFault, SendError, TlsFault};
use super::target::Target;
use crate::deadline;

/// A step of a request, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeStep {
    /// The host's addresses are looked up.
    Dns,
    /// The guard allows one of them.
    Address,
    /// A connection is opened.
    Tcp,
    /// The certificate is verified.
    Tls,
    /// The receiver answers.
    Answer,
}

impl ProbeStep {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Address => "address",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Answer => "answer",
        }
    }
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The step.
    pub step: ProbeStep,
    /// What was found, or why requests stop here.
    pub finding: Result<String, ProbeFault>,
}

/// Why requests stop at a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeFault {
    /// What is wrong.
    pub what: String,
    /// What would help.
    pub remedy: &'static str,
}

impl Client {
    /// Walks to a receiver. The last step sends `message`, which is for the same target; without one, the walk ends
    /// after TLS. Ends at the first step that fails.
    pub async fn probe(&self, target: &Target, message: Option<&Message<'_>>) -> Vec<Probed> {
        let mut steps = Vec::new();
        // Each step may take as long as a whole request: a probe is for finding out what is slow.
        let walked = self.walk(target, message, &mut steps).await;
        if let Err((step, error)) = walked {
            steps.push(Probed { step, finding: Err(fault_of(error)) });
        }
        steps
    }

    async fn walk(
        &self,
        target: &Target,
        message: Option<&Message<'_>>,
        steps: &mut Vec<Probed>,
    ) -> Result<(), (ProbeStep, SendError)> {
        let mut passed = |step, text| steps.push(Probed { step, finding: Ok(text) });
        let dialer = &self.dialer;

        let (addresses, took) = self.timed(ProbeStep::Dns, dialer.resolve(target)).await?;
        passed(ProbeStep::Dns, format!("`{}` is {} ({took})", target.host(), listed(&addresses)));

        let allowed = dialer.allowed(target, &addresses).map_err(|error| (ProbeStep::Address, error))?;
        let text = match addresses.len() - allowed.len() {
            0 => "every address is allowed".to_owned(),
            refused => format!("{} is allowed; {refused} of {} are not", listed(&allowed), addresses.len()),
        };
        passed(ProbeStep::Address, text);

        let (stream, took) = self.timed(ProbeStep::Tcp, dialer.connect(target, &allowed)).await?;
        let peer = stream.peer_addr().map_or_else(|_| "the receiver".to_owned(), |peer| peer.to_string());
        passed(ProbeStep::Tcp, format!("{peer} accepts connections ({took})"));

        let (stream, took) = self.timed(ProbeStep::Tls, dialer.handshake(target, stream)).await?;
        let session = stream.get_ref().1;
        let http = if session.alpn_protocol() == Some(b"h2") { "HTTP/2" } else { "HTTP/1.1" };
        let version = session.protocol_version().and_then(|version| version.as_str()).unwrap_or("TLS");
        passed(ProbeStep::Tls, format!("the certificate is valid for `{}`; {version}, {http} ({took})", target.host()));

        if let Some(message) = message {
            let attempt = self.send(message).await;
            let answer = attempt.outcome.map_err(|error| (ProbeStep::Answer, error))?;
            steps.push(Probed { step: ProbeStep::Answer, finding: judged(&answer, Took(attempt.took)) });
        }
        Ok(())
    }

    async fn timed<T>(
        &self,
        step: ProbeStep,
        doing: impl Future<Output = Result<T, SendError>>,
    ) -> Result<(T, Took), (ProbeStep, SendError)> {
        let began = Instant::now();
        let done = deadline::within(self.timeout, deadline::ONCE_MORE, doing).await;
        let done = done.unwrap_or(Err(SendError::Timeout(Phase::Connection)));
        done.map(|done| (done, Took(began.elapsed()))).map_err(|error| (step, error))
    }
}

/// A duration in milliseconds.
#[derive(Clone, Copy)]
struct Took(Duration);

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0.as_millis())
    }
}

fn listed(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn judged(answer: &Answer, took: Took) -> Result<String, ProbeFault> {
    let what = format!("the receiver answered {} ({took})", answer.status.as_u16());
    let remedy = match answer.status.as_u16() {
        200..=299 => return Ok(what),
        300..=399 => "redirects are not followed: subscribe with the URL that they lead to",
        401 | 403 => "the receiver refuses: let it verify the signature instead of asking for credentials",
        404 | 405 => "the path of the URL is wrong, or the receiver does not accept POST there",
        410 => "the receiver is gone, which ends the subscription",
        429 => "the receiver limits requests: deliveries are slowed down by its Retry-After",
        400..=499 => "the receiver rejects this event: its log has the reason",
        _ => "the receiver fails: its log has the reason",
    };
    Err(ProbeFault { what, remedy })
}

fn fault_of(error: SendError) -> ProbeFault {
    ProbeFault { what: error.to_string(), remedy: remedy(error) }
}

fn remedy(error: SendError) -> &'static str {
    match error {
        SendError::Dns(DnsFault::UnknownName) => "correct the host in the URL, or create its DNS record",
        SendError::Dns(DnsFault::NoAddress) => "give the host an A or AAAA record",
        SendError::Dns(DnsFault::TimedOut | DnsFault::Failed) => {
            "check the DNS servers of this node: `dns_servers` in `[gateway.webhooks]`, or those of the system"
        }
        SendError::Blocked(_) => {
            "only public addresses are allowed; add the host or its network to `allow_targets` in `[gateway.webhooks]`"
        }
        SendError::Connect(ConnectFault::Refused) => "start the receiver, or correct the port in the URL",
        SendError::Connect(ConnectFault::Unreachable | ConnectFault::Failed) => {
            "check routes and firewalls between this node and the receiver"
        }
        SendError::Tls(TlsFault::Expired | TlsFault::NotYetValid) => "renew the receiver's certificate",
        SendError::Tls(TlsFault::InvalidCertificate) => {
            "give the receiver a certificate for servers (X.509 version 3), which is not that of an authority itself"
        }
        SendError::Tls(TlsFault::WrongHost | TlsFault::UnrecognizedHost) => {
            "correct the host in the URL, or give the receiver a certificate for it"
        }
        SendError::Tls(TlsFault::UnknownIssuer) => {
            "let the receiver send its intermediate certificates, or add its authority to `ca_file` in `[gateway.webhooks]`"
        }
        SendError::Tls(TlsFault::NotTls) => "correct the port in the URL: it serves something else than HTTPS",
        SendError::Tls(TlsFault::Incompatible) => "let the receiver speak TLS 1.2 or 1.3, and HTTP/1.1 or HTTP/2",
        SendError::Tls(TlsFault::Refused | TlsFault::Closed | TlsFault::Malformed) => {
            "check the TLS configuration of the receiver, and of proxies in front of it"
        }
        SendError::Timeout(Phase::Connection) => "check firewalls that drop packets, and the load of the receiver",
        SendError::Timeout(Phase::Head | Phase::Body(_)) => {
            "let the receiver answer first and work later, or raise `timeout_seconds` in `[gateway.webhooks]`"
        }
        SendError::Protocol(
            ProtocolFault::Closed
            | ProtocolFault::CutOff(_)
            | ProtocolFault::HeadTooLarge
            | ProtocolFault::TooMuch
            | ProtocolFault::Malformed,
        ) => "check the receiver, and proxies in front of it: the answer must be a complete HTTP answer",
    }
}
