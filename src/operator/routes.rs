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
    /// Lists the hosts of every tenant that need a certificate.
    ListDomains,
    /// The same of one tenant.
    ListTenantDomains,
    /// Shows a host of a tenant.
    ReadDomain,
    /// Adds a domain to a tenant.
    PutDomain,
    /// Removes one.
    RemoveDomain,
    /// Looks at one now.
    CheckDomain,
    /// Answers whether a host may have a certificate.
    AskDomain,
    /// Lists changes of the registry.
    Changes,
    /// Lists the nodes.
    Nodes,
}

impl Route {
    /// Whether it writes to the registry.
    pub(super) fn writes_to_registry(self) -> bool {
        match self {
            Self::PutTenant
            | Self::RemoveTenant
            | Self::Batch
            | Self::PutDomain
            | Self::RemoveDomain
            | Self::CheckDomain => true,
            Self::ListTenants
            | Self::ReadTenant
            | Self::CreateToken
            | Self::CreateLink
            | Self::ListDomains
            | Self::ListTenantDomains
            | Self::ReadDomain
            | Self::AskDomain
            | Self::Changes
            | Self::Nodes => false,
        }
    }
}

/// The methods and paths; `{slug}` and `{host}` match one segment each.
pub static ROUTES: [(Method, &str, Route); 16] = [
    (Method::GET, "/v1/tenants", Route::ListTenants),
    (Method::GET, "/v1/tenants/{slug}", Route::ReadTenant),
    (Method::PUT, "/v1/tenants/{slug}", Route::PutTenant),
    (Method::DELETE, "/v1/tenants/{slug}", Route::RemoveTenant),
    (Method::POST, "/v1/tenants/{slug}/tokens", Route::CreateToken),
    (Method::POST, "/v1/tenants/{slug}/links", Route::CreateLink),
    (Method::GET, "/v1/tenants/{slug}/domains", Route::ListTenantDomains),
    (Method::GET, "/v1/tenants/{slug}/domains/{host}", Route::ReadDomain),
    (Method::PUT, "/v1/tenants/{slug}/domains/{host}", Route::PutDomain),
    (Method::DELETE, "/v1/tenants/{slug}/domains/{host}", Route::RemoveDomain),
    (Method::GET, "/v1/domains", Route::ListDomains),
    (Method::GET, "/v1/domains/ask", Route::AskDomain),
    (Method::POST, "/v1/domains/{host}/check", Route::CheckDomain),
    (Method::POST, "/v1/batch", Route::Batch),
    (Method::GET, "/v1/changes", Route::Changes),
    (Method::GET, "/v1/nodes", Route::Nodes),
];

/// What a path has in the places of a pattern; empty where the pattern has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PathParameters<'p> {
    pub(super) slug: &'p str,
    pub(super) host: &'p str,
}

/// The route of a method and a path, and what the path names. A trailing slash is the same path.
pub(super) fn find<'p>(method: &Method, path: &'p str) -> Result<(Route, PathParameters<'p>), OperatorRefusal> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut allowed = Vec::new();
    for (known, pattern, route) in &ROUTES {
        let Some(parameters) = PathParameters::of(pattern, path) else { continue };
        if known == method || (*known == Method::GET && *method == Method::HEAD) {
            return Ok((*route, parameters));
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

impl<'p> PathParameters<'p> {
    /// Those of a path; `None` if it does not match the pattern.
    fn of(pattern: &str, path: &'p str) -> Option<Self> {
        let (mut expected, mut segments) = (pattern.split('/'), path.split('/'));
        let mut found = Self::default();
        loop {
            let (expected, segment) = match (expected.next(), segments.next()) {
                (Some(expected), Some(segment)) => (expected, segment),
                (None, None) => return Some(found),
                _ => return None,
            };
            match expected {
                "{slug}" if !segment.is_empty() => found.slug = segment,
                "{host}" if !segment.is_empty() => found.host = segment,
                _ if expected == segment => {}
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_route_and_other_methods_are_listed() {
        for (method, path, expected) in [
            (Method::GET, "/v1/tenants", "ListTenants  "),
            (Method::HEAD, "/v1/tenants/", "ListTenants  "),
            (Method::PUT, "/v1/tenants/acme", "PutTenant acme "),
            (Method::POST, "/v1/tenants/acme/tokens", "CreateToken acme "),
            (Method::PUT, "/v1/tenants/acme/domains/a.test", "PutDomain acme a.test"),
            (Method::DELETE, "/v1/tenants/acme/domains/a.test/", "RemoveDomain acme a.test"),
            (Method::GET, "/v1/domains/ask", "AskDomain  "),
            (Method::POST, "/v1/domains/a.test/check", "CheckDomain  a.test"),
            (Method::POST, "/v1/domains//check", "404"),
            (Method::PUT, "/v1/tenants/acme/domains/a.test/b", "404"),
            (Method::POST, "/v1/tenants/acme/domains/a.test", "405 GET, HEAD, PUT, DELETE"),
            (Method::GET, "/v1/tenants/acme/tokens", "405 POST"),
            (Method::POST, "/v1/tenants/acme", "405 GET, HEAD, PUT, DELETE"),
            (Method::GET, "/v1/tenants//tokens", "404"),
            (Method::GET, "/v2/tenants", "404"),
            (Method::GET, "/", "404"),
        ] {
            let found = match find(&method, path) {
                Ok((route, PathParameters { slug, host })) => format!("{route:?} {slug} {host}"),
                Err(OperatorRefusal::MethodNotAllowed { allow }) => format!("405 {allow}"),
                Err(_) => "404".to_owned(),
            };
            assert_eq!(found, expected, "{method} {path}");
        }
    }
}
