//! The API: the route table on one page, and one file per resource.
//!
//! Every handler takes an [`Admitted`], so none runs for a request that did not pass the gate. Knows neither sockets
//! nor SQL: a handler reads a [`Call`] and queries the tenant's store.

mod body;
mod changes;
mod dedup;
mod filter;
mod forms;
mod groups;
mod id;
mod ignored;
mod json;
mod me;
mod members;
mod openapi;
mod page;
mod query;
mod reader;
mod route;
mod submissions;
mod subscriptions;
mod time;
mod values;

use std::sync::{Arc, LazyLock, OnceLock};

use bytes::Bytes;
use http::Method;
use matchit::Router;
use tokio_util::sync::CancellationToken;

use crate::error::Refusal;
use crate::gate::{Admitted, Origin};
use crate::outbound::{Guard, TestRequests};
use crate::reply::Reply;
use crate::seal::Seals;
use crate::store::Store;
use crate::tenant::{NoticedWrites, SubscriptionChanges};

pub use ignored::IgnoredParameters;
pub use route::Route;
pub use submissions::{Envelope, EnvelopeBody, ShownSubmissions};
pub use subscriptions::new_secret;
pub use subscriptions::shown::{
    delivery_json, parse_replay_start, parse_submission_id, parse_subscription_id, subscription_json,
};
pub use subscriptions::test::{EnvelopeOrigin, Untested, attempt_record, send_test};
pub use time::{parse_range_end, parse_range_start};

/// The part of a request that handlers read.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The origin that the client used, for links.
    pub origin: Origin<'a>,
    /// The query string, still percent-encoded.
    pub query: &'a str,
    /// The complete body.
    pub body: Bytes,
    /// Set to the unknown names in the body, for the response header, whether or not the body has faults.
    pub ignored: &'a OnceLock<IgnoredParameters>,
    /// Cancelled when the gateway stops: a request that waits for something is answered then.
    pub stopping: &'a CancellationToken,
    /// Decides which targets subscriptions may have.
    pub targets: &'a Guard,
    /// Tests receivers.
    pub tests: &'a TestRequests,
    /// Seals the secrets of subscriptions.
    pub seals: &'a Seals,
    /// Takes that subscriptions changed.
    pub subscription_changes: &'a SubscriptionChanges,
    /// Wakes requests that wait for a change.
    pub noticed_writes: &'a Arc<NoticedWrites>,
}

/// A resource, identified by its path.
#[derive(Clone, Copy, Debug)]
enum Resource {
    Me,
    OpenApi,
    Forms,
    Form,
    Submissions,
    Submission,
    Changes,
    Groups,
    Group,
    Subscriptions,
    Subscription,
    Pause,
    Resumption,
    Rotation,
    Replay,
    Deliveries,
    Test,
    Sample,
    Unsubscription,
}

/// All paths, relative to `/api/v1`.
const PATHS: [(&str, Resource); 19] = [
    ("/me", Resource::Me),
    ("/openapi.json", Resource::OpenApi),
    ("/form", Resource::Forms),
    ("/form/{id}", Resource::Form),
    ("/submission", Resource::Submissions),
    ("/submission/changes", Resource::Changes),
    ("/submission/{id}", Resource::Submission),
    ("/group", Resource::Groups),
    ("/group/{id}", Resource::Group),
    ("/subscribe", Resource::Subscriptions),
    ("/subscribe/{id}", Resource::Subscription),
    ("/subscribe/{id}/pause", Resource::Pause),
    ("/subscribe/{id}/resume", Resource::Resumption),
    ("/subscribe/{id}/rotate", Resource::Rotation),
    ("/subscribe/{id}/replay", Resource::Replay),
    ("/subscribe/{id}/deliveries", Resource::Deliveries),
    ("/subscribe/{id}/test", Resource::Test),
    ("/subscribe/sample", Resource::Sample),
    ("/unsubscribe", Resource::Unsubscription),
];

