//! `DELETE /v1/tenants/{slug}?erase=1`: an account goes away for good.

use futures_util::FutureExt;
use http::StatusCode;
use serde_json::{Value, json};

use super::Call;
use super::body::Query;
use super::credentials::of_tenant;
use super::nodes::behind_as_json;
use super::refusal::OperatorRefusal;
use super::tenants::expected;
use crate::registry::editing::Editor;
use crate::registry::erasing::{DEFAULT_WAIT, EraseError, EraseOutcome, Eraser};
use crate::reply::Reply;
use crate::store::registry::ErasureRefused;
use crate::store::{NotErasable, with_causes};

pub(super) async fn erase(call: &Call<'_>, query: &Query) -> Result<Reply, OperatorRefusal> {
    let (slug, following) = (call.slug(), call.api.following()?);
    let (files, gateway) = (following.files().await, call.api.gateway.load_full());
    let registry = call.api.registry().await?;
    let (wait, _waiting) = call.begin_to_wait(query.wait()?.unwrap_or(DEFAULT_WAIT));
    let eraser = Eraser {
        registry,
        editor: Editor { gateway: &gateway, config: following.config(), files: &files },
        redis: call.api.announcer.as_ref().map(|announcer| announcer.client()),
        slug,
        expected: expected(&call.head.headers)?,
        by: &call.caller.name,
        wait,
    };
    // A directory that is held has its databases in use, that of the account too.
    let others: Vec<_> = call.api.directory.load().configs().filter(|other| *other.slug != *slug).cloned().collect();
    let owner_in_file = |id| {
        let owner = call.api.directory.load().owners().owner_in_file(id).map(|owner| owner.slug.to_string());
        std::future::ready(owner).boxed()
    };
    let outcome = eraser.run(&others, &owner_in_file, &|node| following.is_running(node)).await;
    following.look_soon();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            let refusal = refusal_of(slug, error);
            let is_removed = registry.find_erasure(slug).await.is_ok_and(|erasure| erasure.is_some());
            return Err(if is_removed { refusal.after_write() } else { refusal });
        }
    };
    let by = &call.caller.name;
    match outcome {
        EraseOutcome::Erased(receipt) => {
            let revision = receipt.revision;
            tracing::info!(tenant = slug, revision, by, "account erased through the operator API");
            let mut body = receipt.to_json();
            body["data"] = json!({ "slug": slug, "revision": revision });
            Ok(Reply::json(StatusCode::OK, &body))
        }
        EraseOutcome::Waiting { nodes, revision } => {
            tracing::info!(tenant = slug, revision, by, "tenant removed through the operator API, and not erased yet");
            let waiting_for: Vec<Value> =
                nodes.iter().map(|node| behind_as_json(&node.id, &node.name, &node.reason)).collect();
            let kept =
                ["everything: repeat the call until it answers 200, since a live node may still serve the account"];
            let data = json!({ "slug": slug, "revision": revision });
            let body = json!({ "data": data, "waiting_for": waiting_for, "erased": [], "kept": kept });
            Ok(Reply::json(StatusCode::ACCEPTED, &body))
        }
    }
}

fn refusal_of(slug: &str, error: EraseError) -> OperatorRefusal {
    let of_database =
        |error: &EraseError| OperatorRefusal::Conflict { key: "database".to_owned(), message: with_causes(error) };
    match error {
        EraseError::Edit(refused) => refused.into(),
        EraseError::Refused(ErasureRefused::Absent { .. }) => OperatorRefusal::UnknownTenant { slug: slug.to_owned() },
        EraseError::Refused(refused @ ErasureRefused::Moving) => {
            OperatorRefusal::Conflict { key: String::new(), message: refused.to_string() }
        }
        EraseError::Refused(ErasureRefused::Write(refused)) => refused.into(),
        EraseError::Registry(error) => error.into(),
        EraseError::Unreadable(problems) => OperatorRefusal::TenantDatabase {
            cause: format!("This node can't read the row of `{slug}`: {}", problems.titles()),
        },
        EraseError::Database { tenant, cause: NotErasable::Store(error) } => of_tenant(&tenant, &error),
        EraseError::Database { cause: NotErasable::File { .. }, .. } => {
            OperatorRefusal::TenantDatabase { cause: with_causes(&error) }
        }
        EraseError::Database { .. } | EraseError::Shared { .. } => of_database(&error),
    }
}
