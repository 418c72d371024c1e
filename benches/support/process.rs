//! A process of the bench's own, and what the kernel says of it and of all that it started.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// The kernel's unit of CPU time in `/proc`; 100 wherever Linux runs.
const TICKS_A_SECOND: f64 = 100.0;

/// How long a server may take until it is ready. A loaded machine takes seconds. Larger: a server that will never be ready
/// fails the bench later. Smaller: a slow start fails it.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(60);

/// How long a process that was told to end may take before it is killed: a database writes its last.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A running process; ended on drop, and by the kernel when the thread that started it ends first.
pub(crate) struct Process {
    child: Child,
    end: &'static str,
}

/// What a process and its descendants had taken at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Memory in bytes; what several processes share counts once.
    pub(crate) bytes: f64,
    /// Open files, sockets included.
    pub(crate) files: usize,
}

/// A command for a program that receives a signal (`KILL`, `TERM`) when we end, and may open as many files as the system
/// lets us: the usual 1,024 are few for a server. It has a session of its own, as a service has: between sessions Linux
/// shares the cores, where threads of one session put each other off them (`sched(7)`, "The autogroup feature").
pub(crate) fn bound_to_us(program: impl AsRef<OsStr>, end: &str) -> Command {
    let mut command = Command::new("sh");
    let script = r#"ulimit -n "$(ulimit -H -n)"; exec setsid setpriv --pdeathsig "$0" -- "$@""#;
    command.args(["-c", script, end]).arg(program);
    command
}

impl Process {
    /// Starts a command of [`bound_to_us`], which the signal ends.
    pub(crate) fn start(mut command: Command, end: &'static str) -> anyhow::Result<Self> {
        Ok(Self { child: command.spawn().context("there is no shell")?, end })
    }

    /// Its pipes.
    pub(crate) fn pipes(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its number, which is the program's own: shell, `setsid` and `setpriv` turn into it.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) -> anyhow::Result<()> {
        let id = self.id().to_string();
        let status = Command::new("sh").args(["-c", r#"kill -s "$0" "$1""#, name, &id]).status()?;
        ensure!(status.success(), "signal {name} could not be sent");
        Ok(())
    }

    /// Waits until something is there, as long as the process runs.
    pub(crate) fn until<T>(&mut self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
        let began = Instant::now();
        loop {
            if let Some(seen) = look() {
                return Ok(seen);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended at once: {status}");
            }
            if began.elapsed() > limit {
                bail!("it is not ready within {limit:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The CPU time that it and its descendants took, those that have ended included.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let ticks = self.family().iter().filter_map(|id| ticks(*id)).sum::<u64>();
        ensure!(ticks > 0 || Path::new(&format!("/proc/{}", self.id())).exists(), "the process has ended");
        Ok(Duration::from_secs_f64(ticks as f64 / TICKS_A_SECOND))
    }

    /// What it and its descendants hold now.
    pub(crate) fn held(&self) -> Held {
        self.family().iter().fold(Held::default(), |held, id| {
            let memory = fs::read_to_string(format!("/proc/{id}/smaps_rollup")).unwrap_or_default();
            let kib =
                memory.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok());
            let files = fs::read_dir(format!("/proc/{id}/fd")).map_or(0, Iterator::count);
            Held { bytes: held.bytes + kib.unwrap_or(0.0) * 1024.0, files: held.files + files }
        })
    }

    /// It and its descendants; one that ends meanwhile may be missing.
    fn family(&self) -> Vec<u32> {
        let mut found = vec![self.id()];
        let mut next = 0;
        while let Some(id) = found.get(next) {
            let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
            let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
            let children: String = children.collect();
            found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
            next += 1;
        }
        found
    }
}

/// Runs a command that has no reason to fail; what it prints.
pub(crate) fn checked(command: &mut Command) -> anyhow::Result<String> {
    let Output { status, stdout, stderr } = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
    Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> anyhow::Result<bool> {
    Ok(fs::metadata("/proc/self")?.uid() == 0)
}

/// The time of a process and of its children that were waited for, in user mode and in the kernel.
fn ticks(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split(' ').skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum())
}

/// The time of those of our own children that have ended and were waited for, with their descendants.
pub(crate) fn ended_children_cpu() -> anyhow::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").context("the command's name ends")?;
    let ticks: u64 = fields.split(' ').skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_secs_f64(ticks as f64 / TICKS_A_SECOND))
}

/// How long all cores together were busy since the machine began.
pub(crate) fn machine_busy() -> anyhow::Result<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("the first line is of all cores")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| fields.get(*at)).sum();
    Ok(Duration::from_secs_f64(busy as f64 / TICKS_A_SECOND))
}

/// The load of the last minute.
pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.signal(self.end);
        let began = Instant::now();
        while began.elapsed() < END_LIMIT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
