//! Metrics of requests in flight, and of those that are refused to protect the gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use prometheus::IntCounterVec;

use super::register::{Registrar, init_series};

/// The names of scopes. This layer knows no other one, so a test compares them.
pub(crate) const SCOPES: [&str; 7] =
    ["forms:read", "submissions:read", "groups:read", "groups:write", "webhooks:manage", "scim", "*"];

/// Requests at the gate.
#[derive(Clone, Debug)]
pub struct GateMetrics {
    /// Requests in flight, counted by the code that limits them.
    pub in_flight: Arc<CachePadded<AtomicUsize>>,
    /// Bytes reserved for bodies and answers, counted by the code that limits them.
    pub memory_reserved: Arc<CachePadded<AtomicUsize>>,
    /// Requests refused to protect the gateway, by `reason`: `in_flight`, `bad_tokens`, `memory`, `tenant_memory`.
    pub refused: IntCounterVec,
    /// Requests refused by a limit of their token, by `limit`: the scope that it lacks, or `networks`.
    pub limited: IntCounterVec,
}

impl GateMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let refused = registrar.counters(
            "formgate_requests_refused_total",
            "Requests refused to protect the gateway, by reason.",
            &["reason"],
        );
        init_series(&refused, &["in_flight", "bad_tokens", "memory", "tenant_memory"]);
        let limited = registrar.counters(
            "formgate_token_limit_refusals_total",
            "Requests refused by a limit of their token: the scope that it lacks, or its networks.",
            &["limit"],
        );
        init_series(&limited, &["networks"]);
        init_series(&limited, &SCOPES);
        let in_flight = Arc::<CachePadded<AtomicUsize>>::default();
        let watched = Arc::clone(&in_flight);
        let now = move || watched.load(Ordering::Acquire) as f64;
        registrar.pulled_gauge("formgate_requests_in_flight", "Requests in flight.", now);
        let memory_reserved = Arc::<CachePadded<AtomicUsize>>::default();
        let watched = Arc::clone(&memory_reserved);
        let now = move || watched.load(Ordering::Acquire) as f64;
        registrar.pulled_gauge(
            "formgate_memory_reserved_bytes",
            "Memory reserved for request bodies and responses.",
            now,
        );
        Self { refused, limited, in_flight, memory_reserved }
    }
}
