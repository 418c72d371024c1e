//! How Redis is reached: a single server, the master that Sentinels report, or a cluster.
//!
//! The pools of deadpool-redis open the connections. Each connection multiplexes, so it is taken out of its pool for
//! good and cloned for each call (see [`super::connections`]).

use std::time::Duration;

use deadpool_redis::sentinel::{SentinelNodeConnectionInfo, SentinelServerType, TlsMode};
use deadpool_redis::{Manager, RedisConnectionInfo, Runtime, sentinel};
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, Pipeline, RedisFuture, Value};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Mutex;

use crate::config::RedisTarget;

/// Maximum number of connections of a pool: enough for every shared connection and its successor before the old one is
/// closed.
///
/// Larger: no effect. Smaller: opening one may wait for the pool.
const CONNECTIONS: usize = 8;

/// How long opening one connection may take.
///
/// Larger: a host that drops packets delays the next attempt. Smaller: a distant Redis with TLS is never reached.
const OPEN_LIMIT: Duration = Duration::from_secs(1);

/// How often the cluster client retries a command on another node or after a connection broke.
///
/// Larger: commands to a shard that is down take longer to fail. Smaller: more of them fail after slots moved.
const CLUSTER_RETRIES: u32 = 3;

/// The configured Redis can't be used, whatever its state. Never quotes a URL, which may contain a password.
#[derive(Debug, thiserror::Error)]
pub enum RedisClientError {
    /// The client can't parse a URL.
    #[error("an address of Redis is no URL that can be used")]
    Url,
    /// No pool could be created.
    #[error("no pool of connections to Redis can be made: {0}")]
    Pool(#[from] deadpool_redis::BuildError),
}

/// Opens connections to the configured Redis.
pub struct RedisClient {
    kind: ClientKind,
    /// Its name in the log, without secrets: `Redis 10.0.0.5:6379`.
    name: String,
}

enum ClientKind {
    Server { pool: deadpool_redis::Pool, client: Client },
    Sentinel { pool: sentinel::Pool, finder: Mutex<SentinelClient> },
    Cluster { client: ClusterClient, nodes: Vec<Client> },
}

/// A connection that can be cloned; all clones share it concurrently.
#[derive(Clone)]
pub enum RedisConnection {
    /// To one server.
    Server(MultiplexedConnection),
    /// To every node of a cluster.
    Cluster(ClusterConnection),
}

impl RedisClient {
    /// A client to the configured Redis. Does not connect yet.
    ///
    /// # Errors
    /// [`RedisClientError`].
    pub fn new(target: &RedisTarget) -> Result<Self, RedisClientError> {
        let name = name_of(target)?;
        let kind = match target {
            RedisTarget::Server { url } => {
                let client = Client::open(url.expose_secret()).map_err(|_| RedisClientError::Url)?;
                // Callers have their own time limit, and a second timer per call would double its cost.
                let config =
                    AsyncConnectionConfig::new().set_connection_timeout(Some(OPEN_LIMIT)).set_response_timeout(None);
                let manager =
                    Manager::new_with_config(url.expose_secret(), config).map_err(|_| RedisClientError::Url)?;
                let pool = deadpool_redis::Pool::builder(manager).max_size(CONNECTIONS).runtime(Runtime::Tokio1);
                ClientKind::Server { pool: pool.build()?, client }
            }
            RedisTarget::Sentinel { sentinels, master, username, password, database } => {
                let tls = sentinels.iter().any(|url| url.expose_secret().starts_with("rediss://"));
                let sentinels = addresses(sentinels)?;
                let server = SentinelNodeConnectionInfo {
                    tls_mode: tls.then_some(TlsMode::Secure),
                    redis_connection_info: Some(RedisConnectionInfo {
                        db: i64::from(*database),
                        username: username.clone(),
                        password: password.as_ref().map(|password| password.expose_secret().to_owned()),
                        ..RedisConnectionInfo::default()
                    }),
                };
                let finder = SentinelClient::build(
                    sentinels.clone(),
                    master.clone(),
                    Some(server.clone().into()),
                    redis::sentinel::SentinelServerType::Master,
                );
                let manager =
                    sentinel::Manager::new(sentinels, master.clone(), Some(server), SentinelServerType::Master);
                let pool = sentinel::Pool::builder(manager.map_err(|_| RedisClientError::Url)?);
                let pool = pool.max_size(CONNECTIONS).runtime(Runtime::Tokio1).build()?;
                ClientKind::Sentinel { pool, finder: Mutex::new(finder.map_err(|_| RedisClientError::Url)?) }
            }
            RedisTarget::Cluster { nodes } => {
                let addresses = addresses(nodes)?;
                let nodes = addresses.iter().map(|address| Client::open(address.clone())).collect::<Result<_, _>>();
                let client = ClusterClient::builder(addresses)
                    // Callers have their own time limit, and try again later.
                    .retries(CLUSTER_RETRIES)
                    .connection_timeout(OPEN_LIMIT)
                    .build()
                    .map_err(|_| RedisClientError::Url)?;
                ClientKind::Cluster { client, nodes: nodes.map_err(|_| RedisClientError::Url)? }
            }
        };
        Ok(Self { kind, name })
    }

