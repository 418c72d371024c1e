//! What this node last read of the registry, in a SQLite file that only its user can read.
//!
//! It has the tables of a registry, so that an increment costs what it changes. Texts contain the addresses of databases
//! with their passwords; they are sealed if the configuration has a key.
//!
//! The file has either every row up to its revision, or an older revision: increments are added only to a file that has
//! all rows before them. Otherwise, as after the start of a node that joins, or when the disk was full, all of the registry
//! is read once more.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::regular_file;
use crate::seal::Seals;
use crate::store::registry::{CertificateRecord, Head, RegistryMark, RegistryRow};
use crate::store::{DatabaseLocation, Registry, StoreError, with_causes};

/// The pause before all rows are written again to a file that could not be written.
///
/// Larger: a node is without a snapshot for longer. Smaller: a disk that stays full costs a read of all rows more often.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

/// How many certificates are removed in one statement.
///
/// Larger: a longer statement. Smaller: more of them.
const HOSTS_AT_ONCE: usize = 1_000;

/// Up to where certificates were taken over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakenCertificates {
    /// All up to this revision.
    pub(super) until: i64,
    /// Of the history that has this mark, which is no earlier.
    pub(super) of: RegistryMark,
}

impl TakenCertificates {
    fn stored(self) -> String {
        json!({ "until": self.until, "of": self.of.to_string() }).to_string()
    }

    fn read(stored: &str) -> Option<Self> {
        let stored: Value = serde_json::from_str(stored).ok()?;
        Some(Self { until: stored["until"].as_i64()?, of: stored["of"].as_str()?.parse().ok()? })
    }
}

/// The file. Faults are logged once: the registry is what matters, and it is there while a node writes here.
#[derive(Debug)]
pub(super) struct Snapshot {
    location: DatabaseLocation,
    seals: Seals,
    open: Option<Registry>,
    /// The change up to which the file has every row; `None` if unknown.
    revision: Option<i64>,
    /// When it could not be written.
    failed_at: Option<Instant>,
    /// Whether certificates are missing in the file.
    lacks_certificates: bool,
}

impl Snapshot {
    pub(super) fn new(location: &DatabaseLocation, seals: &Seals) -> Self {
        Self {
            location: location.clone(),
            seals: seals.clone(),
            open: None,
            revision: None,
            failed_at: None,
            lacks_certificates: false,
        }
    }

    /// The registry that the file is of. `None` if there is no file, or it can't be read.
    pub(super) async fn epoch(location: &DatabaseLocation) -> Option<String> {
        location.file().filter(|file| regular_file::exists(file))?;
        let registry = Registry::open(location).await.ok()?;
        let head = registry.head().await;
        registry.close().await;
        // Nothing was ever read into it.
        head.ok().filter(|head| head.revision > 0).map(|head| head.epoch)
    }

