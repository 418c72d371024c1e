//! The ways to a connection.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use deadpool_redis::{Pool, Runtime};
use formgate::config::{OnRedisFailure, RedisTarget};
use formgate::metrics::Metrics;
use formgate::quota::{Account, Quota, ReportUsage};
use formgate::shared::{RedisClient, RedisConnections};
use formgate::store::DatabaseIdentity;
use redis::aio::ConnectionLike;
use redis::{Client, RedisResult, Script};

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../src/quota/window.lua")));

/// How many connections the pool may have: with more than there are requests that run at once on a few cores, waiting
/// for one is not what is measured.
const POOL: usize = 64;

/// How long a call over the lanes may take: so long that the breaker, which the other ways don't have, stays shut.
const LIMIT: Duration = Duration::from_secs(5);

/// The window: so short that its log holds about one request.
const SPAN: Duration = Duration::from_millis(1);

/// A limit that nobody reaches.
const LARGE: u32 = 1_000_000;

/// Where a request's connection comes from.
pub(crate) enum Way {
    /// The gateway's own: over the lanes, where those who wait share a call.
    Shared { quota: Box<Quota>, accounts: Vec<Account> },
    /// Over the same lanes, a call a request.
    Lanes(Arc<RedisConnections>),
    /// Out of a pool, and back.
    Pool(Pool),
    /// A new one, closed after its answer.
    New(Box<Client>),
}

impl Way {
    /// Every way to a server, the gateway's own first.
    pub(crate) async fn all(port: &str, callers: usize) -> anyhow::Result<Vec<Arc<Self>>> {
        let url = format!("redis://127.0.0.1:{port}");
        let client = RedisClient::new(&RedisTarget::Server { url: url.clone().into() })?;
        let lanes = Arc::new(
            RedisConnections::open(Arc::new(client), LIMIT, OnRedisFailure::default(), Metrics::default()).await,
        );
        let windows = Some((Arc::clone(&lanes), OnRedisFailure::Deny));
        let quota = Quota::new(SPAN, windows, Metrics::default());
        let accounts =
            (0..callers).map(|caller| Account::new(&caller.to_string(), &DatabaseIdentity::from("0"))).collect();
        let pool = deadpool_redis::Config::from_url(&url).builder()?.max_size(POOL).runtime(Runtime::Tokio1).build()?;
        let shared = Self::Shared { quota: Box::new(quota), accounts };
        Ok([shared, Self::Lanes(lanes), Self::Pool(pool), Self::New(Client::open(url)?.into())].map(Arc::new).into())
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Shared { .. } => "lanes, shared calls",
            Self::Lanes(_) => "lanes, a call a request",
            Self::Pool(_) => "pool, a checkout a request",
            Self::New(_) => "a connection a request",
        }
    }

    /// One request of one caller, whose account nobody else has.
    pub(crate) async fn admit(&self, caller: usize) -> anyhow::Result<()> {
        let key = &caller.to_string();
        match self {
            Self::Shared { quota, accounts } => {
                let admission = quota.admit(accounts[caller].limited(LARGE), 7, ReportUsage::No).await;
                admission.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
            }
            Self::Lanes(lanes) => lanes.call(key, async |connection| ask(connection, key).await).await?,
            Self::Pool(pool) => ask(pool.get().await?, key).await?,
            Self::New(client) => ask(client.get_multiplexed_async_connection().await?, key).await?,
        }
        Ok(())
    }
}

/// Asks a window of a millisecond with room for everyone.
async fn ask(mut connection: impl ConnectionLike + Send, key: &str) -> RedisResult<()> {
    let mut invocation = SCRIPT.key(key);
    invocation.arg(1).arg(2002).arg([&LARGE.to_be_bytes()[..], b"s", &u32::to_be_bytes(7)].concat());
    let _: Vec<Vec<u8>> = invocation.invoke_async(&mut connection).await?;
    Ok(())
}
