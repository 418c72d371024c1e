//! Announces created and revoked tokens, from the command line to every node.
//!
//! A message carries the slug of the tenant and the number of the change. Messages can be lost, so the newest number
//! is also in a key: a node that missed a message notices it there within half a second, and drops everything it
//! remembered. It does the same on every new subscription. A change made while Redis was down has no number, and a
//! Redis that lost its data counts from one again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use redis::{AsyncCommands, RedisError};
use tokio_util::task::AbortOnDropHandle;

use super::client::RedisClient;
use super::connections::RedisConnections;
use super::refusals::{BackgroundCall, is_refusal};
use crate::metrics::RedisMetrics;

const CHANNEL: &str = "formgate:tokens";

/// Counts the changes of all tenants.
const NEWEST: &str = "formgate:tokens:newest";

/// How often the number is read. A revoked token must be refused on every node within a second, whatever is lost;
/// this leaves room for a slow answer.
///
/// Larger: that second is exceeded. Smaller: Redis answers more reads.
const CHECK_INTERVAL: Duration = Duration::from_millis(400);

/// The pause before subscribing again after a failure.
///
/// Larger: tokens are cached only briefly for longer. Smaller: more attempts while Redis is down.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How long reading the number may take, whatever the limit for calls.
///
/// Larger: a Redis that hangs is not noticed within the second. Smaller: a slow answer costs the node its cache.
const CHECK_LIMIT: Duration = Duration::from_millis(300);

/// How long announcing a change, or subscribing, may take.
///
/// Larger: a command line waits longer for a Redis that hangs. Smaller: a distant Redis with TLS is never reached.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// Receives the changes.
pub trait TokenChangeListener: Send + Sync + 'static {
    /// A tenant's tokens changed.
    fn tenant_changed(&self, slug: &str);
    /// Changes were missed: any tenant's tokens may have changed.
    fn changes_missed(&self);
}

/// A subscription, kept until it is dropped.
#[derive(Debug)]
pub struct TokenChangeSubscription {
    is_receiving: Arc<AtomicBool>,
    _task: AbortOnDropHandle<()>,
}

impl TokenChangeSubscription {
    /// Starts the subscription.
    pub fn start(
        client: Arc<RedisClient>,
        connections: Arc<RedisConnections>,
        listener: Arc<dyn TokenChangeListener>,
    ) -> Self {
        let is_receiving = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(listen_forever(client, connections, listener, Arc::clone(&is_receiving)));
        Self { is_receiving, _task: AbortOnDropHandle::new(task) }
    }

    /// Whether changes are received now. While they are not, nothing may be cached for longer than a change may take
    /// to apply.
    #[must_use]
    pub fn is_receiving(&self) -> bool {
        self.is_receiving.load(Ordering::Acquire)
    }
}

