//! The descriptions of the API and of the operator API, and whether an answer is one that they describe.
//!
//! The clients ask for every answer, so that all tests hold the descriptions to the truth: status, headers, body and
//! message. A reader may rely on less than is tested: a description lets fields be added, here an answer with a field
//! that is not described is refused.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use http::{HeaderMap, Method, StatusCode};
use jsonschema::Validator;
use serde_json::{Map, Value, json};

use super::answer::Answer;

/// Headers of HTTP and of the connection, which any answer may have.
const OF_HTTP: [&str; 6] =
    ["connection", "content-length", "content-type", "date", "strict-transport-security", "transfer-encoding"];

/// A description, in OpenAPI.
pub(crate) struct Description {
    /// Where all that is described is.
    prefix: &'static str,
    /// Headers that every answer has, and the text of the description documents once.
    everywhere: &'static [&'static str],
    /// The answers to paths that are not described, and of described ones to methods that they do not have.
    before_the_route: &'static [(&'static str, &'static str)],
    /// As it was written.
    pub(crate) document: Value,
    /// The same, with objects that have no other fields than those described.
    closed: Value,
    /// The validators of the schemas at places of the description.
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

/// The description of the API, `deploy/openapi.yaml`.
pub(crate) static API: LazyLock<Description> = LazyLock::new(of_api);

/// The same for answers that show only some fields: OpenAPI can't say that a parameter decides what is required.
static API_WITH_FIELDS: LazyLock<Description> = LazyLock::new(|| {
    let mut description = of_api();
    let submission = description.closed["components"]["schemas"]["Submission"].as_object_mut().expect("a schema");
    submission.remove("required").expect("everything is shown without the parameter");
    description
});

fn of_api() -> Description {
    Description {
        prefix: "/api/v1",
        everywhere: &[],
        // The part of the gate that lies before the route.
        before_the_route: &[
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
        ],
        ..Description::read(include_str!("../../../deploy/openapi.yaml"))
    }
}

/// The description of the operator API, `deploy/operator-openapi.yaml`.
pub(crate) static OPERATOR: LazyLock<Description> = LazyLock::new(|| {
    let mut description = Description {
        everywhere: &["cache-control"],
        before_the_route: &[
            ("401", "Unauthenticated"),
            ("403", "OfPage"),
            ("404", "PathNotFound"),
            ("405", "MethodNotAllowed"),
            ("408", "BodyTooSlow"),
            ("413", "BodyTooLarge"),
            ("500", "ServerError"),
            ("503", "Unavailable"),
        ],
        ..Description::read(include_str!("../../../deploy/operator-openapi.yaml"))
    };
    // Its text says once that HEAD works wherever GET does.
    for path in description.closed["paths"].as_object_mut().expect("paths").values_mut() {
        if let Some(get) = path.get("get").cloned() {
            path["head"] = get;
        }
    }
    description
});

/// What of an answer is described.
pub(crate) struct Described<'a> {
    pub(crate) status: StatusCode,
    pub(crate) headers: &'a HeaderMap,
    /// The body as JSON. Not called if there is none to look at.
    pub(crate) body: &'a dyn Fn() -> Value,
}

impl Described<'_> {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a header of visible ASCII"))
    }
}

/// What the answer to a call has that the description of the API does not, or the other way round.
pub(crate) fn deviation(method: &Method, target: &str, answer: &Answer) -> Option<String> {
    let described = Described { status: answer.status, headers: &answer.headers, body: &|| answer.json() };
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let has_fields =
        query.split('&').any(|parameter| parameter.len() > "fields=".len() && parameter.starts_with("fields="));
    let description = if has_fields { &API_WITH_FIELDS } else { &API };
    description.deviation(method, target, &described)
}

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

impl Description {
    /// Reads a description of everything below `/`.
    fn read(text: &str) -> Self {
        let document: Value = yaml_serde::from_str(text).expect("the description is YAML");
        let mut closed = document.clone();
        close(&mut closed);
        let validators = Mutex::default();
        Self { prefix: "", everywhere: &[], before_the_route: &[], document, closed, validators }
    }

    /// What the answer to a call has that the description does not, or the other way round. Nothing outside of the prefix is
    /// described.
    pub(crate) fn deviation(&self, method: &Method, target: &str, answer: &Described<'_>) -> Option<String> {
        let path = target.split('?').next()?.strip_prefix(self.prefix)?;
        let path = Some(path).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
        let path = path.strip_suffix('/').unwrap_or(path);
        let status = answer.status.as_u16();
        let Some(pointer) = self.response_at(method, path, status) else {
            return Some(format!("the description has no {status} of {method} {path}"));
        };
        self.deviation_from(&pointer, method, path, answer).map(|deviation| format!("{pointer}: {deviation}"))
    }

    /// Where the description has the answer of a status.
    fn response_at(&self, method: &Method, path: &str, status: u16) -> Option<String> {
        let status = status.to_string();
        let described = self.template_of(path);
        let operation =
            described.map(|template| format!("/paths/{}/{}", escape(template), method.as_str().to_lowercase()));
        let known = operation.filter(|pointer| self.closed.pointer(pointer).is_some());
        if let Some(operation) = known {
            return self.followed(&format!("{operation}/responses/{status}"));
        }
        let (_, name) = self.before_the_route.iter().find(|(known, _)| *known == status)?;
        (*name != "MethodNotAllowed" || described.is_some()).then(|| format!("/components/responses/{name}"))
    }

