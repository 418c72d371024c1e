//! What runs of the bench measured, as JSON: the source of the chart.
//!
//! Every run adds its scenarios to `load.json` in Cargo's folder for temporary files and draws `load.svg` next to it. A
//! scenario that is measured again replaces its older figures. `benches/load.json` holds the published ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::chart;

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

/// Adds scenarios to the results of earlier runs, and draws them all; the file of the chart.
pub(crate) fn add(measured: Vec<Scenario>) -> anyhow::Result<PathBuf> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("load.json");
    // Those of another version of the bench, which may have another form, are dropped.
    let earlier = fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str(&text).ok());
    let mut results: Results = earlier.unwrap_or_default();
    for scenario in measured {
        match results.scenarios.iter_mut().find(|known| known.title == scenario.title) {
            Some(known) => *known = scenario,
            None => results.scenarios.push(scenario),
        }
    }
    fs::write(&file, serde_json::to_string_pretty(&results)? + "\n")?;
    draw(&file)
}

/// Draws a file of results as an SVG next to it.
pub(crate) fn draw(file: &Path) -> anyhow::Result<PathBuf> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let results: Results = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    let chart = file.with_extension("svg");
    fs::write(&chart, chart::svg(&results)?)?;
    Ok(chart)
}