async fn listen_forever(
    client: Arc<RedisClient>,
    connections: Arc<RedisConnections>,
    listener: Arc<dyn TokenChangeListener>,
    is_receiving: Arc<AtomicBool>,
) {
    loop {
        let failure = listen(&client, &connections, &*listener, &is_receiving).await;
        is_receiving.store(false, Ordering::Release);
        if let ListenError::Refused(cause) = &failure {
            connections.note_background(BackgroundCall::TokenChanges, Some(cause));
        }
        tracing::debug!(%failure, "token changes not received; subscribing again");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Why changes are no longer received.
#[derive(Debug, thiserror::Error)]
enum ListenError {
    /// Redis answered with an error.
    #[error("{0}")]
    Refused(String),
    /// The connection broke, or could not be opened.
    #[error("{0}")]
    Lost(String),
}

impl From<RedisError> for ListenError {
    fn from(error: RedisError) -> Self {
        if is_refusal(&error) { Self::Refused(error.to_string()) } else { Self::Lost(error.to_string()) }
    }
}

/// Receives changes until something fails, and returns the cause.
async fn listen(
    client: &RedisClient,
    connections: &RedisConnections,
    listener: &dyn TokenChangeListener,
    is_receiving: &AtomicBool,
) -> ListenError {
    let lost = |text: &str| ListenError::Lost(text.to_owned());
    let mut messages = match tokio::time::timeout(TIME_LIMIT, client.listen()).await {
        Ok(Ok(messages)) => messages,
        Ok(Err(error)) => return error.into(),
        Err(_) => return lost("no connection in time"),
    };
    match tokio::time::timeout(TIME_LIMIT, messages.subscribe(CHANNEL)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return error.into(),
        Err(_) => return lost("no subscription in time"),
    }
    let mut messages = messages.into_on_message();
    let mut seen = None;
    let mut checks = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else { return lost("the connection closed") };
                let payload: String = message.get_payload().unwrap_or_default();
                let change = payload.split_once(' ').and_then(|(number, slug)| Some((number.parse::<u64>().ok()?, slug)));
                if let Some((number, slug)) = change {
                    // Any other number means that an earlier change was missed or is still to come; the next check
                    // finds out.
                    if seen.is_some_and(|seen| number == seen + 1) {
                        seen = Some(number);
                    }
                    listener.tenant_changed(slug);
                    tracing::debug!(tenant = slug, "token change received");
                }
            }
            _ = checks.tick() => {
                let newest = connections.call(NEWEST, async |mut redis| redis.get::<_, Option<u64>>(NEWEST).await);
                let newest = match tokio::time::timeout(CHECK_LIMIT, newest).await {
                    Ok(Ok(newest)) => newest.unwrap_or(0),
                    Ok(Err(error)) => return lost(&error.to_string()),
                    Err(_) => return lost("no number in time"),
                };
                if seen.replace(newest) != Some(newest) {
                    listener.changes_missed();
                }
                if !is_receiving.swap(true, Ordering::AcqRel) {
                    connections.note_background(BackgroundCall::TokenChanges, None);
                    tracing::debug!("receiving token changes");
                }
            }
        }
    }
}

/// Why a change was not announced.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// Redis answered with an error.
    #[error("{0}")]
    Refused(RedisError),
    /// The connection broke, or could not be opened.
    #[error("{0}")]
    Lost(RedisError),
    /// There was no answer in time.
    #[error("it does not answer")]
    Silent,
}

impl From<RedisError> for AnnounceError {
    fn from(error: RedisError) -> Self {
        if is_refusal(&error) { Self::Refused(error) } else { Self::Lost(error) }
    }
}

impl AnnounceError {
    /// The value of the metric's label `reason`.
    fn reason(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Lost(_) => "connection",
            Self::Silent => "timeout",
        }
    }
}

/// Announces to every node that a tenant's tokens changed.
///
/// # Errors
/// [`AnnounceError`].
pub async fn announce(client: &RedisClient, slug: &str) -> Result<(), AnnounceError> {
    let announcing = async {
        let mut redis = client.connect().await?;
        let number: u64 = redis.incr(NEWEST, 1).await?;
        Ok(redis.publish::<_, _, ()>(CHANNEL, format!("{number} {slug}")).await?)
    };
    tokio::time::timeout(TIME_LIMIT, announcing).await.unwrap_or(Err(AnnounceError::Silent))
}

/// Announces the changes that are made through a node.
#[derive(Debug)]
pub struct TokenChangeAnnouncer {
    client: Arc<RedisClient>,
    metrics: RedisMetrics,
}

impl TokenChangeAnnouncer {
    /// Counts what can't be announced.
    #[must_use]
    pub fn new(client: Arc<RedisClient>, metrics: RedisMetrics) -> Self {
        Self { client, metrics }
    }

    /// What it announces through.
    #[must_use]
    pub fn client(&self) -> &RedisClient {
        &self.client
    }

    /// Announces to every node that a tenant's tokens changed. Returns whether that was done. If not, the other nodes notice
    /// within a minute.
    pub async fn announce(&self, slug: &str) -> bool {
        let outcome = announce(&self.client, slug).await;
        if let Err(error) = &outcome {
            self.metrics.failures.with_label_values(&[error.reason()]).inc();
            let cause = error.to_string();
            tracing::warn!(tenant = slug, cause, "a change of tokens was not announced through Redis");
        }
        outcome.is_ok()
    }
}
