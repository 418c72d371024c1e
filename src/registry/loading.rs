//! Reads all of the registry, or its snapshot while it is unavailable: when a node starts, and for commands.

use std::num::NonZero;
use std::time::Duration;

use tokio::time::timeout;

use super::snapshot::Snapshot;
use crate::config::{Problems, RegisteredTenant, RegistryConfig};
use crate::seal::Seals;
use crate::store::registry::{Head, RegistryRow, registry_remedy};
use crate::store::{DatabaseLocation, Registry, StoreError, with_causes};

/// How long a starting node waits until the registry is open, before it takes the snapshot. How long reading all rows takes
/// depends on their number and on how far away the registry is; a statement that is not answered ends by its own limit.
///
/// Larger: nodes start later while it is unavailable. Smaller: a slow registry is skipped.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// How many rows are read on one thread.
///
/// Larger: a small registry takes longer to start. Smaller: starting threads costs more than reading.
const ROWS_PER_THREAD: usize = 512;

/// Why there are no tenants of the registry.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It can't be read, and there is no snapshot.
    #[error("the registry can't be read, and {snapshot}")]
    Away {
        /// Why there is none, and where it would be.
        snapshot: String,
        /// Why.
        #[source]
        cause: StoreError,
    },
    /// It did not respond in time, and there is no snapshot.
    #[error("the registry does not respond, and {snapshot}")]
    Silent {
        /// Why there is none, and where it would be.
        snapshot: String,
    },
    /// Its database has another registry than the one that this node followed.
    #[error("the database has another registry than the snapshot, and {snapshot}")]
    Other {
        /// That it is served.
        snapshot: String,
    },
}

impl LoadError {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Away { cause, .. } => registry_remedy(cause),
            Self::Silent { .. } => "check its server, and the network in between",
            Self::Other { .. } => "restore that one, or remove the snapshot and restart the node to follow the other",
        }
    }
}

/// What becomes of a node without the registry that has a snapshot.
const SNAPSHOT: &str = "the snapshot is served";

/// All tenants of the registry.
#[derive(Debug)]
pub struct Loaded {
    /// The open registry, unless it is unavailable.
    pub registry: Option<Registry>,
    /// Where it was when it was read, or when the snapshot was written.
    pub head: Head,
    /// Every row, and the tenant that it is, or its faults.
    pub rows: Vec<(RegistryRow, Result<RegisteredTenant, Problems>)>,
    /// Why these are the rows of the snapshot, if they are.
    pub away: Option<LoadError>,
}

/// Opens the registry as this node uses it; creates it if it is missing, unless the node only reads it.
pub(super) async fn open(config: &RegistryConfig) -> Result<Registry, StoreError> {
    if config.is_written {
        Registry::open(&config.database).await
    } else {
        Registry::open_to_read(&config.database).await
    }
}

/// Reads the registry, or its snapshot while it is unavailable. Creates the registry if it is missing, unless this node only reads
/// it.
///
/// # Errors
/// [`LoadError`].
pub async fn load(config: &RegistryConfig, seals: &Seals) -> Result<Loaded, LoadError> {
    let outcome = match timeout(OPEN_LIMIT, open(config)).await {
        Ok(Ok(registry)) => read_opened(registry).await.map_err(Some),
        Ok(Err(error)) => Err(Some(error)),
        Err(_) => Err(None),
    };
    complete(config, seals, outcome).await
}

/// The same for a command that only reads. Returns `None` if the registry is missing.
///
/// # Errors
/// [`LoadError`].
pub async fn load_existing(config: &RegistryConfig, seals: &Seals) -> Result<Option<Loaded>, LoadError> {
    let outcome = match timeout(OPEN_LIMIT, Registry::open_existing(&config.database)).await {
        Ok(Ok(None)) => return Ok(None),
        Ok(Ok(Some(registry))) => read_opened(registry).await.map_err(Some),
        Ok(Err(error)) => Err(Some(error)),
        Err(_) => Err(None),
    };
    complete(config, seals, outcome).await.map(Some)
}

