//! The metric of the log, which is one for the process, as standard error is.

use std::sync::LazyLock;

use prometheus::IntCounter;

/// Lines of the log that were dropped because nobody read it, or because it can't be written.
///
/// # Panics
/// Never.
#[must_use]
pub fn dropped_log_lines() -> &'static IntCounter {
    static DROPPED: LazyLock<IntCounter> = LazyLock::new(|| {
        let help = "Lines of the log that were dropped, because it was not read or could not be written.";
        IntCounter::new("formgate_log_lines_dropped_total", help).expect("a valid metric name")
    });
    &DROPPED
}
