//! `/v1/moves`: accounts that move to another database while they are called.

use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::refusal::OperatorRefusal;
use crate::config::TenantConfig;
use crate::moving::{self, BeginRefused, Place};
use crate::registry::editing::{self, EditRefused, Editor};
use crate::reply::Reply;
use crate::store::registry::{MoveCancelled, MoveRecord, MoveRefused};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveBody {
    to: String,
}

/// `POST /v1/tenants/{slug}/move`.
pub(super) async fn begin(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let slug = call.slug();
    call.query()?;
    let MoveBody { to } = call.body()?;
    let following = call.api.following()?;
    if let Err(of_file) = call.with_editor(|editor| editor.check_owner(slug)).await? {
        return Err(refusal(BeginRefused::OfFile(of_file.to_string())));
    }
    let _share = call.begin_to_use_database().await?;
    let (files, gateway, directory) =
        (following.files().await, call.api.gateway.load_full(), call.api.directory.load_full());
    let others: Vec<Arc<TenantConfig>> = directory.configs().filter(|other| *other.slug != *slug).cloned().collect();
    let check = |text: String| {
        // Certificates and files are looked at.
        tokio::task::block_in_place(|| {
            let editor = Editor { gateway: &gateway, config: following.config(), files: &files };
            let checked = editor.check(slug, text)?;
            editing::check_files(&[&checked.tenant], others.iter()).map_err(|(_, refused)| refused)?;
            Ok(checked)
        })
    };
    let registry = call.api.registry().await?;
    let node = following.node();
    let place = Place { host: node.host(), node: Some(node.id()), folder: &following.config().folder };
    let begun = moving::begin(registry, slug, &to, place, &call.caller.name, &check).await;
    let record = begun.map_err(refusal)?;
    tracing::info!(tenant = slug, to = record.to, by = call.caller.name, "move begun through the operator API");
    Ok(Reply::json(StatusCode::ACCEPTED, &of_record(&record)))
}

fn of_record(record: &MoveRecord) -> Value {
    json!({ "move": moving::describe(record) })
}

fn refusal(refused: BeginRefused) -> OperatorRefusal {
    let conflict = |key: &str, message: String| OperatorRefusal::Conflict { key: key.to_owned(), message };
    match refused {
        BeginRefused::UnknownTenant(slug) => OperatorRefusal::UnknownTenant { slug },
        BeginRefused::OfFile(_) => conflict("slug", refused.to_string()),
        BeginRefused::Edit(EditRefused::Faults { problems, text }) => {
            // The key of the table is that of the call.
            let titles = problems.titles();
            match OperatorRefusal::from(EditRefused::Faults { problems, text }) {
                OperatorRefusal::Faults(mut faults) if faults.contains_key("database") => {
                    let of_database = faults.remove("database").unwrap_or_default();
                    OperatorRefusal::of("to", of_database.into_iter().next().unwrap_or(titles))
                }
                other => other,
            }
        }
        BeginRefused::Edit(EditRefused::Unfit { key: "database", message }) => OperatorRefusal::of("to", message),
        BeginRefused::Edit(other) => other.into(),
        BeginRefused::Target(message) => OperatorRefusal::of("to", message),
        BeginRefused::OtherNodes => conflict("to", refused.to_string()),
        BeginRefused::Source(cause) => OperatorRefusal::TenantDatabase { cause },
        BeginRefused::Move(MoveRefused::UnderWay) => conflict("slug", MoveRefused::UnderWay.to_string()),
        BeginRefused::Move(MoveRefused::Taken { .. }) => conflict("to", refused.to_string()),
        BeginRefused::Move(MoveRefused::Store(error)) => error.into(),
    }
}

/// `GET /v1/moves`.
pub(super) async fn list(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query()?;
    let moves = call.api.registry().await?.moves().await?;
    let moves: Vec<_> = moves.iter().map(moving::describe).collect();
    Ok(Reply::json(StatusCode::OK, &json!({ "moves": moves })))
}

/// `GET /v1/moves/{id}`.
pub(super) async fn read(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query()?;
    let id = call.id().ok_or_else(|| unknown(call))?;
    let record = call.api.registry().await?.find_move(id).await?.ok_or_else(|| unknown(call))?;
    Ok(Reply::json(StatusCode::OK, &of_record(&record)))
}

/// `DELETE /v1/moves/{id}`: cancels a move, until the account has moved.
pub(super) async fn cancel(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    call.query()?;
    let id = call.id().ok_or_else(|| unknown(call))?;
    match call.api.registry().await?.cancel_move(id).await? {
        MoveCancelled::Yes(record) => {
            call.api.following()?.look_soon();
            tracing::info!(tenant = record.slug, by = call.caller.name, "move cancelled through the operator API");
            Ok(Reply::json(StatusCode::OK, &of_record(&record)))
        }
        MoveCancelled::TooLate => {
            let message = "the move has ended, or the account moves at this moment".to_owned();
            Err(OperatorRefusal::Conflict { key: "id".to_owned(), message })
        }
        MoveCancelled::Unknown => Err(unknown(call)),
    }
}

fn unknown(call: &Call<'_>) -> OperatorRefusal {
    OperatorRefusal::Unknown { what: "move", id: call.segments.get("id").to_owned() }
}
