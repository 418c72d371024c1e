//! The endpoints of one interface as a table, and the one that a request is for.
//!
//! The API, the administration area and the operator API each have a table on one page, with a handler type of their own.

use std::sync::OnceLock;
use std::time::Duration;

use http::Method;
use matchit::{Params, Router};

use crate::config::RequestLimits;

/// One method of one path.
#[derive(Debug)]
pub struct Endpoint<H> {
    /// The method. A HEAD request is for the endpoint of GET; its body is left out when the response is sent.
    pub method: Method,
    /// Its name in metrics and logs, which contains no part of a request.
    pub name: &'static str,
    /// The path below that of the interface; `{name}` stands for one segment.
    pub path: &'static str,
    /// The query parameters that it knows.
    pub query: &'static [&'static str],
    /// The body that it reads.
    pub body: BodyKind,
    /// How long it may take.
    pub time: TimeLimit,
    /// Whether its answer has an `ETag`.
    pub has_etag: bool,
    /// What carries it out.
    pub handler: H,
}

/// The body that an endpoint reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// None.
    None,
    /// One up to the limit of bodies.
    Ordinary,
    /// One up to the limit of group writes.
    Group,
    /// One that is received into a file, up to a limit of the interface.
    File,
}

/// How long an endpoint may take, not counting its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// As long as a request.
    Ordinary,
    /// As long as a group write.
    Group,
    /// Longer than a request by this, since it can wait for something.
    Waiting(Duration),
}

/// An endpoint of a method and a path below `$prefix`, which together are its name.
macro_rules! endpoint {
    ($method:ident $prefix:literal $path:literal, $handler:expr) => {
        $crate::endpoint::Endpoint::new(
            ::http::Method::$method,
            concat!(stringify!($method), " ", $prefix, $path),
            $path,
            $handler,
        )
    };
}
pub(crate) use endpoint;

impl<H> Endpoint<H> {
    /// Called by [`endpoint!`].
    pub(crate) const fn new(method: Method, name: &'static str, path: &'static str, handler: H) -> Self {
        let (body, time) = (BodyKind::None, TimeLimit::Ordinary);
        Self { method, name, path, query: &[], body, time, has_etag: false, handler }
    }

    /// With another name.
    pub(crate) const fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// With query parameters.
    pub(crate) const fn query(mut self, query: &'static [&'static str]) -> Self {
        self.query = query;
        self
    }

    /// With a body.
    pub(crate) const fn body(mut self, body: BodyKind) -> Self {
        self.body = body;
        self
    }

    /// With an `ETag` in its answer.
    pub(crate) const fn with_etag(mut self) -> Self {
        self.has_etag = true;
        self
    }

    /// With another time limit.
    pub(crate) const fn time(mut self, time: TimeLimit) -> Self {
        self.time = time;
        self
    }
}

impl BodyKind {
    /// The most bytes.
    #[must_use]
    pub fn limit(self, limits: &RequestLimits) -> usize {
        match self {
            // One that nobody asked for is received, and passed over.
            Self::None | Self::Ordinary | Self::File => limits.body_bytes,
            Self::Group => limits.group_body_bytes,
        }
    }
}

impl TimeLimit {
    /// The limit as configured.
    #[must_use]
    pub fn of(self, limits: &RequestLimits) -> Duration {
        match self {
            Self::Ordinary => limits.request,
            Self::Group => limits.group_request,
            Self::Waiting(longer) => limits.request + longer,
        }
    }
}

/// The table of an interface.
#[derive(Debug)]
pub struct Endpoints<H: 'static> {
    all: &'static [Endpoint<H>],
    router: OnceLock<Router<OfPath<H>>>,
}

/// The endpoints of one path, and their methods as `Allow` lists them.
#[derive(Debug)]
struct OfPath<H: 'static> {
    endpoints: Vec<&'static Endpoint<H>>,
    allow: String,
}

/// The endpoint that a request is for.
#[derive(Debug)]
pub struct Matched<'p, H: 'static> {
    /// The endpoint.
    pub endpoint: &'static Endpoint<H>,
    /// What the path has in the places of the endpoint's.
    pub segments: Segments<'p>,
}

/// What a path has in the places of an endpoint's.
#[derive(Clone, Debug)]
pub struct Segments<'p>(Params<'static, 'p>);

/// No endpoint is for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEndpoint {
    /// There is no such path.
    UnknownPath,
    /// The path has others.
    MethodNotAllowed {
        /// The methods that it has, as `Allow` lists them.
        allow: &'static str,
    },
}

impl<H> Endpoints<H> {
    /// A table.
    #[must_use]
    pub const fn new(all: &'static [Endpoint<H>]) -> Self {
        Self { all, router: OnceLock::new() }
    }