    /// The content of the file. `None` if there is no file, or it can't be read.
    pub(super) async fn read(location: &DatabaseLocation, seals: &Seals) -> Option<(Head, Vec<RegistryRow>)> {
        let file = location.file().filter(|file| regular_file::exists(file))?;
        let read = async {
            let registry = Registry::open(location).await?;
            let whole = super::loading::read_whole(&registry).await;
            registry.close().await;
            whole
        };
        let (head, rows) = match read.await {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(file = %file.display(), cause = with_causes(&error), "the snapshot can't be read");
                return None;
            }
        };
        let rows = rows.into_iter().map(|mut row| {
            row.text = row.text.map(|text| seals.open(&text, &row.slug)).transpose().ok()?;
            Some(row)
        });
        let rows: Option<Vec<_>> = rows.collect();
        if rows.is_none() {
            tracing::error!(file = %file.display(), "the snapshot is sealed with a key that is not configured");
        }
        // Nothing was ever read into it.
        Some((head, rows?)).filter(|(head, _)| head.revision > 0)
    }

    /// Keeps rows. With `is_whole`, there are no others. Without, they are the increments after what was kept; they are left
    /// out if the file lacks others.
    pub(super) async fn keep(&mut self, head: &Head, rows: &[RegistryRow], is_whole: bool) {
        if !is_whole && self.revision.is_none() {
            return;
        }
        let sealed: Vec<_> = rows
            .iter()
            .map(|row| {
                let text = row.text.as_ref().map(|text| self.seals.seal(text, &row.slug));
                RegistryRow { text, ..row.clone() }
            })
            .collect();
        let outcome = self.write(head, &sealed, is_whole).await;
        self.revision = outcome.is_ok().then_some(head.revision);
        self.note(&outcome);
    }

    /// Reads the certificates that the file has of a registry, some at a time. Returns up to where it has all of them.
    pub(super) async fn read_certificates(
        &mut self,
        epoch: &str,
        at_once: u32,
        mut take: impl FnMut(Vec<CertificateRecord>),
    ) -> TakenCertificates {
        let read = async {
            let mut taken = TakenCertificates::default();
            if !self.location.file().is_some_and(std::path::Path::exists) {
                return Ok(taken);
            }
            let registry = self.open().await?;
            if registry.head().await?.epoch == epoch {
                let mut after = String::new();
                loop {
                    let rows = registry.certificates_by_host(&after, at_once).await?;
                    let Some(row) = rows.last() else { break };
                    after.clone_from(&row.host);
                    take(rows);
                }
                taken = TakenCertificates::read(&registry.stored_counts().await?.counts).unwrap_or_default();
            }
            self.open = Some(registry);
            Ok::<_, StoreError>(taken)
        };
        read.await.unwrap_or_else(|error| {
            tracing::error!(cause = with_causes(&error), "the certificates of the snapshot can't be read");
            TakenCertificates::default()
        })
    }

    /// Keeps certificates.
    pub(super) async fn keep_certificates(&mut self, rows: &[CertificateRecord]) {
        self.change_certificates(async |registry| registry.copy_certificates(rows).await).await;
    }

    /// Removes the certificates of hosts that the registry no longer has.
    pub(super) async fn remove_certificates(&mut self, gone: &[String]) {
        for hosts in gone.chunks(HOSTS_AT_ONCE) {
            self.change_certificates(async |registry| registry.remove_certificates(hosts).await).await;
        }
    }

    /// Removes the certificates of tenants that were erased, and overwrites what the file had of them.
    pub(super) async fn forget(&mut self, slugs: &[String]) {
        let slugs: Vec<&str> = slugs.iter().map(String::as_str).collect();
        self.change_certificates(async |registry| {
            registry.remove_certificates_of(&slugs).await?;
            if !registry.empty_log().await? {
                tracing::warn!("a program reads the registry snapshot all the time; its log still has what was erased");
            }
            Ok(())
        })
        .await;
    }

    /// Notes up to where certificates were taken over and kept. After a fault, the file has an earlier place.
    pub(super) async fn note_certificates(&mut self, taken: TakenCertificates) {
        if !self.lacks_certificates {
            let text = taken.stored();
            self.change_certificates(async |registry| registry.store_counts(&text, Duration::ZERO).await).await;
        }
    }

    /// All certificates of the registry are written now, since the file lacks some.
    pub(super) fn begin_with_certificates(&mut self) {
        self.lacks_certificates = false;
    }

    async fn change_certificates(&mut self, change: impl AsyncFnOnce(&Registry) -> Result<(), StoreError>) {
        let outcome = async {
            let registry = self.open().await?;
            change(&registry).await?;
            self.open = Some(registry);
            Ok(())
        };
        let outcome = outcome.await;
        self.lacks_certificates |= outcome.is_err();
        self.note(&outcome);
    }

    /// Whether all certificates are to be written, since the file lacks some.
    pub(super) fn lacks_certificates(&self) -> bool {
        self.lacks_certificates && self.failed_at.is_none_or(|at| at.elapsed() >= RETRY_PAUSE)
    }

    fn note(&mut self, outcome: &Result<(), StoreError>) {
        match outcome {
            Err(error) if self.failed_at.is_none() => {
                let cause = with_causes(error);
                tracing::warn!(file = ?self.location, cause, "cannot write the registry snapshot");
            }
            Ok(()) if self.failed_at.is_some() => tracing::info!("registry snapshots are written again"),
            _ => {}
        }
        self.failed_at = outcome.is_err().then(Instant::now);
    }

    /// Whether all rows are to be written, since the file does not have every row that this node follows.
    pub(super) async fn lacks_rows(&mut self, followed: &Head) -> bool {
        if self.revision.is_some() || self.failed_at.is_some_and(|at| at.elapsed() < RETRY_PAUSE) {
            return false;
        }
        if self.failed_at.is_none() && self.is_at(followed).await {
            self.revision = Some(followed.revision);
        }
        self.revision.is_none()
    }

    /// Whether the file was complete when it was last written, by a node that ended, and nothing has changed since.
    async fn is_at(&self, followed: &Head) -> bool {
        if self.location.file().is_none_or(|file| !regular_file::exists(file)) {
            return false;
        }
        let Ok(file) = Registry::open(&self.location).await else { return false };
        let head = file.head().await;
        file.close().await;
        head.is_ok_and(|head| head == *followed)
    }

    /// The file, which is opened again after a fault.
    async fn open(&mut self) -> Result<Registry, StoreError> {
        match self.open.take() {
            Some(open) => Ok(open),
            None => Registry::open(&self.location).await,
        }
    }

    async fn write(&mut self, head: &Head, rows: &[RegistryRow], is_whole: bool) -> Result<(), StoreError> {
        let registry = self.open().await?;
        registry.copy(head, rows, is_whole).await?;
        if is_whole {
            // It may have had tenants that were erased meanwhile.
            registry.empty_log().await?;
        }
        self.open = Some(registry);
        Ok(())
    }
}
