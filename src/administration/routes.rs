//! Every route of the administration area.
//!
//! Owns the paths, and what each of them needs. No GET changes anything, so a link can never do harm. The one that
//! stores something is `/callback`: a one-time link for the person that the OpenID provider has just signed in, which
//! does nothing until that person presses its button.

use http::Method;

use crate::error::Refusal;

/// What a request needs to get a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it is the same for everybody, or the way to a session.
    Nothing,
    /// A link that signs an administrator in.
    Link,
    /// A session of either role.
    Viewer,
    /// A session of an administrator who may make changes.
    Admin,
}

/// The pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Overview,
    Tokens,
    CreateToken,
    Token,
    RotateToken,
    AskRevoke,
    Revoke,
    Webhooks,
    Webhook,
    ChangeWebhook,
    Groups,
    GroupSync,
    UndoSync,
    Domains,
    AddDomain,
    Domain,
    ChangeDomain,
    Audit,
    ExportAudit,
    Sessions,
    EndSessions,
    SignOut,
    Enter,
    EnterArea,
    SignIn,
    Callback,
    Style,
}

/// One method of one path.
#[derive(Debug)]
pub struct Route {
    /// Its name in the log and in metrics, which contains no part of a request.
    pub name: &'static str,
    /// The path below that of the area; `{}` stands for one segment.
    pub path: &'static str,
    /// `GET` or `POST`. A POST changes something, a GET never does.
    pub method: Method,
    /// What it needs.
    pub needs: Needs,
    pub(super) page: Page,
}

const fn get(name: &'static str, path: &'static str, needs: Needs, page: Page) -> Route {
    Route { name, path, method: Method::GET, needs, page }
}

const fn post(name: &'static str, path: &'static str, needs: Needs, page: Page) -> Route {
    Route { name, path, method: Method::POST, needs, page }
}

/// Every route.
pub static ROUTES: [Route; 27] = [
    get("GET /admin", "", Needs::Viewer, Page::Overview),
    get("GET /admin/tokens", "/tokens", Needs::Viewer, Page::Tokens),
    post("POST /admin/tokens", "/tokens", Needs::Admin, Page::CreateToken),
    get("GET /admin/tokens/{id}", "/tokens/{}", Needs::Viewer, Page::Token),
    post("POST /admin/tokens/{id}", "/tokens/{}", Needs::Admin, Page::RotateToken),
    get("GET /admin/tokens/{id}/revoke", "/tokens/{}/revoke", Needs::Viewer, Page::AskRevoke),
    post("POST /admin/tokens/{id}/revoke", "/tokens/{}/revoke", Needs::Admin, Page::Revoke),
    get("GET /admin/webhooks", "/webhooks", Needs::Viewer, Page::Webhooks),
    get("GET /admin/webhooks/{id}", "/webhooks/{}", Needs::Viewer, Page::Webhook),
    post("POST /admin/webhooks/{id}", "/webhooks/{}", Needs::Admin, Page::ChangeWebhook),
    get("GET /admin/groups", "/groups", Needs::Viewer, Page::Groups),
    get("GET /admin/groups/{id}", "/groups/{}", Needs::Viewer, Page::GroupSync),
    post("POST /admin/groups/{id}", "/groups/{}", Needs::Admin, Page::UndoSync),
    get("GET /admin/domains", "/domains", Needs::Viewer, Page::Domains),
    post("POST /admin/domains", "/domains", Needs::Admin, Page::AddDomain),
    get("GET /admin/domains/{host}", "/domains/{}", Needs::Viewer, Page::Domain),
    post("POST /admin/domains/{host}", "/domains/{}", Needs::Admin, Page::ChangeDomain),
    get("GET /admin/audit", "/audit", Needs::Viewer, Page::Audit),
    get("GET /admin/audit/export", "/audit/export", Needs::Viewer, Page::ExportAudit),
    get("GET /admin/sessions", "/sessions", Needs::Viewer, Page::Sessions),
    post("POST /admin/sessions", "/sessions", Needs::Admin, Page::EndSessions),
    post("POST /admin/sign-out", "/sign-out", Needs::Viewer, Page::SignOut),
    get("GET /admin/enter/{secret}", "/enter/{}", Needs::Link, Page::Enter),
    post("POST /admin/enter/{secret}", "/enter/{}", Needs::Link, Page::EnterArea),
    get("GET /admin/sign-in", "/sign-in", Needs::Nothing, Page::SignIn),
    get("GET /admin/callback", "/callback", Needs::Nothing, Page::Callback),
    get("GET /admin/style", "/style/{}", Needs::Nothing, Page::Style),
];

