//! Which caller gets which connection when there are too few, with real SQLite connections.

use sqlx::sqlite::SqliteConnectOptions;

use super::*;
use crate::store::engine::error::StoreError;
use crate::store::engine::pool::{Pool, PoolOptions};
use crate::store::engine::session::SessionAddress;

fn connections(max_connections: u32) -> Arc<Connections> {
    let limits = DatabaseLimits { max_connections, wait: Duration::from_millis(200), ..DatabaseLimits::default() };
    Connections::new(limits, DatabaseMetrics::unregistered())
}

fn pool(connections: &Arc<Connections>, max_open: u32) -> Pool {
    let address =
        SessionAddress::Sqlite { options: Box::new(SqliteConnectOptions::new().in_memory(true)), read_only: false };
    Pool::new(
        PoolOptions {
            address,
            shared: None,
            max_open,
            wait: connections.limits().wait,
            limit: None,
            lock_wait: Duration::ZERO,
        },
        connections,
        None,
    )
}

#[tokio::test]
async fn a_busy_pool_does_not_overtake_an_earlier_waiter() {
    let connections = connections(1);
    let (busy, quiet) = (pool(&connections, 1), pool(&connections, 1));
    let connection = busy.acquire().await.unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let acquire = |pool: &Pool, name: &'static str| {
        let (pool, served) = (pool.clone(), served.clone());
        tokio::spawn(async move {
            let connection = pool.acquire().await.unwrap();
            served.send(name).unwrap();
            drop(connection);
        })
    };
    let quiet = acquire(&quiet, "quiet");
    tokio::task::yield_now().await;
    let busy = acquire(&busy, "busy");
    tokio::task::yield_now().await;
    drop(connection);
    assert_eq!((order.recv().await, order.recv().await), (Some("quiet"), Some("busy")));
    quiet.await.unwrap();
    busy.await.unwrap();
}

#[tokio::test]
async fn the_least_recently_used_connection_of_another_pool_makes_room() {
    let connections = connections(2);
    let pools = [pool(&connections, 1), pool(&connections, 1), pool(&connections, 1)];
    for pool in &pools {
        drop(pool.acquire().await.unwrap());
    }
    let open = |connections: &Connections| {
        let state = connections.lock();
        let mut open: Vec<u64> = state.pools.keys().map(|pool| pool.0).collect();
        open.sort_unstable();
        (state.open, state.idle.len(), open)
    };
    assert_eq!(open(&connections), (2, 2, vec![2, 3]), "the first one's was closed");
}

#[tokio::test]
async fn if_nothing_is_idle_the_wait_ends_and_leaves_no_waiter_behind() {
    let connections = connections(1);
    let (first, second) = (pool(&connections, 1), pool(&connections, 1));
    let connection = first.acquire().await.unwrap();
    assert!(matches!(second.acquire().await, Err(StoreError::Busy)));
    drop(connection);
    drop(second.acquire().await.unwrap());
    let state = connections.lock();
    assert_eq!((state.open, state.idle.len(), state.waiting.len()), (1, 1, 0));
}
