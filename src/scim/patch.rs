//! The operations of a PATCH request (RFC 7644, section 3.5.2), before they are given a meaning.

use serde_json::Value;
use serde_json::value::RawValue;

use super::error::Fault;
use super::filter::{Path, parse_path};
use super::json::{Object, elements, text, whole};

/// The most operations of a request. Those of members are joined, and each other one is a statement or none.
///
/// Larger: a request holds the lock on groups longer. Smaller: directories that send an operation for each member fail.
const MAX_OPERATIONS: usize = 10_000;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    Add,
    Remove,
    Replace,
}

/// An operation.
#[derive(Clone, Debug)]
pub(super) struct Operation<'b> {
    pub(super) kind: OperationKind,
    /// What it applies to; `None`: the whole resource.
    pub(super) path: Option<Path>,
    /// Its value; `null` counts as absent.
    pub(super) value: Option<&'b RawValue>,
}

/// Reads the body of a PATCH request.
pub(super) fn operations(body: &[u8]) -> Result<Vec<Operation<'_>>, Fault> {
    let body = Object::of_body(body, |key| key == "operations")?;
    let list = body.get("operations").ok_or_else(|| Fault::syntax("The body has no Operations."))?;
    let list = elements(list, MAX_OPERATIONS);
    let list =
        list.ok_or_else(|| Fault::syntax(format!("Operations must be an array of at most {MAX_OPERATIONS}.")))?;
    list.into_iter().map(read).collect()
}

fn read(operation: &RawValue) -> Result<Operation<'_>, Fault> {
    let object = Object::of_value(operation, |key| ["op", "path", "value"].contains(&key));
    let object = object.ok_or_else(|| Fault::syntax("An operation must be an object."))?;
    let string = |key| object.get(key).map(|value| whole(key, value)).transpose();
    let kind = match string("op")? {
        Some(Value::String(kind)) if kind.eq_ignore_ascii_case("add") => OperationKind::Add,
        Some(Value::String(kind)) if kind.eq_ignore_ascii_case("remove") => OperationKind::Remove,
        Some(Value::String(kind)) if kind.eq_ignore_ascii_case("replace") => OperationKind::Replace,
        _ => return Err(Fault::syntax("The op of an operation must be add, remove or replace.")),
    };
    let path = match string("path")? {
        None => None,
        Some(Value::String(path)) if path.trim().is_empty() => None,
        Some(Value::String(path)) => Some(parse_path(&path)?),
        Some(_) => return Err(Fault::syntax("The path of an operation must be a text.")),
    };
    // The URN of the schema is the whole resource.
    let path = path.filter(|path| !path.attribute.is_empty() || path.filter.is_some());
    let is_of_members = path.as_ref().is_some_and(|path| path.attribute == "members" && path.filter.is_none());
    if kind == OperationKind::Remove && is_of_members && object.has_null("value") {
        // Without a value, all members are removed: a client that sends null has not meant that.
        return Err(Fault::value("The value of an operation on members must not be null; leave it out to remove all."));
    }
    Ok(Operation { kind, path, value: object.get("value") })
}

/// The value of an operation that must be a text; `None` if it has no value.
pub(super) fn text_of(name: &str, value: Option<&RawValue>) -> Result<Option<String>, Fault> {
    value.map_or(Ok(None), |value| text(name, &whole(name, value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_read_without_case() {
        let body =
            br#"{"OPERATIONS": [{"Op": "ADD", "Path": "members", "Value": []}, {"op": "Remove", "path": "members"},
            {"op": "replace", "path": "", "value": {}}, {"op": "replace", "path": null, "value": null},
            {"op": "replace", "path": "urn:ietf:params:scim:schemas:core:2.0:Group", "value": {}}]}"#;
        let read: Vec<_> = operations(body)
            .unwrap()
            .into_iter()
            .map(|operation| (operation.kind, operation.path.is_some(), operation.value.map(RawValue::get)))
            .collect();
        assert_eq!(
            read,
            [
                (OperationKind::Add, true, Some("[]")),
                (OperationKind::Remove, true, None),
                (OperationKind::Replace, false, Some("{}")),
                (OperationKind::Replace, false, None),
                (OperationKind::Replace, false, Some("{}")),
            ]
        );
    }

    #[test]
    fn faulty_operations_are_refused() {
        for body in [
            "{}",
            r#"{"Operations": {}}"#,
            r#"{"Operations": null}"#,
            r#"{"Operations": [7]}"#,
            r#"{"Operations": [{}]}"#,
            r#"{"Operations": [{"op": "move"}]}"#,
            r#"{"Operations": [{"op": 1}]}"#,
            r#"{"Operations": [{"op": "add", "path": 7}]}"#,
            r#"{"Operations": [{"op": "add", "path": "a b"}]}"#,
            r#"{"Operations": [{"op": "remove", "path": "members", "value": null}]}"#,
        ] {
            assert!(operations(body.as_bytes()).is_err(), "{body}");
        }
        let many = format!(r#"{{"Operations": [{}]}}"#, vec![r#"{"op":"add"}"#; MAX_OPERATIONS + 1].join(","));
        assert!(operations(many.as_bytes()).is_err());
    }
}