    /// The described path that a path is one of.
    fn template_of(&self, path: &str) -> Option<&str> {
        let is_one_of = |template: &&str| {
            let (mut wanted, mut found) = (template.split('/'), path.split('/'));
            let same = wanted
                .by_ref()
                .zip(found.by_ref())
                .all(|(wanted, found)| wanted == found || (wanted.starts_with('{') && !found.is_empty()));
            same && template.split('/').count() == path.split('/').count()
        };
        let paths = self.closed["paths"].as_object().expect("paths").keys().map(String::as_str);
        // One without a placeholder comes first.
        paths.filter(is_one_of).min_by_key(|template| template.matches('{').count())
    }

    /// A pointer, or the target of the reference at it; none if there is nothing.
    fn followed(&self, pointer: &str) -> Option<String> {
        match self.closed.pointer(pointer)?.get("$ref") {
            Some(reference) => Some(reference.as_str()?.strip_prefix('#')?.to_owned()),
            None => Some(pointer.to_owned()),
        }
    }

    fn deviation_from(&self, pointer: &str, method: &Method, path: &str, answer: &Described<'_>) -> Option<String> {
        let response = self.closed.pointer(pointer).expect("the response was found there");
        let nothing = Map::new();
        let headers = response["headers"].as_object().unwrap_or(&nothing);
        for (name, value) in answer.headers {
            let known = headers.keys().any(|known| known.eq_ignore_ascii_case(name.as_str()));
            let is_implied = [&OF_HTTP, self.everywhere].iter().any(|names| names.contains(&name.as_str()));
            if !known && !is_implied {
                return Some(format!("the header {name}: {value:?} is not described"));
            }
        }
        for name in headers.keys() {
            let pointer = self.followed(&format!("{pointer}/headers/{name}")).expect("the header is described");
            if let Some(deviation) = self.header_deviation(&pointer, answer.header(&name.to_lowercase())) {
                return Some(format!("{name}: {deviation}"));
            }
        }
        if answer.status == 405 {
            return self.allow_deviation(path, answer);
        }
        if *method == Method::HEAD || answer.status == 304 || answer.header("content-encoding").is_some() {
            return None;
        }
        let kind = answer.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default();
        if kind != "application/json" && kind != "application/scim+json" {
            let media = format!("{pointer}/content/{}", escape(kind));
            return self.closed.pointer(&media).is_none().then(|| format!("a body of {kind} is not described"));
        }
        self.body_deviation(pointer, &(answer.body)())
    }

    fn header_deviation(&self, pointer: &str, value: Option<&str>) -> Option<String> {
        let header = self.closed.pointer(pointer).expect("the header was found there");
        let Some(value) = value else { return header["required"].as_bool()?.then(|| "is missing".to_owned()) };
        let value =
            if header["schema"]["type"] == "integer" { serde_json::from_str(value).ok() } else { Some(json!(value)) };
        let Some(value) = value else { return Some("is no number".to_owned()) };
        self.invalidity(&format!("{pointer}/schema"), &value)
    }

    /// `Allow` has exactly the methods that the description gives the path.
    fn allow_deviation(&self, path: &str, answer: &Described<'_>) -> Option<String> {
        let item = &self.closed["paths"][self.template_of(path)?];
        let described = item.as_object()?.keys().filter(|key| *key != "parameters").map(|method| method.to_uppercase());
        let (mut described, mut allowed): (Vec<_>, Vec<_>) =
            (described.collect(), answer.header("allow")?.split(", ").map(str::to_owned).collect());
        described.sort();
        allowed.sort();
        (described != allowed).then(|| format!("{allowed:?} are allowed, {described:?} described"))
    }

    /// The body fits its schema; the message of an error is one of those that the description shows.
    fn body_deviation(&self, pointer: &str, body: &Value) -> Option<String> {
        let media = format!("{pointer}/content/application~1json");
        if self.closed.pointer(&media).is_none() {
            return Some("the description has no body".to_owned());
        }
        if let Some(invalidity) = self.invalidity(&format!("{media}/schema"), body) {
            return Some(format!("{invalidity} in {body}"));
        }
        let is_error =
            self.closed.pointer(&format!("{media}/schema/$ref")) == Some(&json!("#/components/schemas/Error"));
        let shown = examples_of(self.closed.pointer(&media).expect("it was there"));
        let is_shown = shown.iter().any(|(_, example)| example["message"] == body["message"]);
        (is_error && !is_shown).then(|| format!("no example has the message of {body}"))
    }

    /// What of a value the schema at a place of the description does not allow.
    pub(crate) fn invalidity(&self, pointer: &str, value: &Value) -> Option<String> {
        let validator = self.validator_of(pointer);
        let errors: Vec<String> = validator
            .iter_errors(value)
            .map(|error| format!("{error} at {:?}", error.instance_path().to_string()))
            .collect();
        (!errors.is_empty()).then(|| errors.join("; "))
    }

    /// The validator of the schema at a place, made once.
    fn validator_of(&self, pointer: &str) -> Arc<Validator> {
        let mut made = self.validators.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let make = || {
            // The schema contains the components, so that its references resolve.
            let mut schema = self.closed.pointer(pointer).expect("the pointer leads to a schema").clone();
            schema["components"] = self.closed["components"].clone();
            let options =
                jsonschema::options().with_draft(jsonschema::Draft::Draft202012).should_validate_formats(true);
            Arc::new(options.build(&schema).unwrap_or_else(|error| panic!("{pointer}: {error}")))
        };
        Arc::clone(made.entry(pointer.to_owned()).or_insert_with(make))
    }
}

/// The examples of a media type, by name; the only one may have none.
pub(crate) fn examples_of(media: &Value) -> Vec<(&str, &Value)> {
    let named = media["examples"].as_object().into_iter().flatten();
    let named = named.map(|(name, example)| (name.as_str(), &example["value"]));
    named.chain(media.get("example").map(|example| ("", example))).collect()
}

/// A key as a JSON pointer escapes it.
pub(crate) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
