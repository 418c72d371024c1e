//! What the kernel says of a process, and the middle of several figures.

use std::fs;

/// The kernel counts CPU in these.
const TICKS_A_SECOND: f64 = 100.0;

/// CPU that a process has had, in milliseconds; 0 once it ended.
pub(crate) fn cpu_of(process: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which may contain anything: the fields 14 and 15 of all are those of user and system time.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) * 1000.0 / TICKS_A_SECOND
}

/// The median.
pub(crate) fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
