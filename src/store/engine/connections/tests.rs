//! Which caller gets which connection when there are too few, with real SQLite connections.

use sqlx::sqlite::SqliteConnectOptions;

use super::*;
use crate::store::engine::error::StoreError;
use crate::store::engine::pool::{BeginWriting, Pool, PoolOptions};
use crate::store::engine::session::SessionAddress;

/// Connections that their pools do not need are due for closing as soon as they are idle.
const SURPLUS_IDLE: Duration = Duration::ZERO;

fn connections(max_open: u32) -> Arc<Connections> {
    let limits = DatabaseLimits { wait: Duration::from_millis(200), ..DatabaseLimits::default() };
    Arc::new(Connections {
        postgres: ConnectionBudget::postgres(max_open, limits.idle),
        sqlite: ConnectionBudget::sqlite(max_open, 1, limits.sqlite_idle, SURPLUS_IDLE),
        limits,
        metrics: DatabaseMetrics::unregistered(),
        became_idle: Notify::new(),
        shared_sources: SharedSources::default(),
        denials: AtomicU64::new(0),
    })
}

fn pool(connections: &Arc<Connections>, max_open: u32) -> Pool {
    let address = SessionAddress::Sqlite(Box::new(SqliteConnectOptions::new().in_memory(true)));
    let (wait, lock_wait, begin_writing) = (connections.limits().wait, Duration::ZERO, BeginWriting::Polling);
    Pool::new(
        PoolOptions { address, shared: None, max_open, wait, limit: None, lock_wait, begin_writing },
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
        let state = connections.sqlite.lock();
        let pools = state.pools.iter().filter(|(_, members)| members.open > 0);
        let mut open: Vec<u64> = pools.map(|(pool, _)| pool.number).collect();
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
    let state = connections.sqlite.lock();
    assert_eq!((state.open, state.idle.len(), state.waiting.len()), (1, 1, 0));
}

#[tokio::test]
async fn a_writer_has_a_place_next_to_the_readers_and_leaves_its_connection_to_them() {
    let connections = connections(9);
    let pool = pool(&connections, 1);
    let reader = pool.acquire().await.unwrap();
    assert!(matches!(pool.acquire().await, Err(StoreError::Busy)), "one reader at once");
    let writer = pool.acquire_permitted(None, Role::Writer).await.unwrap();
    assert_eq!(connections.sqlite.lock().open, 2);
    drop(writer);
    assert!(matches!(pool.acquire().await, Err(StoreError::Busy)), "also while a connection is idle");
    drop(reader);
    let (reader, writer) = (pool.acquire().await.unwrap(), pool.acquire_idle(Role::Writer));
    assert!(writer.is_some() && pool.acquire_idle(Role::Any).is_none());
    assert_eq!(connections.sqlite.lock().open, 2, "both were used again");
    drop((reader, writer));
}

#[tokio::test]
async fn a_connection_is_replaced_without_waiting_for_its_close_as_long_as_few_are_closing() {
    let connections = connections(1);
    let pools = [pool(&connections, 1), pool(&connections, 1), pool(&connections, 1)];
    let checkout = async |pool: &Pool| connections.checkout(pool.request(Role::Any), Duration::ZERO).await;
    drop(pools[0].acquire().await.unwrap());
    let Some(Checkout::Replace { retiring: first, permit, wait: false }) = checkout(&pools[1]).await else {
        panic!("it need not wait")
    };
    let (session, permit) = pools[1].open(permit).await.unwrap();
    permit.put_back(session);
    let Some(Checkout::Replace { retiring: second, permit, wait: true }) = checkout(&pools[2]).await else {
        panic!("one is closing already")
    };
    let counts = || {
        let state = connections.sqlite.lock();
        (state.open, state.closing, state.pools.len())
    };
    assert_eq!(counts(), (1, 2, 3));
    first.close().await;
    second.close().await;
    assert_eq!(counts(), (1, 0, 1));
    drop(permit);
    assert_eq!(counts(), (0, 0, 0));
}

#[tokio::test]
async fn of_the_idle_connections_of_a_file_all_but_the_last_used_one_are_closed_early() {
    let connections = connections(9);
    let (busy, quiet) = (pool(&connections, 3), pool(&connections, 3));
    let idle = || {
        let idle_of = |pool: &Pool| connections.sqlite.lock().idle_of(pool.request(Role::Any).pool).len();
        (idle_of(&busy), idle_of(&quiet))
    };
    let (first, second) = (busy.acquire().await.unwrap(), busy.acquire().await.unwrap());
    drop((first, second, quiet.acquire().await.unwrap()));
    // A connection in use is no reason to close the idle one: it may be used for long.
    let (in_use, also_in_use) = (busy.acquire().await.unwrap(), busy.acquire().await.unwrap());
    drop(in_use);
    let next = connections.close_long_idle();
    assert_eq!(idle(), (1, 1));
    assert!(next.is_some_and(|next| next > Instant::now()), "none is due before the limit of all");
    drop(also_in_use);
    assert_eq!(idle(), (2, 1));
    connections.close_long_idle();
    assert_eq!(idle(), (1, 1), "each keeps one");
    assert!(busy.acquire_idle(Role::Any).is_some());
}
