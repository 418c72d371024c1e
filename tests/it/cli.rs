//! The command line, as scripts depend on it: what it prints where, and its exit codes.

use crate::support::folder;
use crate::support::process::{formgate, formgate_in};

mod admin;
mod audit;
mod check;
mod concerns;
mod demo;
mod explain;
mod export;
mod import;
mod keys;
mod migrate;
mod migrate_unreleased;
mod migrate_upgrade;
mod output;
mod remedies;
mod serve;
mod token;
mod webhook;
mod wrong_values;

/// Every command.
const COMMANDS: [&[&str]; 19] = [
    &["serve"],
    &["check"],
    &["config"],
    &["config", "schema"],
    &["explain"],
    &["migrate"],
    &["import"],
    &["reindex"],
    &["token"],
    &["token", "create"],
    &["token", "rotate"],
    &["token", "list"],
    &["token", "revoke"],
    &["admin"],
    &["admin", "link"],
    &["audit"],
    &["audit", "list"],
    &["audit", "verify"],
    &["demo"],
];

#[test]
fn every_command_explains_itself_on_standard_output() {
    let all = formgate(&["--help"]);
    assert_eq!((all.code, all.stderr.as_str()), (0, ""));
    for command in &COMMANDS {
        assert!(all.stdout.contains(&format!("  {} ", command[0])), "{command:?} in:\n{}", all.stdout);
        let help = formgate(&[*command, &["--help"]].concat());
        assert_eq!((help.code, help.stderr.as_str()), (0, ""), "{command:?}");
        assert!(help.stdout.contains("Usage: formgate"), "{command:?}: {}", help.stdout);
        let others = [&["token"][..], &["admin"], &["audit"], &["demo"], &["config"], &["config", "schema"]];
        let reads_configuration = !others.contains(command);
        for text in ["--config <FILE>", "FORMGATE_CONFIG"] {
            assert_eq!(help.stdout.contains(text), reads_configuration, "{command:?}: {}", help.stdout);
        }
    }
    let version = formgate(&["--version"]);
    assert_eq!((version.code, version.stdout.trim_end()), (0, concat!("formgate ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn wrong_usage_ends_with_2_and_prints_no_result() {
    for arguments in [
        &[][..],
        &["nonsense"],
        &["serve", "--nonsense"],
        &["check", "extra"],
        &["migrate", "--tenant"],
        &["token"],
        &["token", "create", "--tenant", "acme"],
        &["token", "create", "--name", "x"],
        &["token", "revoke", "--tenant", "acme"],
        &["token", "revoke", "--tenant", "acme", "first"],
        &["token", "list"],
        &["token", "rotate", "--tenant", "acme"],
        &["token", "rotate", "--tenant", "acme", "1", "--overlap", "soon"],
        &["admin"],
        &["admin", "link", "--tenant", "acme"],
        &["audit"],
        &["audit", "verify"],
    ] {
        let output = formgate(arguments);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arguments:?}: {}", output.stderr);
        assert!(output.stderr.contains("--help"), "{arguments:?}: {}", output.stderr);
    }
}

#[test]
fn a_configuration_that_can_not_be_read_ends_with_1() {
    let folder = folder::temporary("cli");
    for command in [
        &["serve"][..],
        &["check"],
        &["migrate"],
        &["token", "create", "--tenant", "acme", "--name", "x"],
        &["token", "list", "--tenant", "acme"],
        &["token", "revoke", "--tenant", "acme", "1"],
    ] {
        let output = formgate_in(folder.path(), None, command);
        assert_eq!(output.code, 1, "{command:?}: {}", output.stderr);
        let said = format!("{}{}", output.stdout, output.stderr);
        assert!(said.contains("tenants.toml"), "the file is named: {command:?}: {said}");
        assert!(output.stdout.is_empty() || command == ["check"], "{command:?}: {}", output.stdout);
    }
}
