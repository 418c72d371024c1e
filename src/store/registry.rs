//! The registry: tenants in addition to those of the files, in a database of the operator's own.
//!
//! One row is one `[[tenant]]` table as text; what it means is checked above. Every write locks the one row of
//! `registry_head` and takes the next revision, so revisions are in the order of the commits and a reader of the rows
//! above the last revision that it knows misses none. A removed tenant stays as a row without text, for such readers.
//!
//! `writing` adds, changes and removes tenants, `claims` has each host and database for one of them, `copying` fills
//! the snapshot of a node, `databases` has which tenants have one database at different addresses, and `lives` says
//! what one of them has of an earlier one; `erasing` forgets one of them for good; `nodes` records how far each node has got,
//! `keeping` what it can look after, `subscribed` which tenants have subscriptions, and `moves` which accounts move to other
//! databases; `stamps` says which revision is which after a restore;
//! `operator_tokens` has the tokens of the operator API. `domains` has the life of each host that needs a certificate,
//! `turns` says which is looked at next, `listing` lists them, `counts` counts them, `claiming` adds and removes
//! domains, `certificates` has what was obtained for them; `budgets`, `account` and `events` belong to that;
//! `resealing` is for a change of the key; `remedy` says what to do when the registry can't be used, and `rights` what
//! the role of a node may lack.

mod account;
mod budgets;
mod certificates;
mod claiming;
mod claims;
mod copying;
mod counts;
mod databases;
mod domains;
mod erasing;
mod events;
mod keeping;
mod listing;
mod lives;
mod moves;
mod nodes;
mod operator_tokens;
mod remedy;
mod resealing;
mod rights;
mod stamps;
mod subscribed;
mod turns;
mod writing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::engine::{Connections, Database, DatabaseLimits, DatabaseLocation, retry};
use super::schema::{self, Migration};
use super::statement::{Row, Sql, sql};
use super::{Reach, StoreError};
use crate::metrics::DatabaseMetrics;
pub use budgets::{Budget, Taken as BudgetTaken};
pub use certificates::{CertificateRecord, StoredPair};
pub use claiming::{DomainAdded, HostOwner, Requester};
pub use claims::Claims;
pub use counts::{DomainCount, StoredCounts};
pub use databases::{FoundDatabase, SharedDatabase};
pub use domains::{DomainProof, DomainRecord, DomainState, Lease};
pub use erasing::{Erasure, ErasureRefused};
pub use events::{DomainEvent, Feed, RegistryEvent};
pub use keeping::KeepingNode;
pub use listing::DomainFilter;
pub use moves::{MoveCancelled, MoveRecord, MoveRefused, MoveState, NewMove, SeenMove};
pub use nodes::{Beat, Head, Look, NodeBehind, NodeRecord};
pub use operator_tokens::{NewOperatorToken, OperatorTokenRecord};
pub use remedy::{is_denied, registry_remedy};
pub use resealing::{PendingRecord, SealedBy};
pub use rights::RegistryUse;
pub use stamps::{InvalidMark, RegistryMark};
pub use subscribed::SubscribedTenant;
pub use turns::{AskedCheck, DueDomain};
pub use writing::{RegistryChange, RegistryWrite, WriteRefused, Written as RegistryWritten};

/// How many rows are read at once.
///
/// Larger: a statement takes longer. Smaller: more statements.
pub const PAGE: u32 = 1_000;

/// How many rows are read at once at most, where all are read.
///
/// Larger: a statement may reach [`LIMIT`] if the connection gets slow. Smaller: all rows of a registry that is far away take
/// more round trips.
const MAX_PAGE: u32 = 16 * PAGE;

/// A page that took no longer is followed by one of twice the size.
///
/// Larger: the next one may reach [`LIMIT`]. Smaller: pages of a registry that is far away stay small.
const QUICK_PAGE: Duration = Duration::from_secs(1);

/// How many connections a node has to the registry.
///
/// Larger: many callers of the operator API take more of the server's connections. Smaller: they wait for each other.
const MAX_CONNECTIONS: u32 = 4;

/// How long a statement may take, and a wait for a connection. None reads more than [`MAX_PAGE`] rows.
///
/// Larger: a registry that hangs holds up reloads of the files for longer. Smaller: a slow one counts as away.
const LIMIT: Duration = Duration::from_secs(5);

/// The migrations of the registry, numbered from 1.
static MIGRATIONS: [Migration; 1] = [Migration::new(
    schema::OF_REGISTRY,
    include_str!("registry/schema/postgres.sql"),
    include_str!("registry/schema/sqlite.sql"),
)];

/// An open registry. Cloning shares its connections.
#[derive(Clone, Debug)]
pub struct Registry {
    database: Database,
}

/// A row of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryRow {
    /// The tenant.
    pub slug: String,
    /// The text of its table; `None` if the tenant was removed.
    pub text: Option<String>,
    /// Hosts in addition to those of its table.
    pub domains: Vec<String>,
    /// The number of its last change.
    pub revision: i64,
    /// The number of the change that created it: rows are listed in this order.
    pub position: i64,
    /// When it changed last.
    pub changed_at: Timestamp,
    /// Who changed it: the name of an operator token, or the system user of a command.
    pub changed_by: String,
    /// Whether it was removed and nothing of it is to be kept.
    pub is_erased: bool,
}

impl RegistryRow {
    /// What [`Self::read`] reads.
    fn columns() -> Sql {
        Sql::text("slug, toml, revision, position, changed_at, changed_by, domains, is_erased")
    }

