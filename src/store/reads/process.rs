//! Which process a node is, so that another one on the same host can tell whether it still runs.

use std::fs;
use std::sync::LazyLock;

/// A process that writes the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// The name of its host.
    pub(super) host: String,
    /// The boot of the machine, the namespace of process ids, the id, and when it started, separated by blanks.
    pub(super) process: String,
}

impl Process {
    /// This process.
    pub(super) fn this() -> &'static Self {
        static THIS: LazyLock<Process> = LazyLock::new(|| {
            let id = std::process::id();
            let started = started(id).unwrap_or_default();
            Process { host: host(), process: format!("{} {} {id} {started}", boot(), namespace()) }
        });
        &THIS
    }

    /// Whether it is known to run no longer. A process on another host is not known; one of an earlier boot, or of another
    /// container with this one's host name, is gone.
    pub(super) fn is_gone(&self) -> bool {
        if self.host != Self::this().host {
            return false;
        }
        let fields: Vec<&str> = self.process.split(' ').collect();
        let [of_boot, of_namespace, id, of_start] = fields[..] else { return false };
        if (of_boot, of_namespace) != (&boot(), &namespace()) {
            return true;
        }
        id.parse().is_ok_and(|id| started(id).as_deref() != Some(of_start))
    }
}

fn host() -> String {
    read("/proc/sys/kernel/hostname")
}

fn boot() -> String {
    read("/proc/sys/kernel/random/boot_id")
}

fn namespace() -> String {
    fs::read_link("/proc/self/ns/pid").map(|name| name.display().to_string()).unwrap_or_default()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// When a process started, in clock ticks since the boot (proc_pid_stat(5)); `None` if it does not run.
fn started(id: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in parentheses may contain anything. After it, the state is field 3 and the start field 22.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let is_alive = fields.first().is_some_and(|state| !["Z", "X"].contains(state));
    fields.get(19).filter(|_| is_alive).map(|start| (*start).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_of_this_host_that_does_not_run_is_gone() {
        let this = Process::this();
        assert!(!this.is_gone(), "{this:?}");
        let fields: Vec<&str> = this.process.split(' ').collect();
        let with = |at: usize, value: &str| {
            let mut fields = fields.clone();
            fields[at] = value;
            Process { process: fields.join(" "), ..this.clone() }
        };
        for gone in [with(0, "x"), with(1, "x"), with(2, "4194305"), with(3, "0")] {
            assert!(gone.is_gone(), "{gone:?}");
            assert!(!Process { host: "elsewhere".into(), ..gone }.is_gone());
        }
        assert!(!Process { process: "unknown".into(), ..this.clone() }.is_gone());
    }
}