/// The route of a method and a path below that of the area, and the segment of the path that is not fixed. A trailing
/// slash is the same path.
pub(super) fn find<'p>(method: &Method, path: &'p str) -> Result<(&'static Route, &'p str), Refusal> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut matching = ROUTES.iter().filter_map(|route| Some((route, segment_of(route.path, path)?))).peekable();
    if matching.peek().is_none() {
        return Err(Refusal::UnknownPath);
    }
    let mut allowed = Vec::new();
    for (route, segment) in matching {
        if route.method == *method || (route.method == Method::GET && *method == Method::HEAD) {
            return Ok((route, segment));
        }
        allowed.push(&route.method);
    }
    let allow = match (allowed.contains(&&Method::GET), allowed.contains(&&Method::POST)) {
        (true, true) => "GET, HEAD, POST",
        (true, false) => "GET, HEAD",
        (false, _) => "POST",
    };
    Err(Refusal::MethodNotAllowed { allow })
}

/// The segment in place of `{}`, or nothing if the pattern has none; `None` if the path does not match.
fn segment_of<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    let Some((before, after)) = pattern.split_once("{}") else { return (pattern == path).then_some("") };
    let segment = path.strip_prefix(before)?.strip_suffix(after)?;
    (!segment.is_empty() && !segment.contains('/')).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(method: &str, path: &str) -> String {
        match find(&Method::from_bytes(method.as_bytes()).unwrap(), path) {
            Ok((route, segment)) => format!("{} {segment}", route.name),
            Err(Refusal::MethodNotAllowed { allow }) => format!("405 {allow}"),
            Err(_) => "404".to_owned(),
        }
    }

    #[test]
    fn each_path_has_its_route_and_other_methods_are_listed() {
        for (method, path, expected) in [
            ("GET", "", "GET /admin "),
            ("HEAD", "/", "GET /admin "),
            ("POST", "", "405 GET, HEAD"),
            ("DELETE", "/tokens", "405 GET, HEAD, POST"),
            ("GET", "/tokens/7", "GET /admin/tokens/{id} 7"),
            ("POST", "/tokens/7/revoke/", "POST /admin/tokens/{id}/revoke 7"),
            ("GET", "/tokens/7/8/revoke", "404"),
            ("GET", "/tokens//revoke", "404"),
            ("GET", "/tokens/revoke", "GET /admin/tokens/{id} revoke"),
            ("POST", "/domains/forms.acme.org", "POST /admin/domains/{host} forms.acme.org"),
            ("GET", "/sign-out", "405 POST"),
            ("GET", "/enter/s3cret", "GET /admin/enter/{secret} s3cret"),
            ("GET", "/audit/export", "GET /admin/audit/export "),
            ("GET", "/sign-in", "GET /admin/sign-in "),
            ("POST", "/callback", "405 GET, HEAD"),
            ("GET", "/nothing", "404"),
        ] {
            assert_eq!(named(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn only_a_post_needs_an_admin_and_names_say_method_and_path() {
        for route in &ROUTES {
            assert!(route.needs != Needs::Admin || route.method == Method::POST, "{}", route.name);
            assert!(route.name.starts_with(&format!("{} /admin", route.method)), "{}", route.name);
        }
    }
}