impl Resource {
    /// The methods of a resource, formatted for `Allow`.
    fn allow(self) -> &'static str {
        match self {
            Self::Me
            | Self::OpenApi
            | Self::Forms
            | Self::Form
            | Self::Submission
            | Self::Changes
            | Self::Deliveries
            | Self::Sample => "GET, HEAD",
            Self::Submissions
            | Self::Pause
            | Self::Resumption
            | Self::Rotation
            | Self::Replay
            | Self::Test
            | Self::Unsubscription => "POST",
            Self::Groups => "GET, HEAD, PUT",
            Self::Group | Self::Subscription => "GET, HEAD, DELETE",
            Self::Subscriptions => "GET, HEAD, POST",
        }
    }

    fn route(self, method: &Method, id: Option<&str>) -> Option<Route> {
        let id = id.unwrap_or_default().to_owned();
        Some(match (self, method) {
            (Self::Me, &Method::GET) => Route::ShowMe,
            (Self::OpenApi, &Method::GET) => Route::ShowOpenApi,
            (Self::Forms, &Method::GET) => Route::ListForms,
            (Self::Form, &Method::GET) => Route::ShowForm { id },
            (Self::Submissions, &Method::POST) => Route::SearchSubmissions,
            (Self::Submission, &Method::GET) => Route::ShowSubmission { id },
            (Self::Changes, &Method::GET) => Route::ListChanges,
            (Self::Groups, &Method::GET) => Route::ListGroups,
            (Self::Groups, &Method::PUT) => Route::WriteGroup,
            (Self::Group, &Method::GET) => Route::ShowGroup { id },
            (Self::Group, &Method::DELETE) => Route::DeleteGroup { id },
            (Self::Subscriptions, &Method::GET) => Route::ListSubscriptions,
            (Self::Subscriptions, &Method::POST) => Route::Subscribe,
            (Self::Subscription, &Method::GET) => Route::ShowSubscription { id },
            (Self::Subscription, &Method::DELETE) => Route::DeleteSubscription { id },
            (Self::Pause, &Method::POST) => Route::PauseSubscription { id },
            (Self::Resumption, &Method::POST) => Route::ResumeSubscription { id },
            (Self::Rotation, &Method::POST) => Route::RotateSecret { id },
            (Self::Replay, &Method::POST) => Route::Replay { id },
            (Self::Deliveries, &Method::GET) => Route::ListDeliveries { id },
            (Self::Test, &Method::POST) => Route::TestSubscription { id },
            (Self::Sample, &Method::GET) => Route::SampleEvents,
            (Self::Unsubscription, &Method::POST) => Route::Unsubscribe,
            _ => return None,
        })
    }
}

static ROUTER: LazyLock<Router<Resource>> = LazyLock::new(|| {
    let mut router = Router::new();
    for (path, resource) in PATHS {
        router.insert(path, resource).expect("the paths don't contradict each other");
    }
    router
});

/// Finds the route of a method and a path relative to `/api/v1`. A trailing slash is ignored.
pub fn route(method: &Method, path: &str) -> Result<Route, Refusal> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let found = ROUTER.at(path).map_err(|_| Refusal::UnknownPath)?;
    let resource = *found.value;
    resource.route(method, found.params.get("id")).ok_or(Refusal::MethodNotAllowed { allow: resource.allow() })
}

/// Whether the resource at a path reports usage by token. It is needed before admission, so that Redis returns usage
/// in the same round trip.
#[must_use]
pub fn reports_usage(path: &str) -> bool {
    me::is_path(path)
}

