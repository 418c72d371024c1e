//! Builds every part from a checked configuration and runs them until they are stopped.
//!
//! Owns the order of startup: everything that can fail happens before the first connection is accepted.

mod changes;
mod databases;
mod descriptors;
mod domains;
mod drill;
mod own_services;
mod readiness;
mod reload;
mod running;
mod tasks;
mod watch;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::administration::Administration;
use crate::background;
use crate::certificate::CertificateError;
use crate::config::{Config, Problems};
use crate::domains::DomainWorker;
use crate::edge::admin::{self, Admin};
use crate::edge::operator::{OperatorBindError, OperatorListener};
use crate::edge::{self, Addresses, BindError, Certificates, CheckIntervals, Edge};
use crate::gate::{BadTokens, Gate, TokenLimitChecks};
use crate::memory::{Memory, MemoryShare};
use crate::metrics::Metrics;
use crate::moving::MoveAccounts;
use crate::operator::{Imports, OperatorApi, WAITS, WAITS_OF_A_CALLER};
use crate::outbound::{Client, Guard, TestRequests};
use crate::quota::Quota;
use crate::registry::{self, FileTenants, FollowRegistry, Following, LoadError, Loaded, NodeName, RegistrySeals};
use crate::request::{Pipeline, RequestLogSwitch, RequestsInFlight};
use crate::shared::announce::{TokenChangeAnnouncer, TokenChangeSubscription};
use crate::shared::{RedisClient, RedisClientError, RedisConnections};
use crate::shares::Shares;
use crate::store::Connections;
use crate::systemd::{InheritedSockets, SocketActivationError};
use crate::tenant::usage::minutes::{PublishMinutes, SharedMinutes};
use crate::tenant::{
    DatabaseServers, Directory, NoticedWrites, SubscriptionChanges, SubscriptionLedger, TokenChanges, TokenVerifier,
};
use crate::webhooks::Webhooks;
use databases::Databases;
pub use descriptors::{DescriptorShare, raise_limit};
use own_services::RefuseOwnServices;
use readiness::ReadinessParts;
pub use reload::Reloader;
pub use running::Running;
use tasks::{CloseIdleConnections, WriteUnwritten};
pub use watch::watch;

