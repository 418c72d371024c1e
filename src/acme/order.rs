//! One order, from its opening to the chain.
//!
//! Owns the loop: it reads the state of the order, does the next step, and reads again, so it can begin in any state. Steps
//! are idempotent: a validation begins only if it is pending, and an order is finalized only if it is ready, always with the
//! same request. The next reading shows what another process did to the order.

use std::time::{Duration, Instant};

use instant_acme::{
    AuthorizationStatus, CertificateIdentifier, ChallengeStatus, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::certificate_request::{address_of, without_brackets};
use super::challenge::Challenge;
use super::error::{AcmeError, Problem, Step};
use super::session::Sessions;
use super::transport::TransportError;
use super::{Acme, Fault};
use crate::deadline;
use crate::host::HostName;
use crate::outbound::Target;

/// How long one call advances an order before it returns [`AcmeError::Pending`].
///
/// Larger: a worker waits for longer at a slow CA. Smaller: orders of slow CAs take more calls.
const LIMIT: Duration = Duration::from_secs(90);

/// How much longer the last requests of a call may take.
///
/// Larger: as for [`LIMIT`]. Smaller: a slow CA counts as one that hangs.
const LAST_REQUESTS: Duration = Duration::from_secs(30);

/// How often a step is repeated because its nonce was refused. The library repeats each request too, twice.
///
/// Larger: more requests to a CA that refuses every nonce. Smaller: orders fail after a few refusals.
pub(super) const NONCE_ATTEMPTS: u32 = 20;

/// How many times an order that stays ready is finalized.
///
/// Larger: more requests to a faulty CA. Smaller: orders at a CA that shows changes late fail.
const FINALIZE_ATTEMPTS: u32 = 3;

/// How the state of an order is polled before it is read again: another process may have moved it to a state that the library
/// does not wait for.
const POLL: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(250)).backoff(1.5).timeout(Duration::from_secs(4));

/// An order that the CA knows. Nothing is issued yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedOrder {
    /// Its URL, for [`Acme::advance`].
    pub url: String,
}

/// The certificate, as the CA issued it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedChain {
    /// The chain in PEM, leaf first. The leaf is for the key of the request.
    pub pem: String,
}

/// Another node has the lease of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLost;

/// What the owner of an order does while it advances. Both may be called more than once.
pub trait Checkpoint: Send {
    /// Called before the CA is asked to verify: once it returns, the challenge must get its response.
    fn publish(&mut self, challenge: &Challenge) -> impl Future<Output = Result<(), LeaseLost>> + Send;

    /// Called before the order is finalized: then the CA issues.
    fn before_finalize(&mut self) -> impl Future<Output = Result<(), LeaseLost>> + Send {
        std::future::ready(Ok(()))
    }
}

