//! The `[gateway]` table: settings of the whole process.
//!
//! Owns the keys of the table, their defaults and ranges. Only records the paths of certificates; `coverage` reads the
//! files once all tables are known.

use std::num::NonZero;
use std::path::Path;
use std::time::Duration;

use redis::IntoConnectionInfo;
use secrecy::SecretString;

use super::context::LoadContext;
use super::databases;
use super::places::Places;
use super::problem::Problem;
use super::sense::{Spans, Values};
use super::source::SourceSpan;
use super::table::{StringValue, TableReader};
use super::{
    CertificateFiles, GatewayConfig, ListenConfig, ListenProtocol, Mode, OnRedisFailure, RedisConfig, RedisTarget,
    RegistryConfig, acme, administration, domains, hsts, limits, listen, operator, webhooks,
};
use crate::acme::ChallengeKind;
use crate::metrics::TenantLabels;

/// The default of `redis_timeout_ms`.
///
/// Larger: a Redis that hangs delays the first requests for longer. Smaller: nodes on a busy machine fall back to
/// `on_redis_failure` while Redis is healthy, and together admit more than the limit.
const DEFAULT_REDIS_TIMEOUT_MS: u32 = 500;
/// The largest `redis_timeout_ms`. Larger: clients time out before the policy applies.
const MAX_REDIS_TIMEOUT_MS: u32 = 60_000;
/// The default of `drain_seconds`. Larger: above 30 s, many service managers kill the process first. Smaller: the
/// slowest searches are cut off.
const DEFAULT_DRAIN_SECONDS: u32 = 20;
/// The largest `drain_seconds` and `shutdown_delay_seconds`. Larger: a stop is indistinguishable from a hang.
/// Smaller: uploads and group writes with the longest time limit can't be drained.
const MAX_DRAIN_SECONDS: u32 = 3600;
/// The default of `shutdown_delay_seconds`. Larger: without a load balancer that polls `/readyz`, a stop waits for
/// nothing. Smaller: impossible, it is 0.
const DEFAULT_SHUTDOWN_DELAY_SECONDS: u32 = 0;
/// The default of `window_seconds`: the minute in `requests_per_minute`.
const DEFAULT_WINDOW_SECONDS: u32 = 60;
/// The largest `window_seconds`. Larger: Redis keeps more timestamps per tenant than any sensible limit needs. Smaller:
/// no budget per hour can be configured.
const MAX_WINDOW_SECONDS: u32 = 3600;

/// The largest `threads`.
///
/// Larger: a typing mistake fills memory with stacks and queues that no machine has cores for. Smaller: the largest
/// machines cannot use all of their cores.
const MAX_THREADS: u32 = 1024;

/// The default of `cache_mib`. It holds some thousand certificates, which covers those in use even if ten times as
/// many are configured. Larger: a client that tries every name makes the process grow that far. Smaller: more
/// handshakes read files.
const DEFAULT_CACHE_MIB: u32 = 64;
/// The largest `cache_mib`. Larger: a typing mistake passes, since no set of certificates in use needs that much.
/// Smaller: a large machine can't keep all certificates of very many hosts in memory.
const MAX_CACHE_MIB: u32 = 65_536;

/// The table, and the spans in it that later checks report.
pub(super) struct GatewayTable {
    /// `None` if a key of the table was faulty.
    pub(super) config: Option<GatewayConfig>,
    /// Whether any listener uses TLS; if not, no certificate is used.
    pub(super) speaks_tls: bool,
    /// Whether a host that no file covers gets a certificate of its own.
    pub(super) obtains_certificates: bool,
    /// `None` if the paths were faulty or no listener uses TLS.
    pub(super) certificate: Option<NamedFiles>,
    /// The span of the key that configures Redis.
    pub(super) redis: Option<SourceSpan>,
    /// The span of the key of the registry, from which tenants may come.
    pub(super) registry: Option<SourceSpan>,
    /// What is named on this machine.
    pub(super) places: Places,
}

impl GatewayTable {
    /// The registry, unless the table has a fault.
    pub(super) fn registry_config(&self) -> Option<&RegistryConfig> {
        self.config.as_ref()?.registry.as_ref()
    }
}

/// The keys that configure Redis; at most one may be set.
const REDIS_KEYS: [&str; 3] = ["redis", "redis_sentinel", "redis_cluster"];

/// The paths of a certificate and its key, and where they are configured.
#[derive(Clone)]
pub(super) struct NamedFiles {
    pub(super) files: CertificateFiles,
    pub(super) certificate: SourceSpan,
    pub(super) private_key: SourceSpan,
    /// Whether the paths contain environment variables. If so, reports must not quote them: operators do put the key
    /// itself where its path belongs.
    pub(super) from_environment: bool,
}

