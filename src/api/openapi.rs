//! `GET /openapi.json`: the description of this API, with the address that the caller used.
//!
//! `deploy/openapi.yaml` is the one source. It is made JSON when it is first asked for, so that no second text can
//! drift from it; only `servers` differs from account to account.

use std::sync::LazyLock;

use http::StatusCode;
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::Call;
use crate::gate::Admitted;
use crate::reply::Reply;

static DOCUMENT: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    yaml_serde::from_str(include_str!("../../deploy/openapi.yaml")).expect("the tests have read the description")
});

pub(super) fn show(admitted: &Admitted, call: &Call<'_>) -> Reply {
    let servers = json!([{ "url": format!("{}/api/v1", call.origin), "description": admitted.tenant().name }]);
    Reply::json(StatusCode::OK, &Document { servers })
}

/// The description, with other servers. It is not cloned for that: it has some thousand values.
struct Document {
    servers: Value,
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = |key: &str| if key == "servers" { Some(&self.servers) } else { None };
        serializer.collect_map(DOCUMENT.iter().map(|(key, value)| (key, own(key).unwrap_or(value))))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::PATHS;
    use super::*;

    #[test]
    fn the_description_has_exactly_the_paths_and_methods_that_are_routed() {
        let described = DOCUMENT["paths"].as_object().unwrap().iter().flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
            methods.map(move |method| format!("{} {path}", method.to_uppercase()))
        });
        let routed = PATHS
            .iter()
            .flat_map(|(path, resource)| resource.allow().split(", ").map(move |method| format!("{method} {path}")));
        assert_eq!(described.collect::<BTreeSet<_>>(), routed.collect::<BTreeSet<_>>());
    }

    #[test]
    fn only_the_servers_differ_from_the_source() {
        let servers = json!([{ "url": "https://acme.test/api/v1" }]);
        let served = serde_json::to_value(Document { servers: servers.clone() }).unwrap();
        let mut expected = DOCUMENT.clone();
        expected["servers"] = servers;
        assert_eq!(served, Value::Object(expected));
    }
}
