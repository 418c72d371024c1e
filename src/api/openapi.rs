//! `GET /openapi.json`: the OpenAPI document of this API, with the origin that the client used.
//!
//! `deploy/openapi.yaml` is the only source. It is converted to JSON on first use, so that no second copy can drift
//! from it. Only `servers` differs between accounts.

use std::fmt::Display;
use std::sync::LazyLock;

use http::StatusCode;
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::Call;
use crate::gate::Admitted;
use crate::reply::Reply;
use crate::tenant::Tenant;

static DOCUMENT: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    yaml_serde::from_str(include_str!("../../deploy/openapi.yaml")).expect("the tests have read the description")
});

pub(super) fn show(admitted: &Admitted, call: &Call<'_>) -> Reply {
    description(call.origin, admitted.tenant())
}

/// The OpenAPI document of a tenant's API at an origin, as JSON.
#[must_use]
pub fn description(origin: impl Display, tenant: &Tenant) -> Reply {
    let servers = json!([{ "url": format!("{origin}/api/v1"), "description": tenant.name }]);
    Reply::json(StatusCode::OK, &ServedDescription { servers })
}

/// The document with other servers, without cloning its thousands of values.
struct ServedDescription {
    servers: Value,
}

impl Serialize for ServedDescription {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = |key: &str| if key == "servers" { Some(&self.servers) } else { None };
        serializer.collect_map(DOCUMENT.iter().map(|(key, value)| (key, own(key).unwrap_or(value))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_differ_from_the_source() {
        let servers = json!([{ "url": "https://acme.test/api/v1" }]);
        let served = serde_json::to_value(ServedDescription { servers: servers.clone() }).unwrap();
        let mut expected = DOCUMENT.clone();
        expected["servers"] = servers;
        assert_eq!(served, Value::Object(expected));
    }
}
