//! The `[gateway]` table: what holds for the process as a whole.
//!
//! Owns the keys of the table, their defaults and ranges. Certificates are only named here; they are read once all
//! files are known.

use std::num::NonZero;
use std::path::Path;
use std::time::Duration;

use redis::IntoConnectionInfo;
use secrecy::SecretString;

use super::databases;
use super::file::{Reading, Table, Text};
use super::problem::Problem;
use super::source::Place;
use super::{CertificateFiles, GatewayConfig, OnRedisFailure, RedisConfig, RedisTarget, Speaks, hsts, limits, listen};
use crate::metrics::TenantLabels;

/// How long a call to Redis may take.
///
/// Larger: one that hangs holds its first callers for longer. Smaller: nodes on a busy machine decide by themselves while the
/// store is well, and admit more than the limit together.
const REDIS_TIMEOUT_MS: u32 = 500;
/// Past this, callers rather wait for the store than for us to decide without it.
const LONGEST_REDIS_TIMEOUT_MS: u32 = 60_000;
/// Long enough for the slowest search; below the 30 s after which most supervisors kill.
const DRAIN_SECONDS: u32 = 20;
/// A stop that takes longer than an hour is a stop that hangs.
const LONGEST_DRAIN_SECONDS: u32 = 3600;
/// Without a balancer that asks for readiness, a stop need not wait for one.
const SHUTDOWN_DELAY_SECONDS: u32 = 0;
/// `requests_per_minute` speaks of this span.
const WINDOW_SECONDS: u32 = 60;
/// A longer window would keep more instants a tenant in Redis than any limit that makes sense.
const LONGEST_WINDOW_SECONDS: u32 = 3600;

/// The most worker threads.
///
/// Larger: a typing mistake fills memory with stacks and queues that no machine has processors for. Smaller: the largest
/// machines can't use all of their processors.
const MOST_THREADS: u32 = 1024;

/// Holds some thousands of certificates, which are those in use even where ten times as many are configured. With more,
/// a caller who tries every name makes the process grow that far; with less, more handshakes read files.
const CACHE_MIB: u32 = 64;
/// Far above what any number of certificates in use needs.
const LARGEST_CACHE_MIB: u32 = 65_536;

/// The table, and the places in it that later checks report.
pub(super) struct Gateway {
    /// Absent when a key of the table was faulty.
    pub(super) config: Option<GatewayConfig>,
    /// Whether callers are met with TLS anywhere; if not, no certificate is used.
    pub(super) speaks_tls: bool,
    /// Absent when the paths were faulty, and where nothing speaks TLS.
    pub(super) certificate: Option<NamedFiles>,
    /// The key that says where Redis is.
    pub(super) redis: Option<Place>,
}

/// The keys that say where Redis is; one of them at most.
const REDIS_KEYS: [&str; 3] = ["redis", "redis_sentinel", "redis_cluster"];

/// A certificate and a key as a file names them.
#[derive(Clone)]
pub(super) struct NamedFiles {
    pub(super) files: CertificateFiles,
    pub(super) certificate: Place,
    pub(super) private_key: Place,
    /// Whether the environment had a part in the paths; then a report must not quote them. Operators do put a key
    /// itself where its path belongs.
    pub(super) from_environment: bool,
}

/// Reads the `[gateway]` table.
pub(super) fn read(mut table: Table<'_, '_>, folder: &Path) -> Gateway {
    let (listen, admin_listen) = listen::read(&mut table);
    let redis_place = REDIS_KEYS.iter().find_map(|key| table.place_of(key));
    let redis = read_redis(&mut table);
    let drain = table.integer("drain_seconds", 0..=LONGEST_DRAIN_SECONDS, DRAIN_SECONDS);
    let delay = table.integer("shutdown_delay_seconds", 0..=LONGEST_DRAIN_SECONDS, SHUTDOWN_DELAY_SECONDS);
    let window = table.integer("window_seconds", 1..=LONGEST_WINDOW_SECONDS, WINDOW_SECONDS);
    let threads = table.integer("threads", 1..=MOST_THREADS, processors());
    let hsts = hsts::read(&mut table);
    let tenant_labels = read_tenant_labels(&mut table);
    let databases = databases::read(table.table("databases"));
    let limits = limits::read(table.table("limits"));
    let mut cache_mib = CACHE_MIB;
    // Of an entry that is faulty it is not known what it speaks.
    let speaks_tls = listen.is_empty() || listen.iter().any(|entry| entry.speaks == Speaks::Tls);
    if speaks_tls && !table.contains("tls") {
        let help =
            "an entry of `listen` speaks TLS; behind a balancer that ends TLS, write `{ address = …, tls = false }`";
        table.reading().report(Problem::at(table.place(), "missing table `tls`").help(help));
    }
    let certificate = table.table("tls").and_then(|tls| {
        let files;
        (cache_mib, files) = read_tls(tls, folder);
        files
    });
    table.finish();
    let certificate = certificate.filter(|_| speaks_tls);
    let config = (certificate.is_some() == speaks_tls).then(|| GatewayConfig {
        listen,
        admin_listen,
        redis,
        databases,
        certificate: certificate.as_ref().map(|certificate| certificate.files.clone()),
        certificate_cache: u64::from(cache_mib) * 1024 * 1024,
        quota_window: Duration::from_secs(window.into()),
        shutdown_delay: Duration::from_secs(delay.into()),
        drain: Duration::from_secs(drain.into()),
        hsts,
        threads: threads as usize,
        tenant_labels,
        limits,
    });
    Gateway { config, speaks_tls, certificate, redis: redis_place }
}

