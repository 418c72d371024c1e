//! How settlers take notes, and for how long.

use std::time::Duration;

/// How a settler takes notes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SettlerOptions {
    /// How many notes it takes at once.
    ///
    /// Larger: other settlers, and SQLite's other writers, wait longer. Smaller: more transactions.
    pub(super) notes: i64,
    /// How its transactions begin on Postgres.
    pub(super) begin: &'static str,
    /// How long a statement may take; on Postgres, `begin` sets the same limit.
    pub(super) limit: StatementLimit,
}

/// How long a statement of a settler may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatementLimit {
    /// Three times as long as other statements of requests, because a TRUNCATE notes every submission.
    ///
    /// Larger: a settler that is stuck blocks the others for longer. Smaller: more statements have to be retried.
    OfRequests,
    /// Twenty minutes.
    ///
    /// Larger: as for [`Self::OfRequests`]. Smaller: a submission with a longer text is never settled, and its account
    /// never searched again.
    Patient,
}

impl StatementLimit {
    /// The limit where other statements may take as long as `statement`.
    pub(super) fn duration(self, statement: Duration) -> Duration {
        match self {
            Self::OfRequests => statement * 3,
            Self::Patient => Duration::from_mins(20),
        }
    }
}

macro_rules! lock {
    () => {
        "SELECT pg_advisory_xact_lock(hashtextextended(coalesce(current_schema(), ''), 7310577365311121507))"
    };
}

/// How a transaction begins on Postgres, with a further setting. See [`LOCK`] for the others.
macro_rules! begin {
    ($setting:literal) => {
        concat!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; ",
            $setting,
            "SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = force_custom_plan; ",
            "SET LOCAL gin_pending_list_limit = '256kB'; ",
            lock!()
        )
    };
}

/// For a request that waits.
pub(super) const FOR_A_REQUEST: SettlerOptions = SettlerOptions {
    notes: 2_000,
    begin: begin!(
        "SELECT set_config('statement_timeout', \
            (3000 * extract(epoch FROM current_setting('statement_timeout')::interval))::bigint::text, true); "
    ),
    limit: StatementLimit::OfRequests,
};

/// After a statement exceeded the limit of [`FOR_A_REQUEST`], because one submission is very long or a TRUNCATE noted very
/// many. With the same limit it would fail again, and no search would ever be answered.
pub(super) const AFTER_A_TIMEOUT: SettlerOptions = SettlerOptions {
    begin: begin!("SET LOCAL statement_timeout = '20min'; "),
    limit: StatementLimit::Patient,
    ..FOR_A_REQUEST
};

/// For a command, whose statements have no limit.
pub(super) const FOR_A_COMMAND: SettlerOptions =
    SettlerOptions { notes: 20_000, begin: begin!(""), limit: StatementLimit::OfRequests };

/// After how long a transaction derives from no further submissions, and puts their notes back.
///
/// Larger: SQLite's other writers wait longer while much was written. Smaller: more transactions.
pub(super) const SLICE: Duration = Duration::from_secs(1);

/// One settler at a time for each database, by a lock that ends with the transaction. Accounts that share a database
/// have a schema each, and so a lock each. The number is arbitrary.
///
/// Settlers also turn off sequential scans and generic plans, because tables that were small when they were last
/// analyzed would be read whole for every batch, and keep the pending lists of GIN indexes short, because each search
/// reads them.
pub(super) const LOCK: &str = lock!();