/// Reads the `[gateway]` table.
pub(super) fn read(mut table: TableReader<'_, '_>, folder: &Path) -> GatewayTable {
    let (listen, admin_listen, mut taken) = listen::read(&mut table);
    let (mut places, spans) = (Places::default(), Spans::of(&table));
    let redis_span = REDIS_KEYS.iter().find_map(|key| table.span_of(key));
    let redis = read_redis(&mut table);
    let drain = table.integer("drain_seconds", 0..=MAX_DRAIN_SECONDS, DEFAULT_DRAIN_SECONDS);
    let delay = table.integer("shutdown_delay_seconds", 0..=MAX_DRAIN_SECONDS, DEFAULT_SHUTDOWN_DELAY_SECONDS);
    let window = table.integer("window_seconds", 1..=MAX_WINDOW_SECONDS, DEFAULT_WINDOW_SECONDS);
    let threads = table.integer("threads", 1..=MAX_THREADS, processors());
    let hsts = hsts::read(&mut table);
    let tenant_labels = read_tenant_labels(&mut table);
    let databases = databases::read(table.table("databases"));
    let limits = limits::read(table.table("limits"));
    let webhooks = webhooks::read(table.table("webhooks"), folder);
    let administration = administration::read(table.table("administration"), folder);
    let public_port = read_public_port(&mut table);
    let registry_span = table.span_of("registry");
    let registry = operator::read_registry(&mut table, folder, &mut places);
    let operator = operator::read(table.table("operator"), registry_span.is_some(), folder, &mut taken, &mut places);
    places.listen = taken.into_taken();
    let domains = domains::read(table.table("domains"), registry_span.as_ref());
    let values = Values { limits: &limits, webhooks: &webhooks, domains: domains.as_ref() };
    spans.check(&values, table.context());
    let has_acme = table.contains("acme");
    let acme_span = table.span_of("acme");
    let acme = acme::read(table.table("acme"), domains.as_ref(), folder);
    if let Some((acme, span)) = acme.as_ref().zip(acme_span.as_ref())
        && !listen.is_empty()
        && !acme.requests.challenges.iter().any(|challenge| is_answered(*challenge, &listen))
    {
        let problem = Problem::at(span, "no entry of `listen` can answer the challenges of the authorities");
        let help = "`http-01` needs port 80, `{ address = \"0.0.0.0:80\", redirect_to_https = true }`, and `tls-alpn-01` a \
            listener that speaks TLS";
        table.context().report(problem.help(help).into_warning());
    }
    let mut cache_mib = DEFAULT_CACHE_MIB;
    // The protocol of a faulty entry is unknown, so assume TLS.
    let speaks_tls = listen.is_empty() || listen.iter().any(|entry| entry.protocol == ListenProtocol::Tls);
    if speaks_tls && !has_acme && !table.contains("tls") {
        let help = "an entry of `listen` speaks TLS: give it a certificate, or have certificates obtained with \
            `[gateway.acme]`; behind a balancer that ends TLS, write `{ address = …, tls = false }`";
        table.context().report(Problem::at(table.span(), "missing table `tls`").help(help));
    }
    let mut is_faulty = false;
    let certificate = table.table("tls").and_then(|tls| {
        let files;
        let is_optional = has_acme && !tls.contains("certificate") && !tls.contains("private_key");
        (cache_mib, files) = if is_optional { (read_cache(tls), None) } else { read_tls(tls, folder) };
        is_faulty = files.is_none() && !is_optional;
        files
    });
    table.finish();
    let certificate = certificate.filter(|_| speaks_tls);
    let is_complete = !is_faulty && (certificate.is_some() || !speaks_tls || has_acme);
    let config = is_complete.then(|| GatewayConfig {
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
        webhooks,
        administration,
        public_port,
        registry,
        operator,
        domains,
        acme,
        mode: Mode::default(),
    });
    GatewayTable {
        config,
        speaks_tls,
        obtains_certificates: has_acme,
        certificate,
        redis: redis_span,
        registry: registry_span,
        places,
    }
}

/// Whether a listener may get what an authority sends for a challenge. Which port of it others see is not known.
fn is_answered(challenge: ChallengeKind, listen: &[ListenConfig]) -> bool {
    listen.iter().any(|entry| match challenge {
        ChallengeKind::Http01 => matches!(entry.protocol, ListenProtocol::Redirect { .. } | ListenProtocol::Http1),
        ChallengeKind::TlsAlpn01 => entry.protocol == ListenProtocol::Tls,
    })
}

/// The port in links, if it is set. 0, which is out of its range, stands for a missing key.
fn read_public_port(table: &mut TableReader<'_, '_>) -> Option<u16> {
    let port = table.integer("public_port", 1..=u16::MAX.into(), 0);
    u16::try_from(port).ok().filter(|port| *port > 0)
}

