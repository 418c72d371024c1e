//! The Redis that the nodes share, and the policy for its failures.

use std::time::Duration;

use redis::IntoConnectionInfo;
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::context::LoadContext;
use super::declaration::keys;
use super::problem::Problem;
use super::table::{StringValue, TableReader};

keys! { sentinel_key:
    sentinels = strings().hidden(),
        "the Sentinels, such as `[\"redis://sentinel-1:26379\"]`. With `rediss://`, the connections to the servers use TLS too";
    master = string(), "the name of the master, as the Sentinels are configured";
    username = string().hidden().without("none"), "the ACL user at the servers";
    password = string().secret().without("none"), "its password: take it from the environment";
    database = integer(0..=u32::MAX).default("0"), "the number of the database at the servers";
}

/// The Redis that all nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// Its kind and addresses.
    pub target: RedisTarget,
    /// How long one call may take before the [`OnRedisFailure`] policy applies.
    pub timeout: Duration,
    /// The policy when Redis does not answer.
    pub on_failure: OnRedisFailure,
}

/// The kind of Redis and its addresses: `redis://`, `rediss://`, and for a single server also `unix://`.
#[derive(Clone, Debug)]
pub enum RedisTarget {
    /// One server.
    Server {
        /// Its address.
        url: SecretString,
    },
    /// The master that Sentinels name.
    Sentinel {
        /// The Sentinels; with `rediss://`, connections to the servers use TLS too.
        sentinels: Vec<SecretString>,
        /// The name of the master, as the Sentinels are configured.
        master: String,
        /// The ACL user at the servers.
        username: Option<String>,
        /// Its password.
        password: Option<SecretString>,
        /// The database's number.
        database: u32,
    },
    /// A cluster.
    Cluster {
        /// Seed nodes, from which the others are discovered.
        nodes: Vec<SecretString>,
    },
}

impl RedisTarget {
    /// The hosts and ports at which Redis or its Sentinels are reached. A socket has none.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        let urls = match self {
            Self::Server { url } => std::slice::from_ref(url),
            Self::Sentinel { sentinels, .. } => sentinels,
            Self::Cluster { nodes } => nodes,
        };
        let default = if matches!(self, Self::Sentinel { .. }) { 26379 } else { 6379 };
        let urls = urls.iter().filter_map(|url| Url::parse(url.expose_secret()).ok());
        urls.filter_map(|url| Some(format!("{}:{}", url.host_str()?, url.port().unwrap_or(default)))).collect()
    }

    /// The kind and every string, secrets included, for comparison.
    fn fields(&self) -> (&'static str, Vec<&str>) {
        match self {
            Self::Server { url } => ("server", vec![url.expose_secret()]),
            Self::Cluster { nodes } => ("cluster", nodes.iter().map(ExposeSecret::expose_secret).collect()),
            Self::Sentinel { sentinels, master, username, password, database: _ } => {
                let mut fields = vec![master.as_str(), username.as_deref().unwrap_or_default()];
                fields.push(password.as_ref().map(ExposeSecret::expose_secret).unwrap_or_default());
                fields.extend(sentinels.iter().map(ExposeSecret::expose_secret));
                ("sentinel", fields)
            }
        }
    }

    fn database(&self) -> u32 {
        if let Self::Sentinel { database, .. } = self { *database } else { 0 }
    }
}

impl PartialEq for RedisTarget {
    fn eq(&self, other: &Self) -> bool {
        self.fields() == other.fields() && self.database() == other.database()
    }
}

impl Eq for RedisTarget {}

/// What happens to requests when Redis can't be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRedisFailure {
    /// Each node limits on its own.
    #[default]
    Local,
    /// Refuse with 503.
    Deny,
    /// Admit without a limit.
    Allow,
}

impl OnRedisFailure {
    /// Every policy.
    pub(super) const ALL: [Self; 3] = [Self::Local, Self::Deny, Self::Allow];

    /// Their names.
    pub(super) const NAMES: [&str; 3] = ["local", "deny", "allow"];

    /// The value of `on_redis_failure`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// What the URL of a single server starts with.
pub(super) const SERVER_SCHEMES: [&str; 3] = ["redis://", "rediss://", "unix://"];
/// What the URLs of a cluster and of Sentinels start with.
pub(super) const TCP_SCHEMES: [&str; 2] = ["redis://", "rediss://"];

/// Parses a URL with one of the schemes.
pub(super) fn read_url(text: StringValue, schemes: &[&str], context: &LoadContext<'_>) -> Option<SecretString> {
    let known = schemes.iter().any(|scheme| text.value.starts_with(scheme));
    // The error of the redis crate may quote the URL, which may contain a password.
    if known && text.value.as_str().into_connection_info().is_ok() {
        return Some(text.value.into());
    }
    let expected: Vec<_> = schemes.iter().map(|scheme| format!("`{scheme}`")).collect();
    let label = format!("expected {} and what follows it", expected.join(" or "));
    context.report(Problem::at(&text.span, "not the URL of a Redis server").label(label));
    None
}

/// Reads the table of Sentinels.
pub(super) fn read_sentinel(mut table: TableReader<'_, '_>) -> Option<RedisTarget> {
    let sentinels = table.strings(&sentinel_key::sentinels);
    let sentinels: Vec<_> =
        sentinels.into_iter().filter_map(|url| read_url(url, &TCP_SCHEMES, table.context())).collect();
    let master = table.string(&sentinel_key::master);
    let username = table.string(&sentinel_key::username).map(|text| text.value);
    let password = table.string(&sentinel_key::password).map(|text| text.value.into());
    let database = table.integer(&sentinel_key::database);
    table.finish();
    Some(RedisTarget::Sentinel { sentinels, master: master?.value, username, password, database })
}
