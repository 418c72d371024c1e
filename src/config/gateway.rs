//! The `[gateway]` table: settings of the whole process.
//!
//! Owns the keys of the table, their defaults and ranges. Only records the paths of certificates; `coverage` reads the
//! files once all tables are known.

use std::num::NonZero;
use std::path::Path;

use super::certificate_files::{self, NamedFiles};
use super::declaration::{Key, keys, path_of};
use super::listen::ListenAddresses;
use super::places::Places;
use super::problem::Problem;
use super::redis::{SERVER_SCHEMES, TCP_SCHEMES, read_sentinel, read_url, sentinel_key};
use super::sense::{Spans, Values};
use super::source::SourceSpan;
use super::table::TableReader;
use super::{
    GatewayConfig, ListenConfig, ListenProtocol, Mode, OnRedisFailure, RedisConfig, RedisTarget, RegistryConfig,
    TenantVariables, acme, administration, databases, domains, hsts, limits, listen, operator, registry, webhooks,
};
use crate::acme::ChallengeKind;
use crate::metrics::TenantLabels;

/// The largest `threads`.
///
/// Larger: a typing mistake fills memory with stacks and queues that no machine has cores for. Smaller: the largest
/// machines cannot use all of their cores.
const MAX_THREADS: u32 = 1024;

keys! { key:
    listen = strings_or_tables(listen::key::KEYS).needs_restart(),
        "the addresses that clients connect to, at least one: `\"IP:PORT\"` for TLS, or a [table](#listeners). Port 0 selects a \
         free port";
    admin_listen = string().without("not served").needs_restart(),
        "the `\"IP:PORT\"` of [metrics and health](metrics.md), without TLS: keep it private";
    redis = string().hidden().without("none").needs_restart(),
        "the Redis that all nodes share: `redis://`, `rediss://` (TLS) or `unix://`; see [Redis](#redis)";
    redis_sentinel = table(sentinel_key::KEYS).without("none").needs_restart(),
        "instead of `redis`: [Sentinels](#sentinels) and the name of the master";
    redis_cluster = strings().hidden().default("[]").needs_restart(),
        "instead of `redis`: some nodes of a cluster, such as `[\"redis://…\"]`";
    /// The largest. Larger: clients time out before the policy applies. The default, if it were larger: a Redis that hangs
    /// delays the first requests for longer; smaller: nodes on a busy machine fall back to `on_redis_failure` while Redis is
    /// healthy, and together admit more than the limit.
    redis_timeout_ms = integer(1..=60_000).default("500").needs_restart(),
        "how long a call to Redis may take before `on_redis_failure` applies. Calls usually take less than a millisecond, and \
         some tenths of a second on a busy machine";
    on_redis_failure = choice(&OnRedisFailure::NAMES).default("\"local\"").needs_restart(),
        "what limits requests while Redis does not answer: `\"local\"` (each node by itself), `\"deny\"` (503), `\"allow\"` (no \
         limit)";
    /// The largest. Larger: a stop is indistinguishable from a hang. Smaller: uploads and group writes with the longest time
    /// limit can't be drained. The default, if it were larger: without a load balancer that polls `/readyz`, a stop waits for
    /// nothing.
    shutdown_delay_seconds = integer(0..=3600).default("0").needs_restart(),
        "how long a stopping node still accepts connections while `/readyz` already returns 503, so that balancers can take it \
         out";
    /// The largest as above. The default, if it were larger: above 30 s, many service managers kill the process first; smaller:
    /// the slowest searches are cut off.
    drain_seconds = integer(0..=3600).default("20").needs_restart(),
        "how long a stopping node then waits for requests in flight";
    hsts = string().without("not sent"),
        "the `Strict-Transport-Security` header of every response over HTTPS, such as `\"max-age=31536000\"`; see \
         [HTTPS only](#https-only)";
    threads = integer(1..=MAX_THREADS).without("the cores that the process may use").needs_restart(),
        "worker threads that serve requests. SQLite and file reads have threads of their own";
    public_port = integer(1..=65_535).without("the port of the first TLS listener, or 443 without one"),
        "the port in links to this gateway, where clients connect to another one: behind a balancer, in a container";
    registry = string().hidden().without("none").needs_restart(),
        "the database of [the registry](registry.md), which has tenants in addition to those of the files: \
         `\"sqlite:PATH\"` or `\"postgres://…\"`, as for a [tenant](#tenants). Its tables are created at the first start";
    registry_snapshot = string().default("\"registry-snapshot.db\"").needs_restart(),
        "with `registry`: the SQLite file in which this node keeps the tenants that it last read from the registry, so that it \
         starts while the registry is unavailable. Each node has its own, with mode 0600";
    tenant_variables = strings().default("[\"FORMGATE_TENANT_*\"]").needs_restart(),
        "the environment variables that tenants of the registry may use in `database` and `oidc.client_secret`: names, or \
         beginnings of names with a `*` at the end. No other variable of a node reaches a tenant of the registry: see \
         [`database`](#tenants)";
    tenant_metrics = string().default("\"top:50\"").needs_restart(),
        "which tenants have their own labels in the metrics: `\"top:N\"` (the busiest N), `\"all\"` or `\"none\"`";
    request_log = boolean().default("true"),
        "whether the last 10,000 requests or 7 days of each account are kept in its database, for `GET /request` and [a \
         page](administration.md#the-log-of-requests)";
    /// The largest. Larger: Redis keeps more timestamps per tenant than any sensible limit needs. Smaller: no budget per hour
    /// can be configured.
    window_seconds = integer(1..=3600).default("60").needs_restart(),
        "the window in which `requests_per_minute` are admitted. For tests only: callers expect a minute";
    tls = table(tls_key::KEYS).without("required if an entry of `listen` uses TLS, unless `[gateway.acme]` is there"),
        "the [certificate](#tls) of every host without one of its own";
    databases = table(databases::key::KEYS).without("defaults").needs_restart(),
        "limits on [the databases](#databases) of all tenants together";
    limits = table(limits::key::KEYS).without("defaults").needs_restart(),
        "[what clients may use](#limits)";
    webhooks = table(webhooks::key::KEYS).without("defaults").needs_restart(), "how [webhooks](#webhooks) are sent";
    administration = table(administration::key::KEYS).without("not served"),
        "[the administration area](#the-administration-area)";
    operator = table(operator::key::KEYS).without("not served").needs_restart(), "[the operator API](#the-operator-api)";
    domains = table(domains::key::KEYS).without("none").needs_restart(),
        "[where the hosts of tenants have to point](#domains)";
    acme = table(acme::key::KEYS).without("none").needs_restart(), "[certificates by ACME](#certificates-by-acme)";
}

