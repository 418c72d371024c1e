//! `POST /v1/tenants/{slug}/import`: loads NDJSON into the database of a tenant, for products on other machines.
//!
//! The body is received whole into a file first, so that a slow client holds neither a lock nor a transaction. The file has no
//! name from the moment when it is created: nobody else can open it, and it is gone with this process, however that ends.

use std::collections::HashSet;
use std::env;
use std::fs::File;
use std::io::{self, BufReader, Seek};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use serde_json::json;

use super::Call;
use super::credentials::{find, of_tenant, open_own};
use super::refusal::OperatorRefusal;
use crate::config::{RequestLimits, TenantConfig};
use crate::import::{self, ImportError, Imported};
use crate::reply::Reply;
use crate::store::{AuditEntry, Events};

/// The largest body, before and after decoding, in bytes.
///
/// Larger: a mistake of one caller fills the disk. Smaller: the data of a large account has to be divided.
pub const MAX_UPLOAD: usize = 1 << 30;

/// How long a body may take to arrive, beyond its rate, which is that of other bodies.
///
/// Larger: a client that sends at the slowest rate holds its file for longer. Smaller: large bodies over slow lines are cut off.
const UPLOAD_LIMIT: Duration = Duration::from_hours(6);

/// How long a body may stall at its beginning.
///
/// Larger: an abandoned upload keeps others of its account away for longer. Smaller: a client that reads its own database while
/// it sends is cut off.
const UPLOAD_GRACE: Duration = Duration::from_secs(30);

/// How many imports a node receives or loads at once.
///
/// Larger: they take more of the disk. Smaller: those of many accounts wait for each other.
const MAX_IMPORTS: usize = 8;

/// The size of the read buffer in bytes.
///
/// Larger: more memory. Smaller: more system calls.
const BUFFER: usize = 1024 * 1024;

/// The limits of a body that is received into a file.
#[must_use]
pub fn upload_limits() -> RequestLimits {
    RequestLimits { body: UPLOAD_LIMIT, body_grace: UPLOAD_GRACE, ..RequestLimits::default() }
}

/// The tenants into which this node imports: one import at a time for each.
#[derive(Clone, Debug, Default)]
pub struct Imports(Arc<Mutex<HashSet<Arc<str>>>>);

impl Imports {
    fn begin(&self, slug: &Arc<str>) -> Result<ImportTurn, OperatorRefusal> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if running.contains(slug) {
            return Err(under_way(slug));
        }
        if running.len() >= MAX_IMPORTS {
            return Err(OperatorRefusal::TooManyWait);
        }
        running.insert(Arc::clone(slug));
        Ok(ImportTurn { of: self.clone(), slug: Arc::clone(slug) })
    }
}

/// One import. Dropping it lets the next one begin.
#[derive(Debug)]
struct ImportTurn {
    of: Imports,
    slug: Arc<str>,
}

impl Drop for ImportTurn {
    fn drop(&mut self) {
        self.of.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.slug);
    }
}

/// A body that is received into a file, for an import.
#[derive(Debug)]
pub(crate) struct Upload {
    tenant: Arc<TenantConfig>,
    events: Events,
    file: File,
    _turn: ImportTurn,
}

impl Upload {
    /// The file, to be written from its beginning.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// The response if the file can't be written.
    pub(crate) fn not_kept(error: io::Error) -> Reply {
        tracing::error!(%error, "an import can't be received into a file");
        OperatorRefusal::NoRoom(error).reply()
    }
}

/// Checks a call before its body is read, and opens the file.
pub(super) async fn begin(call: &Call<'_>) -> Result<Upload, OperatorRefusal> {
    let events = if call.query()?.flag("quiet")? { Events::Quiet } else { Events::Sent };
    let tenant = find(call, call.slug()).await?;
    let turn = call.api.imports.begin(&tenant.slug)?;
    let file = tokio::task::block_in_place(create_file).map_err(OperatorRefusal::NoRoom)?;
    Ok(Upload { tenant, events, file, _turn: turn })
}

/// A file without a name, where SQLite has its own temporary files too: `TMPDIR`, else `/var/tmp`, which unlike `/tmp` is on a
/// disk.
fn create_file() -> io::Result<File> {
    let folders = [env::var_os("TMPDIR").map(PathBuf::from), Some("/var/tmp".into()), Some("/tmp".into())];
    let mut outcome = Err(io::ErrorKind::NotFound.into());
    for folder in folders.into_iter().flatten() {
        outcome = tempfile::tempfile_in(folder);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Loads what was received.
pub(super) async fn load(call: &Call<'_>) -> Result<Reply, OperatorRefusal> {
    let Upload { tenant, events, file, .. } = call.upload.expect("the endpoint has a body that is a file");
    let _share = call.begin_to_use_database().await?;
    // It may be that of another tenant.
    open_own(call, tenant).await?.close().await;
    let mut input = file.try_clone().map_err(OperatorRefusal::NoRoom)?;
    input.rewind().map_err(OperatorRefusal::NoRoom)?;
    let audited = |imported: &Imported| {
        let (subject, details) = ("operator API".to_owned(), imported.details());
        Some((call.caller.actor(), AuditEntry { action: "import", subject, details }))
    };
    let input = BufReader::with_capacity(BUFFER, input);
    let imported = import::run_alone(&tenant.database, input, *events, audited).await.map_err(|error| match error {
        ImportError::Faulty(fault) => OperatorRefusal::of("line", fault.to_string()),
        ImportError::UnderWay => under_way(&tenant.slug),
        ImportError::Unreadable { source, .. } => OperatorRefusal::NoRoom(source),
        ImportError::Store(error) => of_tenant(tenant, &error),
    })?;
    let (slug, loaded, by) = (&*tenant.slug, imported.loaded(), &call.caller.name);
    tracing::info!(tenant = slug, loaded, by, "data imported through the operator API");
    Ok(Reply::json(StatusCode::OK, &json!({ "imported": loaded })))
}

fn under_way(slug: &str) -> OperatorRefusal {
    let message = format!("Another import into `{slug}` is under way");
    OperatorRefusal::Conflict { key: String::new(), message }
}
