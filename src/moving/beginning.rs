//! Checks whether an account can be moved to a database, and begins the move.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::config::RegisteredTenant;
use crate::config::registered::{database_of, with_database, without_password};
use crate::registry::editing::{Checked, EditRefused};
use crate::regular_file;
use crate::store::registry::{MoveRecord, MoveRefused, NewMove, WriteRefused};
use crate::store::{self, Registry, Store, StoreError, TargetState, with_causes};

/// How long opening a database may take.
///
/// Larger: a call whose database hangs takes longer. Smaller: an account with a slow database can't be moved.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// How long a call waits until what the account's move before needed is removed, and how often that is looked at.
///
/// Larger: a call takes longer. Smaller: one that follows a move is refused more often.
const CLEANING_LIMIT: Duration = Duration::from_secs(5);
const CLEANING_INTERVAL: Duration = Duration::from_millis(50);

/// Where a move begins.
#[derive(Clone, Copy, Debug)]
pub struct Place<'p> {
    /// The host, whose nodes have its files.
    pub host: &'p str,
    /// The node that answers, if it is one. Other live nodes keep an account from moving to a file.
    pub node: Option<&'p str>,
    /// The folder of the configuration, below which folders are created.
    pub folder: &'p Path,
}

/// Why a move is not begun.
#[derive(Debug, thiserror::Error)]
pub enum BeginRefused {
    /// There is no such tenant in the registry.
    #[error("there is no tenant `{0}` in the registry")]
    UnknownTenant(String),
    /// A configuration file has the tenant.
    #[error("{0}; `formgate tenant adopt` moves it from the file to the registry first")]
    OfFile(String),
    /// The database can't be that of the tenant.
    #[error(transparent)]
    Edit(EditRefused),
    /// The database is not one to which an account moves.
    #[error("{0}")]
    Target(String),
    /// Other nodes serve the account, and would not have the file.
    #[error("other live nodes serve the account too, and a SQLite file is on one machine: stop them first")]
    OtherNodes,
    /// The account's database can't be used.
    #[error("the account's database can't be used: {0}")]
    Source(String),
    /// The registry refused the move.
    #[error(transparent)]
    Move(#[from] MoveRefused),
}

impl From<StoreError> for BeginRefused {
    fn from(error: StoreError) -> Self {
        Self::Move(error.into())
    }
}

/// Checks a text of the tenant that moves, and whether another tenant has its file under another name. May block.
pub type CheckText<'c> = dyn Fn(String) -> Result<Checked, EditRefused> + Sync + 'c;

/// Begins a move of a tenant to a database. The database that it has already is checked too:
/// its row may be one that this node can't read.
///
/// # Errors
/// [`BeginRefused`]; nothing is written.
pub async fn begin(
    registry: &Registry,
    slug: &str,
    to: &str,
    place: Place<'_>,
    by: &str,
    check: &CheckText<'_>,
) -> Result<MoveRecord, BeginRefused> {
    let row = registry.find(slug).await?.ok_or_else(|| BeginRefused::UnknownTenant(slug.to_owned()))?;
    let text = row.text.unwrap_or_default();
    let unreadable = || BeginRefused::Source("the row of the tenant can't be read".to_owned());
    let from = database_of(&text).ok_or_else(unreadable)?;
    let moved = with_database(&text, to).ok_or_else(unreadable)?;
    let now = check(text).map_err(of_edit)?;
    let then = check(moved).map_err(of_edit)?;
    let (RegisteredTenant { config: now, database: place_now }, RegisteredTenant { config, database }) =
        (&now.tenant, &then.tenant);
    if place_now == database {
        return Err(BeginRefused::Target("the account is in this database".to_owned()));
    }
    if config.database.file().is_some() {
        let is_other = |id: &str| place.node.is_none_or(|node| node != id);
        let live = registry.nodes().await?.into_iter().filter(|node| node.is_live && is_other(&node.id)).count();
        // A command has no node of its own: one of the live nodes carries the move out.
        if live > usize::from(place.node.is_none()) {
            return Err(BeginRefused::OtherNodes);
        }
    }
    match then.check_free(registry).await {
        Ok(()) => {}
        Err(WriteRefused::Taken { owner, .. }) => return Err(MoveRefused::Taken { owner }.into()),
        Err(refused) => return Err(BeginRefused::Edit(refused.into())),
    }
    let new_folder = config.database.file().and_then(Path::parent).filter(|folder| !folder.starts_with(place.folder));
    if let Some(folder) = new_folder.filter(|folder| regular_file::metadata_of_folder(folder).is_err()) {
        let message = format!("the folder `{}` of the database does not exist: create it first", folder.display());
        return Err(BeginRefused::Target(message));
    }
    let failed = |error: StoreError| BeginRefused::Source(with_causes(&error));
    let source = Store::open_within(&now.database, 1, OPEN_LIMIT).await.map_err(failed)?;
    let identity = source.identity().clone();
    source.close().await;
    let looked = tokio::time::timeout(OPEN_LIMIT, store::look_at_target(&config.database, &identity)).await;
    match looked {
        Ok(Ok(TargetState::Empty | TargetState::Left | TargetState::Restored)) => {}
        Ok(Ok(TargetState::InUse)) => {
            let text =
                "the database is not empty, and neither an earlier move nor a restore of this account left what it has";
            return Err(BeginRefused::Target(text.to_owned()));
        }
        Ok(Ok(TargetState::Same)) => {
            let text = "the database is that of the account under another address, or a copy of it";
            return Err(BeginRefused::Target(text.to_owned()));
        }
        Ok(Ok(TargetState::Unfit(fault))) => {
            return Err(BeginRefused::Target(format!("the account can't be in the database: {fault}")));
        }
        Ok(Err(error)) => {
            let remedy = store::remedy(&error, &config.database, slug);
            return Err(BeginRefused::Target(format!("{}; {remedy}", with_causes(&error))));
        }
        Err(_) => return Err(BeginRefused::Target("the database did not answer in time".to_owned())),
    }
    // Otherwise the tenant would count as another one in its new database, and lose its domains.
    registry.note_identity(slug, place_now, identity.as_str()).await?;
    let is_local = now.database.file().is_some() || config.database.file().is_some();
    let new = NewMove {
        slug: slug.to_owned(),
        from: without_password(&from),
        to: without_password(to),
        old_database: from,
        database: to.to_owned(),
        place: database.clone(),
        identity: identity.as_str().to_owned(),
        host: is_local.then(|| place.host.to_owned()),
    };
    let began = Instant::now();
    loop {
        match registry.create_move(&new, by).await {
            Err(MoveRefused::UnderWay) if began.elapsed() < CLEANING_LIMIT && !is_under_way(registry, slug).await? => {
                sleep(CLEANING_INTERVAL).await;
            }
            created => return Ok(created?),
        }
    }
}

/// Whether an account is being moved. After that, what the move needed is removed, and then there may be another one.
async fn is_under_way(registry: &Registry, slug: &str) -> Result<bool, StoreError> {
    Ok(registry.open_move_of(slug).await?.is_some_and(|open| open.state.is_under_way()))
}

fn of_edit(refused: EditRefused) -> BeginRefused {
    match refused {
        EditRefused::OfFile { key: "slug", .. } => BeginRefused::OfFile(refused.to_string()),
        other => BeginRefused::Edit(other),
    }
}
