//! Metrics of the tenants' databases: connections, statements, failures and refused requests.

use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::register::Registrar;
use super::tenants::OTHER;

/// All tenants' databases together.
#[derive(Clone, Debug)]
pub struct DatabaseMetrics {
    waiting: IntGauge,
    connections: IntGaugeVec,
    opened: IntCounterVec,
    durations: HistogramVec,
    failures: IntCounterVec,
    breakers_open: IntGauge,
    breaker_trips: IntCounter,
    refused: IntCounterVec,
    settled: IntCounter,
    settling: Histogram,
    behind: IntGauge,
    faulty: IntGauge,
    altered: IntGauge,
    wrong: IntGauge,
    held: IntGaugeVec,
}

/// A request that waits for a connection.
#[derive(Debug)]
pub(crate) struct WaitingRequest(IntGauge);

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// A failure of a database rather than of a statement, as counted in `formgate_database_failures_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseFailure {
    /// It refuses connections, or ours.
    Unreachable,
    /// The connection was lost.
    Lost,
    /// It canceled a statement that ran too long.
    TimedOut,
    /// It did not answer in time.
    Unresponsive,
    /// The server's connection limit is reached.
    Full,
    /// It is out of disk space or memory.
    OutOfSpace,
    /// It is read-only, or to us.
    ReadOnly,
    /// A lock is held elsewhere.
    Locked,
    /// Two transactions collided.
    Collision,
    /// It is corrupt, or another fault of the database.
    Other,
}

impl DatabaseFailure {
    /// The value of the label `reason`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Lost => "lost",
            Self::TimedOut => "timeout",
            Self::Unresponsive => "unresponsive",
            Self::Full => "full",
            Self::OutOfSpace => "space",
            Self::ReadOnly => "read_only",
            Self::Locked => "locked",
            Self::Collision => "collision",
            Self::Other => "other",
        }
    }

    /// Every failure.
    pub const ALL: [Self; 10] = [
        Self::Unreachable,
        Self::Lost,
        Self::TimedOut,
        Self::Unresponsive,
        Self::Full,
        Self::OutOfSpace,
        Self::ReadOnly,
        Self::Locked,
        Self::Collision,
        Self::Other,
    ];
}

/// From a look-up by key to the time limit of a statement.
const DURATION_BUCKETS: [f64; 11] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0];