async fn read_opened(registry: Registry) -> Result<(Registry, Head, Vec<RegistryRow>), StoreError> {
    let (head, rows) = read_whole(&registry).await?;
    Ok((registry, head, rows))
}

/// Takes the snapshot if the registry could not be read, for a reason or in time, or is another one.
async fn complete(
    config: &RegistryConfig,
    seals: &Seals,
    outcome: Result<(Registry, Head, Vec<RegistryRow>), Option<StoreError>>,
) -> Result<Loaded, LoadError> {
    let (registry, head, rows, away) = match outcome {
        Ok((registry, head, rows)) => {
            let kept = match config.kept_snapshot() {
                Some(snapshot) if Snapshot::epoch(snapshot).await.is_some_and(|epoch| epoch != head.epoch) => {
                    Snapshot::read(snapshot, seals).await
                }
                _ => None,
            };
            if let Some((head, rows)) = kept {
                tracing::error!("the database has another registry than the snapshot; the snapshot is served");
                (Some(registry), head, rows, Some(LoadError::Other { snapshot: SNAPSHOT.to_owned() }))
            } else {
                (Some(registry), head, rows, None)
            }
        }
        Err(cause) => {
            let kept = match config.kept_snapshot() {
                Some(snapshot) => Snapshot::read(snapshot, seals).await,
                None => None,
            };
            let Some((head, rows)) = kept else {
                let file = config.kept_snapshot().and_then(DatabaseLocation::file);
                let snapshot = file.map_or_else(
                    || "a drill takes no snapshot of it".to_owned(),
                    |file| format!("there is no snapshot of it at `{}`", file.display()),
                );
                return Err(away(cause, snapshot));
            };
            let described = cause.as_ref().map(|cause| with_causes(cause));
            let revision = head.revision;
            tracing::error!(cause = described, revision, "registry unavailable; serving from the snapshot");
            (None, head, rows, Some(away(cause, SNAPSHOT.to_owned())))
        }
    };
    Ok(Loaded { registry, head, rows: read_rows(rows, config).await, away })
}

fn away(cause: Option<StoreError>, snapshot: String) -> LoadError {
    match cause {
        Some(cause) => LoadError::Away { snapshot, cause },
        None => LoadError::Silent { snapshot },
    }
}

/// Where the registry is, and all of its rows. Changes between its pages come again as increments after the head.
pub(super) async fn read_whole(registry: &Registry) -> Result<(Head, Vec<RegistryRow>), StoreError> {
    Ok((registry.head().await?, registry.list_all().await?))
}

/// Reads the text of a row, and adds the domains of the tenant.
pub(super) fn read_row(row: &RegistryRow, config: &RegistryConfig) -> Result<RegisteredTenant, Problems> {
    let text = row.text.as_deref().unwrap_or_default();
    Ok(RegisteredTenant::read(&row.slug, text, config, None)?.with_domains(&row.domains))
}

/// Reads the texts of rows, on several threads if there are many.
pub(super) async fn read_rows(
    rows: Vec<RegistryRow>,
    config: &RegistryConfig,
) -> Vec<(RegistryRow, Result<RegisteredTenant, Problems>)> {
    if rows.len() <= 1 {
        return rows.into_iter().map(|row| (read_row(&row, config), row)).map(|(tenant, row)| (row, tenant)).collect();
    }
    let config = config.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let threads =
            std::thread::available_parallelism().map_or(1, NonZero::get).min(rows.len() / ROWS_PER_THREAD + 1);
        let part = rows.len().div_ceil(threads);
        let tenants: Vec<_> = std::thread::scope(|scope| {
            let config = &config;
            let parts: Vec<_> = rows
                .chunks(part)
                .map(|rows| scope.spawn(move || rows.iter().map(|row| read_row(row, config)).collect::<Vec<_>>()))
                .collect();
            let join = |part: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
                part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            parts.into_iter().flat_map(join).collect()
        });
        rows.into_iter().zip(tenants).collect()
    });
    reading.await.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}
