//! The table of commands in `deploy/commands.md` is generated from their definitions.

use std::env;
use std::fmt::Write;
use std::fs;

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::Arguments;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/commands.md");

/// Options that every command has, which the page says once.
const COMMON: [&str; 3] = ["config", "help", "version"];

#[test]
fn the_table_of_commands_is_what_the_program_has() {
    let page = fs::read_to_string(PAGE).expect("the page exists");
    let (before, rest) = page.split_once("<!-- commands -->\n").expect("the table begins");
    let (_, after) = rest.split_once("<!-- end of commands -->\n").expect("the table ends");
    let mut table = "| command | does |\n| --- | --- |\n".to_owned();
    add_rows(&Arguments::command(), "formgate", &mut table);
    let written = format!("{before}<!-- commands -->\n\n{table}\n<!-- end of commands -->\n{after}");
    if env::var_os("FORMGATE_WRITE_DOCUMENTS").is_some() {
        fs::write(PAGE, &written).expect("the page can be written");
        return;
    }
    assert!(page == written, "the commands changed: run FORMGATE_WRITE_DOCUMENTS=1 cargo test --lib cli::documented");
}

/// Adds a row for each command that has no commands below it.
fn add_rows(command: &Command, name: &str, table: &mut String) {
    if command.has_subcommands() {
        for below in command.get_subcommands() {
            add_rows(below, &format!("{name} {}", below.get_name()), table);
        }
        return;
    }
    let about = command.get_about().map(ToString::to_string).expect("a command says what it does");
    let usage = format!("{name}{}", usage(command)).replace('|', "\\|");
    writeln!(table, "| `{usage}` | {} |", about.replace('|', "\\|")).expect("a string takes all");
}

/// What is required, in the order of the definition with positions last, and then what is optional.
fn usage(command: &Command) -> String {
    let required = |arg: &Arg| {
        command.get_groups().any(|group| group.is_required_set() && group.get_args().any(|id| id == arg.get_id()))
    };
    let arguments = || command.get_arguments().filter(|arg| !COMMON.contains(&arg.get_id().as_str()));
    let is_optional = |arg: &Arg| !arg.is_required_set() && !required(arg);
    let mut text = String::new();
    for arg in arguments().filter(|arg| arg.is_required_set() && !arg.is_positional()) {
        text += &format!(" {}", shown(arg));
    }
    for arg in arguments().filter(|arg| arg.is_required_set() && arg.is_positional()) {
        text += &format!(" {}", shown(arg));
    }
    let one_of: Vec<String> = arguments().filter(|arg| required(arg)).map(shown).collect();
    if !one_of.is_empty() {
        text += &format!(" {}", one_of.join("|"));
    }
    for arg in arguments().filter(|arg| is_optional(arg)) {
        let (shown, more) = (shown(arg), if is_repeated(arg) { "…" } else { "" });
        text += &format!(" [{}]{more}", shown.trim_end_matches('…'));
    }
    text
}

/// An argument with the name of its value, such as `--tenant SLUG`.
fn shown(arg: &Arg) -> String {
    let values = arg.get_possible_values();
    let value = match &arg.get_value_names().unwrap_or_default() {
        _ if !arg.get_action().takes_values() => String::new(),
        _ if !values.is_empty() => {
            values.iter().map(clap::builder::PossibleValue::get_name).collect::<Vec<_>>().join("|")
        }
        names => names.join(" "),
    };
    let more = if is_repeated(arg) { "…" } else { "" };
    match arg.get_long() {
        Some(long) => format!("--{long} {value}").trim_end().to_owned() + more,
        None => value + more,
    }
}

fn is_repeated(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || arg.get_num_args().is_some_and(|range| range.max_values() > 1)
}
