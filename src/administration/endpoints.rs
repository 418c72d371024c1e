//! Every endpoint of the administration area.
//!
//! Owns the paths, and what each of them needs. No GET changes anything, so a link can never do harm. Two store something:
//! `/callback` a one-time link for the person that the OpenID provider has just signed in, which does nothing until that person
//! presses its button; and `/export/{key}` that the link which the session asked for was used.

use futures_util::future::BoxFuture;
use http::Method;

use super::area::Area;
use super::visit::{Change, Member, Visit};
use super::{
    api_address, audit, domain, domains, enter, export, group, groups, oidc, overview, requests, sessions, style,
    token, token_limits, tokens, webhooks,
};
use crate::endpoint::{Endpoint, Endpoints, endpoint};
use crate::error::Refusal;
use crate::reply::Reply;

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

/// What responds to a request.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// What it needs.
    pub needs: Needs,
    pub(super) answer: Answering,
}

/// How a page is created, by what it needs. Each takes the segment of its path that is not fixed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answering {
    /// Without a session.
    Open(for<'a> fn(&'a Area, &'a Visit<'a>, &'a str) -> Future<'a>),
    /// For somebody who is signed in.
    Shown(for<'a> fn(&'a Member<'a>, &'a str) -> Future<'a>),
    /// A change by an administrator with the role for it.
    Change(for<'a> fn(&'a Change<'a>, &'a str) -> Future<'a>),
}

type Future<'a> = BoxFuture<'a, Result<Reply, Refusal>>;

macro_rules! open {
    ($needs:ident, $handler:path) => {
        Page {
            needs: Needs::$needs,
            answer: Answering::Open(|area, visit, segment| Box::pin($handler(area, visit, segment))),
        }
    };
}

macro_rules! shown {
    ($handler:path) => {
        Page { needs: Needs::Viewer, answer: Answering::Shown(|member, segment| Box::pin($handler(member, segment))) }
    };
}

macro_rules! change {
    ($needs:ident, $handler:path) => {
        Page { needs: Needs::$needs, answer: Answering::Change(|change, segment| Box::pin($handler(change, segment))) }
    };
}

const STYLE: Page =
    Page { needs: Needs::Nothing, answer: Answering::Open(|_, _, name| Box::pin(async move { style::answer(name) })) };

/// Every endpoint; paths are relative to that of the area.
pub static ENDPOINTS: Endpoints<Page> = Endpoints::new(&TABLE);

static TABLE: [Endpoint<Page>; 36] = [
    endpoint!(GET "/admin" "", shown!(overview::show)),
    endpoint!(GET "/admin" "/openapi.json", shown!(api_address::show)),
    endpoint!(GET "/admin" "/tokens", shown!(tokens::show)),
    endpoint!(POST "/admin" "/tokens", change!(Admin, tokens::create)),
    endpoint!(GET "/admin" "/tokens/{id}", shown!(token::show)),
    endpoint!(POST "/admin" "/tokens/{id}", change!(Admin, token::rotate)),
    endpoint!(POST "/admin" "/tokens/{id}/limits", change!(Admin, token_limits::change)),
    endpoint!(GET "/admin" "/tokens/{id}/revoke", shown!(token::ask_revoke)),
    endpoint!(POST "/admin" "/tokens/{id}/revoke", change!(Admin, token::revoke)),
    endpoint!(GET "/admin" "/webhooks", shown!(webhooks::list)),
    endpoint!(GET "/admin" "/webhooks/{id}", shown!(webhooks::show)),
    endpoint!(POST "/admin" "/webhooks/{id}", change!(Admin, webhooks::change)),
    endpoint!(GET "/admin" "/groups", shown!(groups::list)),
    endpoint!(POST "/admin" "/groups", change!(Admin, group::change)),
    endpoint!(GET "/admin" "/groups/all", shown!(group::list)),
    endpoint!(GET "/admin" "/groups/{id}", shown!(groups::show)),
    endpoint!(POST "/admin" "/groups/{id}", change!(Admin, groups::undo)),
    endpoint!(GET "/admin" "/domains", shown!(domains::list)),
    endpoint!(POST "/admin" "/domains", change!(Admin, domains::add)),
    endpoint!(GET "/admin" "/domains/{host}", shown!(domain::show)),
    endpoint!(POST "/admin" "/domains/{host}", change!(Admin, domain::change)),
    endpoint!(GET "/admin" "/requests", shown!(requests::list)),
    endpoint!(GET "/admin" "/requests/{key}", shown!(requests::show)),
    endpoint!(GET "/admin" "/export", shown!(export::show)),
    endpoint!(POST "/admin" "/export", change!(Admin, export::choose)),
    endpoint!(GET "/admin" "/export/{key}", shown!(export::download)),
    endpoint!(GET "/admin" "/audit", shown!(audit::show)),
    endpoint!(GET "/admin" "/audit/export", shown!(audit::export)),
    endpoint!(GET "/admin" "/sessions", shown!(sessions::show)),
    endpoint!(POST "/admin" "/sessions", change!(Admin, sessions::end)),
    endpoint!(POST "/admin" "/sign-out", change!(Viewer, sessions::sign_out)),
    endpoint!(GET "/admin" "/enter/{secret}", open!(Link, enter::show)),
    endpoint!(POST "/admin" "/enter/{secret}", open!(Link, enter::sign_in)),
    endpoint!(GET "/admin" "/sign-in", open!(Nothing, oidc::begin)),
    endpoint!(GET "/admin" "/callback", open!(Nothing, oidc::callback)),
    endpoint!(GET "/admin" "/style/{name}", STYLE).named("GET /admin/style"),
];

/// Whether a viewer may see the page at a path below that of the area.
pub(super) fn is_page(path: &str) -> bool {
    ENDPOINTS.find(&Method::GET, path).is_ok_and(|found| found.endpoint.handler.needs == Needs::Viewer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_post_needs_an_admin_and_changes_something() {
        for endpoint in ENDPOINTS.iter() {
            let Page { needs, answer } = endpoint.handler;
            assert!(needs != Needs::Admin || endpoint.method == Method::POST, "{}", endpoint.name);
            assert!(!matches!(answer, Answering::Change(_)) || endpoint.method == Method::POST, "{}", endpoint.name);
            assert!(!matches!(answer, Answering::Shown(_)) || endpoint.method == Method::GET, "{}", endpoint.name);
        }
    }
}