    /// Each endpoint.
    pub fn iter(&self) -> impl Iterator<Item = &'static Endpoint<H>> + use<H> {
        self.all.iter()
    }

    /// The path that is in the names of the endpoints for a path, whatever the method.
    #[must_use]
    pub fn template(&'static self, path: &str) -> Option<&'static str> {
        let (OfPath { endpoints, .. }, _) = self.find_path(path)?;
        endpoints.first()?.name.split_once(' ').map(|(_, template)| template)
    }

    /// The endpoint of a method and a path. A trailing slash is the same path.
    ///
    /// # Errors
    /// [`NoEndpoint`].
    pub fn find<'p>(&'static self, method: &Method, path: &'p str) -> Result<Matched<'p, H>, NoEndpoint> {
        let (OfPath { endpoints, allow }, params) = self.find_path(path).ok_or(NoEndpoint::UnknownPath)?;
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        match endpoints.iter().find(|endpoint| endpoint.method == *method) {
            Some(endpoint) => Ok(Matched { endpoint, segments: Segments(params) }),
            None => Err(NoEndpoint::MethodNotAllowed { allow }),
        }
    }

    fn find_path<'p>(&'static self, path: &'p str) -> Option<(&'static OfPath<H>, Params<'static, 'p>)> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let router = self.router.get_or_init(|| router(self.all));
        // An empty path is that of the interface itself; the router wants one that begins with a slash.
        let path = match path {
            "" => "/",
            "/" => return None,
            path => path,
        };
        let found = router.at(path).ok()?;
        let is_complete = found.params.iter().all(|(_, segment)| !segment.is_empty());
        is_complete.then_some((found.value, found.params))
    }
}

fn router<H>(all: &'static [Endpoint<H>]) -> Router<OfPath<H>> {
    let mut router = Router::new();
    for endpoint in all {
        let path = if endpoint.path.is_empty() { "/" } else { endpoint.path };
        if all
            .iter()
            .position(|first| first.path == endpoint.path)
            .is_some_and(|first| std::ptr::eq(&all[first], endpoint))
        {
            let endpoints: Vec<_> = all.iter().filter(|same| same.path == endpoint.path).collect();
            let methods = endpoints.iter().map(|endpoint| match endpoint.method {
                Method::GET => "GET, HEAD",
                ref other => other.as_str(),
            });
            let allow = methods.collect::<Vec<_>>().join(", ");
            router.insert(path, OfPath { endpoints, allow }).expect("the paths don't contradict each other");
        }
    }
    router
}

impl<'p> Segments<'p> {
    /// The first segment that is not fixed; empty if all are.
    #[must_use]
    pub fn first(&self) -> &'p str {
        self.0.iter().next().map_or("", |(_, segment)| segment)
    }

    /// The segment in the place of a name; empty if the endpoint's path has none.
    #[must_use]
    pub fn get(&self, name: &str) -> &'p str {
        self.0.iter().find(|(known, _)| *known == name).map_or("", |(_, segment)| segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: [Endpoint<u8>; 7] = [
        endpoint!(GET "/all" "", 0),
        endpoint!(GET "/all" "/rows", 1),
        endpoint!(PUT "/all" "/rows", 2),
        endpoint!(GET "/all" "/rows/newest", 3),
        endpoint!(GET "/all" "/rows/{id}", 4),
        endpoint!(DELETE "/all" "/rows/{id}", 5),
        endpoint!(POST "/all" "/rows/{id}/of/{day}", 6),
    ];

    static ENDPOINTS: Endpoints<u8> = Endpoints::new(&TABLE);

    #[test]
    fn each_path_has_its_endpoint_and_other_methods_are_listed() {
        for (method, path, expected) in [
            ("GET", "", "GET /all  "),
            ("HEAD", "/", "GET /all  "),
            ("POST", "", "405 GET, HEAD"),
            ("PUT", "/rows/", "PUT /all/rows  "),
            ("PATCH", "/rows", "405 GET, HEAD, PUT"),
            ("GET", "/rows/newest", "GET /all/rows/newest  "),
            ("DELETE", "/rows/newest", "405 GET, HEAD"),
            ("DELETE", "/rows/7", "DELETE /all/rows/{id} 7 "),
            ("POST", "/rows/7/of/today", "POST /all/rows/{id}/of/{day} 7 today"),
            ("POST", "/rows//of/today", "404"),
            ("POST", "/rows/7/8/of/today", "404"),
            ("GET", "/rows//", "404"),
            ("GET", "//", "404"),
            ("GET", "/others", "404"),
        ] {
            let found = match ENDPOINTS.find(&Method::from_bytes(method.as_bytes()).unwrap(), path) {
                Ok(Matched { endpoint, segments }) => {
                    format!("{} {} {}", endpoint.name, segments.get("id"), segments.get("day"))
                }
                Err(NoEndpoint::MethodNotAllowed { allow }) => format!("405 {allow}"),
                Err(NoEndpoint::UnknownPath) => "404".to_owned(),
            };
            assert_eq!(found, expected, "{method} {path}");
        }
    }

    #[test]
    fn the_template_of_a_path_has_names_in_place_of_values() {
        for (path, expected) in [
            ("/rows/7", Some("/all/rows/{id}")),
            ("/rows/7/of/today/", Some("/all/rows/{id}/of/{day}")),
            ("/rows//", None),
            ("/no", None),
        ] {
            assert_eq!(ENDPOINTS.template(path), expected, "{path}");
        }
    }
}