/// The processors that this process may use, by its affinity and its cgroup.
fn processors() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    u32::try_from(processors).unwrap_or(MAX_THREADS).min(MAX_THREADS)
}

/// Reads `[gateway.tls]`: the size of the cache, and the files.
pub(super) fn read_tls(mut table: TableReader<'_, '_>, folder: &Path) -> (u32, Option<NamedFiles>) {
    let cache_mib = read_cache_mib(&mut table);
    (cache_mib, read_files(table, folder))
}

/// Reads `[gateway.tls]` without files: each host gets a certificate of its own.
fn read_cache(mut table: TableReader<'_, '_>) -> u32 {
    let cache_mib = read_cache_mib(&mut table);
    table.finish();
    cache_mib
}

fn read_cache_mib(table: &mut TableReader<'_, '_>) -> u32 {
    table.integer("cache_mib", 1..=MAX_CACHE_MIB, DEFAULT_CACHE_MIB)
}

/// Reads a table of two paths, relative to the folder of the file.
pub(super) fn read_files(mut table: TableReader<'_, '_>, folder: &Path) -> Option<NamedFiles> {
    let certificate = table.required_string("certificate");
    let private_key = table.required_string("private_key");
    table.finish();
    let (certificate, private_key) = certificate.zip(private_key)?;
    Some(NamedFiles {
        from_environment: certificate.from_environment || private_key.from_environment,
        files: CertificateFiles {
            certificate: folder.join(certificate.value).into(),
            private_key: folder.join(private_key.value).into(),
        },
        certificate: certificate.span,
        private_key: private_key.span,
    })
}

/// `"top:50"`, `"all"` or `"none"`.
fn read_tenant_labels(table: &mut TableReader<'_, '_>) -> TenantLabels {
    let Some(text) = table.string("tenant_metrics") else { return TenantLabels::default() };
    let top = || text.value.strip_prefix("top:")?.parse().ok().filter(|most| *most > 0).map(TenantLabels::Top);
    match text.value.as_str() {
        "all" => TenantLabels::All,
        "none" => TenantLabels::None,
        _ => top().unwrap_or_else(|| {
            let problem = Problem::at(&text.span, "unknown choice of tenants");
            table.context().report(problem.label("expected `top:` and a number, `all` or `none`"));
            TenantLabels::default()
        }),
    }
}

fn read_redis(table: &mut TableReader<'_, '_>) -> Option<RedisConfig> {
    let mut given: Vec<_> = REDIS_KEYS.iter().filter_map(|key| table.span_of(key)).collect();
    given.sort_by_key(SourceSpan::line_and_column);
    let url = table.string("redis");
    let timeout = table.integer("redis_timeout_ms", 1..=MAX_REDIS_TIMEOUT_MS, DEFAULT_REDIS_TIMEOUT_MS);
    let on_failure = table.string("on_redis_failure");
    let on_failure = on_failure.map_or(OnRedisFailure::default(), |text| match text.value.as_str() {
        "local" => OnRedisFailure::Local,
        "deny" => OnRedisFailure::Deny,
        "allow" => OnRedisFailure::Allow,
        _ => {
            let problem = Problem::at(&text.span, "unknown policy");
            table.context().report(problem.label("expected `local`, `deny` or `allow`"));
            OnRedisFailure::default()
        }
    });
    let server = url.and_then(|text| read_url(text, &SERVER_SCHEMES, table.context()));
    let cluster = table.strings("redis_cluster");
    let cluster: Vec<_> = cluster.into_iter().filter_map(|url| read_url(url, &TCP_SCHEMES, table.context())).collect();
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
                table.context().report(problem.help("`redis` is for one server, the others for a group of them"));
            }
            return None;
        }
    };
    Some(RedisConfig { target, timeout: Duration::from_millis(timeout.into()), on_failure })
}

const SERVER_SCHEMES: [&str; 3] = ["redis://", "rediss://", "unix://"];
const TCP_SCHEMES: [&str; 2] = ["redis://", "rediss://"];

/// Parses a URL with one of the schemes.
fn read_url(text: StringValue, schemes: &[&str], context: &LoadContext<'_>) -> Option<SecretString> {
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

pub(super) fn read_sentinel(mut table: TableReader<'_, '_>) -> Option<RedisTarget> {
    let sentinels = table.required_strings("sentinels");
    let sentinels: Vec<_> =
        sentinels.into_iter().filter_map(|url| read_url(url, &TCP_SCHEMES, table.context())).collect();
    let master = table.required_string("master");
    let username = table.string("username").map(|text| text.value);
    let password = table.string("password").map(|text| text.value.into());
    let database = table.integer("database", 0..=u32::MAX, 0);
    table.finish();
    Some(RedisTarget::Sentinel { sentinels, master: master?.value, username, password, database })
}
