//! The `[gateway.limits]` table, as deploy/configuration.md documents it.

use super::{ACME, Folder, GATEWAY};
use crate::config::Limits;

/// The rows of the documented table: key, default, minimum, maximum.
fn documented() -> Vec<(&'static str, u32, u32, u32)> {
    let reference = include_str!("../../../deploy/configuration.md");
    let (_, section) = reference.split_once("\n## Limits\n").expect("the page has the section");
    let (section, _) = section.split_once("\n## ").expect("it ends");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let (least, most) = cells[3].split_once(" to ").expect("a range");
        (cells[1].trim_matches('`'), cells[2].parse().unwrap(), least.parse().unwrap(), most.parse().unwrap())
    })
    .collect()
}

fn with_limits(lines: &str) -> String {
    format!("{GATEWAY}[gateway.limits]\n{lines}\n{ACME}")
}

#[test]
fn the_documented_defaults_are_those_of_a_gateway_that_sets_none() {
    let folder = Folder::new();
    let lines: Vec<_> = documented().iter().map(|(key, default, ..)| format!("{key} = {default}")).collect();
    assert_eq!(folder.load(&with_limits(&lines.join("\n"))).unwrap().gateway.limits, Limits::default());
    assert_eq!(folder.load(&format!("{GATEWAY}{ACME}")).unwrap().gateway.limits, Limits::default());
}

#[test]
fn every_limit_can_be_set_within_its_documented_range_and_no_further() {
    let folder = Folder::new();
    for (key, default, least, most) in documented() {
        for value in [least, most] {
            let config = folder.load(&with_limits(&format!("{key} = {value}")));
            let limits = config.unwrap_or_else(|problems| panic!("{problems}")).gateway.limits;
            assert_eq!(limits != Limits::default(), value != default, "{key} = {value} has an effect");
        }
        for value in [least - 1, most + 1] {
            let faults = folder.faults(&with_limits(&format!("{key} = {value}")));
            let expected = format!("`{key}` must be from {least} to {most}");
            assert!(faults.len() == 1 && faults[0].ends_with(&expected), "{faults:?}");
        }
    }
}

#[test]
fn every_limit_is_documented() {
    let folder = Folder::new();
    let problems = folder.load(&with_limits("no_such_limit_at_all = 1")).expect_err("an unknown key").to_string();
    let (_, known) = problems.split_once("the keys here are ").expect("the keys are listed");
    let known: Vec<_> = known.lines().next().unwrap().split(", ").map(|key| key.trim_matches('`')).collect();
    assert_eq!(known, documented().iter().map(|(key, ..)| *key).collect::<Vec<_>>());
}
