//! The chart of all results: requests per second as bars, a group of them for each scenario.
//!
//! Each scenario has a scale of its own: what is compared is the targets of one scenario, not scenarios.

use std::fmt::{Result, Write};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::results::{Results, Source};

/// Pixels. The names of targets end at `BARS`, and figures follow the bars.
const WIDTH: usize = 760;
const BARS: usize = 200;
const LONGEST_BAR: f64 = 440.0;
const ROW: usize = 17;
const MARGIN: usize = 16;

/// The colours of the gateway and of everything else.
const GATEWAY: &str = "#2563eb";
const OTHERS: &str = "#94a3b8";

/// Draws a file of results as an SVG next to it; the file of the chart.
pub(crate) fn draw(file: &Path) -> anyhow::Result<PathBuf> {
    let results = Results::read(file).with_context(|| file.display().to_string())?;
    let chart = file.with_extension("svg");
    fs::write(&chart, svg(&results)?)?;
    Ok(chart)
}

fn svg(results: &Results) -> std::result::Result<String, std::fmt::Error> {
    let mut body = String::new();
    let mut y = MARGIN + ROW / 2;
    text(
        &mut body,
        MARGIN,
        y,
        "start",
        "font-size=\"16\" font-weight=\"bold\"",
        "Requests per second (more is better)",
    )?;
    for scenario in &results.scenarios {
        y += ROW + ROW / 2;
        text(&mut body, MARGIN, y, "start", "font-size=\"12\" font-weight=\"bold\"", &scenario.title)?;
        let most = scenario.targets.iter().map(|target| target.requests_per_second).fold(1.0, f64::max);
        for target in &scenario.targets {
            y += ROW;
            let length = target.requests_per_second / most * LONGEST_BAR;
            let colour = if target.name.starts_with("formgate") { GATEWAY } else { OTHERS };
            text(&mut body, BARS - 8, y, "end", "", &target.name)?;
            writeln!(
                body,
                "<rect x=\"{BARS}\" y=\"{}\" width=\"{length:.1}\" height=\"12\" fill=\"{colour}\"/>",
                y - 10
            )?;
            let figure = with_commas(target.requests_per_second);
            text(&mut body, BARS + length as usize + 8, y, "start", "", &figure)?;
        }
    }
    let line =
        |Source { date, machine, version, command: _ }: &Source| format!("{date}, formgate {version}, {machine}");
    let mut sources: Vec<String> = results.scenarios.iter().map(|scenario| line(&scenario.source)).collect();
    sources.sort();
    sources.dedup();
    y += ROW / 2;
    for line in sources {
        y += ROW;
        text(&mut body, MARGIN, y, "start", "font-size=\"11\" fill=\"#475569\"", &line)?;
    }
    let height = y + MARGIN;
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    ))
}

fn text(body: &mut String, x: usize, y: usize, anchor: &str, style: &str, content: &str) -> Result {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    writeln!(body, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" {style}>{content}</text>")
}

/// A whole number with a comma before every three digits.
fn with_commas(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
