//! A running gateway, and the order in which its parts shut down: report not ready, give load balancers time to notice, refuse new
//! connections, drain requests in flight and webhooks, write what requests left, close the databases.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::databases::Databases;
use super::reload::Reloader;
use crate::config::GatewayConfig;
use crate::edge::admin::Admin;
use crate::edge::{Certificates, Drained, Serving};
use crate::registry::Following;
use crate::request::Pipeline;
use crate::tenant::DatabaseServers;
use crate::tenant::written_behind::{self, Due};
use crate::webhooks::Webhooks;

/// How long closing the databases may take.
///
/// Larger: a database that hangs delays the end of the process. Smaller: a slow one is cut off, which it survives.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// A running gateway. Dropping it cuts every connection; [`Running::stop`] shuts it down gracefully.
#[derive(Debug)]
pub struct Running {
    pub(super) serving: Serving,
    pub(super) admin: Option<(SocketAddr, Admin)>,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) certificates: Arc<Certificates>,
    pub(super) shutdown_delay: Duration,
    pub(super) drain: Duration,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) write_behind: AbortOnDropHandle<()>,
    pub(super) databases: Arc<Databases>,
    /// The delivery of webhooks, and its tasks.
    pub(super) webhooks: Option<(Webhooks, Vec<AbortOnDropHandle<()>>)>,
    /// Following the registry, and its task.
    pub(super) following: Option<(Arc<Following>, AbortOnDropHandle<()>)>,
    /// The `[gateway]` table that is served.
    pub(super) config: Arc<ArcSwap<GatewayConfig>>,
    pub(super) servers: DatabaseServers,
    pub(super) operator: Vec<AbortOnDropHandle<()>>,
    pub(super) _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Running {
    /// The addresses for callers, with the ports that the system chose.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        self.serving.addresses()
    }

    /// The address for metrics and health checks.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(address, _)| *address)
    }

    /// Applies a changed configuration.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        let following = self.following.as_ref().map(|(following, _)| Arc::clone(following));
        Reloader::new(
            Arc::clone(&self.pipeline),
            Arc::clone(&self.certificates),
            Arc::clone(&self.databases),
            following,
            Arc::clone(&self.config),
            self.servers.clone(),
        )
    }

    /// Shuts down gracefully, or immediately once `stop_now` completes. Returns whether every request in flight was
    /// answered.
    pub async fn stop(self, stop_now: impl Future<Output = ()>) -> Drained {
        self.draining.store(true, Ordering::Relaxed);
        if let Some((following, _)) = &self.following {
            following.leave_tenants();
        }
        let stop_now = pin!(stop_now);
        let mut stop_now = stop_now.shared();
        if !self.shutdown_delay.is_zero() {
            // Load balancers check readiness periodically, and send connections until their next check.
            tokio::select! {
                () = &mut stop_now => {}
                () = sleep(self.shutdown_delay) => {}
            }
        }
        self.pipeline.stopping.cancel();
        let deadline = async {
            tokio::select! {
                () = stop_now.clone() => {}
                () = sleep(self.drain) => {}
            }
        };
        let end_webhooks = async {
            let Some((webhooks, tasks)) = self.webhooks else { return };
            tokio::select! {
                () = stop_now.clone() => {}
                () = webhooks.stop() => {}
            }
            drop(tasks);
        };
        let (drained, ()) = tokio::join!(self.serving.drain(deadline), end_webhooks);
        drop(self.operator);
        if let Some((following, task)) = self.following {
            drop(task);
            if timeout(CLOSE_LIMIT, following.end()).await.is_err() {
                tracing::warn!(
                    "could not remove this node from the registry; other nodes list it as live for up to 20 s"
                );
            }
        }
        // Stopped before the final write, so that the two don't write concurrently.
        drop(self.write_behind);
        let directory = self.pipeline.gate.directory.load_full();
        // Bounded by the time limit of Redis.
        self.pipeline.gate.minutes.publish().await;
        written_behind::write(directory.tenants().filter_map(|tenant| tenant.write_behind(Due::All)).collect()).await;
        // Concurrently: a database that hangs must not hold up the others.
        let closed = join_all(directory.tenants().map(|tenant| tenant.database.close()));
        if timeout(CLOSE_LIMIT, closed).await.is_err() {
            tracing::warn!("some database connections were not closed in time; aborting them");
        }
        drained
    }
}
