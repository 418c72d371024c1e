//! A registry that is far away, with many rows: reading it takes few round trips.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use formgate::store::{DatabaseLocation, Registry};

use crate::support::database::Database;
use crate::support::fixture::Engine;
use crate::support::folder;
use crate::support::postgres::Postgres;

/// How many tenants there are.
const TENANTS: usize = 20_000;

/// A proxy in front of a server, which counts what the client sends. Each time, a client that is far away would wait for the
/// answer.
fn counting_proxy(server: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (address, sent) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let counter = Arc::clone(&sent);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(server).unwrap();
            relay(client.try_clone().unwrap(), server.try_clone().unwrap(), Arc::clone(&counter));
            relay(server, client, Arc::default());
        }
    });
    (address, sent)
}

fn relay(mut from: TcpStream, mut to: TcpStream, counter: Arc<AtomicUsize>) {
    thread::spawn(move || {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            counter.fetch_add(1, Ordering::Relaxed);
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
    });
}

async fn open(url: &str) -> Registry {
    Registry::open(&DatabaseLocation::parse(url, Path::new("")).unwrap()).await.unwrap()
}

#[tokio::test]
async fn all_rows_are_read_in_few_round_trips() {
    let folder = folder::temporary("far");
    let url = Engine::Postgres.empty_database(folder.path(), "registry");
    open(&url).await.close().await;
    let database = Database::connect(&url).await;
    database
        .execute(&format!(
            "INSERT INTO registry_tenants (slug, position, toml, revision, changed_at, changed_by) \
             SELECT 't' || i, i, 'text', i, now(), 'x' FROM generate_series(1, {TENANTS}) i"
        ))
        .await;
    database.close().await;
    let server = SocketAddr::from(([127, 0, 0, 1], Postgres::shared().port()));
    let (proxy, sent) = counting_proxy(server);
    let far = url.replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    let registry = open(&far).await;
    let before = sent.load(Ordering::Relaxed);
    let rows = registry.list_all().await.unwrap();
    let trips = sent.load(Ordering::Relaxed) - before;
    assert_eq!(rows.len(), TENANTS);
    assert!(rows.is_sorted_by_key(|row| row.position));
    // A statement for each thousand rows, and what opens a connection, would be more.
    assert!((1..15).contains(&trips), "{trips}");
    registry.close().await;
}
