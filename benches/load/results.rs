//! What runs of the bench measured, as JSON: the source of the chart.
//!
//! Every run adds its scenarios to `load.json` in Cargo's folder for temporary files. A scenario that is measured again
//! replaces its older figures. `benches/load.json` holds the published ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

/// All scenarios that were measured, each with its own source.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) scenarios: Vec<Scenario>,
}

/// One table of the bench.
#[derive(Serialize, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) title: String,
    pub(crate) source: Source,
    pub(crate) targets: Vec<Measured>,
}

/// When and where a scenario was measured.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Source {
    pub(crate) date: String,
    pub(crate) machine: String,
    pub(crate) version: String,
    pub(crate) command: String,
}

/// The medians of one target. CPU is in microseconds a request.
#[derive(Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) requests_per_second: f64,
    pub(crate) own_us: f64,
    /// Of Redis and Postgres together.
    pub(crate) store_us: f64,
}

impl Results {
    /// The results in a file.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(&fs::read_to_string(file)?)?)
    }
}

impl Source {
    /// This run.
    pub(crate) fn now(rounds: usize, turn: f64, scenarios: &[String]) -> anyhow::Result<Self> {
        let cpu = fs::read_to_string("/proc/cpuinfo")?;
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let cores = std::thread::available_parallelism()?;
        let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
        let commit =
            commit.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
        Ok(Self {
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            machine: format!("{cores} cores, {}", model.map_or("unknown", |(_, name)| name)),
            version: format!("{} {}", env!("CARGO_PKG_VERSION"), commit.trim()).trim().to_owned(),
            command: format!("ROUNDS={rounds} TURN={turn} cargo bench --bench load -- {}", scenarios.join(" ")),
        })
    }
}

/// Adds scenarios to the results of earlier runs; the file that holds them all.
pub(crate) fn add(measured: Vec<Scenario>) -> anyhow::Result<PathBuf> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("load.json");
    // Those of another version of the bench, which may have another form, are dropped.
    let mut results = Results::read(&file).unwrap_or_default();
    for scenario in measured {
        match results.scenarios.iter_mut().find(|known| known.title == scenario.title) {
            Some(known) => *known = scenario,
            None => results.scenarios.push(scenario),
        }
    }
    fs::write(&file, serde_json::to_string_pretty(&results)? + "\n")?;
    Ok(file)
}
