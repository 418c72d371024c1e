//! `formgate tenant move` and `formgate tenant moves`. A node carries a move out; the command begins it and may wait.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cli::output::{pretty, print, print_stderr, table};
use crate::cli::registry::OpenRegistry;
use crate::cli::{ConfigFile, ListArgs};
use crate::config::RegisteredTenant;
use crate::moving::{self, BeginRefused, Place};
use crate::registry::{NodeName, editing};
use crate::rights;
use crate::store::registry::{MoveRecord, MoveState};

/// How often it is looked how far a move is.
///
/// Larger: the command ends later. Smaller: more statements.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(in crate::cli) struct MoveArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Its slug.
    slug: String,
    /// Its new database, which is empty: `postgres://USER:PASSWORD@HOST:PORT/DATABASE` or `sqlite:PATH`. `${NAME}` takes a
    /// variable of the nodes.
    #[arg(long, value_name = "DATABASE")]
    to: String,
    /// Wait until the move has ended, for at most this many seconds. Fails unless it is done by then.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=86_400))]
    wait: Option<u64>,
    /// Print JSON, as the operator API does.
    #[arg(long)]
    json: bool,
}

pub(super) async fn begin(command: &MoveArgs) -> Result<()> {
    let registry = OpenRegistry::open_existing(&command.file).await?;
    let slug = &command.slug;
    registry.check_owner(slug).map_err(|of_file| BeginRefused::OfFile(of_file.to_string()))?;
    let (node, rows) = (NodeName::new(), registry.rows().await?);
    let others = rows.into_iter().filter(|row| row.slug != *slug).filter_map(|row| {
        let text = row.text.as_deref()?;
        Some(RegisteredTenant::read(&row.slug, text, registry.config(), None).ok()?.config)
    });
    let others: Vec<_> = registry.of_files().iter().cloned().chain(others).collect();
    let check = |text: String| {
        let checked = registry.editor().check(slug, text)?;
        editing::check_files(&[&checked.tenant], others.iter()).map_err(|(_, refused)| refused)?;
        Ok(checked)
    };
    let place = Place { host: node.host(), node: None, folder: &registry.config().folder };
    let by = rights::current_user();
    let mut record = moving::begin(&registry.registry, slug, &command.to, place, &by, &check).await?;
    let deadline = Instant::now() + Duration::from_secs(command.wait.unwrap_or(0));
    while command.wait.is_some() && record.state.is_under_way() && Instant::now() < deadline {
        sleep(LOOK_INTERVAL).await;
        record = registry.registry.find_move(record.id).await?.unwrap_or(record);
    }
    registry.registry.close().await;
    if command.json {
        print(&pretty(&json!({ "move": moving::describe(&record) })))?;
    }
    let MoveRecord { id, state, reason, from, to, .. } = &record;
    if command.wait.is_some() && *state != MoveState::Done {
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        bail!("move {id} of the tenant `{slug}` is {}{reason}", state.as_str());
    }
    if !command.json {
        match state {
            MoveState::Done => print_stderr(&format!("the tenant `{slug}` has moved from {from} to {to}")),
            _ => print(&format!("{id}"))?,
        }
    }
    Ok(())
}

pub(super) async fn list(command: &ListArgs) -> Result<()> {
    let registry = OpenRegistry::open_existing(&command.file).await?;
    let moves = registry.registry.moves().await?;
    registry.registry.close().await;
    if command.json {
        return print(&pretty(&Value::from_iter(moves.iter().map(moving::describe))));
    }
    let head = ["ID", "TENANT", "STATE", "FROM", "TO", "HELD", "REASON"].map(str::to_owned);
    let rows = moves.into_iter().map(|record| {
        let held = record.held_ms.map_or_else(|| "-".to_owned(), |held| format!("{held} ms"));
        let reason = record.reason.unwrap_or_else(|| "-".to_owned());
        let state = record.state.as_str().to_owned();
        [record.id.to_string(), record.slug, state, record.from, record.to, held, reason]
    });
    print(&table(&std::iter::once(head).chain(rows).collect::<Vec<_>>()))
}