/// Any refusal of the handler.
pub async fn handle(admitted: &Admitted, route: Route, call: Call<'_>) -> Result<Reply, Refusal> {
    // Boxed, so that not every request future is as large as the largest handler's.
    match route {
        Route::ShowMe => Ok(me::show(admitted).await),
        Route::ShowOpenApi => Ok(openapi::show(admitted, &call)),
        Route::ListForms => Box::pin(forms::list(admitted, &call)).await,
        Route::ShowForm { id } => Box::pin(forms::show(admitted, &id)).await,
        Route::SearchSubmissions => Box::pin(submissions::search(admitted, &call)).await,
        Route::ShowSubmission { id } => Box::pin(submissions::show(admitted, &id)).await,
        Route::ListChanges => Box::pin(changes::list(admitted, &call)).await,
        Route::ListGroups => Box::pin(groups::list(admitted, &call)).await,
        Route::WriteGroup => Box::pin(groups::write(admitted, call)).await,
        Route::ShowGroup { id } => Box::pin(groups::show(admitted, &call, &id)).await,
        Route::DeleteGroup { id } => Box::pin(groups::delete(admitted, &id)).await,
        Route::ListSubscriptions => Box::pin(subscriptions::list(admitted, &call)).await,
        Route::Subscribe => Box::pin(subscriptions::subscribe(admitted, &call)).await,
        Route::ShowSubscription { id } => Box::pin(subscriptions::show(admitted, &id)).await,
        Route::DeleteSubscription { id } => Box::pin(subscriptions::delete(admitted, &id)).await,
        Route::PauseSubscription { id } => Box::pin(subscriptions::managing::pause(admitted, &id)).await,
        Route::ResumeSubscription { id } => Box::pin(subscriptions::managing::resume(admitted, &call, &id)).await,
        Route::RotateSecret { id } => Box::pin(subscriptions::managing::rotate(admitted, &call, &id)).await,
        Route::Replay { id } => Box::pin(subscriptions::replay::replay(admitted, &call, &id)).await,
        Route::ListDeliveries { id } => Box::pin(subscriptions::deliveries::list(admitted, &call, &id)).await,
        Route::TestSubscription { id } => Box::pin(subscriptions::test::test(admitted, &call, &id)).await,
        Route::SampleEvents => Box::pin(subscriptions::test::sample(admitted, &call)).await,
        Route::Unsubscribe => Box::pin(subscriptions::unsubscribe(admitted, &call)).await,
    }
}

/// The tenant's open database.
async fn store(admitted: &Admitted) -> Result<Arc<Store>, Refusal> {
    admitted.tenant().database.store().await.map_err(|error| Refusal::DatabaseUnavailable(Arc::new(error)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn a_trailing_slash_is_the_same_path_and_two_are_not() {
        assert_eq!(route(&Method::GET, "/me/").unwrap(), Route::ShowMe);
        assert!(matches!(route(&Method::GET, "/me//"), Err(Refusal::UnknownPath)));
        assert!(matches!(route(&Method::GET, ""), Err(Refusal::UnknownPath)));
        assert!(matches!(route(&Method::GET, "/"), Err(Refusal::UnknownPath)));
    }

    #[test]
    fn every_route_knows_exactly_the_query_parameters_that_the_description_gives_it() {
        let description: Value = yaml_serde::from_str(include_str!("../deploy/openapi.yaml")).unwrap();
        let in_query = |item: &Value| -> BTreeSet<String> {
            let parameters = item["parameters"].as_array().into_iter().flatten();
            let followed = parameters.map(|parameter| match parameter["$ref"].as_str() {
                Some(reference) => description.pointer(reference.trim_start_matches('#')).unwrap(),
                None => parameter,
            });
            followed.filter(|of| of["in"] == "query").map(|of| of["name"].as_str().unwrap().to_owned()).collect()
        };
        let mut operations = 0;
        for (path, resource) in PATHS {
            let item = &description["paths"][path];
            for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
                let method = if method == "head" { "get" } else { method };
                let route = resource.route(&method.to_uppercase().parse().unwrap(), Some("1")).unwrap();
                let described = &in_query(item) | &in_query(operation);
                let known: BTreeSet<String> = route.parameters().iter().map(ToString::to_string).collect();
                assert_eq!(known, described, "{method} {path}");
                operations += 1;
            }
        }
        assert!(operations > PATHS.len(), "{operations}");
    }

    #[test]
    fn every_resource_allows_exactly_the_methods_that_it_routes() {
        let methods = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        for (path, resource) in PATHS {
            for method in &methods {
                let routed = resource.route(method, Some("1")).is_some();
                let allowed = resource.allow().split(", ").any(|allowed| allowed == method.as_str());
                assert_eq!(routed, allowed, "{method} {path}");
            }
        }
    }
}
