//! Resource usage of the process, under the names that all Prometheus client libraries use.
//!
//! Read from `/proc` on each scrape, by proc(5). The `prometheus` crate could do that itself, but depends on `procfs`, which reads
//! everything else too and takes longer to compile than tokio.

use std::{fs, io};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, IntGauge, Opts};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

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
    fn read(&self) -> io::Result<()> {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let text = fs::read_to_string("/proc/self/stat")?;
        // The name of the program comes before, in parentheses, and may contain anything.
        let (_, rest) = text.rsplit_once(')').ok_or(io::ErrorKind::InvalidData)?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // By its number in proc_pid_stat(5); the first of these is the third.
        let field = |number: usize| {
            let number = fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
            number.ok_or(io::ErrorKind::InvalidData)
        };
        let [cpu, threads, start, virtual_bytes, resident_pages] =
            [field(14)? + field(15)?, field(20)?, field(22)?, field(23)?, field(24)?];
        let ticks = clock_ticks_per_second();
        // Seconds of CPU time are exact in a float for longer than any process runs.
        #[expect(clippy::cast_precision_loss, reason = "ticks and seconds stay far below 2^52")]
        let seconds = |ticks_passed: u64| ticks_passed as f64 / ticks as f64;
        self.cpu_seconds.inc_by((seconds(cpu) - self.cpu_seconds.get()).max(0.0));
        self.start_seconds.set(boot_seconds()? + seconds(start));
        self.threads.set(whole(threads));
        self.virtual_bytes.set(whole(virtual_bytes));
        self.resident_bytes.set(whole(resident_pages.saturating_mul(page_size() as u64)));
        self.open_fds.set(whole(count_open_files()?));
        if let Some(most) = getrlimit(Resource::Nofile).current {
            self.max_fds.set(whole(most));
        }
        Ok(())
    }
}

/// When the machine started, in seconds since 1970.
fn boot_seconds() -> io::Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let found = text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    found.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Since Linux 6.2 the folder says how many it has. Before, they are counted, which takes milliseconds with thousands.
fn count_open_files() -> io::Result<u64> {
    const FILES: &str = "/proc/self/fd";
    match fs::metadata(FILES)?.len() {
        0 => Ok(fs::read_dir(FILES)?.count() as u64),
        count => Ok(count),
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
