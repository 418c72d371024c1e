//! Traces a request without sending it: reports at which step it would stop, and how to fix that. Traces webhooks of a
//! subscription too, and sends its receiver a test.
//!
//! Checks the same things as a gateway, with the same code: the configuration, certificate files, the tenant's
//! database, and the rate window in Redis. Anything that only the running process knows (a window in its memory, an
//! open circuit breaker) is reported as unknown. Tracing uses no budget and writes nothing to a database.

mod certificate;
mod database;
mod domain;
mod moving;
mod sign_in;
mod webhook;

use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;

use crate::certificate::Roots;
use crate::config::{Config, OnRedisFailure, TenantConfig};
use crate::host::HostName;
use crate::instant::Rfc3339Micros;
use crate::metrics::Metrics;
use crate::quota::{Account, Interface, Quota};
use crate::shared::{RedisClient, RedisConnections, diagnosis};
use crate::store::{DatabaseIdentity, Registry, StoreError, TokenLimits};
use crate::tenant::token::PresentedToken;
pub use webhook::{guard_of, trace_webhook};

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The request passes.
    Passes(String),
    /// The request passes, but needs attention.
    Warns {
        /// What is wrong or will be.
        what: String,
        /// How to fix it.
        remedy: String,
    },
    /// The request stops here.
    Stops {
        /// What the client gets, and why.
        what: String,
        /// How to fix it.
        remedy: String,
    },
}

impl Finding {
    fn passes(what: impl Into<String>) -> Self {
        Self::Passes(what.into())
    }

    fn warns(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Warns { what: what.into(), remedy: remedy.into() }
    }

    fn stops(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Stops { what: what.into(), remedy: remedy.into() }
    }
}

/// One step of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStep {
    /// `name`, `certificate`, `tenant`, `database`, `move`, `token`, `budget` or `sign-in`; of a webhook `name`, `database`,
    /// `subscription`, `pending`, `secret`, `url`, `dns`, `address`, `tcp`, `tls` or `answer`.
    pub name: &'static str,
    /// The result.
    pub finding: Finding,
}

/// A complete trace. Continues after the step at which the request stops where possible, so that an operator learns of
/// the next problem too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace(Vec<TraceStep>);

impl Trace {
    /// The steps in order.
    #[must_use]
    pub fn steps(&self) -> &[TraceStep] {
        &self.0
    }

    /// The step at which the request stops; `None` if it would be served.
    #[must_use]
    pub fn stop(&self) -> Option<&TraceStep> {
        self.0.iter().find(|step| matches!(step.finding, Finding::Stops { .. }))
    }

    fn step(&mut self, name: &'static str, finding: Finding) {
        self.0.push(TraceStep { name, finding });
    }
}

/// One line per step, followed by the remedy.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, TraceStep { name, finding }) in self.0.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            match finding {
                Finding::Passes(what) => write!(f, "{newline}{name:<12} ok    {what}")?,
                Finding::Warns { what, remedy } => {
                    write!(f, "{newline}{name:<12} warn  {what}\n{:<18} → {remedy}", "")?;
                }
                Finding::Stops { what, remedy } => {
                    write!(f, "{newline}{name:<12} STOP  {what}\n{:<18} → {remedy}", "")?;
                }
            }
        }
        Ok(())
    }
}

/// Traces requests with a configuration and a connection to its Redis.
#[derive(Debug)]
pub struct Tracer<'c> {
    config: &'c Config,
    quota: Option<(Quota, OnRedisFailure)>,
    /// Why Redis can't be used, if it can't.
    redis: Option<diagnosis::Diagnosis>,
    /// The registry, if it has domains.
    registry: Option<Result<Registry, StoreError>>,
    roots: Roots,
    now: Timestamp,
}