    /// The rows that changed after a revision and up to another one, in the order of their last changes.
    fn select_changed(after: i64, until: i64, limit: u32) -> Sql {
        sql!(
            "SELECT {+columns} FROM registry_tenants
             WHERE revision > {after} AND revision <= {until}
             ORDER BY revision LIMIT {limit}",
            columns = Self::columns(),
            after,
            until,
            limit,
        )
    }

    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            slug: row.get(0)?,
            text: row.get(1)?,
            revision: row.get(2)?,
            position: row.get(3)?,
            changed_at: row.get(4)?,
            changed_by: row.get(5)?,
            domains: serde_json::from_str(&row.get::<String>(6)?).unwrap_or_default(),
            is_erased: row.get(7)?,
        })
    }
}

impl Registry {
    /// Opens a registry. Creates its SQLite file if it is missing, and its tables.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it can't be reached, [`StoreError::SchemaNewer`] if a newer program has changed
    /// its tables, [`StoreError::SchemaUnreleased`] if an unreleased one created them, [`StoreError::Migration`] when they
    /// can't be created.
    pub async fn open(location: &DatabaseLocation) -> Result<Self, StoreError> {
        location.create_file()?;
        retry::run(|| async move {
            let creating = location.connect_for_migration();
            let migrated = schema::migrate(&creating, location.schema(), &MIGRATIONS, Reach::Newest).await;
            creating.close().await;
            require_known(migrated?.1)?;
            Ok(Self { database: location.connect_overwriting(MAX_CONNECTIONS, &connections()) })
        })
        .await
    }

    /// Opens a registry that exists. Returns `None`, and creates nothing, if its SQLite file or its tables are missing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_existing(location: &DatabaseLocation) -> Result<Option<Self>, StoreError> {
        // What can't be looked at may be there.
        if location.file().is_some_and(|file| file.try_exists().is_ok_and(|exists| !exists)) {
            return Ok(None);
        }
        let database = location.connect_for_maintenance();
        let has_tables = async { Ok(schema::has_migrations(&mut database.reader().await?).await?) };
        let has_tables: Result<bool, StoreError> = has_tables.await;
        database.close().await;
        if has_tables? { Self::open(location).await.map(Some) } else { Ok(None) }
    }

    /// Opens a registry that exists, to be read and not written: every write fails with [`StoreError::OfDrill`].
    ///
    /// # Errors
    /// As [`Self::open`]; [`StoreError::SchemaOlder`] if it lacks tables.
    pub async fn open_to_read(location: &DatabaseLocation) -> Result<Self, StoreError> {
        let registry = Self { database: location.connect_for_readers(MAX_CONNECTIONS, &connections()) };
        let version = match registry.version().await {
            // A pooler in transaction mode was detected; the next connection uses unnamed statements.
            Err(error) if error.is_lost_statement() => registry.version().await,
            version => version,
        };
        match version.and_then(require_known) {
            Ok(()) => Ok(registry),
            Err(error) => {
                registry.close().await;
                Err(error)
            }
        }
    }

    async fn version(&self) -> Result<i64, StoreError> {
        schema::require(&mut self.database.reader().await?, &MIGRATIONS).await
    }

    /// The row of a tenant, unless it was removed.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find(&self, slug: &str) -> Result<Option<RegistryRow>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM registry_tenants WHERE toml IS NOT NULL AND slug = {slug}",
            columns = RegistryRow::columns(),
            slug,
        );
        Ok(reader.fetch_optional(sql).await?.as_ref().map(RegistryRow::read).transpose()?)
    }

    /// The tenants after a position, in the order in which they were created.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list(&self, after: i64, limit: u32) -> Result<Vec<RegistryRow>, StoreError> {
        let sql = sql!(
            "SELECT {+columns} FROM registry_tenants
             WHERE toml IS NOT NULL AND position > {after}
             ORDER BY position LIMIT {limit}",
            columns = RegistryRow::columns(),
            after,
            limit,
        );
        self.rows(sql).await
    }

    /// Every tenant, in the order in which they were created. Pages grow while they are answered quickly, so that the round
    /// trips to a registry that is far away don't add up.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_all(&self) -> Result<Vec<RegistryRow>, StoreError> {
        let (mut rows, mut limit): (Vec<RegistryRow>, _) = (Vec::new(), PAGE);
        loop {
            let began = Instant::now();
            let page = self.list(rows.last().map_or(0, |row| row.position), limit).await?;
            let is_last = page.len() < limit as usize;
            rows.extend(page);
            if is_last {
                return Ok(rows);
            }
            if began.elapsed() <= QUICK_PAGE {
                limit = (2 * limit).min(MAX_PAGE);
            }
        }
    }

    /// The rows that changed after a revision and up to another one, in the order of their last changes.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn changes(&self, after: i64, until: i64, limit: u32) -> Result<Vec<RegistryRow>, StoreError> {
        self.rows(RegistryRow::select_changed(after, until, limit)).await
    }

    async fn rows(&self, sql: Sql) -> Result<Vec<RegistryRow>, StoreError> {
        let rows = self.database.reader().await?.fetch_all(sql).await?;
        Ok(rows.iter().map(RegistryRow::read).collect::<Result<_, _>>()?)
    }

    /// Closes every connection.
    pub async fn close(&self) {
        self.database.close().await;
    }
}

/// The connections of one registry.
fn connections() -> Arc<Connections> {
    let limits = DatabaseLimits { wait: LIMIT, statement: LIMIT, ..DatabaseLimits::default() };
    Connections::new(limits, DatabaseMetrics::unregistered())
}

/// Refuses a version of a newer program.
fn require_known(found: i64) -> Result<(), StoreError> {
    let known = schema::newest(&MIGRATIONS);
    if found > known { Err(StoreError::SchemaNewer { found, known }) } else { Ok(()) }
}
