//! Parses a line into a record.
//!
//! A valid line is parsed twice: once for its `type`, and once as that type. Only a faulty line is parsed again, to
//! locate the fault.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::error::Category;
use serde_path_to_error::Segment;

use super::fault::{self, LineFault};
use crate::store::import::check::PathStep;
use crate::store::import::record::{Object, Record};

const TYPES: &str = "`user`, `label`, `form`, `group`, `flow_step`, `submission`";

#[derive(Deserialize)]
struct TypeField<'l> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'l, str>,
}

/// Parses a line.
pub(super) fn record(number: u64, line: &str) -> Result<Record, LineFault> {
    let TypeField { kind } = object(number, line)?;
    Ok(match &*kind {
        "user" => Record::User(object(number, line)?),
        "label" => Record::Label(object(number, line)?),
        "form" => Record::Form(object(number, line)?),
        "group" => Record::Group(object(number, line)?),
        "flow_step" => Record::FlowStep(object(number, line)?),
        "submission" => Record::Submission(Box::new(object(number, line)?)),
        other => {
            let path = [PathStep::Key("type".into())];
            return Err(LineFault::of_value(
                number,
                line,
                &path,
                format!("unknown type `{other}`, expected one of {TYPES}"),
            ));
        }
    })
}

fn object<'l, T: Deserialize<'l>>(number: u64, line: &'l str) -> Result<T, LineFault> {
    match serde_json::from_str::<Object<T>>(line) {
        Ok(Object(value)) => Ok(value),
        Err(error) => Err(explain::<T>(number, line, &error)),
    }
}

/// Locates the fault in a line that failed to parse.
fn explain<'l, T: Deserialize<'l>>(number: u64, line: &'l str, error: &serde_json::Error) -> LineFault {
    let path = match serde_path_to_error::deserialize::<_, Object<T>>(&mut serde_json::Deserializer::from_str(line)) {
        Err(error) => steps(error.path()),
        // The fault is after the object.
        Ok(_) => Vec::new(),
    };
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(&*message, |(message, _)| message);
    match error.classify() {
        Category::Data => LineFault::of_value(number, line, &path, message),
        Category::Syntax | Category::Eof | Category::Io => {
            // The parser's column includes the offending byte; at the end of the line there is none.
            let offset = if error.is_eof() { line.len() } else { error.column().saturating_sub(1) };
            let column = fault::column(line, floor_char_boundary(line, offset));
            LineFault { line: number, column, key: fault::key(&path), message: message.to_owned() }
        }
    }
}

fn floor_char_boundary(text: &str, offset: usize) -> usize {
    (0..=offset.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn steps(path: &serde_path_to_error::Path) -> Vec<PathStep> {
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Map { key } => Some(PathStep::Key(key.clone().into())),
            Segment::Seq { index } => Some(PathStep::Index(*index)),
            Segment::Enum { .. } | Segment::Unknown => None,
        })
        .collect()
}