impl<'c> Tracer<'c> {
    /// Connects to Redis if one is configured; it may be unavailable.
    pub async fn new(config: &'c Config) -> Self {
        let (mut quota, mut failed) = (None, None);
        if let Some(redis) = &config.gateway.redis
            && let Ok(client) = RedisClient::new(&redis.target)
        {
            let metrics = Metrics::default();
            let connections =
                RedisConnections::open(client.into(), redis.timeout, redis.on_failure, metrics.clone()).await;
            let shared = Some((connections.into(), redis.on_failure));
            failed = diagnosis::diagnose(&redis.target).await.err();
            quota = Some((Quota::new(config.gateway.quota_window, shared, metrics), redis.on_failure));
        }
        let registry = match config.gateway.registry.as_ref().filter(|_| config.gateway.domains.is_some()) {
            Some(registry) => Registry::open_existing(&registry.database).await.transpose(),
            None => None,
        };
        Self { config, quota, redis: failed, registry, roots: Roots::of_system(), now: Timestamp::now() }
    }

    /// Traces a request to a host, which may be given as a URL, with or without a token, from an address if it is given.
    pub async fn trace(&self, host: &str, token: Option<&str>, from: Option<IpAddr>) -> Trace {
        let mut trace = Trace::default();
        let (host, tenant) = match find(self.config, host) {
            Ok(found) => found,
            Err(finding) => {
                trace.step("name", self.find_unproved(host).await.unwrap_or(finding));
                return trace;
            }
        };
        let role = if *host == tenant.address { "sign-in address" } else { "custom domain" };
        trace.step("name", Finding::passes(format!("`{host}` is the {role} of the tenant `{}`", tenant.slug)));
        trace.step("certificate", self.find_certificate(tenant, host).await);
        let zone = tenant.timezone.iana_name().unwrap_or("UTC");
        trace.step(
            "tenant",
            Finding::passes(format!("`{}`, callers read “{}”, time zone {zone}", tenant.slug, tenant.name)),
        );
        self.trace_behind_edge(&mut trace, tenant, Some((token, from))).await;
        trace
    }

    /// Traces a request to each host of a tenant, without a token: checks what affects all of its clients.
    pub async fn trace_tenant(&self, tenant: &TenantConfig) -> Trace {
        let mut trace = Trace::default();
        for host in tenant.hosts() {
            trace.step("certificate", self.find_certificate(tenant, host).await);
        }
        self.trace_behind_edge(&mut trace, tenant, None).await;
        trace
    }

    /// A host that tenants claim and none has proved.
    async fn find_unproved(&self, host: &str) -> Option<Finding> {
        let registry = self.registry.as_ref()?.as_ref().ok()?;
        domain::find_unproved(registry, self.config, &parse(host).ok()?).await
    }

    /// The certificate of a host: of a file, or one that is obtained for it.
    async fn find_certificate(&self, tenant: &TenantConfig, host: &HostName) -> Finding {
        match &self.registry {
            Some(registry) if domain::is_obtained(self.config, tenant, host) => {
                domain::find(registry.as_ref(), self.config, tenant, host, self.now).await
            }
            _ => certificate::find(self.config, tenant, host, &self.roots, self.now),
        }
    }

    /// The steps after the edge. With `None`, counts the tenant's tokens instead of checking one.
    async fn trace_behind_edge(
        &self,
        trace: &mut Trace,
        tenant: &TenantConfig,
        token: Option<(Option<&str>, Option<IpAddr>)>,
    ) {
        let (finding, found) = database::find(tenant).await;
        trace.step("database", finding);
        if let Some(finding) = moving::find(self.config, tenant).await {
            trace.step("move", finding);
        }
        let (identity, tokens) = found.unzip();
        if let Some(tokens) = tokens {
            trace.step(
                "token",
                match token {
                    Some((token, from)) => find_token(token, from, &tokens, &tenant.slug),
                    None => count_tokens(&tokens, &tenant.slug),
                },
            );
        } else if let Some(token) =
            token.and_then(|(token, _)| token).filter(|token| PresentedToken::parse(token).is_none())
        {
            trace.step("token", malformed(token));
        }
        trace.step("budget", self.find_budget(tenant, identity.as_ref()).await);
        if let Some(finding) = sign_in::find(self.config, tenant) {
            trace.step("sign-in", finding);
        }
    }