keys! { tls_key:
    certificate = string().without("required without `[gateway.acme]`"), certificate_files::key::certificate.about;
    private_key = string().without("required without `[gateway.acme]`"), certificate_files::key::private_key.about;
    /// The largest. Larger: a typing mistake passes, since no set of certificates in use needs that much. Smaller: a large
    /// machine can't keep all certificates of very many hosts in memory. The default holds some thousand certificates, which
    /// covers those in use even if ten times as many are configured; if it were larger: a client that tries every name makes the
    /// process grow that far; smaller: more handshakes read files.
    cache_mib = integer(1..=65_536).default("64").needs_restart(),
        "how much memory the tenants' certificates may use; they are read on first use";
}

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
const REDIS_KEYS: [&Key; 3] = [&key::redis, &key::redis_sentinel, &key::redis_cluster];

/// Reads the `[gateway]` table.
pub(super) fn read(mut table: TableReader<'_, '_>, folder: &Path) -> GatewayTable {
    let context = table.context();
    let mut taken = ListenAddresses::new(context);
    let entries = table.strings_or_tables(&key::listen);
    let listen: Vec<_> = entries.into_iter().filter_map(|entry| listen::read(entry, &mut taken)).collect();
    let admin_listen = table.string(&key::admin_listen).and_then(|text| taken.read(&text));
    let (mut places, spans) = (Places::default(), Spans::of(&table));
    let redis_span = REDIS_KEYS.iter().find_map(|key| table.span_of(key));
    let registry_span = table.span_of(&key::registry);
    let registry = read_registry(&mut table, folder, &mut places);
    let operator = table.table(&key::operator);
    let operator =
        operator.map(|table| operator::read(table, registry_span.is_some(), folder, &mut taken, &mut places));
    places.listen = taken.into_taken();
    let domains = table.table(&key::domains).map(|table| domains::read(table, registry_span.as_ref()));
    let (has_acme, acme_span) = (table.contains(&key::acme), table.span_of(&key::acme));
    let acme = table.table(&key::acme).map(|table| acme::read(table, domains.as_ref(), folder));
    if let Some((acme, span)) = acme.as_ref().zip(acme_span.as_ref())
        && !listen.is_empty()
        && !acme.requests.challenges.iter().any(|challenge| is_answered(*challenge, &listen))
    {
        let problem = Problem::at(span, "no entry of `listen` can answer the challenges of the authorities");
        let help = "`http-01` needs port 80, `{ address = \"0.0.0.0:80\", redirect_to_https = true }`, and `tls-alpn-01` a \
            listener that speaks TLS";
        context.report(problem.help(help).into_warning());
    }
    // The protocol of a faulty entry is unknown, so assume TLS.
    let speaks_tls = listen.is_empty() || listen.iter().any(|entry| entry.protocol == ListenProtocol::Tls);
    if speaks_tls && !has_acme && !table.contains(&key::tls) {
        let help = "an entry of `listen` speaks TLS: give it a certificate, or have certificates obtained with \
            `[gateway.acme]`; behind a balancer that ends TLS, write `{ address = …, tls = false }`";
        context.report(Problem::at(table.span(), "missing table `tls`").help(help));
    }
    let tls = table.table(&key::tls);
    let names_files = |tls: &TableReader<'_, '_>| {
        !has_acme || tls.contains(&tls_key::certificate) || tls.contains(&tls_key::private_key)
    };
    let is_named = tls.as_ref().is_some_and(names_files);
    let mut tls = tls.unwrap_or_else(|| TableReader::empty(context, tls_key::KEYS));
    let certificate_cache = u64::from(tls.integer(&tls_key::cache_mib)) * 1024 * 1024;
    let certificate = if is_named {
        certificate_files::read(tls, folder)
    } else {
        tls.finish();
        None
    };
    let is_faulty = is_named && certificate.is_none();
    let certificate = certificate.filter(|_| speaks_tls);
    let config = GatewayConfig {
        redis: read_redis(&mut table),
        admin_listen,
        certificate: certificate.as_ref().map(|certificate| certificate.files.clone()),
        certificate_cache,
        quota_window: table.duration(&key::window_seconds),
        shutdown_delay: table.duration(&key::shutdown_delay_seconds),
        drain: table.duration(&key::drain_seconds),
        hsts: table.string(&key::hsts).and_then(|text| hsts::read(text, context)),
        threads: table.given_integer(&key::threads).unwrap_or_else(processors) as usize,
        request_log: table.boolean(&key::request_log),
        tenant_labels: read_tenant_labels(&mut table),
        databases: databases::read(table.table_or_defaults(&key::databases)),
        limits: limits::read(table.table_or_defaults(&key::limits)),
        webhooks: webhooks::read(table.table_or_defaults(&key::webhooks), folder),
        administration: table.table(&key::administration).map(|table| administration::read(table, folder)),
        public_port: table.given_integer(&key::public_port).and_then(|port| u16::try_from(port).ok()),
        listen,
        registry,
        operator,
        domains,
        acme,
        mode: Mode::default(),
    };
    let GatewayConfig { limits, webhooks, domains, .. } = &config;
    spans.check(&Values { limits, webhooks, domains: domains.as_ref() }, context);
    table.finish();
    let is_complete = !is_faulty && (certificate.is_some() || !speaks_tls || has_acme);
    GatewayTable {
        config: is_complete.then_some(config),
        speaks_tls,
        obtains_certificates: has_acme,
        certificate,
        redis: redis_span,
        registry: registry_span,
        places,
    }
}

