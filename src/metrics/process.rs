//! Resource usage of the process, under the names that all Prometheus client libraries use.
//!
//! Read from `/proc` on each scrape. The `prometheus` crate could do that itself, but depends on an old `procfs`,
//! which would bring second copies of dependencies.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, IntGauge, Opts};

/// Reads the figures of this process.
#[derive(Debug)]
pub(super) struct Process {
    cpu_seconds: Counter,
    open_fds: IntGauge,
    max_fds: IntGauge,
    resident_bytes: IntGauge,
    virtual_bytes: IntGauge,
    threads: IntGauge,
    start_seconds: Gauge,
}

impl Process {
    pub(super) fn new() -> Self {
        let gauge = |name: &str, help: &str| IntGauge::with_opts(Opts::new(name, help)).expect("a valid metric name");
        let cpu_seconds = Counter::new("process_cpu_seconds_total", "Processor time in user and system mode.");
        let start_seconds = Gauge::new("process_start_time_seconds", "When the process began, since 1970.");
        Self {
            cpu_seconds: cpu_seconds.expect("a valid metric name"),
            open_fds: gauge("process_open_fds", "Open file descriptors."),
            max_fds: gauge("process_max_fds", "The most file descriptors that the process may open."),
            resident_bytes: gauge("process_resident_memory_bytes", "Memory that is resident."),
            virtual_bytes: gauge("process_virtual_memory_bytes", "Memory that is addressed."),
            threads: gauge("process_threads", "Threads."),
            start_seconds: start_seconds.expect("a valid metric name"),
        }
    }

    fn parts(&self) -> [&dyn Collector; 7] {
        [
            &self.cpu_seconds,
            &self.open_fds,
            &self.max_fds,
            &self.resident_bytes,
            &self.virtual_bytes,
            &self.threads,
            &self.start_seconds,
        ]
    }

    /// Updates all figures. Those that can't be read keep their last value.
    fn read(&self) -> procfs::ProcResult<()> {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let process = procfs::process::Process::myself()?;
        let stat = process.stat()?;
        let ticks = procfs::ticks_per_second();
        // Seconds of CPU time are exact in a float for longer than any process runs.
        #[expect(clippy::cast_precision_loss, reason = "ticks and seconds stay far below 2^52")]
        let seconds = |ticks_passed: u64| ticks_passed as f64 / ticks as f64;
        self.cpu_seconds.inc_by((seconds(stat.utime + stat.stime) - self.cpu_seconds.get()).max(0.0));
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        self.start_seconds.set(procfs::boot_time_secs()? as f64 + seconds(stat.starttime));
        self.threads.set(stat.num_threads);
        self.virtual_bytes.set(whole(stat.vsize));
        self.resident_bytes.set(whole(stat.rss.saturating_mul(procfs::page_size())));
        self.open_fds.set(whole(process.fd_count()? as u64));
        if let procfs::process::LimitValue::Value(most) = process.limits()?.max_open_files.soft_limit {
            self.max_fds.set(whole(most));
        }
        Ok(())
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Err(error) = self.read() {
            tracing::debug!(%error, "the figures of the process can't be read");
        }
        self.parts().into_iter().flat_map(Collector::collect).collect()
    }
}