/// The processors that this process may use, by its affinity and its cgroup.
fn processors() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    u32::try_from(processors).unwrap_or(MOST_THREADS).min(MOST_THREADS)
}

/// Reads `[gateway.tls]`: the size of the cache, and the files.
pub(super) fn read_tls(mut table: Table<'_, '_>, folder: &Path) -> (u32, Option<NamedFiles>) {
    let cache_mib = table.integer("cache_mib", 1..=LARGEST_CACHE_MIB, CACHE_MIB);
    (cache_mib, read_files(table, folder))
}

/// Reads a table of two paths, which are relative to the folder of the file.
pub(super) fn read_files(mut table: Table<'_, '_>, folder: &Path) -> Option<NamedFiles> {
    let certificate = table.required_text("certificate");
    let private_key = table.required_text("private_key");
    table.finish();
    let (certificate, private_key) = certificate.zip(private_key)?;
    Some(NamedFiles {
        from_environment: certificate.from_environment || private_key.from_environment,
        files: CertificateFiles {
            certificate: folder.join(certificate.value).into(),
            private_key: folder.join(private_key.value).into(),
        },
        certificate: certificate.place,
        private_key: private_key.place,
    })
}

/// `"top:50"`, `"all"` or `"none"`.
fn read_tenant_labels(table: &mut Table<'_, '_>) -> TenantLabels {
    let Some(text) = table.text("tenant_metrics") else { return TenantLabels::default() };
    let top = || text.value.strip_prefix("top:")?.parse().ok().filter(|most| *most > 0).map(TenantLabels::Top);
    match text.value.as_str() {
        "all" => TenantLabels::All,
        "none" => TenantLabels::None,
        _ => top().unwrap_or_else(|| {
            let problem = Problem::at(&text.place, "unknown choice of tenants");
            table.reading().report(problem.label("expected `top:` and a number, `all` or `none`"));
            TenantLabels::default()
        }),
    }
}

fn read_redis(table: &mut Table<'_, '_>) -> Option<RedisConfig> {
    let mut given: Vec<_> = REDIS_KEYS.iter().filter_map(|key| table.place_of(key)).collect();
    given.sort_by_key(Place::line_and_column);
    let url = table.text("redis");
    let timeout = table.integer("redis_timeout_ms", 1..=LONGEST_REDIS_TIMEOUT_MS, REDIS_TIMEOUT_MS);
    let on_failure = table.text("on_redis_failure");
    let on_failure = on_failure.map_or(OnRedisFailure::default(), |text| match text.value.as_str() {
        "local" => OnRedisFailure::Local,
        "deny" => OnRedisFailure::Deny,
        "allow" => OnRedisFailure::Allow,
        _ => {
            let problem = Problem::at(&text.place, "unknown policy");
            table.reading().report(problem.label("expected `local`, `deny` or `allow`"));
            OnRedisFailure::default()
        }
    });
    let server = url.and_then(|text| read_url(text, &SERVER_SCHEMES, table.reading()));
    let cluster = table.texts("redis_cluster");
    let cluster: Vec<_> = cluster.into_iter().filter_map(|url| read_url(url, &TCP_SCHEMES, table.reading())).collect();
    let sentinel = table.table("redis_sentinel").map(read_sentinel);
    let target = match (server, sentinel, cluster) {
        (None, None, nodes) if nodes.is_empty() => return None,
        (Some(url), None, nodes) if nodes.is_empty() => RedisTarget::Server { url },
        (None, Some(sentinel), nodes) if nodes.is_empty() => sentinel?,
        (None, None, nodes) => RedisTarget::Cluster { nodes },
        _ => {
            let title = "`redis`, `redis_sentinel` and `redis_cluster` exclude each other";
            let [first, others @ ..] = given.as_slice() else { return None };
            for other in others {
                let problem =
                    Problem::at(other, title).label("keep this one, or the other").earlier(first, "first here");
                table.reading().report(problem.help("`redis` is for one server, the others for a group of them"));
            }
            return None;
        }
    };
    Some(RedisConfig { target, timeout: Duration::from_millis(timeout.into()), on_failure })
}

const SERVER_SCHEMES: [&str; 3] = ["redis://", "rediss://", "unix://"];
const TCP_SCHEMES: [&str; 2] = ["redis://", "rediss://"];

/// Reads a URL with one of the schemes.
fn read_url(text: Text, schemes: &[&str], reading: &Reading<'_>) -> Option<SecretString> {
    let known = schemes.iter().any(|scheme| text.value.starts_with(scheme));
    // The library's error may quote the URL, which holds a password.
    if known && text.value.as_str().into_connection_info().is_ok() {
        return Some(text.value.into());
    }
    let expected: Vec<_> = schemes.iter().map(|scheme| format!("`{scheme}`")).collect();
    let label = format!("expected {} and what follows it", expected.join(" or "));
    reading.report(Problem::at(&text.place, "not the URL of a Redis server").label(label));
    None
}

pub(super) fn read_sentinel(mut table: Table<'_, '_>) -> Option<RedisTarget> {
    let sentinels = table.required_texts("sentinels");
    let sentinels: Vec<_> =
        sentinels.into_iter().filter_map(|url| read_url(url, &TCP_SCHEMES, table.reading())).collect();
    let master = table.required_text("master");
    let username = table.text("username").map(|text| text.value);
    let password = table.text("password").map(|text| text.value.into());
    let database = table.integer("database", 0..=u32::MAX, 0);
    table.finish();
    Some(RedisTarget::Sentinel { sentinels, master: master?.value, username, password, database })
}
