//! Tries the configured Redis once, for the command line: what keeps the nodes from using it, and the remedy.
//!
//! Connects as a node does and runs the same probe, so a node can use any Redis that passes here. Warnings about the
//! server's settings belong here too. Counts nothing in any window.

use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::client::{RedisClient, RedisConnection};
use super::eviction;
use crate::config::RedisTarget;
use crate::metrics::Metrics;

/// How long the whole trial may take.
///
/// Larger: `check` waits longer for a host that drops packets. Smaller: a distant Redis with TLS fails the trial
/// although it works.
const LIMIT: Duration = Duration::from_secs(3);

/// Why a Redis can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// The cause, in one line.
    pub cause: String,
    /// What fixes it.
    pub remedy: String,
}

/// Connects to the configured Redis and writes as a window does. Returns a warning about its settings, if there is
/// one.
///
/// # Errors
/// [`Diagnosis`].
pub async fn diagnose(target: &RedisTarget) -> Result<Option<String>, Diagnosis> {
    let client = RedisClient::new(target)
        .map_err(|error| Diagnosis { cause: error.to_string(), remedy: "correct the address".to_owned() })?;
    let trial = async {
        // First, since their errors name the command.
        try_commands(&client, &mut client.connect().await?).await?;
        let (mut connection, _shards) = super::connections::open(&client, &Metrics::default().redis).await?;
        Ok::<_, RedisError>(eviction::policy(&mut connection).await)
    };
    match tokio::time::timeout(LIMIT, trial).await {
        Ok(Ok(Ok(policy))) => Ok(policy.map(|policy| {
            format!("Redis may evict budgets, since its maxmemory-policy is {policy}: set it to noeviction")
        })),
        Ok(Ok(Err(error))) => Ok(Some(format!(
            "it is not known whether Redis may evict budgets: {error}; let the ACL user run INFO, as deploy/configuration.md \
             lists"
        ))),
        Ok(Err(error)) => Err(Diagnosis { cause: error.to_string(), remedy: remedy(&error) }),
        Err(_) => Err(Diagnosis { cause: format!("no answer within {LIMIT:?}"), remedy: UNREACHABLE.to_owned() }),
    }
}

/// A key and a channel that nothing else uses.
const TRIAL: &str = "formgate:trial";

/// Runs each command that a node uses, so that `check` finds those that the ACL user may not run, and not a page or a revoked
/// token hours later.
async fn try_commands(client: &RedisClient, connection: &mut RedisConnection) -> RedisResult<()> {
    let unknown_script = "0".repeat(40);
    match redis::cmd("EVALSHA").arg(unknown_script).arg(1).arg(TRIAL).query_async::<()>(connection).await {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {}
        outcome => outcome?,
    }
    for command in [
        ["SET", TRIAL, "1", "PX", "1000"].as_slice(),
        &["APPEND", TRIAL, "1"],
        &["GET", TRIAL],
        &["GETRANGE", TRIAL, "0", "1"],
        &["PTTL", TRIAL],
        &["TIME"],
        &["INCRBY", TRIAL, "1"],
        &["PEXPIRE", TRIAL, "1"],
        &["HSET", "formgate:trial:hash", "field", "value"],
        &["HGETALL", "formgate:trial:hash"],
        &["PEXPIRE", "formgate:trial:hash", "1"],
        &["PUBLISH", TRIAL, "trial"],
        &["PING"],
    ] {
        let (name, arguments) = command.split_first().expect("each has a name");
        redis::cmd(name).arg(arguments).query_async::<Value>(connection).await?;
    }
    client.listen().await?.subscribe(TRIAL).await
}

const UNREACHABLE: &str = "check the address, that Redis listens on it (`bind`), with TLS for `rediss://` and without it for `redis://`, and firewalls in between";

/// The remedy, by the kind of the error, or by its text where Redis or the client has no kind for it.
fn remedy(error: &RedisError) -> String {
    let text = error.to_string();
    let says = |part: &str| text.contains(part);
    let credentials = "correct the user and the password of Redis";
    match error.kind() {
        ErrorKind::AuthenticationFailed => credentials.to_owned(),
        _ if says("NOAUTH") || says("WRONGPASS") || says("invalid password") => credentials.to_owned(),
        ErrorKind::Server(ServerErrorKind::NoPerm) => RIGHTS.to_owned(),
        _ if says("NOPERM") || says("No permissions") || says("can't run this command") => RIGHTS.to_owned(),
        ErrorKind::Server(ServerErrorKind::ReadOnly) => REPLICA.to_owned(),
        _ if says("READONLY") => REPLICA.to_owned(),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => CLUSTER.to_owned(),
        _ if says("MOVED") => CLUSTER.to_owned(),
        ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::TryAgain) => {
            "wait: Redis is loading its data, or has just lost its master".to_owned()
        }
        ErrorKind::Server(ServerErrorKind::ClusterDown) => {
            "repair the cluster: `redis-cli --cluster check` names the slots that no master serves".to_owned()
        }
        _ if says("OOM") => "raise `maxmemory` of Redis, or free memory there".to_owned(),
        _ if says("MISCONF") => {
            "Redis can't save and so takes no writes: free space on its disk, and read its log".to_owned()
        }
        _ if says("cluster support disabled") => "this server is no cluster: use `redis`".to_owned(),
        ErrorKind::MasterNameNotFoundBySentinel => {
            "correct `master` of `redis_sentinel`: `redis-cli -p 26379 sentinel masters` lists the names".to_owned()
        }
        _ if says("certificate") => {
            "install the authority of Redis's certificate on this machine, or name its file in SSL_CERT_FILE".to_owned()
        }
        ErrorKind::Io if error.is_connection_refusal() => "start Redis, or correct its address".to_owned(),
        _ => UNREACHABLE.to_owned(),
    }
}

const RIGHTS: &str =
    "let the ACL user do what deploy/configuration.md lists: ACL SETUSER … ~formgate:* &formgate:* and its commands";
const REPLICA: &str = "this server is a replica: name the master, or use `redis_sentinel`";
const CLUSTER: &str = "this server is a node of a cluster: use `redis_cluster`";
