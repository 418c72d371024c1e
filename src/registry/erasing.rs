//! Erases an account: for the operator API and for `formgate tenant remove --erase` alike.
//!
//! The order lets it be repeated after a crash, and ends with nothing left. First the registry removes the tenant, and keeps where
//! its database is. Then it is waited until no live node serves the tenant or has its database open: before that, nothing is
//! erased. Then go its keys in Redis, its database, and what the registry kept. Nobody gets the slug or the database meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::editing::{self, EditRefused, Editor};
use crate::config::registered::{database_of, without_password};
use crate::config::{Problems, RegisteredTenant, TenantConfig};
use crate::quota;
use crate::shared::{RedisClient, delete};
use crate::store::registry::{Erasure, ErasureRefused, NodeBehind};
use crate::store::{self, ErasableDatabase, NotErasable, PhysicalId, Registry, StoreError};
use crate::tenant::usage::minutes;

/// How long it is waited for the nodes, if the caller does not say.
///
/// Larger: a call takes longer while a node that died counts as live. Smaller: it has to be repeated although the nodes are about
/// to let go.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);

/// What is erased, by whom, and what may have it beside the registry.
#[derive(Debug)]
pub struct Eraser<'e> {
    /// The registry, which has the tenant.
    pub registry: &'e Registry,
    /// The tenants of the files are not erased.
    pub editor: Editor<'e>,
    /// Where the windows are, if Redis is configured.
    pub redis: Option<&'e RedisClient>,
    /// The tenant.
    pub slug: &'e str,
    /// The revision that it is to have.
    pub expected: Option<Option<i64>>,
    /// Who erases it.
    pub by: &'e str,
    /// How long it is waited for the nodes.
    pub wait: Duration,
}

/// What became of it.
#[derive(Debug)]
pub enum EraseOutcome {
    /// Nothing of the account is left here.
    Erased(Receipt),
    /// The tenant is removed, and nothing else is erased yet: these nodes may still serve it. To be repeated.
    Waiting {
        /// The nodes.
        nodes: Vec<NodeBehind>,
        /// The change that removed it.
        revision: i64,
    },
}

/// What was erased, and what was not, in words.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The change that removed the tenant.
    pub revision: i64,
    /// What was erased.
    pub erased: Vec<String>,
    /// What formgate did not erase, and why.
    pub kept: Vec<String>,
}

impl Receipt {
    /// Both lists.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({ "erased": self.erased, "kept": self.kept })
    }
}

