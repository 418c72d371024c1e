//! Word of tokens that were made or revoked, from the command line to every node.
//!
//! A message tells which tenant's tokens changed, and the number of the change. Messages can be lost; the number of the
//! newest change stands in a key, so a node that missed one sees that it did, within half a second, and forgets all that
//! it remembered. It forgets, too, whenever it begins to listen anew: a change that was made while the store was away has
//! no number, and a store that comes back without its data counts from one again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use redis::AsyncCommands;
use tokio_util::task::AbortOnDropHandle;

use super::lanes::Lanes;
use super::link::Link;

const CHANNEL: &str = "formgate:tokens";

/// Counts the changes of all tenants.
const NEWEST: &str = "formgate:tokens:newest";

/// How often the number is looked at. A revoked token is refused everywhere within a second, whatever is lost: so often,
/// with room for a slow answer.
const CHECK: Duration = Duration::from_millis(400);

/// How long is waited before listening again after that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// How long looking at the number may take, whatever calls may: a store that hangs must be noticed within the second.
const CHECK_LIMIT: Duration = Duration::from_millis(300);

/// How long announcing, and beginning to listen, may take.
const LIMIT: Duration = Duration::from_secs(1);

/// Who is told.
pub trait Listener: Send + Sync + 'static {
    /// A tenant's tokens changed.
    fn tenant_changed(&self, slug: &str);
    /// Changes were missed: any tenant's tokens may have changed.
    fn changes_missed(&self);
}

/// Listens until it is dropped.
#[derive(Debug)]
pub struct Listening {
    hears: Arc<AtomicBool>,
    _task: AbortOnDropHandle<()>,
}

impl Listening {
    /// Starts to listen.
    pub fn start(link: Arc<Link>, lanes: Arc<Lanes>, listener: Arc<dyn Listener>) -> Self {
        let hears = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(listen_for_ever(link, lanes, listener, Arc::clone(&hears)));
        Self { hears, _task: AbortOnDropHandle::new(task) }
    }

    /// Whether changes are heard now. While they are not, nothing may be remembered for longer than a change may take.
    #[must_use]
    pub fn hears(&self) -> bool {
        self.hears.load(Ordering::Acquire)
    }
}

async fn listen_for_ever(link: Arc<Link>, lanes: Arc<Lanes>, listener: Arc<dyn Listener>, hears: Arc<AtomicBool>) {
    loop {
        let failure = listen(&link, &lanes, &*listener, &hears).await;
        hears.store(false, Ordering::Release);
        tracing::debug!(failure, "changes of tokens are not heard");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Listens until something fails, and says what.
async fn listen(link: &Link, lanes: &Lanes, listener: &dyn Listener, hears: &AtomicBool) -> String {
    let mut messages = match tokio::time::timeout(LIMIT, link.listen()).await {
        Ok(Ok(messages)) => messages,
        Ok(Err(error)) => return error.to_string(),
        Err(_) => return "no connection in time".to_owned(),
    };
    match tokio::time::timeout(LIMIT, messages.subscribe(CHANNEL)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return error.to_string(),
        Err(_) => return "no subscription in time".to_owned(),
    }
    let mut messages = messages.into_on_message();
    let mut seen = None;
    let mut checks = tokio::time::interval(CHECK);
    loop {
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else { return "the connection closed".to_owned() };
                let payload: String = message.get_payload().unwrap_or_default();
                let change = payload.split_once(' ').and_then(|(number, slug)| Some((number.parse::<u64>().ok()?, slug)));
                if let Some((number, slug)) = change {
                    // With any other number, an earlier change was missed or is still to come, which the next check finds.
                    if seen.is_some_and(|seen| number == seen + 1) {
                        seen = Some(number);
                    }
                    listener.tenant_changed(slug);
                    tracing::debug!(tenant = slug, "token change received");
                }
            }
            _ = checks.tick() => {
                let newest = lanes.call(NEWEST, async |mut redis| redis.get::<_, Option<u64>>(NEWEST).await);
                let newest = match tokio::time::timeout(CHECK_LIMIT, newest).await {
                    Ok(Ok(newest)) => newest.unwrap_or(0),
                    Ok(Err(error)) => return error.to_string(),
                    Err(_) => return "no number in time".to_owned(),
                };
                if seen.replace(newest) != Some(newest) {
                    listener.changes_missed();
                }
                if !hears.swap(true, Ordering::AcqRel) {
                    tracing::debug!("receiving token changes");
                }
            }
        }
    }
}

/// Tells every node that a tenant's tokens changed.
///
/// # Errors
/// What Redis says, or that it did not answer in time.
pub async fn announce(link: &Link, slug: &str) -> Result<(), String> {
    let announcing = async {
        let mut redis = link.connect().await.map_err(|error| error.to_string())?;
        let number: u64 = redis.incr(NEWEST, 1).await.map_err(|error| error.to_string())?;
        redis.publish::<_, _, ()>(CHANNEL, format!("{number} {slug}")).await.map_err(|error| error.to_string())
    };
    tokio::time::timeout(LIMIT, announcing).await.unwrap_or_else(|_| Err("it does not answer".to_owned()))
}