/// Reads the keys of the registry; `None` if there is no registry.
fn read_registry(table: &mut TableReader<'_, '_>, folder: &Path, places: &mut Places) -> Option<RegistryConfig> {
    let context = table.context();
    let (has_variables, faults) = (table.contains(&key::tenant_variables), context.faults());
    let variables = registry::read_variables(table.strings(&key::tenant_variables), context);
    let variables = match has_variables {
        // A faulty list is one fault, not one of each tenant.
        true if context.faults() > faults => TenantVariables(["*".into()].into()),
        true => variables,
        false => TenantVariables::default(),
    };
    let (is_given, snapshot_at) = (table.contains(&key::registry), table.span_of(&key::registry_snapshot));
    let (registry, snapshot) = (table.string(&key::registry), table.string(&key::registry_snapshot));
    let Some(registry) = registry else {
        if let Some(span) = snapshot_at.filter(|_| !is_given) {
            let problem = Problem::at(&span, "there is no registry to keep a snapshot of");
            context.report(problem.help("add `registry`, or remove this key"));
        }
        return None;
    };
    let snapshot = snapshot.map(|text| text.value);
    let snapshot = snapshot.as_deref().or(key::registry_snapshot.default_value()).unwrap_or_default();
    registry::read(&registry, (snapshot, snapshot_at.as_ref()), variables, folder, places, context)
}