impl DatabaseMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Self {
        let metrics = Self {
            waiting: registrar.gauge("formgate_database_waiting", "Requests that wait for a connection to a database."),
            connections: registrar.gauges(
                "formgate_database_connections",
                "Connections to the tenants' databases: open ones, those of them that are idle, and closing ones.",
                &["database", "state"],
            ),
            opened: registrar.counters(
                "formgate_database_connections_opened_total",
                "Connections to the tenants' databases that were opened.",
                &["database"],
            ),
            durations: registrar.histograms(
                "formgate_database_call_duration_seconds",
                "Time of one statement.",
                &["database"],
                &DURATION_BUCKETS,
            ),
            failures: registrar.counters(
                "formgate_database_failures_total",
                "Failures that lie in a database, by reason.",
                &["reason"],
            ),
            breakers_open: registrar.gauge(
                "formgate_database_breakers_open",
                "Tenants whose callers are refused because their database fails.",
            ),
            breaker_trips: registrar
                .counter("formgate_database_breaker_trips_total", "How often a tenant's callers began to be refused."),
            refused: registrar.counters(
                "formgate_database_refused_total",
                "Requests that were refused though their database works, or before it was asked, by reason.",
                &["reason"],
            ),
            settled: registrar.counter(
                "formgate_database_settled_total",
                "Notes of what writers touched from which searches' tables were derived.",
            ),
            settling: registrar.histogram(
                "formgate_database_settle_duration_seconds",
                "Time of one transaction that takes such notes, derives from them and numbers changes.",
                &DURATION_BUCKETS,
            ),
            behind: registrar.gauge(
                "formgate_database_behind",
                "Databases to which more was written than is derived from yet: their searches are refused.",
            ),
            faulty: registrar
                .gauge("formgate_databases_faulty", "Databases that could not be used when they were last inspected."),
            altered: registrar.gauge(
                "formgate_databases_altered",
                "Databases whose schema was not as formgate created it when they were last inspected.",
            ),
            wrong: registrar.gauge(
                "formgate_database_wrong_rows",
                "Rows of search tables that were inconsistent when they were last counted.",
            ),
            held: registrar.gauges(
                "formgate_scim_held_removals",
                "Removals by SCIM that were held when a tenant was last inspected; tenants without any are `other`.",
                &["tenant"],
            ),
        };
        // Initialized to 0, so that an alert can see the first failure as an increase.
        DatabaseFailure::ALL.iter().for_each(|failure| drop(metrics.failures.with_label_values(&[failure.name()])));
        drop(metrics.held.with_label_values(&[OTHER]));
        for database in ["postgres", "sqlite"] {
            drop(metrics.opened.with_label_values(&[database]));
        }
        for reason in ["breaker", "in_flight", "wait", "behind"] {
            drop(metrics.refused.with_label_values(&[reason]));
        }
        metrics
    }

    /// Metrics that are exported nowhere.
    #[must_use]
    pub fn unregistered() -> Self {
        Self::new(&Registrar(&Registry::new()))
    }

    /// Counts a request that waits, until the guard is dropped.
    pub(crate) fn wait(&self) -> WaitingRequest {
        self.waiting.inc();
        WaitingRequest(self.waiting.clone())
    }

    /// Counts opened connections or, if negative, closed ones.
    pub(crate) fn open(&self, database: &str, change: i64) {
        self.connections.with_label_values(&[database, "open"]).add(change);
    }

    /// Counts connections that gave their place away and are being closed or, if negative, were closed.
    pub(crate) fn closing(&self, database: &str, change: i64) {
        self.connections.with_label_values(&[database, "closing"]).add(change);
    }

    /// Counts one connection that was opened.
    pub(crate) fn opened(&self, database: &str) {
        self.opened.with_label_values(&[database]).inc();
    }

    /// Counts connections that became idle or, if negative, are no longer idle.
    pub(crate) fn idle(&self, database: &str, change: i64) {
        self.connections.with_label_values(&[database, "idle"]).add(change);
    }

    /// Counts one statement.
    pub(crate) fn called(&self, database: &str, took: Duration) {
        let durations: Histogram = self.durations.with_label_values(&[database]);
        durations.observe(took.as_secs_f64());
    }

    /// Counts one failure.
    pub(crate) fn failed(&self, failure: DatabaseFailure) {
        self.failures.with_label_values(&[failure.name()]).inc();
    }

    /// Counts a refusal: `breaker`, `in_flight`, `wait` or `behind`.
    pub(crate) fn refused(&self, reason: &str) {
        self.refused.with_label_values(&[reason]).inc();
    }

    /// Counts notes of writers that were processed into search tables, in one transaction.
    pub(crate) fn settled(&self, notes: usize, took: Duration) {
        self.settled.inc_by(notes as u64);
        self.settling.observe(took.as_secs_f64());
    }

    /// Counts databases that fell behind or, if negative, caught up.
    pub(crate) fn behind(&self, change: i64) {
        self.behind.add(change);
    }

    /// Publishes the result of inspecting all databases.
    pub(crate) fn inspected(&self, faulty: usize, altered: usize, wrong: u64) {
        self.faulty.set(i64::try_from(faulty).unwrap_or(i64::MAX));
        self.altered.set(i64::try_from(altered).unwrap_or(i64::MAX));
        self.wrong.set(i64::try_from(wrong).unwrap_or(i64::MAX));
    }

    /// Publishes how many removals of a tenant are held.
    pub(crate) fn held(&self, tenant: &str, held: u64) {
        if held > 0 || tenant == OTHER {
            self.held.with_label_values(&[tenant]).set(i64::try_from(held).unwrap_or(i64::MAX));
        } else {
            // There may be no such series.
            let _ = self.held.remove_label_values(&[tenant]);
        }
    }

    pub(crate) fn breaker_opened(&self) {
        self.breakers_open.inc();
        self.breaker_trips.inc();
    }

    pub(crate) fn breaker_closed(&self) {
        self.breakers_open.dec();
    }
}