    async fn find_budget(&self, tenant: &TenantConfig, database: Option<&DatabaseIdentity>) -> Finding {
        let (limit, seconds) = (tenant.requests_per_minute, self.config.gateway.quota_window.as_secs());
        let Some((quota, policy)) = &self.quota else {
            return Finding::passes(format!(
                "{limit} requests in {seconds} s, counted in the memory of the running node: only its responses show what remains"
            ));
        };
        let Some(database) = database else {
            return Finding::warns(
                "Redis keeps it under the identity of the database, which can't be read: the remaining budget is unknown",
                "fix the database first",
            );
        };
        match quota.peek_shared(Account::new(&tenant.slug, database, Interface::Api).limited(limit)).await {
            Some((budget, wait)) if budget.remaining == 0 => Finding::stops(
                format!(
                    "all {limit} requests of the last {seconds} s are spent: 429 for another {} s",
                    wait.as_secs() + 1
                ),
                "wait, or raise `requests_per_minute`; GET /me lists usage by token",
            ),
            Some((budget, _)) => {
                Finding::passes(format!("{} of {limit} requests in {seconds} s are left, by Redis", budget.remaining))
            }
            None => {
                let (why, remedy) = match &self.redis {
                    Some(failed) => (format!(" ({})", failed.cause), &*failed.remedy),
                    None => (String::new(), "try again"),
                };
                let remedy = format!("{remedy}; the nodes use Redis again as soon as it answers");
                match policy {
                    OnRedisFailure::Deny => Finding::stops(
                        format!(
                            "Redis does not answer{why}, and the policy is `deny`: every request is answered with 503"
                        ),
                        format!("{remedy}; or set `on_redis_failure` to `local`"),
                    ),
                    OnRedisFailure::Local => Finding::warns(
                        format!(
                            "Redis does not answer{why}: each node admits {limit} requests in {seconds} s by itself"
                        ),
                        remedy,
                    ),
                    OnRedisFailure::Allow => Finding::warns(
                        format!("Redis does not answer{why}, and the policy is `allow`: nothing is limited"),
                        remedy,
                    ),
                }
            }
        }
    }
}

/// A host, which may be given as a URL.
fn parse(host: &str) -> Result<HostName, Finding> {
    let without_scheme = host.split_once("://").map_or(host, |(_, rest)| rest);
    let authority = without_scheme.split('/').next().unwrap_or_default();
    HostName::parse_authority(authority).map_err(|_| {
        let what = format!("`{authority}` is no host name: a request is refused with 400");
        Finding::stops(what, "give the host as in the URL that the client uses")
    })
}

fn hosts(config: &Config) -> impl Iterator<Item = (&HostName, &TenantConfig)> {
    config.tenants.iter().flat_map(|tenant| tenant.hosts().map(move |host| (host, &**tenant)))
}

/// The tenant at a host, which may be given as a URL.
fn find<'c>(config: &'c Config, host: &str) -> Result<(&'c HostName, &'c TenantConfig), Finding> {
    let wanted = parse(host)?;
    hosts(config).find(|(host, _)| **host == wanted).ok_or_else(|| unknown(config, &wanted))
}

/// No tenant has a host.
fn unknown(config: &Config, wanted: &HostName) -> Finding {
    let what = format!(
        "no tenant has `{wanted}`: a handshake for it ends with the alert unrecognized_name, and a request with 404"
    );
    let near = |host: &HostName| strsim::damerau_levenshtein(host.as_str(), wanted.as_str());
    let nearest = hosts(config).map(|(host, tenant)| (near(host), host, tenant)).min_by_key(|(far, _, _)| *far);
    let remedy = "add it to the `domains` of a tenant in the configuration, with a certificate".to_owned();
    let remedy = match nearest {
        Some((1..=3, host, tenant)) => format!("{remedy}; or was `{host}` meant, of the tenant `{}`?", tenant.slug),
        _ => remedy,
    };
    Finding::stops(what, remedy)
}

