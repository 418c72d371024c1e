//! The description of the API, `deploy/openapi.yaml`, and whether an answer is one that it tells of.
//!
//! The client asks for every answer, so that all tests hold the description to the truth: its status, headers, body and
//! message. A reader may rely on less than is tested: the description lets fields be added, here an answer with a field
//! that is not described is refused.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use http::Method;
use jsonschema::Validator;
use serde_json::{Map, Value, json};

use super::answer::Answer;

/// Where all that is described stands.
const API: &str = "/api/v1";

/// What belongs to HTTP and to the connection, and may be on any answer.
const OF_HTTP: [&str; 6] =
    ["connection", "content-length", "content-type", "date", "strict-transport-security", "transfer-encoding"];

/// What a path that is not described answers, and a described one to a method that it has not: the part of the gate that
/// lies before the route.
const BEFORE_THE_ROUTE: [(&str, &str); 12] = [
    ("400", "BadRequest"),
    ("401", "Unauthenticated"),
    ("404", "PathNotFound"),
    ("405", "MethodNotAllowed"),
    ("414", "TargetTooLong"),
    ("421", "Misdirected"),
    ("429", "TooManyRequests"),
    ("431", "HeadTooLarge"),
    ("500", "ServerError"),
    ("501", "UnknownMethod"),
    ("503", "Unavailable"),
    ("504", "TooSlow"),
];

/// The description as it was written.
pub(crate) static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    yaml_serde::from_str(include_str!("../../../deploy/openapi.yaml")).expect("the description is YAML")
});

/// The same, with objects that have no other fields than those described.
static CLOSED: LazyLock<Value> = LazyLock::new(|| {
    let mut document = DOCUMENT.clone();
    close(&mut document);
    document
});

fn close(value: &mut Value) {
    if let Value::Object(object) = value {
        if object.get("type") == Some(&json!("object")) && object.contains_key("properties") {
            object.entry("additionalProperties").or_insert(false.into());
        }
        object.values_mut().for_each(close);
    } else if let Value::Array(items) = value {
        items.iter_mut().for_each(close);
    }
}

/// What the answer to a call has that the description does not tell of, or the other way round. The description tells
/// of nothing outside of the API.
pub(crate) fn deviation(method: &Method, target: &str, answer: &Answer) -> Option<String> {
    let path = target.split('?').next()?.strip_prefix(API).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
    let path = path.strip_suffix('/').unwrap_or(path);
    let status = answer.status.as_u16();
    let Some(pointer) = response_at(method, path, status) else {
        return Some(format!("the description has no {status} of {method} {path}"));
    };
    deviation_from(&pointer, method, path, answer).map(|deviation| format!("{pointer}: {deviation}"))
}

/// Where the description has the answer of a status.
fn response_at(method: &Method, path: &str, status: u16) -> Option<String> {
    let status = status.to_string();
    let described = template_of(path);
    let operation = described.map(|template| format!("/paths/{}/{}", escape(template), method.as_str().to_lowercase()));
    let known = operation.filter(|pointer| CLOSED.pointer(pointer).is_some());
    if let Some(operation) = known {
        return followed(&format!("{operation}/responses/{status}"));
    }
    let (_, name) = BEFORE_THE_ROUTE.iter().find(|(known, _)| *known == status)?;
    (*name != "MethodNotAllowed" || described.is_some()).then(|| format!("/components/responses/{name}"))
}

/// The described path that a path is one of.
fn template_of(path: &str) -> Option<&'static str> {
    let is_one_of = |template: &&str| {
        let (mut wanted, mut found) = (template.split('/'), path.split('/'));
        let same = wanted
            .by_ref()
            .zip(found.by_ref())
            .all(|(wanted, found)| wanted == found || (wanted.starts_with('{') && !found.is_empty()));
        same && template.split('/').count() == path.split('/').count()
    };
    let paths = CLOSED["paths"].as_object().expect("paths").keys().map(String::as_str);
    // One without a placeholder comes first.
    paths.filter(is_one_of).min_by_key(|template| template.matches('{').count())
}

/// A pointer, or where the reference that stands there leads; none where nothing stands.
fn followed(pointer: &str) -> Option<String> {
    match CLOSED.pointer(pointer)?.get("$ref") {
        Some(reference) => Some(reference.as_str()?.strip_prefix('#')?.to_owned()),
        None => Some(pointer.to_owned()),
    }
}