impl Acme {
    /// Opens an order for a host, and registers the account if necessary. `replaces` is the [`super::certificate_id`] of
    /// the certificate to renew; it is left out if the CA has no ARI.
    ///
    /// # Errors
    /// [`AcmeError`], which is never `OrderGone`, `Pending` or `Stopped`.
    ///
    /// # Panics
    /// If there is no such CA.
    pub async fn open(
        &self,
        authority: usize,
        host: &HostName,
        replaces: Option<&str>,
    ) -> Result<OpenedOrder, AcmeError> {
        let sessions = &self.sessions[authority];
        let profile = self.settings.authorities[authority].profile.as_deref();
        for is_last in [false, true] {
            match open(sessions, host, replaces, profile).await {
                // The CA lost its state, and the account is registered again, once; or it has deactivated the account, which a
                // look-up shows.
                Err(AcmeError::Misconfigured { problem, .. })
                    if matches!(&*problem, "accountDoesNotExist" | "unauthorized") && !is_last =>
                {
                    sessions.forget().await;
                }
                opened => return after(sessions, opened).await,
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Advances an order until the certificate is issued. `csr` is that of [`super::CertificateRequest`], the same in
    /// each call.
    ///
    /// # Errors
    /// [`AcmeError`]. After [`AcmeError::OrderGone`], [`AcmeError::Refused`] and [`AcmeError::Unreachable`] the order
    /// can't be completed; after every other error, advance it again.
    ///
    /// # Panics
    /// If there is no such CA.
    pub async fn advance(
        &self,
        authority: usize,
        order: &str,
        csr: &[u8],
        checkpoint: &mut impl Checkpoint,
    ) -> Result<IssuedChain, AcmeError> {
        let sessions = &self.sessions[authority];
        let walk = Walk { acme: self, sessions, order, csr, ends: Instant::now() + LIMIT };
        let advanced = deadline::within(LIMIT + LAST_REQUESTS, deadline::ONCE_MORE, walk.run(checkpoint)).await;
        let issued = advanced.unwrap_or_else(|| Err(AcmeError::down("took too long to answer")));
        after(sessions, issued).await
    }
}

/// Renews the session after a response that may be due to outdated URLs or an outdated account.
async fn after<T>(sessions: &Sessions, outcome: Result<T, AcmeError>) -> Result<T, AcmeError> {
    if let Err(error) = &outcome
        && (matches!(error.fault(), Fault::Authority | Fault::Operator) || *error == AcmeError::OrderGone)
        && !matches!(error, AcmeError::Pending { .. })
    {
        sessions.forget().await;
    }
    outcome
}

async fn open(
    sessions: &Sessions,
    host: &HostName,
    replaces: Option<&str>,
    profile: Option<&str>,
) -> Result<OpenedOrder, AcmeError> {
    let session = sessions.current().await?;
    let name = without_brackets(host);
    let identifiers = [address_of(host).map_or_else(|| Identifier::Dns(name.to_owned()), Identifier::Ip)];
    let replaces = replaces.filter(|_| session.directory.renewal_info.is_some()).and_then(|id| id.split_once('.'));
    let step = Step::Open { replaces: replaces.is_some() };
    for _ in 0..NONCE_ATTEMPTS {
        let mut order = NewOrder::new(&identifiers);
        if let Some((issuer, serial)) = replaces {
            order = order
                .replaces(CertificateIdentifier { authority_key_identifier: issuer.into(), serial: serial.into() });
        }
        if let Some(profile) = profile {
            order = order.profile(profile);
        }
        match session.account.new_order(&order).await {
            Ok(order) => {
                let url = order.url().to_owned();
                return match Target::parse(&url) {
                    Ok(_) => Ok(OpenedOrder { url }),
                    Err(_) => Err(AcmeError::down(&TransportError::Url)),
                };
            }
            // The library refuses a response that does not repeat `replaces`.
            Err(instant_acme::Error::Other(error)) if replaces.is_some() && !error.is::<TransportError>() => {
                return Err(AcmeError::ReplacesRefused { detail: "the response does not name it".to_owned() });
            }
            Err(error) => match Failure::of(error, step) {
                Failure::Nonce => {}
                failure => return Err(failure.into_error()),
            },
        }
    }
    Err(Failure::Nonce.into_error())
}

struct Walk<'w> {
    acme: &'w Acme,
    sessions: &'w Sessions,
    order: &'w str,
    csr: &'w [u8],
    /// When the call ends with [`AcmeError::Pending`].
    ends: Instant,
}

/// The attempts of one call.
#[derive(Debug, Default)]
struct Tried {
    /// How many times the order was finalized.
    finalized: u32,
    /// Whether the CA has refused to begin a validation.
    was_refused: bool,
}

impl Walk<'_> {
    async fn run(&self, checkpoint: &mut impl Checkpoint) -> Result<IssuedChain, AcmeError> {
        let (mut nonces, mut tried) = (0, Tried::default());
        while Instant::now() < self.ends {
            match self.go_on(checkpoint, &mut tried).await {
                Ok(Some(issued)) => return Ok(issued),
                Ok(None) | Err(Failure::NotYet(None)) => {}
                Err(Failure::NotYet(Some(at))) if at < self.ends => tokio::time::sleep_until(at.into()).await,
                // A proxy in front of a CA that is down may respond like this too, and the order may be complete.
                Err(Failure::Acme(AcmeError::OrderGone)) => {
                    self.sessions.directory().await?;
                    return Err(AcmeError::OrderGone);
                }
                Err(Failure::Nonce) if nonces < NONCE_ATTEMPTS => nonces += 1,
                Err(failure) => return Err(failure.into_error()),
            }
        }
        Err(AcmeError::Pending { until: None })
    }

    /// Reads the state of the order, and does the next step.
    async fn go_on(&self, checkpoint: &mut impl Checkpoint, tried: &mut Tried) -> Result<Option<IssuedChain>, Failure> {
        let session = self.sessions.current().await?;
        let read = session.account.order(self.order.to_owned()).await;
        let mut order = read.map_err(|error| Failure::of(error, Step::Read))?;
        match order.state().status {
            OrderStatus::Pending => {
                self.validate(&mut order, checkpoint, tried).await?;
                wait(order.poll_ready(&POLL).await)?;
            }
            OrderStatus::Ready => {
                if tried.finalized == FINALIZE_ATTEMPTS {
                    return Err(AcmeError::down("does not finalize the order").into());
                }
                checkpoint.before_finalize().await?;
                let outcome = order.finalize_csr(self.csr).await.map_err(|error| Failure::of(error, Step::Advance));
                if !matches!(outcome, Err(Failure::Nonce)) {
                    tried.finalized += 1;
                }
                match outcome {
                    // Another process was faster, which the next reading shows.
                    Err(Failure::Acme(AcmeError::Refused { problem, .. })) if problem == "orderNotReady" => {}
                    outcome => outcome?,
                }
            }
            OrderStatus::Processing => {
                wait(order.poll_certificate(&POLL).await)?;
            }
            OrderStatus::Valid => {
                let downloaded = order.certificate().await.map_err(|error| Failure::of(error, Step::Read))?;
                let pem = downloaded.ok_or_else(|| AcmeError::down("sent no certificate"))?;
                return Ok(Some(self.verify(pem)?));
            }
            OrderStatus::Invalid => return Err(self.why_invalid(&mut order).await?.into()),
        }
        Ok(None)
    }

    /// Begins the pending validations.
    async fn validate(
        &self,
        order: &mut Order,
        checkpoint: &mut impl Checkpoint,
        tried: &mut Tried,
    ) -> Result<(), Failure> {
        let mut authorizations = order.authorizations();
        while let Some(found) = authorizations.next().await {
            let mut authorization = found.map_err(|error| Failure::of(error, Step::Read))?;
            let has_begun = |status| matches!(status, ChallengeStatus::Processing | ChallengeStatus::Valid);
            if authorization.status != AuthorizationStatus::Pending
                || authorization.challenges.iter().any(|challenge| has_begun(challenge.status))
            {
                continue;
            }
            let offered = |kind: super::ChallengeKind| {
                authorization.challenges.iter().any(|challenge| challenge.r#type == kind.of_library())
            };
            let chosen = self.acme.settings.challenges.iter().copied().find(|kind| offered(*kind));
            let Some((kind, mut challenge)) =
                chosen.and_then(|kind| Some((kind, authorization.challenge(kind.of_library())?)))
            else {
                let detail = "offers none of the configured challenges".to_owned();
                return Err(AcmeError::Misconfigured { problem: "noChallenge".to_owned(), detail }.into());
            };
            let token = challenge.token.clone();
            let key_authorization = self.acme.key.key_authorization(&token);
            let key_authorization = key_authorization.ok_or_else(|| AcmeError::down("sent an invalid token"))?;
            checkpoint.publish(&Challenge { kind, token, key_authorization }).await?;
            match challenge.set_ready().await.map_err(|error| Failure::of(error, Step::Advance)) {
                // A validation that a dead process began may have ended since the reading, which the next one shows.
                Err(Failure::Acme(AcmeError::Refused { .. })) if !tried.was_refused => tried.was_refused = true,
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Why an order can't be completed: the failed validation, or else the order's own error. Without either it has expired.
    async fn why_invalid(&self, order: &mut Order) -> Result<AcmeError, Failure> {
        let own = order.state().error.as_ref().map(Problem::from);
        let mut authorizations = order.authorizations();
        while let Some(found) = authorizations.next().await {
            let authorization = found.map_err(|error| Failure::of(error, Step::Read))?;
            for challenge in &authorization.challenges {
                let kind = self.acme.settings.challenges.iter().find(|kind| kind.of_library() == challenge.r#type);
                if let (Some(problem), Some(kind)) = (&challenge.error, kind) {
                    return Ok(Problem::from(problem).of_validation(*kind));
                }
            }
        }
        Ok(own.map_or(AcmeError::OrderGone, |problem| problem.of_order()))
    }

    /// Refuses anything but a certificate for the key of the request.
    fn verify(&self, pem: String) -> Result<IssuedChain, AcmeError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        let leaf = chain.ok().and_then(|chain| chain.into_iter().next());
        let leaf = leaf.ok_or_else(|| AcmeError::down("sent an invalid certificate"))?;
        let leaf = x509_parser::parse_x509_certificate(&leaf);
        let csr = X509CertificationRequest::from_der(self.csr);
        match (leaf, csr) {
            (Ok((_, leaf)), Ok((_, csr)))
                if leaf.public_key().raw == csr.certification_request_info.subject_pki.raw =>
            {
                Ok(IssuedChain { pem })
            }
            _ => Err(AcmeError::down("sent a certificate for another key")),
        }
    }
}

/// The end of a poll. The state is read again, unless there was no response.
fn wait<T>(polled: Result<T, instant_acme::Error>) -> Result<(), Failure> {
    match polled {
        Ok(_) | Err(instant_acme::Error::Api(_)) => Ok(()),
        Err(error) => Err(Failure::of(error, Step::Read)),
    }
}

/// Why a step did not succeed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The nonce was refused; the step had no effect.
    Nonce,
    /// The CA is not done yet; when it wants to be asked again.
    NotYet(Option<Instant>),
    /// Anything else.
    Acme(AcmeError),
}

impl Failure {
    /// The failure in an error of the library.
    pub(super) fn of(error: instant_acme::Error, step: Step) -> Self {
        match error {
            instant_acme::Error::Api(problem) if Problem::from(&problem).is_bad_nonce() => Self::Nonce,
            instant_acme::Error::Api(problem) => Self::Acme(Problem::from(&problem).of_order()),
            instant_acme::Error::Timeout(at) => Self::NotYet(at),
            instant_acme::Error::Other(error) => Self::Acme(match error.downcast::<TransportError>() {
                Ok(error) => error.during(step),
                Err(error) => AcmeError::down(&error),
            }),
            error => Self::Acme(AcmeError::down(&format_args!("sent a response that is not ACME: {error}"))),
        }
    }

    pub(super) fn into_error(self) -> AcmeError {
        match self {
            Self::Nonce => AcmeError::down("refuses its own nonces"),
            Self::NotYet(at) => AcmeError::Pending { until: at.and_then(at_time) },
            Self::Acme(error) => error,
        }
    }
}

fn at_time(at: Instant) -> Option<Timestamp> {
    let wait = SignedDuration::try_from(at.saturating_duration_since(Instant::now())).ok()?;
    Timestamp::now().checked_add(wait).ok()
}

impl From<AcmeError> for Failure {
    fn from(error: AcmeError) -> Self {
        Self::Acme(error)
    }
}

impl From<LeaseLost> for Failure {
    fn from(_: LeaseLost) -> Self {
        Self::Acme(AcmeError::Stopped)
    }
}
