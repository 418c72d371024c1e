//! How many exports there are at once: one of an account over all nodes, and a few on a node.
//!
//! The export of an account has a lease in Redis, which its node renews while it reads. A node that is killed loses it within
//! seconds, and a node releases it when the export ends. Without Redis, or while Redis does not respond, each node decides by
//! itself, as for budgets.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisResult;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::accounts::Account;
use super::{Quota, millis};
use crate::shared::RedisConnections;

/// How many exports a node sends at once.
///
/// Larger: they take more memory, and CPU time from requests. Smaller: more accounts have to wait.
pub(super) const MAX_EXPORTS: usize = 4;

/// How long a lease lasts that is not renewed.
///
/// Larger: after a crash, the account waits for longer. Smaller: a node that was paused has lost its lease.
const LEASE: Duration = Duration::from_secs(5);

/// How often a lease is renewed.
///
/// Larger: fewer attempts before it ends. Smaller: Redis gets more calls.
const RENEWAL: Duration = Duration::from_secs(1);

/// Takes or renews a lease, unless another owner has it; or ends it, by an empty value that expires at once.
///
/// `ARGV`: the owner, what is stored, for how many milliseconds. Returns whether it is the owner's.
const SCRIPT: &str = "local owner = redis.call('GET', KEYS[1]) \
    if owner and owner ~= '' and owner ~= ARGV[1] then return 0 end \
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1";

/// Why an export can't begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoExport {
    /// The account has one.
    AccountHasOne,
    /// This node has as many as it may.
    NodeIsBusy,
}

/// The right to one export. It ends when this is dropped.
#[derive(Debug)]
pub struct ExportLease {
    _of_account: OwnedSemaphorePermit,
    _of_node: OwnedSemaphorePermit,
    /// Closed when it is dropped.
    _renewing: Option<oneshot::Sender<()>>,
}

impl Quota {
    /// Begins an export of an account.
    ///
    /// # Errors
    /// [`NoExport`].
    pub async fn begin_export(&self, account: &Account) -> Result<ExportLease, NoExport> {
        let of_account = Arc::clone(&account.exporting).try_acquire_owned().map_err(|_| NoExport::AccountHasOne)?;
        let of_node = Arc::clone(&self.exports).try_acquire_owned().map_err(|_| NoExport::NodeIsBusy)?;
        let renewing = match &self.shared {
            None => None,
            Some((windows, _)) => {
                let lease = SharedLease {
                    connections: Arc::clone(windows.connections()),
                    key: format!("{}:export", account.key),
                    owner: format!("{:032x}", rand::random::<u128>()),
                };
                // One that can't be taken since Redis does not answer is taken later.
                if lease.take().await == Some(false) {
                    return Err(NoExport::AccountHasOne);
                }
                let (renewing, dropped) = oneshot::channel();
                tokio::spawn(lease.renew_until(dropped));
                Some(renewing)
            }
        };
        Ok(ExportLease { _of_account: of_account, _of_node: of_node, _renewing: renewing })
    }
}

/// A lease in Redis.
struct SharedLease {
    connections: Arc<RedisConnections>,
    key: String,
    owner: String,
}

impl SharedLease {
    /// Takes or renews it. `None`: Redis does not answer, or refuses.
    async fn take(&self) -> Option<bool> {
        self.store(&self.owner, LEASE).await
    }

    async fn store(&self, value: &str, kept: Duration) -> Option<bool> {
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(1).arg(&self.key).arg(&self.owner).arg(value).arg(millis(kept));
        let call = self.connections.call(&self.key, async |mut connection| -> RedisResult<bool> {
            command.query_async(&mut connection).await
        });
        call.await.inspect_err(|error| tracing::debug!(%error, "the lease of an export is not in Redis")).ok()
    }

    /// Renews it until the export ends.
    async fn renew_until(self, mut ended: oneshot::Receiver<()>) {
        while tokio::time::timeout(RENEWAL, &mut ended).await.is_err() {
            self.take().await;
        }
        self.store("", Duration::from_millis(1)).await;
    }
}