fn deviation_from(pointer: &str, method: &Method, path: &str, answer: &Answer) -> Option<String> {
    let response = CLOSED.pointer(pointer).expect("the response was found there");
    let nothing = Map::new();
    let headers = response["headers"].as_object().unwrap_or(&nothing);
    for (name, value) in &answer.headers {
        let known = headers.keys().any(|known| known.eq_ignore_ascii_case(name.as_str()));
        if !known && !OF_HTTP.contains(&name.as_str()) {
            return Some(format!("the header {name}: {value:?} is not described"));
        }
    }
    for name in headers.keys() {
        let pointer = followed(&format!("{pointer}/headers/{name}")).expect("the header is described");
        if let Some(deviation) = header_deviation(&pointer, answer.header(&name.to_lowercase())) {
            return Some(format!("{name}: {deviation}"));
        }
    }
    if answer.status == 405 {
        return allow_deviation(path, answer);
    }
    if *method == Method::HEAD || answer.header("content-encoding").is_some() {
        return None;
    }
    body_deviation(pointer, &answer.json())
}

fn header_deviation(pointer: &str, value: Option<&str>) -> Option<String> {
    let header = CLOSED.pointer(pointer).expect("the header was found there");
    let Some(value) = value else { return header["required"].as_bool()?.then(|| "is missing".to_owned()) };
    let value =
        if header["schema"]["type"] == "integer" { serde_json::from_str(value).ok() } else { Some(json!(value)) };
    let Some(value) = value else { return Some("is no number".to_owned()) };
    invalidity(&format!("{pointer}/schema"), &value)
}

/// `Allow` has exactly the methods that the description gives the path.
fn allow_deviation(path: &str, answer: &Answer) -> Option<String> {
    let item = &CLOSED["paths"][template_of(path)?];
    let described = item.as_object()?.keys().filter(|key| *key != "parameters").map(|method| method.to_uppercase());
    let (mut described, mut allowed): (Vec<_>, Vec<_>) =
        (described.collect(), answer.header("allow")?.split(", ").map(str::to_owned).collect());
    described.sort();
    allowed.sort();
    (described != allowed).then(|| format!("{allowed:?} are allowed, {described:?} described"))
}

/// The body fits its schema; the message of an error is one of those that the description shows.
fn body_deviation(pointer: &str, body: &Value) -> Option<String> {
    let media = format!("{pointer}/content/application~1json");
    if CLOSED.pointer(&media).is_none() {
        return Some("the description has no body".to_owned());
    }
    if let Some(invalidity) = invalidity(&format!("{media}/schema"), body) {
        return Some(format!("{invalidity} in {body}"));
    }
    let is_error = CLOSED.pointer(&format!("{media}/schema/$ref")) == Some(&json!("#/components/schemas/Error"));
    let shown = examples_of(CLOSED.pointer(&media).expect("it was there"));
    let is_shown = shown.iter().any(|(_, example)| example["message"] == body["message"]);
    (is_error && !is_shown).then(|| format!("no example has the message of {body}"))
}

/// The examples of a media type, by name; the only one may have none.
pub(crate) fn examples_of(media: &'static Value) -> Vec<(&'static str, &'static Value)> {
    let named = media["examples"].as_object().into_iter().flatten();
    let named = named.map(|(name, example)| (name.as_str(), &example["value"]));
    named.chain(media.get("example").map(|example| ("", example))).collect()
}

/// What of a value the schema at a place of the description does not allow.
pub(crate) fn invalidity(pointer: &str, value: &Value) -> Option<String> {
    let validator = validator_of(pointer);
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{error} at {:?}", error.instance_path().to_string()))
        .collect();
    (!errors.is_empty()).then(|| errors.join("; "))
}

/// The validator of the schema at a place, made once.
fn validator_of(pointer: &str) -> Arc<Validator> {
    static MADE: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let make = || {
        // The components stand in the schema, so that its references find what they name.
        let mut schema = CLOSED.pointer(pointer).expect("a schema stands there").clone();
        schema["components"] = CLOSED["components"].clone();
        let options = jsonschema::options().with_draft(jsonschema::Draft::Draft202012).should_validate_formats(true);
        Arc::new(options.build(&schema).unwrap_or_else(|error| panic!("{pointer}: {error}")))
    };
    Arc::clone(made.entry(pointer.to_owned()).or_insert_with(make))
}

/// A key as it stands in a JSON pointer.
pub(crate) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