fn malformed(token: &str) -> Finding {
    let what = match token.strip_prefix("fg_") {
        None => "it does not begin with `fg_`, so it is none of formgate's: 401",
        Some(_) => "it was mistyped or cut off, since its checksum is wrong: 401",
    };
    Finding::stops(what, "copy it again, or make another: formgate token create")
}

fn find_token(
    presented: Option<&str>,
    from: Option<IpAddr>,
    tokens: &[crate::store::TokenRecord],
    slug: &str,
) -> Finding {
    let Some(presented) = presented else {
        return Finding::warns(
            "none was given: without one, or with a wrong one, a request is answered with 401",
            "give one with --token to see whether it is good",
        );
    };
    let Some(parsed) = PresentedToken::parse(presented) else { return malformed(presented) };
    let digest = parsed.digest();
    match tokens.iter().find(|known| known.digest == digest.as_bytes()) {
        None => Finding::stops(
            format!("it is well-formed, and none of the {} tokens of the tenant `{slug}`: 401", tokens.len()),
            format!("was it made for another account? else make one: formgate token create --tenant {slug} --name …"),
        ),
        Some(token) => match (token.revoked_at, token.last_used_at) {
            (Some(at), _) => Finding::stops(
                format!("number {}, “{}”, was revoked at {}: 401", token.id, token.name, Rfc3339Micros(at)),
                format!("make another: formgate token create --tenant {slug} --name …"),
            ),
            (None, _) if token.is_expired(Timestamp::now()) => Finding::stops(
                format!("number {}, “{}”, has expired: 401", token.id, token.name),
                format!("make another: formgate token create --tenant {slug} --name …"),
            ),
            (None, used) => {
                let used =
                    used.map_or_else(|| "never used".to_owned(), |at| format!("last used at {}", Rfc3339Micros(at)));
                let what = format!("number {}, “{}”, {used}{}", token.id, token.name, limits_of(&token.limits));
                match (from, &token.limits.networks) {
                    (Some(from), networks) if !networks.allow(Some(from)) => Finding::stops(
                        format!("number {}, “{}”, is refused from {from}: 401", token.id, token.name),
                        format!("it is accepted from {networks}: formgate token change --networks"),
                    ),
                    (None, networks) if !networks.is_all() => {
                        Finding::warns(what, "give the address of the caller with --from to see whether it is accepted")
                    }
                    _ => Finding::passes(what),
                }
            }
        },
    }
}

/// What a token is limited to.
fn limits_of(limits: &TokenLimits) -> String {
    let scopes = Some(limits.scopes).filter(|scopes| !scopes.is_all());
    let scopes = scopes.map(|scopes| format!("; 403 without one of its scopes: {scopes}"));
    let forms = Some(&limits.forms).filter(|forms| !forms.is_all());
    let forms = forms.map(|forms| format!("; reaches nothing but {forms}, with sub-forms"));
    let networks = Some(&limits.networks).filter(|networks| !networks.is_all());
    let networks = networks.map(|networks| format!("; 401 outside of its networks: {networks}"));
    let budget = limits.requests_per_minute.map(|own| format!("; 429 beyond {own} requests of its own"));
    [scopes, forms, networks, budget].into_iter().flatten().collect()
}

fn count_tokens(tokens: &[crate::store::TokenRecord], slug: &str) -> Finding {
    match tokens.iter().filter(|token| token.revoked_at.is_none() && !token.is_expired(Timestamp::now())).count() {
        0 => Finding::warns(
            "there is none: every request is answered with 401",
            format!("formgate token create --tenant {slug} --name …"),
        ),
        1 => Finding::passes("1"),
        good => Finding::passes(format!("{good}")),
    }
}