/// Why a gateway can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address can't be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The gateway's certificate can't be served.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The system does not return the address of a listening socket.
    #[error("a listening socket can't be used")]
    Socket(#[source] io::Error),
    /// A socket that systemd passed is not used by the configuration.
    #[error(transparent)]
    SocketActivation(#[from] SocketActivationError),
    /// The configured Redis can't be used.
    #[error(transparent)]
    Redis(#[from] RedisClientError),
    /// The registry can't be read.
    #[error(transparent)]
    Registry(#[from] LoadError),
    /// The operator API can't be served.
    #[error(transparent)]
    Operator(#[from] OperatorBindError),
    /// Files claim what tenants of the registry have.
    #[error(transparent)]
    Claims(#[from] Problems),
}

/// Starts a gateway on its own sockets and those that systemd passed. When this returns, its addresses accept
/// connections.
///
/// # Errors
/// [`StartError`]; nothing is left running.
pub async fn start(config: &Config, mut inherited: InheritedSockets) -> Result<Running, StartError> {
    let share = DescriptorShare::now(&config.gateway);
    for lowered in share.lowered(&config.gateway) {
        tracing::warn!("{lowered}");
    }
    let (limits, databases, webhooks) = share.apply(&config.gateway);
    let metrics = Metrics::new(config.gateway.tenant_labels);
    metrics.last_reload.set(Timestamp::now().as_second());
    metrics.last_reload_successful.set(1);
    let connections = Connections::new(databases, metrics.database.clone());
    let registered = load_registry(config).await?;
    let mut tenants = config.tenants.clone();
    let of_registry = registered.iter().flat_map(|(_, loaded)| Following::tenants_of(loaded));
    tenants.extend(of_registry.map(|tenant| Arc::clone(&tenant.config)));
    metrics.tenants_served.set(i64::try_from(tenants.len()).unwrap_or(i64::MAX));
    drill::announce(&config.gateway, &tenants);
    let directory = Directory::new(&tenants, &Directory::empty(Arc::clone(&connections)));
    let directory = directory.shared();
    let certificates = config.gateway.acme.as_ref().map(|acme| acme.seals.clone()).unwrap_or_default();
    let seals = RegistrySeals { texts: &config.gateway.webhooks.seals, certificates: &certificates };
    let (servers, announced_servers) = DatabaseServers::channel();
    let following = config.gateway.registry.as_ref().zip(registered).map(|(registry, (node, loaded))| {
        let (files, served) = (&config.tenants, (Arc::clone(&directory), servers.clone()));
        let following = Following::new(registry, loaded, files, served, node, seals, &metrics);
        Arc::new(if config.gateway.operator.is_some() { following.of_operator() } else { following })
    });
    if let Some(following) = &following {
        following.begin_with_certificates().await;
    }
    let missed = Arc::new(AtomicU64::new(0));
    let (windows, listening, announcer) = match &config.gateway.redis {
        None => (None, None, None),
        Some(redis) => {
            let client = Arc::new(RedisClient::new(&redis.target)?);
            let connections = Arc::new(
                RedisConnections::open(Arc::clone(&client), redis.timeout, redis.on_failure, metrics.clone()).await,
            );
            let changes = TokenChanges { directory: Arc::clone(&directory), missed: Arc::clone(&missed) };
            let announcer = Arc::new(TokenChangeAnnouncer::new(Arc::clone(&client), metrics.redis.clone()));
            let listening = TokenChangeSubscription::start(client, Arc::clone(&connections), Arc::new(changes));
            (Some((connections, redis.on_failure)), Some(listening), Some(announcer))
        }
    };
    let minutes = Arc::new(SharedMinutes::new(windows.as_ref().map(|(connections, _)| Arc::clone(connections))));
    let gate = Gate {
        minutes: Arc::clone(&minutes),
        directory: Arc::clone(&directory),
        quota: Quota::new(config.gateway.quota_window, windows, metrics.clone()),
        tokens: TokenVerifier::new(listening, missed, metrics.clone()),
        bad_tokens: BadTokens::new(
            limits.request.bad_tokens_burst,
            limits.request.bad_tokens_rate,
            metrics.gate.clone(),
        ),
        limits: TokenLimitChecks::new(metrics.gate.clone()),
    };
    let ledger = following.clone().map(|following| following as Arc<dyn SubscriptionLedger>);
    let (subscription_changes, announced) = SubscriptionChanges::channel(ledger);
    let noticed_writes = Arc::<NoticedWrites>::default();
    let targets = Arc::new(Guard::new(config.gateway.webhooks.requests.allowed.clone()));
    let receivers = Arc::new(Client::new(&webhooks.requests, Arc::clone(&targets)));
    let obtained = following.as_ref().map(|following| Arc::clone(following.certificates()));
    let certificates =
        Certificates::open(&config.gateway, Arc::clone(&directory), &metrics, CheckIntervals::default(), obtained)?;
    let certificates = Arc::new(certificates);
    let domains = domains::open(config, following.as_ref(), &directory, &certificates, &metrics);
    let pipeline = Arc::new(Pipeline {
        gate,
        limits: limits.request,
        administration: Administration::new(&config.gateway, announcer.clone(), metrics.clone()),
        domains: domains.clone(),
        hsts: ArcSwapOption::new(config.gateway.hsts.clone().map(Arc::new)),
        in_flight: RequestsInFlight::new(limits.request.in_flight, metrics.gate.clone()),
        stopping: CancellationToken::new(),
        memory: Arc::new(Memory::new(
            limits.request.memory_bytes,
            limits.request.memory_bytes_per_tenant,
            metrics.gate.clone(),
        )),
        subscription_changes,
        noticed_writes: Arc::clone(&noticed_writes),
        targets,
        webhook_tests: match webhooks.sends_tests {
            true => TestRequests::new(Arc::clone(&receivers), limits.request.receiver_test()),
            false => TestRequests::none(),
        },
        seals: config.gateway.webhooks.seals.clone(),
        request_log: RequestLogSwitch::new(config.gateway.request_log),
        metrics: metrics.clone(),
    });
    let addresses = config.gateway.listen.iter().map(|entry| entry.address).chain(config.gateway.admin_listen);
    // Before any socket is opened: one passed at `[::]` would make binding `0.0.0.0` fail with a less helpful
    // error.
    inherited.check_use(&addresses.collect::<Vec<_>>())?;
    let listeners = edge::listen(&config.gateway.listen, &mut inherited).await?;
    let admin_listener = match config.gateway.admin_listen {
        Some(address) => Some(edge::bind(address, &mut inherited).await?),
        None => None,
    };
    let operator_listeners = config.gateway.operator.as_ref().map(|operator| operator.listen.as_slice());
    let operator_listeners = edge::operator::listen(operator_listeners.unwrap_or_default()).await?;
    let operator_addresses: Vec<_> = operator_listeners.iter().filter_map(OperatorListener::tcp).collect();
    let draining = Arc::new(AtomicBool::new(false));
    let webhooks = webhooks.enabled.then(|| {
        let (directory, following) = (Arc::clone(&directory), following.clone());
        Webhooks::new(&webhooks, receivers, directory, following, noticed_writes, metrics.webhooks.clone())
    });
    let databases =
        Databases::new(Arc::clone(&directory), following.clone(), webhooks.clone(), metrics.database.clone());
    let databases = Arc::new(databases);
    let parts = ReadinessParts {
        pipeline: Arc::clone(&pipeline),
        databases: Arc::clone(&databases),
        certificates: Arc::clone(&certificates),
        draining: Arc::clone(&draining),
        redis: config.gateway.redis.as_ref().map(|redis| redis.on_failure),
        following: following.clone(),
        mode: config.gateway.mode,
    };
    let admin = admin_listener.map(|listener| start_admin(listener, &metrics, parts)).transpose()?;
    let tasks = &metrics.tasks;
    let own_services = RefuseOwnServices {
        guard: Arc::clone(&pipeline.targets),
        directory: Arc::clone(&directory),
        shared: config.gateway.shared_services(),
        listeners: admin.iter().map(|(address, _)| *address).chain(operator_addresses).collect(),
        announced: announced_servers,
        new: BTreeSet::new(),
        known: BTreeSet::new(),
        looked_up_at: None,
    };
    let write_behind = background::start(WriteUnwritten::new(directory), tasks);
    // Nothing can fail any more, so that no row of a node that never ran is waited for; and nothing is accepted yet.
    if let Some(following) = &following {
        if webhooks.is_some() {
            following.keepers().begin();
        }
        following.join().await;
    }
    // Once it is known which tenants this node looks after.
    let webhooks = webhooks.map(|webhooks| {
        let tasks =
            vec![background::start(webhooks.watch(announced), tasks), background::start(webhooks.survey(), tasks)];
        (webhooks, tasks)
    });
    let following = following.map(|following| {
        let task = background::start(FollowRegistry(Arc::clone(&following)), tasks);
        (following, task)
    });
    let served_config = Arc::new(ArcSwap::from_pointee(config.gateway.clone()));
    let operator = OperatorApi {
        following: following.as_ref().map(|(following, _)| Arc::clone(following)),
        directory: Arc::clone(&pipeline.gate.directory),
        gateway: Arc::clone(&served_config),
        domains: domains.clone(),
        waits: Shares::new(WAITS_OF_A_CALLER, WAITS),
        memory: {
            // Of what tenants may hold together: few connections, of programs that may do everything.
            let most = limits.request.memory_bytes;
            MemoryShare::new(&Arc::new(Memory::new(most, most, metrics.gate.clone())), &Arc::default())
        },
        imports: Imports::default(),
        announcer,
    };
    for listener in &operator_listeners {
        tracing::info!(address = listener.to_string(), "operator API is served");
    }
    let operator = edge::operator::serve(operator_listeners, &Arc::new(operator));
    let mut started = vec![
        background::start(certificates.inspection(), tasks),
        background::start(databases::DatabaseInspection(Arc::clone(&databases)), tasks),
        background::start(CloseIdleConnections::new(connections), tasks),
        background::start(own_services, tasks),
    ];
    if let Some(domains) = domains.filter(|domains| domains.config().is_worked_on) {
        started.push(background::start(DomainWorker::new(domains), tasks));
    }
    if let Some((following, _)) = following.as_ref().filter(|_| config.gateway.operator.is_some()) {
        started.push(background::start(MoveAccounts::new(Arc::clone(following), metrics.registry.clone()), tasks));
    }
    if config.gateway.redis.is_some() {
        started.push(background::start(PublishMinutes(minutes), tasks));
    }
    let edge = Edge {
        certificates: Arc::clone(&certificates),
        service: Arc::clone(&pipeline),
        limits: limits.connection,
        addresses: Addresses::new(limits.connection.connections_per_address),
        metrics,
    };
    Ok(Running {
        serving: edge.serve(listeners),
        admin,
        write_behind,
        webhooks,
        following,
        config: served_config,
        servers,
        operator,
        _tasks: started,
        databases,
        pipeline,
        certificates,
        shutdown_delay: config.gateway.shutdown_delay,
        drain: config.gateway.drain,
        draining,
    })
}

/// Reads the registry, if there is one, and compares it with the files.
async fn load_registry(config: &Config) -> Result<Option<(NodeName, Loaded)>, StartError> {
    let Some(registry) = &config.gateway.registry else { return Ok(None) };
    let node = NodeName::new();
    let loaded = registry::load(registry, &config.gateway.webhooks.seals).await?;
    let files = FileTenants::of(&config.tenants);
    Problems::none_of(registry::conflicts(&files, Following::tenants_of(&loaded)))?;
    Ok(Some((node, loaded)))
}

fn start_admin(
    listener: TcpListener,
    metrics: &Metrics,
    parts: ReadinessParts,
) -> Result<(SocketAddr, Admin), StartError> {
    let address = listener.local_addr().map_err(StartError::Socket)?;
    Ok((address, admin::serve(listener, metrics.clone(), Arc::new(move || parts.readiness()))))
}