    /// Its name in the log, without secrets.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether keys may be on different servers.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.kind, ClientKind::Cluster { .. })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The error from the client or from Redis.
    pub(super) async fn connect(&self) -> redis::RedisResult<RedisConnection> {
        let opening = async {
            Ok(match &self.kind {
                ClientKind::Server { pool, .. } => {
                    RedisConnection::Server(deadpool_redis::Connection::take(pool.get().await?))
                }
                ClientKind::Sentinel { pool, .. } => {
                    RedisConnection::Server(sentinel::Connection::take(pool.get().await?))
                }
                ClientKind::Cluster { client, .. } => RedisConnection::Cluster(client.get_async_connection().await?),
            })
        };
        opening.await.map_err(|error| match error {
            deadpool_redis::PoolError::Backend(error) => error,
            // The pool has no wait limit and is never closed.
            other => (redis::ErrorKind::Client, "the pool gives no connection", other.to_string()).into(),
        })
    }

    /// Opens a connection for subscriptions. In a cluster any node will do: published messages reach all.
    ///
    /// # Errors
    /// The error from the client or from Redis; in a cluster, from the last node tried.
    pub(super) async fn listen(&self) -> redis::RedisResult<PubSub> {
        match &self.kind {
            ClientKind::Server { client, .. } => client.get_async_pubsub().await,
            ClientKind::Sentinel { finder, .. } => {
                let master = finder.lock().await.async_get_client().await?;
                master.get_async_pubsub().await
            }
            ClientKind::Cluster { nodes, .. } => {
                let mut outcome = Err((redis::ErrorKind::InvalidClientConfig, "a cluster without nodes").into());
                for node in nodes {
                    outcome = node.get_async_pubsub().await;
                    if outcome.is_ok() {
                        break;
                    }
                }
                outcome
            }
        }
    }
}

impl std::fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisClient").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A Redis's name in the log.
fn name_of(target: &RedisTarget) -> Result<String, RedisClientError> {
    let list = |urls: &[SecretString]| -> Result<String, RedisClientError> {
        let addresses = addresses(urls)?;
        Ok(addresses.iter().map(|address| address.addr().to_string()).collect::<Vec<_>>().join(", "))
    };
    Ok(match target {
        RedisTarget::Server { url } => format!("Redis {}", list(std::slice::from_ref(url))?),
        RedisTarget::Sentinel { sentinels, master, .. } => {
            format!("Redis master {master} (Sentinels {})", list(sentinels)?)
        }
        RedisTarget::Cluster { nodes } => format!("Redis cluster {}", list(nodes)?),
    })
}

/// Why a call failed, in operators' terms rather than the client's.
pub(super) fn cause_of(error: &redis::RedisError) -> String {
    if error.is_connection_refusal() {
        "connection refused".to_owned()
    } else if error.is_timeout() {
        "no response in time".to_owned()
    } else if error.is_connection_dropped() {
        "connection lost".to_owned()
    } else {
        error.to_string()
    }
}

fn addresses(urls: &[SecretString]) -> Result<Vec<ConnectionInfo>, RedisClientError> {
    urls.iter().map(|url| url.expose_secret().into_connection_info().map_err(|_| RedisClientError::Url)).collect()
}

impl ConnectionLike for RedisConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Server(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Server(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Server(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
