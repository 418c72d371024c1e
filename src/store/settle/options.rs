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
    pub(super) limit: Duration,
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

/// For a request that waits. A statement may take longer than other statements of requests: a TRUNCATE notes every
/// submission.
pub(super) const FOR_A_REQUEST: SettlerOptions =
    SettlerOptions { notes: 2_000, begin: begin!("SET LOCAL statement_timeout = '30s'; "), limit: STATEMENT_LIMIT };

/// After a statement exceeded the limit of [`FOR_A_REQUEST`], because one submission is very long or a TRUNCATE noted very
/// many. With the same limit it would fail again, and no search would ever be answered.
pub(super) const AFTER_A_TIMEOUT: SettlerOptions =
    SettlerOptions { begin: begin!("SET LOCAL statement_timeout = '20min'; "), limit: PATIENT_LIMIT, ..FOR_A_REQUEST };

/// For a command, whose statements have no limit.
pub(super) const FOR_A_COMMAND: SettlerOptions =
    SettlerOptions { notes: 20_000, begin: begin!(""), limit: STATEMENT_LIMIT };

/// How long a statement of a settler for a request may take; [`FOR_A_REQUEST`] sets the same limit on Postgres.
///
/// Larger: a settler that is stuck blocks the others for longer. Smaller: more statements have to be retried.
const STATEMENT_LIMIT: Duration = Duration::from_secs(30);

/// The same after a statement took longer than that.
///
/// Larger: as for [`STATEMENT_LIMIT`]. Smaller: a submission with a longer text is never settled, and its account never
/// searched again.
const PATIENT_LIMIT: Duration = Duration::from_mins(20);

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