impl GatewayConfig {
    /// The keys whose values differ in another configuration and take effect at the next start.
    #[must_use]
    pub fn waiting_for_restart(&self, after: &Self) -> Vec<String> {
        // Destructured, so that a new key can't be forgotten here.
        let Self {
            listen,
            admin_listen,
            redis,
            databases,
            certificate,
            certificate_cache,
            quota_window,
            shutdown_delay,
            drain,
            hsts,
            threads,
            request_log,
            tenant_labels,
            limits,
            webhooks,
            administration,
            public_port,
            registry,
            operator,
            domains,
            acme,
            mode: _,
        } = self;
        let places = |registry: &Option<RegistryConfig>| {
            registry.as_ref().map(|RegistryConfig { database, snapshot, folder, variables: _, is_written: _ }| {
                (database.clone(), snapshot.clone(), folder.clone())
            })
        };
        let variables =
            |registry: &Option<RegistryConfig>| registry.as_ref().map(|registry| registry.variables.clone());
        let changes = [
            (&key::listen, *listen != after.listen),
            (&key::admin_listen, *admin_listen != after.admin_listen),
            (&key::redis, *redis != after.redis),
            (&key::databases, *databases != after.databases),
            (&key::window_seconds, *quota_window != after.quota_window),
            (&key::shutdown_delay_seconds, *shutdown_delay != after.shutdown_delay),
            (&key::drain_seconds, *drain != after.drain),
            (&key::hsts, *hsts != after.hsts),
            (&key::threads, *threads != after.threads),
            (&key::request_log, *request_log != after.request_log),
            (&key::tenant_metrics, *tenant_labels != after.tenant_labels),
            (&key::tls, *certificate != after.certificate),
            (&tls_key::cache_mib, *certificate_cache != after.certificate_cache),
            (&key::limits, *limits != after.limits),
            (&key::webhooks, *webhooks != after.webhooks),
            (&key::administration, *administration != after.administration),
            (&key::public_port, *public_port != after.public_port),
            (&key::registry, places(registry) != places(&after.registry)),
            (&key::tenant_variables, variables(registry) != variables(&after.registry)),
            (&key::operator, *operator != after.operator),
            (&key::domains, *domains != after.domains),
            (&key::acme, *acme != after.acme),
        ];
        let waiting = changes.into_iter().filter(|(key, is_changed)| *is_changed && key.needs_restart);
        waiting.map(|(changed, _)| path_of(key::KEYS, changed)).collect()
    }
}

/// Whether a listener may get what an authority sends for a challenge. Which port of it others see is not known.
fn is_answered(challenge: ChallengeKind, listen: &[ListenConfig]) -> bool {
    listen.iter().any(|entry| match challenge {
        ChallengeKind::Http01 => matches!(entry.protocol, ListenProtocol::Redirect { .. } | ListenProtocol::Http1),
        ChallengeKind::TlsAlpn01 => entry.protocol == ListenProtocol::Tls,
    })
}

/// The processors that this process may use, by its affinity and its cgroup.
fn processors() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    u32::try_from(processors).unwrap_or(MAX_THREADS).min(MAX_THREADS)
}

/// `"top:50"`, `"all"` or `"none"`.
fn read_tenant_labels(table: &mut TableReader<'_, '_>) -> TenantLabels {
    let Some(text) = table.string(&key::tenant_metrics) else { return TenantLabels::default() };
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
    let url = table.string(&key::redis);
    let timeout = table.duration(&key::redis_timeout_ms);
    let on_failure = table.choice(&key::on_redis_failure, "unknown policy");
    let on_failure = on_failure.and_then(|name| OnRedisFailure::ALL.into_iter().find(|policy| policy.name() == name));
    let server = url.and_then(|text| read_url(text, &SERVER_SCHEMES, table.context()));
    let cluster = table.strings(&key::redis_cluster);
    let cluster: Vec<_> = cluster.into_iter().filter_map(|url| read_url(url, &TCP_SCHEMES, table.context())).collect();
    let sentinel = table.table(&key::redis_sentinel).map(read_sentinel);
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
    Some(RedisConfig { target, timeout, on_failure: on_failure.unwrap_or_default() })
}