/// Why a tenant is not erased.
#[derive(Debug, thiserror::Error)]
pub enum EraseError {
    /// It belongs to a file, or another tenant has its database.
    #[error(transparent)]
    Edit(#[from] EditRefused),
    /// It is not there, or not as expected.
    #[error(transparent)]
    Refused(#[from] ErasureRefused),
    /// Its row can't be read here.
    #[error("this node can't read the row of the tenant")]
    Unreadable(#[source] Problems),
    /// Another tenant has its database.
    #[error("the database is that of the tenant `{owner}` too: remove the tenant without erasing it")]
    Shared {
        /// That one.
        owner: String,
    },
    /// Its database can't be erased.
    #[error("the database of the tenant can't be erased")]
    Database {
        /// The tenant.
        tenant: Arc<TenantConfig>,
        /// Why.
        #[source]
        cause: NotErasable,
    },
    /// The registry can't be used.
    #[error("the registry can't be used")]
    Registry(#[from] StoreError),
}

/// Finds the tenant of a file that has a database.
pub type OwnerInFile<'o> = &'o (dyn Fn(PhysicalId) -> BoxFuture<'o, Option<String>> + Sync);

/// The nodes that are known to run.
type IsRunning<'r> = &'r (dyn Fn(&str) -> bool + Sync);

impl Eraser<'_> {
    /// Erases the tenant. `others` are all other tenants, and `owner_in_file` finds the one of a file that has a database.
    ///
    /// # Errors
    /// [`EraseError`].
    pub async fn run(
        &self,
        others: &[Arc<TenantConfig>],
        owner_in_file: OwnerInFile<'_>,
        is_running: IsRunning<'_>,
    ) -> Result<EraseOutcome, EraseError> {
        self.editor.check_owner(self.slug)?;
        let (tenant, found, erasure) = match self.registry.find_erasure(self.slug).await? {
            Some(erasure) => {
                let tenant = self.read(&erasure.text)?.config;
                // Its tables may be gone, and those of another account be found in their place, which is noticed below.
                let found = store::look_before_erasing(&tenant.database).await.unwrap_or_default();
                (tenant, found, erasure)
            }
            None => self.begin(others, owner_in_file).await?,
        };
        let Erasure { revision, certificates, database, text, .. } = erasure;
        let waited = self.registry.wait_for_release(revision, self.slug, self.wait, is_running).await?;
        let (nodes, silent) = waited;
        if !nodes.is_empty() {
            return Ok(EraseOutcome::Waiting { nodes, revision });
        }
        let mut receipt = Receipt { revision, erased: Vec::new(), kept: Vec::new() };
        let before = self.forget_keys(&found).await;
        let erased = store::erase(&tenant.database, database.as_deref()).await;
        let erased = erased.map_err(|cause| EraseError::Database { tenant: Arc::clone(&tenant), cause })?;
        // What a node sent to Redis when it let go may have arrived after the first time.
        let after = self.forget_keys(&found).await;
        let left = self.registry.finish_erasure(self.slug).await?;
        let present = database_of(&text).map(|database| without_password(&database));
        let is_other = |place: &String| Some(place) != present.as_ref();
        receipt.kept.extend(left.into_iter().filter(is_other).map(|left| {
            format!("the database {left}, which the account left by a move, or to which it was copied by one that did not end")
        }));
        let restored = found.restored.iter().filter(|place| is_other(place));
        receipt.kept.extend(
            restored.map(|place| format!("the database {place}, if the backup that was restored into it is there")),
        );
        match before.and_then(|before| Ok(before + after?)) {
            Ok(0) => {}
            Ok(count) => receipt.erased.push(format!("{count} keys in Redis: rate windows, minutes of usage")),
            Err(cause) => receipt.kept.push(format!("keys in Redis, which expire within two hours: {cause}")),
        }
        receipt.erased.extend(erased.erased);
        receipt.kept.extend(erased.kept);
        let hosts = tenant.hosts().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        receipt.erased.push(format!("the rows of the tenant in the registry, its hosts ({hosts}) and their events"));
        receipt.erased.extend(certificates.into_iter().map(|host| format!("the certificate of {host}")));
        receipt.erased.push("what live nodes had in memory and in their snapshots of the registry".to_owned());
        receipt.kept.push("the slug, in the list of changes of the registry".to_owned());
        receipt.kept.push("lines that were logged before, metrics that were collected before, and backups".to_owned());
        receipt.kept.extend(silent.into_iter().map(|node| {
            format!("what the node {node} has in memory and in its snapshot, until it follows the registry again: it did not confirm")
        }));
        if !self.registry.empty_log().await? {
            receipt
                .kept
                .push("what the write-ahead log of the registry has, which a program reads all the time".to_owned());
        }
        Ok(EraseOutcome::Erased(receipt))
    }

    /// Removes the tenant, if its database can be erased and is nobody else's.
    async fn begin(
        &self,
        others: &[Arc<TenantConfig>],
        owner_in_file: OwnerInFile<'_>,
    ) -> Result<(Arc<TenantConfig>, ErasableDatabase, Erasure), EraseError> {
        let absent = || ErasureRefused::Absent { slug: self.slug.to_owned() };
        let row = self.registry.find(self.slug).await?.ok_or_else(absent)?;
        let text = row.text.unwrap_or_default();
        let read = self.read(&text)?;
        let shares = tokio::task::block_in_place(|| editing::check_files(&[&read], others.iter()));
        shares.map_err(|(_, refused)| refused)?;
        let tenant = read.config;
        let looked = self.look(&tenant).await;
        let found = looked.map_err(|cause| EraseError::Database { tenant: Arc::clone(&tenant), cause })?;
        let owner = match found.physical_id {
            None => None,
            Some(id) => match self.registry.owner_of_database(self.slug, &id.to_string()).await? {
                None => owner_in_file(id).await,
                owner => owner,
            },
        };
        if let Some(owner) = owner {
            return Err(EraseError::Shared { owner });
        }
        let database = found.physical_id.map(|id| id.to_string());
        let expected = self.expected.or(Some(Some(row.revision)));
        let begun = self.registry.begin_erasure(self.slug, database.as_deref(), expected, Timestamp::now(), self.by);
        Ok((tenant, found, begun.await?))
    }

    fn read(&self, text: &str) -> Result<RegisteredTenant, EraseError> {
        RegisteredTenant::read(self.slug, text, self.editor.config, None).map_err(EraseError::Unreadable)
    }

    async fn look(&self, tenant: &TenantConfig) -> Result<ErasableDatabase, NotErasable> {
        let missing = tenant.database.file().filter(|file| file.try_exists().is_ok_and(|exists| !exists));
        if let Some(file) = missing
            && self.registry.nodes().await?.iter().filter(|node| node.is_live).count() > 1
        {
            return Err(NotErasable::NotHere { file: file.display().to_string() });
        }
        store::look_before_erasing(&tenant.database).await
    }

    /// Deletes the keys of the account in Redis. Returns how many there were.
    async fn forget_keys(&self, found: &ErasableDatabase) -> Result<u64, String> {
        let (Some(redis), Some(identity)) = (self.redis, &found.identity) else { return Ok(0) };
        let mut keys = quota::keys_of(self.slug, identity, &found.tokens);
        keys.extend(minutes::keys_of(self.slug, identity, Timestamp::now()));
        delete(redis, &keys).await
    }
}
