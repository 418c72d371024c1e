//! Every route of the operator API.

use http::Method;

use super::refusal::OperatorRefusal;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Lists tenants of the registry.
    ListTenants,
    /// Shows one, also one of a file.
    ReadTenant,
    /// Adds or replaces one.
    PutTenant,
    /// Removes one.
    RemoveTenant,
    /// Changes many, all or none.
    Batch,
    /// Creates an API token of a tenant.
    CreateToken,
    /// Creates a sign-in link of a tenant.
    CreateLink,
    /// Lists changes of the registry.
    Changes,
    /// Lists the nodes.
    Nodes,
}

/// The methods and paths; `{slug}` matches one segment.
pub static ROUTES: [(Method, &str, Route); 9] = [
    (Method::GET, "/v1/tenants", Route::ListTenants),
    (Method::GET, "/v1/tenants/{slug}", Route::ReadTenant),
    (Method::PUT, "/v1/tenants/{slug}", Route::PutTenant),
    (Method::DELETE, "/v1/tenants/{slug}", Route::RemoveTenant),
    (Method::POST, "/v1/tenants/{slug}/tokens", Route::CreateToken),
    (Method::POST, "/v1/tenants/{slug}/links", Route::CreateLink),
    (Method::POST, "/v1/batch", Route::Batch),
    (Method::GET, "/v1/changes", Route::Changes),
    (Method::GET, "/v1/nodes", Route::Nodes),
];

/// The route of a method and a path, and the tenant in the path. A trailing slash is the same path.
pub(super) fn find<'p>(method: &Method, path: &'p str) -> Result<(Route, &'p str), OperatorRefusal> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut allowed = Vec::new();
    for (known, pattern, route) in &ROUTES {
        let Some(segment) = segment_of(pattern, path) else { continue };
        if known == method || (*known == Method::GET && *method == Method::HEAD) {
            return Ok((*route, segment));
        }
        allowed.push(known.as_str());
        if *known == Method::GET {
            allowed.push("HEAD");
        }
    }
    if allowed.is_empty() {
        return Err(OperatorRefusal::UnknownPath);
    }
    Err(OperatorRefusal::MethodNotAllowed { allow: allowed.join(", ") })
}

/// The segment in place of `{slug}`, or nothing if the pattern has none; `None` if the path does not match.
fn segment_of<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    let Some((before, after)) = pattern.split_once("{slug}") else { return (pattern == path).then_some("") };
    let segment = path.strip_prefix(before)?.strip_suffix(after)?;
    (!segment.is_empty() && !segment.contains('/')).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_route_and_other_methods_are_listed() {
        for (method, path, expected) in [
            (Method::GET, "/v1/tenants", "ListTenants "),
            (Method::HEAD, "/v1/tenants/", "ListTenants "),
            (Method::PUT, "/v1/tenants/acme", "PutTenant acme"),
            (Method::POST, "/v1/tenants/acme/tokens", "CreateToken acme"),
            (Method::GET, "/v1/tenants/acme/tokens", "405 POST"),
            (Method::POST, "/v1/tenants/acme", "405 GET, HEAD, PUT, DELETE"),
            (Method::GET, "/v1/tenants//tokens", "404"),
            (Method::GET, "/v2/tenants", "404"),
            (Method::GET, "/", "404"),
        ] {
            let found = match find(&method, path) {
                Ok((route, segment)) => format!("{route:?} {segment}"),
                Err(OperatorRefusal::MethodNotAllowed { allow }) => format!("405 {allow}"),
                Err(_) => "404".to_owned(),
            };
            assert_eq!(found, expected, "{method} {path}");
        }
    }
}
